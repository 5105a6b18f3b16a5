//! `weft target top`: what a target does now.

use std::io::{self, IsTerminal as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::termios::tcgetwinsize;

use super::ask::{ask, print_json};
use super::rates::{Rates, Sample};
use super::request::Request;
use crate::args::{ControlArgs, TargetTopArgs};
use crate::limits::FIRST_INTERVAL_MAX;
use crate::output;

/// Moves to the first line, and clears what is there.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

/// Shows each interval, until the target ends or nobody reads.
pub(super) fn top(args: &TargetTopArgs) -> Result<()> {
    let control = &args.control;
    let mut before = sample(control)?;
    if args.json {
        let (_, rates) = next(control, &before, args.interval)?;
        return print_json(&rates.json());
    }
    let is_terminal = io::stdout().is_terminal();
    // The first one comes soon.
    let mut interval =
        if is_terminal { args.interval.min(FIRST_INTERVAL_MAX) } else { args.interval };
    loop {
        let (now, rates) = next(control, &before, interval)?;
        let text = rates.text();
        let shown = if is_terminal { format!("{CLEAR}{}", fitting(&text)) } else { text + "\n" };
        match output::write(&shown) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            written => written.context("cannot write to standard output")?,
        }
        (before, interval) = (now, args.interval);
    }
}

/// A sample, and when it was taken.
type Taken = (Instant, Sample);

fn sample(control: &ControlArgs) -> Result<Taken> {
    let stats = ask(control, &Request::Stats)?;
    Ok((Instant::now(), Sample::parse(stats)?))
}

fn next(control: &ControlArgs, before: &Taken, interval: Duration) -> Result<(Taken, Rates)> {
    thread::sleep(interval);
    let now = sample(control)?;
    let rates = now.1.since(&before.1, now.0.duration_since(before.0));
    Ok((now, rates))
}

/// As many lines as the terminal has.
fn fitting(text: &str) -> String {
    let rows = tcgetwinsize(io::stdout()).map_or(24, |size| usize::from(size.ws_row));
    // The cursor is on the last one.
    let lines = text.lines().take(rows.saturating_sub(1).max(1));
    lines.flat_map(|line| [line, "\n"]).collect()
}
