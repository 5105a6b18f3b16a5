//! `weft top`: the connections, live on the terminal.

mod app;
mod draw;
mod stop;

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use crossterm::event::{self, Event};
use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use self::app::App;
use self::stop::Stop;
use super::source;
use crate::limits::FIRST_INTERVAL_MAX;

/// Longest time between two checks for a signal that ends the program.
const SIGNAL_CHECK: Duration = Duration::from_millis(200);
/// How long crossterm waits for a possible event: with no time at all it does not check.
const EVENT_WAIT: Duration = Duration::from_millis(1);

/// Shows the connections of this user until `q` is pressed, a signal ends it or the terminal
/// closes. Afterwards, even after a panic, the terminal is restored.
///
/// # Errors
///
/// If standard input or output is not a terminal, or the terminal fails.
pub(crate) fn top(interval: Duration) -> Result<()> {
    ensure!(
        io::stdin().is_terminal() && io::stdout().is_terminal(),
        "it needs a terminal; `weft stat --watch` writes to anything"
    );
    let stop = Stop::on_signals()?;
    let result = ratatui::try_init()
        .context("cannot set up the terminal")
        .and_then(|mut terminal| show(&mut terminal, interval, &stop));
    ratatui::restore();
    stop.follow()?;
    result
}

fn show(terminal: &mut DefaultTerminal, interval: Duration, stop: &Stop) -> Result<()> {
    let mut app = App::new(source::sample(), interval);
    let mut due = Instant::now() + interval.min(FIRST_INTERVAL_MAX);
    let mut changed = true;
    while !app.is_over() && !stop.is_wanted() {
        if Instant::now() >= due {
            due = Instant::now() + app.interval();
            if !app.is_paused() {
                app.update(source::sample());
                changed = true;
            }
        }
        if changed {
            terminal.draw(|frame| draw::draw(frame, &mut app)).context("cannot draw")?;
            changed = false;
        }
        if !wait(due.saturating_duration_since(Instant::now()).min(SIGNAL_CHECK))? {
            break;
        }
        while event::poll(EVENT_WAIT).context("cannot read the terminal")? {
            if let Event::Key(key) = event::read().context("cannot read the terminal")? {
                app.press(key);
            }
            changed = true;
        }
    }
    Ok(())
}

/// Waits for input, a signal or the end of `timeout`. Returns `false` if the terminal is closed:
/// crossterm would then read EOF for ever.
fn wait(timeout: Duration) -> Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout)?;
    match rustix::event::poll(&mut terminal, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error).context("cannot wait for the terminal"),
    }
    Ok(!terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}
