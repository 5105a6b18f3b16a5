//! Shows the progress and the result of a copy.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use weft_sys::lock;
use weft_transfer::compress::Compression;
use weft_transfer::end::{
    Carrier, Compressed, Decisions, Finished, Loads, Observer, Planned, Progress,
};
use weft_transfer::placement::{Placement, cpu_list};
use weft_transfer::secure::Cipher;
use weft_transfer::transport::tcp::Congestion;
use weft_transfer::tree::apply::{Change, EntryKind};
use weft_transfer::tree::direct::When;

use super::stages;
use crate::output::{self, Stream};

/// Interval between two updates of the progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// The progress line while the total is unknown.
const UNPLANNED: &str = "{binary_bytes} at {binary_bytes_per_sec}";
/// The progress line when the total is known.
const PLANNED: &str =
    "{binary_bytes} at {binary_bytes_per_sec}, {percent} % of {binary_total_bytes}, {eta} left";

/// Prints one event of `--json`.
fn event(stream: Stream, value: &Value) {
    // A closed pipe does not end the copy.
    let _ = stream.write(&format!("{value}\n"));
}

/// Prints the event of a copy that has failed.
pub(super) fn failure(stream: Stream, text: &str) {
    event(stream, &json!({"event": "failed", "text": text}));
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
    is_json: bool,
    is_dry_run: bool,
    /// Whether it reports how the copy is made.
    explains: bool,
    has_explained: AtomicBool,
    /// The stream of events and changes.
    stream: Stream,
    /// The progress line, which is hidden while a problem is printed.
    line: Line,
    chosen: Mutex<Option<Chosen>>,
    /// The paths of entries to copy once more.
    again: Mutex<Vec<Vec<u8>>>,
    /// Whether the other end has accepted the copy, since the last attempt began.
    is_open: AtomicBool,
}

impl Problems {
    pub(super) fn new(shown: Shown, line: Line) -> Self {
        let Shown { is_json, is_dry_run, explains, stream } = shown;
        let (chosen, is_open) = (Mutex::default(), AtomicBool::new(false));
        let (again, has_explained) = (Mutex::default(), AtomicBool::new(false));
        Self { is_json, is_dry_run, explains, has_explained, stream, line, chosen, again, is_open }
    }

    /// Begins an attempt of the copy.
    pub(super) fn begin(&self) {
        self.is_open.store(false, SeqCst);
        lock(&self.again).clear();
    }

    /// Whether the other end has accepted the copy in this attempt.
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(SeqCst)
    }

    /// Returns the paths of the entries to copy once more, and forgets them.
    pub(super) fn take_again(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *lock(&self.again))
    }

    /// Returns what carried the blocks last.
    pub(super) fn chosen(&self) -> Option<Chosen> {
        lock(&self.chosen).clone()
    }

    /// Reports that the connection was lost, and that others are made for `time`.
    pub(super) fn lost(&self, error: &anyhow::Error, time: Duration) {
        let (text, seconds) = (error.root_cause().to_string(), time.as_secs());
        if self.is_json {
            let value = json!({"event": "lost", "text": text, "retry_for": seconds});
            return event(self.stream, &value);
        }
        let message = format!("the connection was lost ({text}); connecting again for {seconds} s");
        self.line.bar.suspend(|| output::complain(output::printable(&message)));
    }
}

/// What carries the blocks, and why nothing faster does.
#[derive(Clone)]
pub(super) struct Chosen {
    carrier: Carrier,
    why: Option<String>,
}

impl Chosen {
    /// Its name in events, and the words for users.
    fn words(&self) -> (&'static str, &'static str) {
        match self.carrier {
            Carrier::Memory => ("memory", "through shared memory"),
            Carrier::Fabric => ("fabric", "by iWARP"),
            Carrier::Rdma => ("rdma", "by RDMA"),
            Carrier::Tcp => ("tcp", "by TCP"),
            Carrier::Shell => ("shell", "through the remote shell"),
            Carrier::Direct => ("direct", "from server to server"),
            Carrier::Relay => ("relay", "through this host"),
        }
    }
}

impl Observer for Problems {
    fn problem(&self, path: &[u8], text: &str, is_warning: bool) {
        let path = String::from_utf8_lossy(path);
        if self.is_json {
            let kind = if is_warning { "warning" } else { "error" };
            event(self.stream, &json!({"event": kind, "path": path, "text": text}));
        } else {
            let of = if path.is_empty() { String::new() } else { format!("{path}: ") };
            let message = output::printable(&format!("{of}{text}"));
            self.line.bar.suspend(|| output::complain(message));
        }
    }

    fn again(&self, path: &[u8]) {
        lock(&self.again).push(path.to_vec());
    }

    fn chosen(&self, carrier: Carrier, why: Option<&str>) {
        *lock(&self.chosen) = Some(Chosen { carrier, why: why.map(str::to_owned) });
    }

    fn decided(&self, decisions: &Decisions) {
        self.is_open.store(true, SeqCst);
        if !self.explains || self.has_explained.swap(true, SeqCst) {
            return;
        }
        if self.is_json {
            return event(self.stream, &decisions_event(decisions));
        }
        // A closed pipe does not end the copy.
        let _ = self.stream.write(&explanation(decisions));
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
            let name = if self.is_dry_run { "plan" } else { "change" };
            let mut value = json!({"event": name, "action": action, "kind": kind, "path": path});
            if kind == "file" && *change != Change::Delete {
                value["size"] = json!(size);
            }
            return event(self.stream, &value);
        }
        let slash = if *kind == EntryKind::Directory { "/" } else { "" };
        let path = if path.is_empty() { "." } else { &path };
        let text = output::printable(&format!("{action:<10} {path}{slash}"));
        // A closed pipe does not end the copy.
        self.line.bar.suspend(|| drop(self.stream.write(&format!("{text}\n"))));
    }
}

/// Returns how a copy is made, in words.
fn explanation(decisions: &Decisions) -> String {
    let Decisions { channels, threads, blocks, placement, .. } = decisions;
    let way = match decisions.carrier {
        Some(Carrier::Memory) => format!("through shared memory, {channels} connections"),
        Some(Carrier::Fabric) => format!("by iWARP, {channels} connections"),
        Some(Carrier::Rdma) => format!("by RDMA, {channels} connections"),
        Some(Carrier::Tcp) => format!("by TCP, {channels} connections"),
        Some(Carrier::Shell) => "through the remote shell".to_owned(),
        Some(Carrier::Direct) => {
            format!("from server to server by TCP, at most {channels} connections")
        }
        Some(Carrier::Relay) => {
            format!("through this host by TCP, {channels} connections to each server")
        }
        None => "within this process".to_owned(),
    };
    let round_trip = decisions.round_trip.map_or_else(String::new, |time| {
        format!("round trip: {:.1} ms\n", time.as_secs_f64() * 1e3)
    });
    let congestion = match decisions.carrier {
        Some(Carrier::Tcp | Carrier::Direct | Carrier::Relay) => {
            format!("congestion control: {}\n", decisions.congestion)
        }
        _ => String::new(),
    };
    let encryption = match (decisions.cipher, decisions.carrier) {
        (Some(cipher), _) => cipher_name(cipher),
        (None, Some(Carrier::Shell)) => "that of the remote shell",
        (None, Some(Carrier::Memory)) => "none, as the data stays on this host",
        (None, Some(_)) => "none, as --clear asks",
        (None, None) => "none, as the data stays on this host",
    };
    let compression = match decisions.compression {
        Compression::Never => "none",
        Compression::Auto => "by Zstandard, while that is faster than the network",
        Compression::Always => "by Zstandard, of all blocks that become smaller",
    };
    let files = match (decisions.direct, decisions.is_copied_by_kernel) {
        (_, true) => "the kernel copies the data of large ones".to_owned(),
        (When::Always, false) => "large ones past the page cache".to_owned(),
        (When::Never, false) => "through the page cache".to_owned(),
        (When::Beyond(most), false) => {
            let most = BinaryBytes(most);
            format!("through the page cache; on disks, those of more than {most} past it")
        }
    };
    let size = BinaryBytes(decisions.block_size.into());
    format!(
        "data: {way}\nblocks: {size}, at most {blocks} at each end\nthreads for files: {threads}\n\
         processors: {placement}\nencryption: {encryption}\ncompression: {compression}\n\
         files: {files}\n{congestion}{round_trip}"
    )
}

fn cipher_name(cipher: Cipher) -> &'static str {
    match cipher {
        Cipher::Aes128Gcm => "AES-128-GCM",
        Cipher::ChaCha20Poly1305 => "ChaCha20-Poly1305",
    }
}

/// Returns the event of how a copy is made.
fn decisions_event(decisions: &Decisions) -> Value {
    let carrier = match decisions.carrier {
        Some(Carrier::Memory) => "memory",
        Some(Carrier::Fabric) => "fabric",
        Some(Carrier::Rdma) => "rdma",
        Some(Carrier::Tcp) => "tcp",
        Some(Carrier::Shell) => "shell",
        Some(Carrier::Direct) => "direct",
        Some(Carrier::Relay) => "relay",
        None => "process",
    };
    let compression = match decisions.compression {
        Compression::Never => "none",
        Compression::Auto => "auto",
        Compression::Always => "zstd",
    };
    let congestion = match &decisions.congestion {
        Congestion::Named(name) => name,
        Congestion::System => "system",
        Congestion::ByPath => "auto",
    };
    let (direct, beyond) = match decisions.direct {
        When::Always => ("always", None),
        When::Never => ("never", None),
        When::Beyond(most) => ("auto", Some(most)),
    };
    let (nodes, cpus, reason) = match &decisions.placement {
        Placement::Bound { nodes, cpus, .. } => (Some(nodes), Some(cpu_list(cpus)), None),
        Placement::Anywhere(reason) => (None, None, Some(reason.to_string())),
    };
    json!({"event": "decisions", "data": carrier, "channels": decisions.channels,
        "round_trip_us": decisions.round_trip.map(|time| time.as_micros()),
        "block_size": decisions.block_size, "blocks": decisions.blocks,
        "threads": decisions.threads,
        "nodes": nodes, "cpus": cpus, "unbound_reason": reason,
        "cipher": decisions.cipher.map(cipher_name),
        "compression": compression, "congestion": congestion,
        "direct": direct, "direct_beyond": beyond,
        "copied_by_kernel": decisions.is_copied_by_kernel})
}

/// Shows the progress on the `line`, or as events on the stream `events`, until the sender of
/// `over` is dropped.
pub(super) fn progress(
    progress: &Progress,
    events: Option<Stream>,
    line: &Line,
    over: &Receiver<()>,
) {
    if events.is_none() && line.bar.is_hidden() {
        return;
    }
    let start = Instant::now();
    while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let (bytes, planned) = (progress.bytes.load(SeqCst), progress.planned.load(SeqCst));
        let (entries, is_planned) =
            (progress.entries.load(SeqCst), progress.is_planned.load(SeqCst));
        if let Some(stream) = events {
            let rate = bytes as f64 / start.elapsed().as_secs_f64().max(1e-3);
            let value = json!({"event": "progress", "bytes": bytes, "rate": rate as u64,
                "found_bytes": planned, "found_entries": entries, "found_all": is_planned});
            event(stream, &value);
        } else {
            line.show(bytes, (is_planned && planned > 0).then_some(planned));
        }
    }
    line.bar.finish_and_clear();
}

/// The form of the summary.
#[derive(Clone, Copy)]
pub(super) struct Shown {
    pub(super) is_json: bool,
    pub(super) is_dry_run: bool,
    /// Whether it is said how the copy is made, and what its threads did.
    pub(super) explains: bool,
    pub(super) stream: Stream,
}

/// What the source has found, if this end is the source.
pub(super) struct Found {
    entries: u64,
    bytes: u64,
}

/// Returns what the source has found.
pub(super) fn found(progress: &Progress) -> Option<Found> {
    let [entries, bytes] = [&progress.entries, &progress.planned].map(|it| it.load(SeqCst));
    progress.is_planned.load(SeqCst).then_some(Found { entries, bytes })
}

/// A copy that has ended.
pub(super) struct Copied {
    pub(super) finished: Finished,
    pub(super) chosen: Option<Chosen>,
    pub(super) took: Duration,
    pub(super) found: Option<Found>,
}

impl Copied {
    /// Bytes of files in a second.
    fn rate(&self) -> u64 {
        (self.finished.outcome.bytes as f64 / self.took.as_secs_f64().max(1e-6)) as u64
    }
}

/// Prints the totals of a copy, one a line.
pub(super) fn stats(copied: &Copied, shown: Shown) {
    let Copied { finished, took, found, .. } = copied;
    let outcome = finished.outcome;
    let Compressed { plain, sent } = finished.compressed;
    let mut text = String::new();
    let mut line = |name: &str, value: u64| {
        let _ = writeln!(text, "{name}: {value}");
    };
    if let Some(Found { entries, bytes }) = found {
        line("entries at the source", *entries);
        line("bytes of files at the source", *bytes);
    }
    line("files copied", outcome.copied);
    line("bytes of files copied", outcome.bytes);
    line("files unchanged", outcome.unchanged);
    line("entries deleted", outcome.deleted);
    line("entries failed", outcome.failed);
    line("warnings", outcome.warnings);
    if plain > 0 && !shown.is_dry_run {
        line("bytes of data", plain);
        line("bytes of data sent", sent);
    }
    let _ = writeln!(text, "seconds: {:.3}", took.as_secs_f64());
    if !shown.is_dry_run {
        let _ = writeln!(text, "bytes a second: {}", copied.rate());
        if shown.explains {
            text.push_str(&stages::text(finished));
        }
        let (what, share) = stages::bound(finished);
        let _ = writeln!(text, "busiest: {what} ({} %)", share / 10);
    }
    let _ = shown.stream.write(&text);
}

/// Prints the result of a copy.
pub(super) fn summary(copied: &Copied, shown: Shown) {
    let Shown { is_json, is_dry_run, explains, stream } = shown;
    let Copied { finished, chosen, took, found } = copied;
    let outcome = finished.outcome;
    let rate = copied.rate();
    let (what, share) = stages::bound(finished);
    if is_json {
        let loads = |it: Loads| json!({"disk": it.disk, "cpu": it.cpu, "network": it.network});
        let mut value = json!({"event": "summary", "dry_run": is_dry_run,
            "copied": outcome.copied, "bytes": outcome.bytes,
            "unchanged": outcome.unchanged, "deleted": outcome.deleted, "failed": outcome.failed,
            "warnings": outcome.warnings, "seconds": took.as_secs_f64(), "rate": rate,
            "blocks_plain": finished.compressed.plain, "blocks_sent": finished.compressed.sent,
            "bound": what, "source": loads(finished.source), "sink": loads(finished.sink)});
        if let Some(Found { entries, bytes }) = found {
            value["found_entries"] = json!(entries);
            value["found_bytes"] = json!(bytes);
        }
        if explains {
            value["stages"] = stages::value(finished);
        }
        if let Some(chosen) = chosen {
            value["data"] = json!(chosen.words().0);
            value["data_reason"] = json!(chosen.why);
        }
        return event(stream, &value);
    }
    let (files, bytes) = (outcome.copied, BinaryBytes(outcome.bytes));
    let mut line = match is_dry_run {
        true => format!("would copy {files} files, {bytes}"),
        false => format!(
            "copied {files} files, {bytes} in {:.2} s ({}/s)",
            took.as_secs_f64(),
            BinaryBytes(rate)
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
    let Compressed { plain, sent } = finished.compressed;
    if sent < plain && !is_dry_run {
        let _ = write!(line, ", sent as {} ({} %)", BinaryBytes(sent), sent * 100 / plain);
    }
    if !is_dry_run {
        let _ = write!(line, "; busiest: {what} ({} %)", share / 10);
        if let Some(chosen) = chosen {
            let why = chosen.why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
            let _ = write!(line, "; data {}{}", chosen.words().1, output::printable(&why));
        }
    }
    line.push('\n');
    if explains && !is_dry_run {
        line.insert_str(0, &stages::text(finished));
    }
    let _ = stream.write(&line);
}
