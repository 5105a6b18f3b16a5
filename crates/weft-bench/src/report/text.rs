//! The report for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};

use super::{Document, Table, short};

/// Returns all tables, one below another.
pub(crate) fn text(document: &Document) -> String {
    let mut text = document.heading().join("\n");
    for table in &document.benchmarks {
        text.push_str(&format!("\n\n{}: {}\n{}", table.name, table.about, grid(table).trim_fmt()));
    }
    text.push('\n');
    text
}

fn grid(table: &Table) -> Grid {
    let (columns, labels, divisor) = (table.columns(), table.labels(), table.divisor());
    let mut header = vec![with_unit(&table.axis, &table.axis_unit)];
    header.extend(["over", "transport"].map(String::from));
    header.extend(labels.iter().map(|label| label.name.to_owned()));
    let first_value = header.len();
    header.extend(columns.iter().map(|(name, unit)| with_unit(name, unit)));
    header.extend(divisor.map(str::to_owned));

    let mut grid = Grid::new();
    grid.load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in &table.rows {
        let mut cells = vec![row.x.to_string(), row.over.clone(), row.transport.clone()];
        cells.extend(labels.iter().map(|label| (label.of)(row).to_owned()));
        let values = columns.iter().map(|(name, _)| row.median(name));
        cells.extend(values.map(|value| value.map(short).unwrap_or_default()));
        cells.extend(divisor.map(|_| row.ratio_text()));
        grid.add_row(cells);
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        if index == 0 || index >= first_value {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    grid
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::super::document::tests::document;
    use super::*;

    #[test]
    fn table_shows_only_differing_labels() {
        let text = text(&document());
        for part in ["latency: About.", "size B", "p50 us", "5.25", "tcp-sockets", "0.50"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("operation"), "all rows send");
    }
}
