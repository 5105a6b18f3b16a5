//! A benchmark's primary value over its axis, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::Table;

const SIZE: (u32, u32) = (900, 420);
/// Distinguishable with the usual kinds of colour blindness (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(148, 103, 189),
];

/// The plot; `None` where there are no two places on the axis to draw a line between.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn svg(table: &Table) -> Result<Option<String>> {
    let series = series(table);
    let points = || series.iter().flat_map(|(_, points)| points.iter().copied());
    let Some(xs) = bounds(points().map(|(x, _)| x)) else { return Ok(None) };
    let Some(ys) = bounds(points().map(|(_, y)| y)) else { return Ok(None) };
    if xs.0 >= xs.1 {
        return Ok(None);
    }
    let mut picture = String::new();
    draw(&mut picture, table, &series, xs, ys).map_err(|error| anyhow!("{error}"))?;
    Ok(Some(picture))
}

/// Lines by what tells them apart. Places at 0 have none on a logarithmic axis.
fn series(table: &Table) -> Vec<(String, Vec<(f64, f64)>)> {
    let mut series: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    for row in &table.rows {
        let Some(value) = row.median(&table.primary).filter(|value| *value > 0.0) else { continue };
        let (name, point) = (row.series(), (row.x.max(1) as f64, value));
        match series.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push(point),
            None => series.push((name, vec![point])),
        }
    }
    series
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds: Option<(f64, f64)>, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

fn draw(
    picture: &mut String,
    table: &Table,
    series: &[(String, Vec<(f64, f64)>)],
    xs: (f64, f64),
    ys: (f64, f64),
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let unit_of = |name: &str| {
        let columns = table.columns();
        columns.iter().find(|(other, _)| *other == name).map_or("", |(_, unit)| unit).to_owned()
    };
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let x_axis = (xs.0..xs.1).log_scale();
    let y_axis = (ys.0 / 1.5..ys.1 * 1.5).log_scale();
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x_axis, y_axis)?;
    chart
        .configure_mesh()
        .x_desc(format!("{} {}", table.axis, table.axis_unit))
        .y_desc(format!("{} {}", table.primary, unit_of(&table.primary)))
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| super::short(*y))
        .draw()?;
    for (index, (name, points)) in series.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3),
            )?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;

    #[test]
    fn lines_have_names_and_one_place_makes_none() {
        let mut table = document().benchmarks.remove(0);
        let picture = svg(&table).expect("drawn").expect("two places");
        assert!(picture.contains("rc send poll") && picture.contains("size B"));
        table.rows.truncate(2);
        assert!(svg(&table).expect("nothing to draw").is_none());
    }
}
