//! Plots a value of a benchmark over its axis, as SVG.

use std::error::Error;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::Table;

const SIZE: (u32, u32) = (960, 400);
/// Width of the legend to the right of the plot, and height of one of its lines.
const NAMES_WIDTH: u32 = 230;
const NAME_HEIGHT: i32 = 20;
/// Colours that are distinguishable with common colour blindness (Okabe and Ito).
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

type Line = (String, Vec<(f64, f64)>);

/// Draws the plot of a value; `None` if the axis has fewer than two positions to draw a line
/// between.
///
/// # Errors
/// If it cannot be drawn.
pub(super) fn svg(table: &Table, value: &str) -> Result<Option<String>> {
    let columns = table.columns();
    let unit = columns.iter().find(|(name, _)| *name == value).map_or("", |(_, unit)| unit);
    // Percentages are compared by difference (linear axis), everything else by ratio.
    let is_share = unit == "%";
    let lines = lines(table, value, is_share);
    let points = || lines.iter().flat_map(|(_, points)| points.iter().copied());
    let (Some(xs), Some(ys)) = (bounds(points().map(|(x, _)| x)), bounds(points().map(|(_, y)| y)))
    else {
        return Ok(None);
    };
    if xs.0 >= xs.1 {
        return Ok(None);
    }
    let mut picture = String::new();
    let titles = (format!("{} {}", table.axis, table.axis_unit), format!("{value} {unit}"));
    let drawn = if is_share {
        draw(&mut picture, titles, &lines, xs, 0.0..ys.1.max(1.0) * 1.05)
    } else {
        draw(&mut picture, titles, &lines, xs, (ys.0 / 1.5..ys.1 * 1.5).log_scale())
    };
    drawn.map_err(|error| anyhow!("cannot draw {}: {error}", table.name))?;
    Ok(Some(picture))
}

/// Groups the values into lines. A logarithmic axis cannot show 0.
fn lines(table: &Table, value: &str, is_share: bool) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for row in &table.rows {
        let median = row.median(value).filter(|median| is_share || *median > 0.0);
        let Some(median) = median else { continue };
        let (name, point) = (table.series_of(row), (row.x.max(1) as f64, median));
        match lines.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push(point),
            None => lines.push((name, vec![point])),
        }
    }
    lines
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |bounds: Option<(f64, f64)>, value| {
        let (low, high) = bounds.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}

fn draw<Y>(
    picture: &mut String,
    (x_title, y_title): (String, String),
    lines: &[Line],
    xs: (f64, f64),
    y_axis: Y,
) -> std::result::Result<(), Box<dyn Error>>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let area = SVGBackend::with_string(picture, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .margin_right(NAMES_WIDTH)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d((xs.0..xs.1).log_scale(), y_axis)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(x_title)
        .y_desc(y_title)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| super::short(*y))
        .draw()?;
    let left = (SIZE.0 - NAMES_WIDTH) as i32 + 12;
    for (index, (name, points)) in (0i32..).zip(lines) {
        let colour = COLOURS[index as usize % COLOURS.len()];
        let style = colour.stroke_width(2);
        chart.draw_series(LineSeries::new(points.iter().copied(), style).point_size(3))?;
        let top = NAME_HEIGHT * (index + 1);
        area.draw(&PathElement::new([(left, top), (left + 18, top)], style))?;
        area.draw(&Text::new(name.as_str(), (left + 24, top - 6), ("sans-serif", 13)))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::document;
    use super::*;

    #[test]
    fn lines_have_names_and_need_two_points() {
        let mut table = document().benchmarks.remove(0);
        let picture = svg(&table, "p50").expect("drawn").expect("two places");
        assert!(picture.contains("tcp-sockets") && picture.contains("size B"));
        table.rows.truncate(2);
        assert!(svg(&table, "p50").expect("nothing to draw").is_none());
        assert!(svg(&table, "p51").expect("nothing to draw").is_none());
    }

    #[test]
    fn values_of_zero_are_plotted() {
        let mut table = document().benchmarks.remove(0);
        for value in table.rows.iter_mut().flat_map(|row| &mut row.values) {
            (value.unit, value.median) = ("%".into(), 0.0);
        }
        assert!(svg(&table, "p50").expect("drawn").is_some());
    }
}
