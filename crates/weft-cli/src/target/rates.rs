//! Rates of a target in an interval: the difference of two answers to `stats`.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{BinaryBytes, HumanCount};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ask::duration;
use crate::output::{self, printable};
use crate::percentile::percentile;

/// A target's counters since its start.
#[derive(Debug, Deserialize)]
pub(super) struct Sample {
    sessions: Vec<Session>,
    units: Vec<Unit>,
}

#[derive(Debug, Deserialize)]
struct Session {
    target: String,
    initiator: String,
    isid: String,
    from: String,
    commands: u64,
    read: u64,
    written: u64,
}

/// A unit's counters of the commands of one kind.
#[derive(Debug, Deserialize)]
struct Unit {
    target: String,
    lun: u8,
    operation: String,
    commands: u64,
    failed: u64,
    bytes: u64,
    time_ns: u64,
    histogram: Vec<Bucket>,
}

#[derive(Debug, Deserialize)]
struct Bucket {
    /// The longest time of its commands. `None` for the last bucket.
    up_to_ns: Option<u64>,
    commands: u64,
}

/// The difference of two samples.
#[derive(Debug)]
pub(super) struct Rates {
    time: Duration,
    sessions: Vec<SessionRates>,
    units: Vec<UnitRates>,
}

/// A session, with numbers a second.
#[derive(Debug)]
struct SessionRates {
    target: String,
    initiator: String,
    from: String,
    commands: f64,
    read: f64,
    written: f64,
}

/// Commands of one kind of a unit, with numbers a second.
#[derive(Debug)]
struct UnitRates {
    target: String,
    lun: u8,
    operation: String,
    commands: f64,
    failed: f64,
    bytes: f64,
    /// The mean time of the commands in microseconds. `None` if there were none.
    mean: Option<f64>,
    /// P50, P99 and P99.9 in microseconds. `None` also if it is beyond the last bucket.
    percentiles: [Option<f64>; 3],
}

/// The percentiles that are shown, in thousandths.
const PERCENTILES: [u64; 3] = [500, 990, 999];

impl Sample {
    /// Reads the answer of a target.
    ///
    /// # Errors
    ///
    /// If it is of another version.
    pub(super) fn parse(stats: Value) -> Result<Self> {
        serde_json::from_value(stats).context("the target sends no counters of this version")
    }

    /// Returns the difference to the sample `before`, which is `time` older.
    pub(super) fn since(&self, before: &Self, time: Duration) -> Rates {
        let key = |row: &Session| (row.target.clone(), row.initiator.clone(), row.isid.clone());
        let earlier: BTreeMap<_, _> = before.sessions.iter().map(|row| (key(row), row)).collect();
        let sessions = self.sessions.iter().map(|row| {
            // A session whose counters have gone back is another one.
            let before =
                earlier.get(&key(row)).filter(|before| before.commands <= row.commands).copied();
            row.since(before, time)
        });
        let mut sessions: Vec<_> = sessions.collect();
        sessions.sort_by(|one, other| other.commands.total_cmp(&one.commands));
        let key = |row: &Unit| (row.target.clone(), row.lun, row.operation.clone());
        let earlier: BTreeMap<_, _> = before.units.iter().map(|row| (key(row), row)).collect();
        let units = self.units.iter().map(|row| {
            // So is a unit.
            let before =
                earlier.get(&key(row)).filter(|before| before.commands <= row.commands).copied();
            row.since(before, time)
        });
        Rates { time, sessions, units: units.collect() }
    }
}

/// A number a second.
fn rate(now: u64, before: Option<u64>, time: Duration) -> f64 {
    now.saturating_sub(before.unwrap_or_default()) as f64 / time.as_secs_f64()
}

impl Session {
    fn since(&self, before: Option<&Self>, time: Duration) -> SessionRates {
        let rate = |get: fn(&Self) -> u64| rate(get(self), before.map(get), time);
        SessionRates {
            target: self.target.clone(),
            initiator: self.initiator.clone(),
            from: self.from.clone(),
            commands: rate(|row| row.commands),
            read: rate(|row| row.read),
            written: rate(|row| row.written),
        }
    }
}

impl Unit {
    fn since(&self, before: Option<&Self>, time: Duration) -> UnitRates {
        let rate = |get: fn(&Self) -> u64| rate(get(self), before.map(get), time);
        let number =
            |get: fn(&Self) -> u64| get(self).saturating_sub(before.map(get).unwrap_or_default());
        let earlier = before.into_iter().flat_map(|before| &before.histogram);
        let earlier: BTreeMap<_, _> =
            earlier.map(|bucket| (bucket.up_to_ns, bucket.commands)).collect();
        let buckets = self.histogram.iter().map(|bucket| {
            let before = earlier.get(&bucket.up_to_ns).copied().unwrap_or_default();
            (bucket.up_to_ns, bucket.commands.saturating_sub(before))
        });
        let buckets: Vec<_> = buckets.collect();
        let commands = number(|row| row.commands);
        let mean = (commands > 0).then(|| number(|row| row.time_ns) as f64 / commands as f64 / 1e3);
        UnitRates {
            target: self.target.clone(),
            lun: self.lun,
            operation: self.operation.clone(),
            commands: rate(|row| row.commands),
            failed: rate(|row| row.failed),
            bytes: rate(|row| row.bytes),
            mean,
            percentiles: PERCENTILES.map(|per_mille| time_of(&buckets, per_mille)),
        }
    }
}

/// The time in microseconds in which this many of a thousand commands were complete.
fn time_of(buckets: &[(Option<u64>, u64)], per_mille: u64) -> Option<f64> {
    let bound = percentile(buckets.iter().copied(), per_mille)?;
    bound.map(|nanos| nanos as f64 / 1e3)
}

impl Rates {
    /// One sample as JSON. Times are in microseconds, all other numbers are those of a second.
    pub(super) fn json(&self) -> Value {
        let sessions = self.sessions.iter().map(|row| {
            json!({
                "target": row.target,
                "initiator": row.initiator,
                "from": row.from,
                "commands": row.commands,
                "read": row.read,
                "written": row.written,
            })
        });
        let units = self.units.iter().map(|row| {
            let [half, most, nearly_all] = row.percentiles;
            json!({
                "target": row.target,
                "lun": row.lun,
                "operation": row.operation,
                "commands": row.commands,
                "failed": row.failed,
                "bytes": row.bytes,
                "mean": row.mean,
                "p50": half,
                "p99": most,
                "p99.9": nearly_all,
            })
        });
        json!({
            "seconds": self.time.as_secs_f64(),
            "sessions": sessions.collect::<Vec<_>>(),
            "units": units.collect::<Vec<_>>(),
        })
    }

    /// One sample as text. Kinds of commands other than reads and writes are shown if there were
    /// some.
    pub(super) fn text(&self) -> String {
        let mut units = output::table([
            "TARGET",
            "LUN",
            "OPERATION",
            "COMMANDS/S",
            "FAILED/S",
            "BYTES/S",
            "MEAN",
            "P50",
            "P99",
            "P99.9",
        ]);
        let is_shown = |row: &&UnitRates| row.commands > 0.0 || row.operation != "other";
        for row in self.units.iter().filter(is_shown) {
            let [half, most, nearly_all] = row.percentiles.map(duration);
            units.add_row([
                printable(&row.target),
                row.lun.to_string(),
                printable(&row.operation),
                count(row.commands),
                count(row.failed),
                bytes(row.bytes),
                duration(row.mean),
                half,
                most,
                nearly_all,
            ]);
        }
        let mut sessions =
            output::table(["TARGET", "INITIATOR", "FROM", "COMMANDS/S", "READ/S", "WRITTEN/S"]);
        for row in &self.sessions {
            sessions.add_row([
                printable(&row.target),
                printable(&row.initiator),
                printable(&row.from),
                count(row.commands),
                bytes(row.read),
                bytes(row.written),
            ]);
        }
        format!("{}\n\n{}\n", units.trim_fmt(), sessions.trim_fmt())
    }
}

/// A number of commands. The conversion saturates.
fn count(number: f64) -> String {
    if number > 0.0 && number < 10.0 {
        return format!("{number:.1}");
    }
    HumanCount(number.round() as u64).to_string()
}

fn bytes(number: f64) -> String {
    BinaryBytes(number.round() as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(commands: u64, fast: u64, slow: u64) -> Sample {
        let stats = json!({
            "sessions": [{
                "target": "iqn.a", "initiator": "iqn.\u{1b}b", "isid": "01", "from": "[::1]:2",
                "commands": commands, "read": commands * 512, "written": 0,
            }],
            "units": [{
                "target": "iqn.a", "lun": 3, "operation": "read", "commands": fast + slow,
                "failed": slow, "bytes": (fast + slow) * 4_096,
                "time_ns": fast * 1_000 + slow * 9_000,
                "histogram": [
                    { "up_to_ns": 1_000, "commands": fast },
                    { "up_to_ns": 9_000, "commands": slow },
                ],
            }, {
                "target": "iqn.a", "lun": 3, "operation": "other", "commands": 0, "failed": 0,
                "bytes": 0, "time_ns": 0, "histogram": [],
            }],
        });
        Sample::parse(stats).unwrap()
    }

    #[test]
    fn rates_and_percentiles_are_those_of_the_interval() {
        // Before, all were slow.
        let rates = sample(300, 98, 1_002).since(&sample(100, 0, 1_000), Duration::from_secs(2));
        let json = rates.json();
        assert_eq!(json["seconds"], 2.0);
        assert_eq!(
            (&json["sessions"][0]["commands"], &json["sessions"][0]["read"]),
            (&json!(100.0), &json!(51_200.0))
        );
        let read = &json["units"][0];
        assert_eq!(
            (&read["commands"], &read["failed"], &read["bytes"]),
            (&json!(50.0), &json!(1.0), &json!(204_800.0))
        );
        assert_eq!(
            (&read["p50"], &read["p99"], &read["mean"]),
            (&json!(1.0), &json!(9.0), &json!(1.16))
        );
        let other = &json["units"][1];
        assert_eq!(
            (&other["commands"], &other["mean"], &other["p50"]),
            (&json!(0.0), &Value::Null, &Value::Null)
        );
        let text = rates.text();
        assert!(!text.contains("other") && !text.contains('\u{1b}'), "{text}");
        for part in ["iqn.a", "COMMANDS/S", "200.00 KiB", "9.0 us", "50.00 KiB"] {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
    }

    #[test]
    fn counters_that_have_gone_back_begin_anew() {
        let rates = sample(10, 5, 0).since(&sample(100, 70, 0), Duration::from_secs(1)).json();
        assert_eq!(
            (&rates["sessions"][0]["commands"], &rates["units"][0]["commands"]),
            (&json!(10.0), &json!(5.0))
        );
    }

    #[test]
    fn the_last_bucket_has_no_bound() {
        let buckets = [(Some(1_000), 1), (None, 1)];
        assert_eq!(time_of(&buckets, 500), Some(1.0));
        assert_eq!((time_of(&buckets, 990), time_of(&[], 500)), (None, None));
    }
}
