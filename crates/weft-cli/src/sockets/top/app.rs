//! The state of `weft top`, and the effect of keys on it; independent of the terminal.

use std::collections::HashMap;
use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::grid::Grid;
use super::super::sample::{Id, Rates, Sample};

/// The possible intervals; the keys `-` and `+` step through them.
const INTERVALS: [Duration; 6] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

pub(super) struct App {
    sample: Sample,
    rates: HashMap<Id, Rates>,
    view: View,
    /// For each view, the column that its rows are sorted by, and whether in reverse.
    orders: [Order; 2],
    interval: Duration,
    /// Index of the first visible row.
    pub(super) first_row: usize,
    /// Number of rows that fit, as last drawn.
    pub(super) page: usize,
    is_paused: bool,
    is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Connections,
    Processes,
}

#[derive(Clone, Copy)]
pub(super) struct Order {
    pub(super) column: usize,
    pub(super) reversed: bool,
}

impl App {
    pub(super) fn new(sample: Sample, interval: Duration) -> Self {
        let rates = HashMap::new();
        let order = |grid: Grid| Order { column: grid.main_column, reversed: false };
        let connections = order(Grid::of_connections(&sample, Some(&rates)));
        let processes = order(Grid::of_processes(&sample, Some(&rates)));
        Self {
            sample,
            rates,
            view: View::Connections,
            orders: [connections, processes],
            interval,
            first_row: 0,
            page: 1,
            is_paused: false,
            is_over: false,
        }
    }

    pub(super) fn update(&mut self, sample: Sample) {
        self.rates = sample.rates(&self.sample);
        self.sample = sample;
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: KeyEvent) {
        if key.kind == KeyEventKind::Release {
            return;
        }
        let columns = self.grid().headings.len();
        let rows = self.grid().rows.len();
        let order = &mut self.orders[self.view as usize];
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.is_over = true;
            }
            KeyCode::Tab | KeyCode::Char('p') => {
                self.view = match self.view {
                    View::Connections => View::Processes,
                    View::Processes => View::Connections,
                };
                self.first_row = 0;
            }
            KeyCode::Left | KeyCode::Char('<') => order.column = order.column.saturating_sub(1),
            KeyCode::Right | KeyCode::Char('>') => {
                order.column = (order.column + 1).min(columns - 1);
            }
            KeyCode::Char('r') => order.reversed = !order.reversed,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('+') => {
                let longer = INTERVALS.into_iter().find(|&other| other > self.interval);
                self.interval = longer.unwrap_or(self.interval);
            }
            KeyCode::Char('-') => {
                let shorter = INTERVALS.into_iter().rev().find(|&other| other < self.interval);
                self.interval = shorter.unwrap_or(self.interval);
            }
            KeyCode::Up | KeyCode::Char('k') => self.first_row = self.first_row.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first_row += 1,
            KeyCode::PageUp => self.first_row = self.first_row.saturating_sub(self.page),
            KeyCode::PageDown => self.first_row += self.page,
            KeyCode::Home => self.first_row = 0,
            KeyCode::End => self.first_row = rows,
            _ => {}
        }
        self.first_row = self.first_row.min(rows.saturating_sub(self.page));
    }

    /// Returns the rows of the view, sorted.
    pub(super) fn grid(&self) -> Grid {
        let mut grid = match self.view {
            View::Connections => Grid::of_connections(&self.sample, Some(&self.rates)),
            View::Processes => Grid::of_processes(&self.sample, Some(&self.rates)),
        };
        let order = self.order();
        grid.sort(order.column, order.reversed);
        grid
    }

    pub(super) fn order(&self) -> Order {
        self.orders[self.view as usize]
    }

    pub(super) fn view(&self) -> View {
        self.view
    }

    pub(super) fn sample(&self) -> &Sample {
        &self.sample
    }

    /// Returns the rates of all connections, each with both directions.
    pub(super) fn rates(&self) -> impl Iterator<Item = &Rates> {
        self.rates.values()
    }

    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Instant;

    use super::super::super::sample::tests::{connection, sample};
    use super::*;

    /// Returns a state with three connections, of which the second is the busiest, and then the
    /// third.
    pub(in super::super) fn app() -> App {
        let start = Instant::now();
        let at = |seconds, bytes: [u64; 3]| {
            let connections = (1..).zip(bytes).map(|(slot, bytes)| connection(slot, bytes));
            sample(start + Duration::from_secs(seconds), connections.collect())
        };
        let mut app = App::new(at(0, [0; 3]), Duration::from_secs(1));
        app.update(at(1, [0, 9_000, 1_000]));
        app
    }

    fn press(app: &mut App, code: KeyCode) {
        app.press(KeyEvent::new(code, KeyModifiers::NONE));
    }

    fn first_column(app: &App) -> Vec<String> {
        app.grid().rows.iter().map(|row| row[0].to_string()).collect()
    }

    #[test]
    fn busiest_connection_is_first() {
        let mut app = app();
        assert_eq!(first_column(&app), ["redis-cli[102]", "redis-cli[103]", "redis-cli[101]"]);
        press(&mut app, KeyCode::Char('r'));
        assert_eq!(first_column(&app), ["redis-cli[101]", "redis-cli[103]", "redis-cli[102]"]);
    }

    #[test]
    fn rows_can_be_sorted_by_any_column() {
        let mut app = app();
        for _ in 0..100 {
            press(&mut app, KeyCode::Left);
        }
        assert_eq!(app.order().column, 0);
        assert_eq!(first_column(&app), ["redis-cli[101]", "redis-cli[102]", "redis-cli[103]"]);
        for _ in 0..100 {
            press(&mut app, KeyCode::Right);
        }
        assert_eq!(app.order().column, app.grid().headings.len() - 1);
    }

    #[test]
    fn each_view_keeps_its_sort_column() {
        let mut app = app();
        let before = app.order().column;
        press(&mut app, KeyCode::Right);
        press(&mut app, KeyCode::Tab);
        assert_eq!(app.view(), View::Processes);
        assert_eq!(app.grid().headings[app.order().column], "SENT/s");
        press(&mut app, KeyCode::Char('p'));
        assert_eq!(app.order().column, before + 1);
    }

    #[test]
    fn scrolling_stays_within_the_rows() {
        let mut app = app();
        app.page = 2;
        press(&mut app, KeyCode::Up);
        assert_eq!(app.first_row, 0);
        for code in [KeyCode::Down, KeyCode::Down, KeyCode::PageDown, KeyCode::End] {
            press(&mut app, code);
            assert_eq!(app.first_row, 1, "{code:?}");
        }
        press(&mut app, KeyCode::Home);
        assert_eq!(app.first_row, 0);
    }

    #[test]
    fn keys_change_the_interval_pause_and_quit() {
        let mut app = app();
        press(&mut app, KeyCode::Char('+'));
        assert_eq!(app.interval(), Duration::from_secs(2));
        (0..9).for_each(|_| press(&mut app, KeyCode::Char('-')));
        assert_eq!(app.interval(), INTERVALS[0]);
        press(&mut app, KeyCode::Char(' '));
        assert!(app.is_paused() && !app.is_over());
        press(&mut app, KeyCode::Char('c'));
        assert!(!app.is_over());
        app.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(app.is_over());
    }
}
