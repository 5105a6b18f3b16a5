//! Shows pipelines, their progress and their results.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{BinaryBytes, ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use weft_pipeline::{CopyReport, Counts, LOCAL, Pipeline, Policy, Report};

use crate::output::{self, Stream, printable};

/// Interval between two updates of the progress.
const INTERVAL: Duration = Duration::from_millis(250);

/// Returns the filters of a pipeline with their streams, as text.
pub(super) fn drawing(pipeline: &Pipeline) -> String {
    let mut text = String::new();
    for (index, filter) in pipeline.filters.iter().enumerate() {
        let copies = filter.hosts.len();
        let is_copied = if copies > 1 { format!(" x {copies}") } else { String::new() };
        let action = printable(filter.action().trim());
        let action = action.split('\u{fffd}').next().unwrap_or_default();
        let _ = writeln!(text, "{}{is_copied}  ({action})", filter.name);
        if filter.hosts.iter().any(|host| host != LOCAL) {
            let _ = writeln!(text, "  on {}", filter.hosts.join(", "));
        }
        let consumers = pipeline.filters.iter().filter(|it| it.from.contains(&index));
        for consumer in consumers {
            let _ = writeln!(text, "  -> {}", consumer.name);
        }
    }
    let _ = writeln!(
        text,
        "{} processes, {} units of work, buffers of {}, window {}, {}; at most {} in buffers",
        pipeline.processes(),
        pipeline.units(),
        BinaryBytes(pipeline.buffer_len as u64),
        pipeline.window,
        schedule(pipeline.policy),
        BinaryBytes(pipeline.memory() as u64)
    );
    text
}

/// Returns the filters of a pipeline with their streams, as JSON.
pub(super) fn json(pipeline: &Pipeline) -> String {
    let names = |from: &[usize]| -> Vec<&str> {
        from.iter().map(|&from| &pipeline.filters[from].name[..]).collect()
    };
    let filters = pipeline.filters.iter().map(
        |filter| json!({"name": filter.name, "from": names(&filter.from), "hosts": filter.hosts}),
    );
    let value = json!({"filters": filters.collect::<Vec<_>>(), "units": pipeline.units(),
        "processes": pipeline.processes(), "buffer": pipeline.buffer_len,
        "window": pipeline.window, "schedule": schedule(pipeline.policy),
        "memory": pipeline.memory()});
    format!("{value}\n")
}

fn schedule(policy: Policy) -> &'static str {
    match policy {
        Policy::Demand => "demand",
        Policy::RoundRobin => "round-robin",
    }
}

/// The progress on standard error: a line on a terminal, or events.
pub(super) struct Progress {
    bar: ProgressBar,
    is_json: bool,
    units: usize,
    last: Instant,
}

impl Progress {
    pub(super) fn new(pipeline: &Pipeline, is_json: bool, is_quiet: bool) -> Result<Self> {
        let is_hidden = is_json || is_quiet;
        let bar = if is_hidden { ProgressBar::hidden() } else { ProgressBar::no_length() };
        let bar = bar.with_style(ProgressStyle::with_template("{msg}")?);
        Ok(Self { bar, is_json, units: pipeline.units(), last: Instant::now() })
    }

    pub(super) fn update(&mut self, copies: &[CopyReport]) {
        if self.last.elapsed() < INTERVAL {
            return;
        }
        self.last = Instant::now();
        if self.is_json {
            event("progress", &json!({"copies": values(copies)}));
            return;
        }
        let units = copies.iter().map(|it| it.counts.units).min().unwrap_or(0);
        let busy = |it: &&CopyReport| it.counts.busy() * 100 / it.counts.elapsed.max(1);
        let read: u64 = copies.iter().map(|it| it.counts.bytes_in).sum();
        let Some(busiest) = copies.iter().max_by_key(busy) else { return };
        self.bar.set_message(format!(
            "unit {} of {}, {} read by all filters; busiest: {} ({} %)",
            (units as usize + 1).min(self.units),
            self.units,
            BinaryBytes(read),
            busiest.filter,
            busy(&busiest)
        ));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Prints an event of `--json`. Standard output belongs to the filters.
fn event(name: &str, fields: &Value) {
    let mut value = json!({ "event": name });
    if let (Some(all), Some(fields)) = (value.as_object_mut(), fields.as_object()) {
        all.extend(fields.clone());
    }
    // A closed pipe does not end the run.
    let _ = Stream::Error.write(&format!("{value}\n"));
}

fn values(copies: &[CopyReport]) -> Vec<Value> {
    let value = |it: &CopyReport| {
        let Counts { units, buffers_in, bytes_in, buffers_out, bytes_out, .. } = it.counts;
        let Counts { waited_in, waited_out, queued_most, elapsed, .. } = it.counts;
        json!({"filter": it.filter, "copy": it.copy, "host": it.host, "units": units,
            "buffers_in": buffers_in, "bytes_in": bytes_in, "buffers_out": buffers_out,
            "bytes_out": bytes_out, "busy_ns": it.counts.busy(), "waited_in_ns": waited_in,
            "waited_out_ns": waited_out, "elapsed_ns": elapsed, "queued_most": queued_most,
            "note": it.note})
    };
    copies.iter().map(value).collect()
}

/// Prints the result of a run on standard error.
pub(super) fn summary(report: &Report, is_json: bool) {
    let Report { copies, elapsed } = report;
    if is_json {
        let seconds = elapsed.as_secs_f64();
        event("summary", &json!({"seconds": seconds, "copies": values(copies)}));
        return;
    }
    let mut table =
        output::table(["FILTER", "HOST", "IN", "OUT", "BUSY", "NO INPUT", "BLOCKED", "QUEUE"]);
    for it in copies {
        let counts = it.counts;
        let is_single = copies.iter().filter(|other| other.filter == it.filter).count() == 1;
        let share = |time: u64| format!("{} %", time * 100 / counts.elapsed.max(1));
        let flow = |buffers: u64, bytes: u64| match buffers {
            0 => "-".to_owned(),
            _ => format!("{buffers}, {}", BinaryBytes(bytes)),
        };
        table.add_row([
            if is_single { it.filter.clone() } else { format!("{} {}", it.filter, it.copy) },
            it.host.clone(),
            flow(counts.buffers_in, counts.bytes_in),
            flow(counts.buffers_out, counts.bytes_out),
            share(counts.busy()),
            share(counts.waited_in),
            share(counts.waited_out),
            counts.queued_most.to_string(),
        ]);
    }
    let mut text = format!("{table}\n");
    for it in copies {
        if let Some(note) = &it.note {
            let _ = writeln!(text, "{}: {}", it.filter, printable(note));
        }
    }
    let _ = writeln!(text, "{:.2} s", elapsed.as_secs_f64());
    let _ = Stream::Error.write(&text);
}
