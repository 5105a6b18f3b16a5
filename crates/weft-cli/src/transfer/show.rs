//! How far a copy is, and what has become of it.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use weft_transfer::end::{Finished, Loads, Observer, Progress};

use crate::output;

/// Time between two looks at the progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// `1.5 GiB`.
pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// Writes one event of `--json`.
fn event(value: &Value) {
    // A reader that has gone does not end the copy.
    let _ = output::write(&format!("{value}\n"));
}

/// Reports problems with entries.
pub(super) struct Problems {
    pub(super) is_json: bool,
}

impl Observer for Problems {
    fn problem(&self, path: &[u8], text: &str, is_warning: bool) {
        let path = String::from_utf8_lossy(path);
        if self.is_json {
            let kind = if is_warning { "warning" } else { "error" };
            event(&json!({"event": kind, "path": path, "text": text}));
        } else {
            let line = format!("{path}: {text}");
            output::complain(output::printable(&line));
        }
    }
}

/// Shows the progress until the other end of `over` is dropped.
pub(super) fn progress(progress: &Progress, is_json: bool, over: &Receiver<()>) {
    let is_shown = std::io::stderr().is_terminal();
    if !is_json && !is_shown {
        return;
    }
    let start = Instant::now();
    while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (bytes, planned) = (progress.bytes.load(SeqCst), progress.planned.load(SeqCst));
        let (entries, is_planned) =
            (progress.entries.load(SeqCst), progress.is_planned.load(SeqCst));
        let rate = bytes as f64 / start.elapsed().as_secs_f64().max(1e-3);
        if is_json {
            event(&json!({"event": "progress", "bytes": bytes, "rate": rate as u64,
                "found_bytes": planned, "found_entries": entries, "found_all": is_planned}));
            continue;
        }
        let mut line = format!("\r{} at {}/s", size(bytes), size(rate as u64));
        if is_planned && planned > 0 {
            let left = planned.saturating_sub(bytes) as f64 / rate.max(1.0);
            let share = (bytes as f64 * 100.0 / planned as f64).min(100.0);
            let _ = write!(line, ", {share:.0} % of {}, {left:.0} s left", size(planned));
        }
        let _ = write!(std::io::stderr(), "{line}\x1b[K");
    }
    if !is_json {
        let _ = write!(std::io::stderr(), "\r\x1b[K");
    }
}

/// What was the busiest, in words.
fn bound(finished: &Finished) -> (&'static str, u16) {
    let Finished { source, sink, .. } = finished;
    let loads = [
        ("reading at the source", source.disk),
        ("encryption at the source", source.cpu),
        ("the network", source.network),
        ("decryption at the sink", sink.cpu),
        ("writing at the sink", sink.disk),
    ];
    loads.into_iter().max_by_key(|(_, share)| *share).unwrap_or(("the network", 0))
}

/// Says what has become of a copy.
pub(super) fn summary(finished: &Finished, took: Duration, is_json: bool) {
    let outcome = finished.outcome;
    let rate = outcome.bytes as f64 / took.as_secs_f64().max(1e-6);
    let (what, share) = bound(finished);
    if is_json {
        let loads = |it: Loads| json!({"disk": it.disk, "cpu": it.cpu, "network": it.network});
        return event(
            &json!({"event": "summary", "copied": outcome.copied, "bytes": outcome.bytes,
            "unchanged": outcome.unchanged, "deleted": outcome.deleted, "failed": outcome.failed,
            "warnings": outcome.warnings, "seconds": took.as_secs_f64(), "rate": rate as u64,
            "bound": what, "source": loads(finished.source), "sink": loads(finished.sink)}),
        );
    }
    let mut line = format!(
        "copied {} files, {} in {:.2} s ({}/s)",
        outcome.copied,
        size(outcome.bytes),
        took.as_secs_f64(),
        size(rate as u64)
    );
    for (count, text) in [
        (outcome.unchanged, "unchanged"),
        (outcome.deleted, "deleted"),
        (outcome.failed, "failed"),
        (outcome.warnings, "with warnings"),
    ] {
        if count > 0 {
            let _ = write!(line, ", {count} {text}");
        }
    }
    let _ = writeln!(line, "; busiest: {what} ({} %)", share / 10);
    let _ = output::write(&line);
}
