//! A target's counters in the text format of Prometheus (version 0.0.4).

use std::fmt::Write as _;
use std::time::Duration;

use weft_target::cache::Cache;
use weft_target::scsi::{KindStats, Unit};
use weft_target::session::Portal;
use weft_target::store::CacheStats;

/// The labels of a value, with their names.
type Labels<'a> = [(&'static str, &'a str)];

/// Appends the lines of one metric.
struct Metric<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl<'a> Metric<'a> {
    fn new(text: &'a mut String, name: &'static str, kind: &str, help: &str) -> Self {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        Self { text, name }
    }

    fn value(&mut self, suffix: &str, labels: &Labels<'_>, value: impl std::fmt::Display) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let name = self.name;
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{suffix}{labels} {value}");
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The metrics of all units and sessions, and of the cache.
pub(super) fn text(portal: &Portal, cache: Option<&Cache>) -> String {
    let mut text = String::new();
    let units: Vec<Row> = rows(portal);
    let mut of_units = |name, kind, help, value: fn(&Row) -> u64| {
        let mut metric = Metric::new(&mut text, name, kind, help);
        for row in &units {
            metric.value("", &[("target", &row.target), ("lun", &row.lun)], value(row));
        }
    };
    of_units("weft_target_unit_size_bytes", "gauge", "Length of the unit.", |row| row.size);
    let mut of_kinds = |name, help, value: fn(&KindStats) -> u64| {
        let mut metric = Metric::new(&mut text, name, "counter", help);
        for (row, kind) in
            units.iter().flat_map(|row| row.kinds.iter().map(move |kind| (row, kind)))
        {
            metric.value("", &row.labels(kind), value(kind));
        }
    };
    let moved = "Bytes of blocks that commands moved between unit and initiators.";
    of_kinds("weft_target_moved_bytes_total", moved, |kind| kind.bytes);
    let failed = "Commands that ended with another status than GOOD.";
    of_kinds("weft_target_failed_commands_total", failed, |kind| kind.failed);
    histograms(&mut text, &units);
    sessions(&mut text, portal);
    if let Some(cache) = cache {
        of_cache(&mut text, cache, &units);
    }
    text
}

fn of_cache(text: &mut String, cache: &Cache, units: &[Row]) {
    let size = "weft_target_cache_size_bytes";
    Metric::new(text, size, "gauge", "Length of the cache.").value("", &[], cache.len());
    let used = "weft_target_cache_used_bytes";
    Metric::new(text, used, "gauge", "Blocks of the cache in use.").value("", &[], cache.used());
    let mut of_units = |name, help, value: fn(&CacheStats) -> u64| {
        let mut metric = Metric::new(text, name, "counter", help);
        for (row, stats) in units.iter().filter_map(|row| Some((row, row.cache.as_ref()?))) {
            metric.value("", &[("target", &row.target), ("lun", &row.lun)], value(stats));
        }
    };
    let hits = "Blocks of the cache that reads found there.";
    of_units("weft_target_cache_hits_total", hits, |stats| stats.hits);
    let misses = "Blocks of the cache that reads took from the store.";
    of_units("weft_target_cache_misses_total", misses, |stats| stats.misses);
}

/// A unit with what it has done.
struct Row {
    target: String,
    lun: String,
    size: u64,
    /// `None` if it is not behind the cache.
    cache: Option<CacheStats>,
    kinds: Vec<KindStats>,
}

impl Row {
    fn labels(&self, kind: &KindStats) -> [(&'static str, &str); 3] {
        [("target", &self.target), ("lun", &self.lun), ("operation", kind.kind.name())]
    }
}

fn rows(portal: &Portal) -> Vec<Row> {
    let units = portal.targets().into_iter().flat_map(|target| {
        let name = target.device().name().to_owned();
        let units = target.device().units().into_iter();
        units.map(move |(number, unit)| (name.clone(), number, unit))
    });
    let row = |(target, number, unit): (String, u8, std::sync::Arc<Unit>)| Row {
        target,
        lun: number.to_string(),
        size: unit.blocks() * u64::from(unit.options().block_len),
        cache: unit.cache_stats(),
        kinds: unit.stats(),
    };
    units.map(row).collect()
}

fn histograms(text: &mut String, units: &[Row]) {
    let help = "Time of commands, from their arrival until their status is ready to be sent.";
    let mut metric = Metric::new(text, "weft_target_command_duration_seconds", "histogram", help);
    for (row, kind) in units.iter().flat_map(|row| row.kinds.iter().map(move |kind| (row, kind))) {
        let labels = row.labels(kind);
        let mut bucket = |bound: &str, count| {
            let [target, lun, operation] = labels;
            metric.value("_bucket", &[target, lun, operation, ("le", bound)], count);
        };
        for (bound, count) in kind.within() {
            bucket(&seconds(bound), count);
        }
        bucket("+Inf", kind.commands());
        metric.value("_sum", &labels, seconds(kind.time));
        metric.value("_count", &labels, kind.commands());
    }
}

fn seconds(time: Duration) -> String {
    time.as_secs_f64().to_string()
}

fn sessions(text: &mut String, portal: &Portal) {
    let sessions = portal.sessions();
    let mut metric = Metric::new(text, "weft_target_sessions", "gauge", "Sessions that are open.");
    for target in portal.targets() {
        let name = target.device().name();
        let count = sessions.iter().filter(|session| session.target == name).count();
        metric.value("", &[("target", name)], count);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use weft_target::cache::Topology;
    use weft_target::scsi::{Device, Ended, Kind, Options};
    use weft_target::security::Access;
    use weft_target::server::RANDOM;
    use weft_target::session::Target;
    use weft_target::store::{Cached, Null};

    use super::*;

    #[test]
    fn all_counters_are_there_with_their_labels() {
        let cache = Arc::new(Cache::new(Topology::of_one_node(), 1 << 20).unwrap());
        let store = Cached::new(Box::new(Null::new(4_096)), Arc::clone(&cache)).unwrap();
        let unit = Unit::new("serial".into(), Options::default(), Box::new(store));
        unit.read(0, &mut [0; 512]).unwrap();
        unit.read(0, &mut [0; 512]).unwrap();
        let time = Duration::from_micros(100);
        unit.count(Ended { kind: Kind::Read, time, bytes: 512, is_failed: false });
        unit.count(Ended { kind: Kind::Write, time: Duration::MAX, bytes: 0, is_failed: true });
        let device = Device::new("iqn.a".into(), BTreeMap::from([(3, Arc::new(unit))]));
        let target = Target::new(Arc::new(device), Access::default());
        let portal = Portal::new(vec![target], Access::default(), RANDOM);
        let text = text(&portal, Some(&cache));
        for line in [
            "# TYPE weft_target_command_duration_seconds histogram",
            "weft_target_unit_size_bytes{target=\"iqn.a\",lun=\"3\"} 4096",
            "weft_target_moved_bytes_total{target=\"iqn.a\",lun=\"3\",operation=\"read\"} 512",
            "weft_target_failed_commands_total{target=\"iqn.a\",lun=\"3\",operation=\"write\"} 1",
            "weft_target_command_duration_seconds_bucket{target=\"iqn.a\",lun=\"3\",\
             operation=\"read\",le=\"0.000065536\"} 0",
            "weft_target_command_duration_seconds_bucket{target=\"iqn.a\",lun=\"3\",\
             operation=\"read\",le=\"0.000131072\"} 1",
            "weft_target_command_duration_seconds_bucket{target=\"iqn.a\",lun=\"3\",\
             operation=\"write\",le=\"+Inf\"} 1",
            "weft_target_command_duration_seconds_sum{target=\"iqn.a\",lun=\"3\",\
             operation=\"read\"} 0.0001",
            "weft_target_command_duration_seconds_count{target=\"iqn.a\",lun=\"3\",\
             operation=\"other\"} 0",
            "weft_target_sessions{target=\"iqn.a\"} 0",
            "weft_target_cache_size_bytes 1048576",
            "weft_target_cache_used_bytes 65536",
            "weft_target_cache_hits_total{target=\"iqn.a\",lun=\"3\"} 1",
            "weft_target_cache_misses_total{target=\"iqn.a\",lun=\"3\"} 1",
        ] {
            assert!(text.lines().any(|each| each == line), "{line}\n{text}");
        }
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
