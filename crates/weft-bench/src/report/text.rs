//! The report for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table as Grid, presets};

use super::{Document, Table, short};

/// All tables below each other.
pub(crate) fn text(document: &Document) -> String {
    let mut text = document.heading().join("\n");
    for table in &document.benchmarks {
        text.push_str(&format!("\n\n{}: {}\n{}", table.name, table.about, grid(table).trim_fmt()));
    }
    text.push('\n');
    text
}

fn grid(table: &Table) -> Grid {
    let columns = table.columns();
    // A column that says the same of all rows says nothing.
    let shows_operation = differs(table, |row| &row.operation);
    let shows_wait = differs(table, |row| &row.wait);
    let shows_variant = differs(table, |row| &row.variant);
    let mut header = vec![with_unit(&table.axis, &table.axis_unit)];
    header.extend(["over", "transport"].map(String::from));
    let optional = [(shows_operation, "operation"), (shows_wait, "wait"), (shows_variant, "kind")];
    header.extend(optional.iter().filter(|(shows, _)| *shows).map(|(_, name)| (*name).to_owned()));
    let labels = header.len();
    header.extend(columns.iter().map(|(name, unit)| with_unit(name, unit)));
    let compares = table.compares();
    header.extend(compares.then(|| "/ sockets".to_owned()));

    let mut grid = Grid::new();
    grid.load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(header);
    for row in &table.rows {
        let mut cells = vec![row.x.to_string(), row.over.clone(), row.transport.clone()];
        let optional = [
            (shows_operation, &row.operation),
            (shows_wait, &row.wait),
            (shows_variant, &row.variant),
        ];
        cells.extend(optional.iter().filter(|(shows, _)| *shows).map(|(_, text)| (*text).clone()));
        cells.extend(
            columns.iter().map(|(name, _)| row.median(name).map(short).unwrap_or_default()),
        );
        cells.extend(compares.then(|| row.ratio_text()));
        grid.add_row(cells);
    }
    for (index, column) in grid.column_iter_mut().enumerate() {
        if index == 0 || index >= labels {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    grid
}

fn differs(table: &Table, of: impl Fn(&super::Row) -> &String) -> bool {
    table.rows.windows(2).any(|pair| of(&pair[0]) != of(&pair[1]))
}

fn with_unit(name: &str, unit: &str) -> String {
    if unit.is_empty() { name.to_owned() } else { format!("{name} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::document;
    use super::*;

    #[test]
    fn a_table_has_what_differs() {
        let text = text(&document());
        for part in ["latency: About.", "size B", "p50 us", "5.25", "tcp-sockets", "0.50"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("operation"), "all rows send");
    }
}
