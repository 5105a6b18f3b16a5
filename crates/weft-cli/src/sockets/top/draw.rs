//! Draws one frame of `weft top`: the headline, the table, the keys.

use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Row, Table};

use super::super::grid::{Grid, short};
use super::super::sample::Rate;
use super::super::stat::summary;
use super::app::{App, View};

/// The leading columns, which name a row and stay when the others scroll.
const FIXED_COLUMNS: usize = 2;
const COLUMN_GAP: u16 = 2;
const KEYS: &str =
    "q quit  Tab connections/processes  <> sort by  r reverse  space pause  -+ interval  jk scroll";

pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let areas = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ]);
    let [head, _, body, foot] = areas.areas(frame.area());
    frame.render_widget(Text::from(headline(app)), head);
    draw_grid(frame, app, body);
    frame.render_widget(Line::styled(KEYS, Modifier::DIM), foot);
}

fn headline(app: &App) -> Vec<Line<'static>> {
    let mut all = Rate::default();
    for rates in app.rates() {
        all.add(rates.to_server);
        all.add(rates.to_client);
    }
    let view = match app.view() {
        View::Connections => "connections",
        View::Processes => "processes",
    };
    let state = if app.is_paused() { ", paused" } else { "" };
    let first = format!(
        "weft top: {view}, every {} s{state}; {}/s, {} messages/s, {} stalls/s, {} wakeups/s",
        app.interval().as_secs_f64(),
        short(all.bytes, "B"),
        short(all.messages, ""),
        short(all.stalls, ""),
        short(all.wakeups, ""),
    );
    vec![Line::styled(first, Modifier::BOLD), Line::from(summary(app.sample()))]
}

fn draw_grid(frame: &mut Frame<'_>, app: &mut App, area: Rect) {
    let grid = app.grid();
    app.page = usize::from(area.height.saturating_sub(1)).max(1);
    app.first_row = app.first_row.min(grid.rows.len().saturating_sub(app.page));
    let widths = widths(&grid);
    let columns = visible(&widths, app.order().column, area.width);
    let rows = grid.rows.iter().skip(app.first_row).take(app.page).map(|row| {
        Row::new(columns.iter().map(|&column| {
            let cell = &row[column];
            let side = if cell.is_number() { Alignment::Right } else { Alignment::Left };
            Text::from(cell.to_string()).alignment(side)
        }))
    });
    let numbers = |column: usize| grid.rows.first().is_some_and(|row| row[column].is_number());
    let header = Row::new(columns.iter().map(|&column| {
        let sorted = column == app.order().column;
        let style = if sorted { Modifier::REVERSED | Modifier::BOLD } else { Modifier::BOLD };
        let side = if numbers(column) { Alignment::Right } else { Alignment::Left };
        Text::styled(grid.headings[column], Style::from(style)).alignment(side)
    }));
    let lengths = columns.iter().map(|&column| Constraint::Length(widths[column]));
    let table = Table::new(rows, lengths).header(header).column_spacing(COLUMN_GAP);
    frame.render_widget(table, area);
}

/// Returns the width that each column needs.
fn widths(grid: &Grid) -> Vec<u16> {
    let columns = 0..grid.headings.len();
    let width = |column: usize| {
        let cells = grid.rows.iter().map(|row| Text::from(row[column].to_string()).width());
        let widest = cells.max().unwrap_or_default().max(grid.headings[column].len());
        u16::try_from(widest).unwrap_or(u16::MAX)
    };
    columns.map(width).collect()
}

/// Returns the columns that fit into `width`: the fixed ones, the sort column with as many before
/// it as necessary, and those after it that fit.
fn visible(widths: &[u16], ordered_by: usize, width: u16) -> Vec<usize> {
    let fixed: Vec<usize> = (0..FIXED_COLUMNS.min(widths.len())).collect();
    let space = |columns: &[usize]| -> u32 {
        columns.iter().map(|&column| u32::from(widths[column]) + u32::from(COLUMN_GAP)).sum()
    };
    // The last column needs no gap after it.
    let room = u32::from(width) + u32::from(COLUMN_GAP);
    let from = |first: usize| -> Vec<usize> {
        let mut columns = fixed.clone();
        for column in first..widths.len() {
            columns.push(column);
            if space(&columns) > room {
                columns.pop();
                break;
            }
        }
        columns
    };
    let starts = FIXED_COLUMNS..ordered_by.max(FIXED_COLUMNS + 1);
    let mut shown = starts.map(from);
    shown
        .find(|columns| columns.contains(&ordered_by) || ordered_by < FIXED_COLUMNS)
        .unwrap_or_else(|| from(ordered_by.max(FIXED_COLUMNS)))
}

#[cfg(test)]
mod tests {
    use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::app::tests::app;
    use super::*;

    fn screen(app: &mut App, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, app)).unwrap();
        let cells = terminal.backend().buffer();
        (0..height)
            .map(|y| (0..width).map(|x| cells[(x, y)].symbol()).collect::<String>())
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    #[test]
    fn frame_has_headline_table_and_keys() {
        let lines = screen(&mut app(), 120, 8);
        assert!(
            lines[0].starts_with("weft top: connections, every 1 s; 20.0 kB/s, 200 messages/s")
        );
        assert!(lines[1].starts_with("3 open; since the start: 7 offered, 5 joined"));
        assert!(lines[3].starts_with("CLIENT"), "{lines:#?}");
        assert!(lines[4].contains("redis-cli[102]") && lines[4].contains("9.00 kB"));
        assert!(lines[6].contains("redis-cli[101]"));
        assert!(lines[7].starts_with("q quit"));
    }

    #[test]
    fn sort_column_is_marked() {
        let mut terminal = Terminal::new(TestBackend::new(120, 8)).unwrap();
        terminal.draw(|frame| draw(frame, &mut app())).unwrap();
        let cells = terminal.backend().buffer();
        let marked = (0..120).filter(|&x| cells[(x, 3)].modifier.contains(Modifier::REVERSED));
        let marked: String = marked.map(|x| cells[(x, 3)].symbol()).collect();
        assert_eq!(marked, "TO SERVER/s");
    }

    #[test]
    fn rows_that_do_not_fit_can_be_scrolled_to() {
        let mut app = app();
        assert!(!screen(&mut app, 80, 6).concat().contains("redis-cli[101]"));
        app.press(KeyEvent::new(KeyCode::End, KeyModifiers::NONE));
        assert!(screen(&mut app, 80, 6).concat().contains("redis-cli[101]"));
        assert!(screen(&mut app, 80, 20).concat().contains("redis-cli[102]"), "resized: all fit");
    }

    #[test]
    fn any_terminal_size_and_sort_column_can_be_drawn() {
        for (width, height) in [(1, 1), (2, 3), (20, 5), (79, 24), (400, 100)] {
            let mut app = app();
            for code in [KeyCode::Right; 16].into_iter().chain([KeyCode::Tab]) {
                screen(&mut app, width, height);
                app.press(KeyEvent::new(code, KeyModifiers::NONE));
            }
            screen(&mut app, width, height);
        }
    }

    #[test]
    fn sort_column_is_visible() {
        let widths = [10, 10, 5, 5, 5, 5];
        assert_eq!(visible(&widths, 2, 100), [0, 1, 2, 3, 4, 5]);
        assert_eq!(visible(&widths, 2, 31), [0, 1, 2]);
        assert_eq!(visible(&widths, 0, 38), [0, 1, 2, 3]);
        assert_eq!(visible(&widths, 4, 38), [0, 1, 3, 4]);
        assert_eq!(visible(&widths, 5, 31), [0, 1, 5]);
        assert_eq!(visible(&widths, 5, 5), [0, 1]);
    }
}
