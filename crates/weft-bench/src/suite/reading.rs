//! Computes the values of a benchmark from the workers' reports.

use std::time::Duration;

use super::{Case, Value};
use crate::control::Report;
use crate::plan::Operation;
use crate::session::Outcome;
use crate::stats::{Latencies, independent_progress, normalised_latency_us, overlap_ratio};

fn value(name: &'static str, unit: &'static str, value: f64) -> Value {
    // A value that was not measured, such as a mean of nothing, becomes 0: JSON has no NaN.
    Value { name, unit, value: if value.is_finite() { value } else { 0.0 } }
}

fn merged(clients: &[Report], counts: fn(&Report) -> &Vec<(u64, u64)>) -> Latencies {
    let mut all = Latencies::new();
    // Reports that do not fit a histogram come from a hostile worker, and are left out.
    let found = clients.iter().filter_map(|report| Latencies::from_counts(counts(report)).ok());
    found.for_each(|latencies| all.merge(&latencies));
    all
}

fn percentiles(latencies: &Latencies, scale: f64) -> Vec<Value> {
    let at = |name, percent| value(name, "us", latencies.percentile_us(percent) * scale);
    vec![
        at("p50", 50.0),
        at("p90", 90.0),
        at("p99", 99.0),
        at("p99.9", 99.9),
        value("max", "us", latencies.max_us() * scale),
    ]
}

fn seconds(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

impl Outcome {
    fn all(&self) -> impl Iterator<Item = &Report> {
        self.server.iter().chain(&self.clients)
    }

    /// Returns how many messages, answers and one-sided operations have completed in the whole run.
    fn ended(&self) -> u64 {
        self.all().map(|report| report.ended).sum()
    }

    fn cpu_us(&self) -> f64 {
        self.all().map(|report| seconds(report.cpu_ns) * 1e6).sum()
    }

    /// Returns the processor time of all ends for each message.
    fn cpu_per_message(&self) -> Value {
        value("CPU", "us/msg", self.cpu_us() / self.ended() as f64)
    }

    fn lost(&self) -> Value {
        let started: u64 = self.all().map(|report| report.started + report.lost).sum();
        let asked_again: u64 = self.all().map(|report| report.lost).sum();
        // In a stream, messages that were sent and never arrived are lost.
        let missing =
            if asked_again == 0 { started.saturating_sub(self.ended()) } else { asked_again };
        value("lost", "%", 100.0 * missing as f64 / started as f64)
    }
}

/// Returns half of the round trips, or the whole time of one-sided operations.
pub(super) fn latency(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let latencies = merged(&outcome.clients, |report| &report.latencies);
    let scale = if case.operation.is_one_sided() { 1.0 } else { 0.5 };
    let mut values = percentiles(&latencies, scale);
    values.push(outcome.cpu_per_message());
    values.extend(lost_if_lossy(case, outcome));
    values
}

fn lost_if_lossy(case: &Case, outcome: &Outcome) -> Option<Value> {
    case.over.is_lossy().then(|| outcome.lost())
}

/// Returns the bytes and messages of all receivers.
pub(super) fn throughput(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let rate = |of: fn(&Report) -> u64| -> f64 {
        let reports = outcome.all().filter(|report| report.measured_ns != 0);
        reports.map(|report| of(report) as f64 / seconds(report.measured_ns)).sum()
    };
    let mut values = vec![
        value("bandwidth", "MB/s", rate(|report| report.measured_bytes) / 1e6),
        value("rate", "k/s", rate(|report| report.measured) / 1e3),
        outcome.cpu_per_message(),
        value("CPU used", "%", 100.0 * outcome.cpu_us() / 1e6 / longest(outcome)),
    ];
    values.extend(lost_if_lossy(case, outcome));
    values
}

fn longest(outcome: &Outcome) -> f64 {
    outcome.all().map(|report| seconds(report.elapsed_ns)).fold(0.0, f64::max)
}

/// Returns the values of exchanges over several connections at once.
pub(super) fn normalised(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let all = outcome.clients.iter().map(|report| {
        let elapsed = Duration::from_nanos(report.measured_ns);
        normalised_latency_us(elapsed, report.measured)
    });
    let normalised = all.sum::<f64>() / outcome.clients.len().max(1) as f64;
    let mut values = vec![value("normalised", "us", normalised)];
    values.extend(latency(case, outcome));
    values
}

/// Returns the times to register and to deregister.
pub(super) fn registration(_: &Case, outcome: &Outcome) -> Vec<Value> {
    let register = merged(&outcome.clients, |report| &report.latencies);
    let deregister = merged(&outcome.clients, |report| &report.after);
    vec![
        value("register", "us", register.percentile_us(50.0)),
        value("register p99", "us", register.percentile_us(99.0)),
        value("deregister", "us", deregister.percentile_us(50.0)),
        value("deregister p99", "us", deregister.percentile_us(99.0)),
    ]
}

/// Returns the overlap, and the times from which it is computed.
pub(super) fn overlap(_: &Case, outcome: &Outcome) -> Vec<Value> {
    let found = outcome.clients.iter().find_map(|report| report.overlap_us);
    let [alone, work, with] = found.unwrap_or([f64::NAN; 3]);
    vec![
        value("overlap", "%", 100.0 * overlap_ratio(alone, work, with)),
        value("alone", "us", alone),
        value("computation", "us", work),
        value("both", "us", with),
    ]
}

/// Returns what is left of an exchange after a computation, compared with the exchange alone.
pub(super) fn progress(_: &Case, outcome: &Outcome) -> Vec<Value> {
    let alone = merged(&outcome.clients, |report| &report.latencies).percentile_us(50.0);
    let left = merged(&outcome.clients, |report| &report.after).percentile_us(50.0);
    vec![
        value("progress", "%", 100.0 * independent_progress(alone, left)),
        value("alone", "us", alone),
        value("left", "us", left),
    ]
}

/// Returns the times of complete connection set-ups.
pub(super) fn setup(_: &Case, outcome: &Outcome) -> Vec<Value> {
    let latencies = merged(&outcome.clients, |report| &report.latencies);
    let mut values = percentiles(&latencies, 1.0);
    let reports = outcome.clients.iter();
    let rate = reports.map(|report| report.measured as f64 / seconds(report.measured_ns)).sum();
    values.push(value("rate", "/s", rate));
    values.push(outcome.cpu_per_message());
    values
}

/// Returns how full the buffers between two ends are when there is no room.
pub(super) fn buffers(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let both = outcome.all().filter_map(|report| report.buffers);
    let [used, allotted] = both.fold([0.0; 2], |[used, allotted], buffers| {
        [used + buffers[0] as f64, allotted + buffers[1] as f64]
    });
    vec![
        value("utilisation", "%", 100.0 * used / allotted),
        value("messages", "", used / case.x as f64),
        value("held", "KiB", used / 1024.0),
        value("buffers", "KiB", allotted / 1024.0),
    ]
}

/// Returns each end's private memory for each connection.
pub(super) fn memory(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let kib = |report: &Report| {
        let grown = report.memory_after.saturating_sub(report.memory_before);
        grown as f64 / 1024.0 / case.x as f64
    };
    let of = |report: Option<&Report>| report.map_or(0.0, kib);
    vec![
        value("server", "KiB/connection", of(outcome.server.as_ref())),
        value("client", "KiB/connection", of(outcome.clients.first())),
    ]
}

/// Returns the latency, and the processor time of waiting.
pub(super) fn waiting(case: &Case, outcome: &Outcome) -> Vec<Value> {
    let latencies = merged(&outcome.clients, |report| &report.latencies);
    let scale = if case.operation == Operation::Send { 0.5 } else { 1.0 };
    let used = |report: &Report| 100.0 * seconds(report.cpu_ns) / seconds(report.elapsed_ns);
    vec![
        value("p50", "us", latencies.percentile_us(50.0) * scale),
        value("p99", "us", latencies.percentile_us(99.0) * scale),
        value("server CPU", "%", outcome.server.as_ref().map_or(0.0, used)),
        value("client CPU", "%", outcome.clients.first().map_or(0.0, used)),
        outcome.cpu_per_message(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(ns: u64, ended: u64) -> Report {
        Report {
            measured: ended,
            ended,
            measured_bytes: ended * 1000,
            measured_ns: ns,
            elapsed_ns: ns,
            cpu_ns: ns / 2,
            started: ended,
            latencies: vec![(2_000, ended)],
            memory_before: 1 << 20,
            memory_after: 3 << 20,
            ..Report::default()
        }
    }

    fn case(operation: Operation) -> Case {
        let plan = crate::session::Plan {
            environment: Vec::new(),
            server: None,
            clients: Vec::new(),
            beside: Vec::new(),
        };
        let (over, wait) = (crate::plan::Over::Rc, crate::plan::Wait::Poll);
        Case { over, operation, wait, variant: "", x: 4, plan }
    }

    fn named(values: &[Value], name: &str) -> f64 {
        values.iter().find(|value| value.name == name).expect("there").value
    }

    #[test]
    fn latency_is_half_a_round_trip_or_a_whole_operation() {
        let outcome = Outcome { server: None, clients: vec![report(1_000_000, 10)] };
        let half = latency(&case(Operation::Send), &outcome);
        assert!((named(&half, "p50") - 1.0).abs() < 0.01);
        assert!((named(&half, "CPU") - 50.0).abs() < 0.01, "500 us for 10 messages");
        let whole = latency(&case(Operation::Read), &outcome);
        assert!((named(&whole, "p50") - 2.0).abs() < 0.01);
    }

    #[test]
    fn throughput_adds_up_over_receivers() {
        let server = Some(Report { measured_ns: 0, measured: 0, ended: 0, ..report(1, 0) });
        let clients = vec![report(1_000_000_000, 5_000_000), report(500_000_000, 1_000_000)];
        let values = throughput(&case(Operation::Send), &Outcome { server, clients });
        assert!((named(&values, "bandwidth") - 7000.0).abs() < 0.01);
        assert!((named(&values, "rate") - 7000.0).abs() < 0.01);
    }

    #[test]
    fn memory_is_divided_by_connections() {
        let outcome = Outcome { server: Some(report(1, 1)), clients: vec![report(1, 1)] };
        let values = memory(&case(Operation::Send), &outcome);
        assert_eq!(named(&values, "server"), 512.0);
    }

    #[test]
    fn empty_measurement_gives_no_infinite_values() {
        let outcome = Outcome { server: None, clients: vec![Report::default()] };
        for read in [latency, throughput, normalised, registration, overlap, progress, waiting] {
            let values = read(&case(Operation::Send), &outcome);
            assert!(values.iter().all(|value| value.value.is_finite()), "{values:?}");
        }
    }
}
