//! Shows the progress and the result of a copy.

use std::fmt::Write as _;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use weft_transfer::end::{Finished, Loads, Observer, Planned, Progress};
use weft_transfer::tree::apply::{Change, EntryKind};

use crate::output;

/// Interval between two updates of the progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// The progress line while the total is unknown.
const UNPLANNED: &str = "{binary_bytes} at {binary_bytes_per_sec}";
/// The progress line when the total is known.
const PLANNED: &str =
    "{binary_bytes} at {binary_bytes_per_sec}, {percent} % of {binary_total_bytes}, {eta} left";

/// Prints one event of `--json`.
fn event(value: &Value) {
    // A closed pipe does not end the copy.
    let _ = output::write(&format!("{value}\n"));
}

/// The progress line on standard error.
#[derive(Clone)]
pub(super) struct Line {
    bar: ProgressBar,
    planned: ProgressStyle,
}

impl Line {
    /// Creates the line. It is shown if standard error is a terminal and the line `is_wanted`.
    pub(super) fn new(is_wanted: bool) -> Result<Self> {
        let bar = if is_wanted { ProgressBar::no_length() } else { ProgressBar::hidden() };
        Ok(Self {
            bar: bar.with_style(ProgressStyle::with_template(UNPLANNED)?),
            planned: ProgressStyle::with_template(PLANNED)?,
        })
    }

    /// Shows how many bytes have been copied, of `planned` ones if the total is known.
    fn show(&self, bytes: u64, planned: Option<u64>) {
        if let Some(planned) = planned.filter(|_| self.bar.length().is_none()) {
            self.bar.set_length(planned);
            self.bar.set_style(self.planned.clone());
        }
        self.bar.set_position(bytes);
    }
}

/// Reports problems with entries.
pub(super) struct Problems {
    pub(super) is_json: bool,
    /// The progress line, which is hidden while a problem is printed.
    pub(super) line: Line,
}

impl Observer for Problems {
    fn problem(&self, path: &[u8], text: &str, is_warning: bool) {
        let path = String::from_utf8_lossy(path);
        if self.is_json {
            let kind = if is_warning { "warning" } else { "error" };
            event(&json!({"event": kind, "path": path, "text": text}));
        } else {
            let message = output::printable(&format!("{path}: {text}"));
            self.line.bar.suspend(|| output::complain(message));
        }
    }

    fn planned(&self, planned: &Planned) {
        let Planned { change, kind, size, path } = planned;
        let path = String::from_utf8_lossy(path);
        let action = match change {
            Change::Copy => "copy",
            Change::Update => "update",
            Change::Attributes => "attributes",
            Change::Delete => "delete",
        };
        if self.is_json {
            let kind = match kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Symlink => "symlink",
                EntryKind::HardLink => "hard-link",
                EntryKind::Special => "special",
            };
            let mut value = json!({"event": "plan", "action": action, "kind": kind, "path": path});
            if kind == "file" && *change != Change::Delete {
                value["size"] = json!(size);
            }
            return event(&value);
        }
        let slash = if *kind == EntryKind::Directory { "/" } else { "" };
        let path = if path.is_empty() { "." } else { &path };
        let text = output::printable(&format!("{action:<10} {path}{slash}"));
        // A closed pipe does not end the copy.
        let _ = output::write(&format!("{text}\n"));
    }
}

/// Shows the progress on the `line`, or as events, until the sender of `over` is dropped.
pub(super) fn progress(progress: &Progress, is_json: bool, line: &Line, over: &Receiver<()>) {
    if !is_json && line.bar.is_hidden() {
        return;
    }
    let start = Instant::now();
    while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (bytes, planned) = (progress.bytes.load(SeqCst), progress.planned.load(SeqCst));
        let (entries, is_planned) =
            (progress.entries.load(SeqCst), progress.is_planned.load(SeqCst));
        if is_json {
            let rate = bytes as f64 / start.elapsed().as_secs_f64().max(1e-3);
            event(&json!({"event": "progress", "bytes": bytes, "rate": rate as u64,
                "found_bytes": planned, "found_entries": entries, "found_all": is_planned}));
        } else {
            line.show(bytes, (is_planned && planned > 0).then_some(planned));
        }
    }
    line.bar.finish_and_clear();
}

/// Returns the busiest resource in words, and its load.
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

/// The form of the summary.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) is_json: bool,
    pub(super) is_dry_run: bool,
}

/// Prints the result of a copy.
pub(super) fn summary(finished: &Finished, took: Duration, shown: Shown) {
    let Shown { is_json, is_dry_run } = shown;
    let outcome = finished.outcome;
    let rate = outcome.bytes as f64 / took.as_secs_f64().max(1e-6);
    let (what, share) = bound(finished);
    if is_json {
        let loads = |it: Loads| json!({"disk": it.disk, "cpu": it.cpu, "network": it.network});
        return event(&json!({"event": "summary", "dry_run": is_dry_run,
            "copied": outcome.copied, "bytes": outcome.bytes,
            "unchanged": outcome.unchanged, "deleted": outcome.deleted, "failed": outcome.failed,
            "warnings": outcome.warnings, "seconds": took.as_secs_f64(), "rate": rate as u64,
            "bound": what, "source": loads(finished.source), "sink": loads(finished.sink)}));
    }
    let (files, bytes) = (outcome.copied, BinaryBytes(outcome.bytes));
    let mut line = match is_dry_run {
        true => format!("would copy {files} files, {bytes}"),
        false => format!(
            "copied {files} files, {bytes} in {:.2} s ({}/s)",
            took.as_secs_f64(),
            BinaryBytes(rate as u64)
        ),
    };
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
    let _ = match is_dry_run {
        true => writeln!(line),
        false => writeln!(line, "; busiest: {what} ({} %)", share / 10),
    };
    let _ = output::write(&line);
}
