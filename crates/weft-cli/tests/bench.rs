//! Every benchmark of `weft bench` runs, between processes of this host and through `weft bench
//! serve`, and reports all its values. Speed is not tested.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

const WEFT: &str = env!("CARGO_BIN_EXE_weft");

/// As briefly as possible, and ten times as long each next time: on a busy machine nothing may
/// happen in so short a time.
const DURATIONS: [&str; 4] = ["0.02", "0.2", "2", "20"];

/// Runs a benchmark as briefly as possible, and returns its output.
fn run(arguments: &[&str]) -> String {
    run_for(DURATIONS[0], arguments)
}

/// Runs a benchmark for so many seconds each, and returns its output.
fn run_for(duration: &str, arguments: &[&str]) -> String {
    let brief = ["--duration", duration, "--rounds", "1", "--no-pin"];
    let output = Command::new(WEFT).arg("bench").args(arguments).args(brief).output();
    let output = output.expect("weft starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs a benchmark, checks the fields that every report has, and returns the tables.
fn measure(arguments: &[&str]) -> Vec<Value> {
    measure_for(DURATIONS[0], arguments)
}

/// Measures until something has happened in the time.
fn measure_until(arguments: &[&str], has_happened: fn(&[Value]) -> bool) -> Vec<Value> {
    let mut all = DURATIONS.iter().map(|duration| measure_for(duration, arguments));
    all.find(|tables| has_happened(tables)).expect("something happens in the longest time")
}

fn measure_for(duration: &str, arguments: &[&str]) -> Vec<Value> {
    let text = run_for(duration, &[arguments, &["--json"]].concat());
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert!(report["machine"]["kernel"].is_string() && report["settings"]["rounds"] == 1);
    let tables = report["benchmarks"].as_array().expect("tables").clone();
    assert!(!tables.is_empty(), "{arguments:?}");
    tables.iter().for_each(check);
    tables
}

fn check(table: &Value) {
    let rows = table["rows"].as_array().expect("rows");
    assert!(!rows.is_empty(), "{}", table["name"]);
    let primary = table["primary"].as_str().expect("a name");
    for row in rows {
        for label in ["over", "transport", "operation", "wait", "variant"] {
            assert!(row[label].is_string(), "{label} in {row}");
        }
        let values = row["values"].as_array().expect("values");
        assert!(values.iter().any(|value| value["name"] == primary), "{primary} in {row}");
        for value in values {
            let median = value["median"].as_f64().expect("a number");
            assert!(median.is_finite() && median >= 0.0, "{row}");
            assert_eq!(value["rounds"].as_array().map(Vec::len), Some(1), "{row}");
        }
    }
}

fn rows(table: &Value) -> &Vec<Value> {
    table["rows"].as_array().expect("rows")
}

fn value(row: &Value, name: &str) -> f64 {
    let values = row["values"].as_array().expect("values");
    let found = values.iter().find(|value| value["name"] == name);
    found.and_then(|value| value["median"].as_f64()).unwrap_or_else(|| panic!("{name} in {row}"))
}

/// Returns the transports of a table's rows.
fn transports(table: &Value) -> Vec<&str> {
    rows(table).iter().filter_map(|row| row["over"].as_str()).collect()
}

#[test]
fn latency_has_percentiles_in_order_for_each_operation() {
    let tables = measure(&["latency", "--sizes", "8,4k"]);
    for operation in ["send", "write", "read", "atomic"] {
        let found = |row: &&Value| row["operation"] == operation && row["over"] == "rc";
        assert!(rows(&tables[0]).iter().any(|row| found(&row)), "{operation}");
    }
    for row in rows(&tables[0]) {
        let at = ["p50", "p90", "p99", "p99.9", "max"].map(|name| value(row, name));
        assert!(at[0] > 0.0 && at.is_sorted(), "{row}");
        assert!(value(row, "CPU") > 0.0, "{row}");
    }
}

#[test]
fn throughput_is_rate_times_size() {
    for name in ["bandwidth", "bibandwidth", "rate"] {
        let over = "rc,uc,ud,rd,tcp-sockets,unix-sockets,udp-sockets";
        let tables = measure(&[name, "--sizes", "64,8k", "--over", over]);
        assert_eq!(rows(&tables[0]).len(), 14, "{name}");
        for row in rows(&tables[0]) {
            let bytes = value(row, "bandwidth") * 1e6;
            let messages = value(row, "rate") * 1e3;
            let size = row["x"].as_f64().expect("a size");
            assert!((bytes - messages * size).abs() <= 1e-6 * bytes, "{name}: {row}");
        }
    }
    let tables = measure(&["bandwidth", "--sizes", "64k", "--op", "write,read", "--over", "rc"]);
    assert_eq!(rows(&tables[0]).len(), 2);
}

#[test]
fn each_pattern_reports_all_transports() {
    for name in ["hotspot", "fanin", "fanout", "dual", "connections", "streams"] {
        for table in measure(&[name, "--counts", "2,3", "--sizes", "1k"]) {
            assert_eq!(
                transports(&table),
                ["rc", "rc-tcp", "tcp-sockets", "unix-sockets"].repeat(2),
                "{}",
                table["name"]
            );
        }
    }
}

#[test]
fn registration_and_memory_benchmarks_report_their_values() {
    let tables = measure(&["registration", "--sizes", "4k,1M"]);
    assert!(rows(&tables[0]).iter().all(|row| value(row, "deregister") > 0.0));
    for table in measure(&["regcache", "--sizes", "4k"]) {
        let kinds: Vec<_> = rows(&table).iter().map(|row| &row["variant"]).collect();
        assert_eq!(kinds, ["cache off", "cache on"]);
    }
    let tables = measure(&["reuse", "--sizes", "4k", "--over", "rc,tcp-sockets"]);
    assert_eq!(rows(&tables[0]).len(), 6);
    let tables = measure(&["memory", "--counts", "32"]);
    assert_eq!(rows(&tables[0]).len(), 4);
}

#[test]
fn requested_transport_is_used() {
    let over = "rc-shm,rc-tcp,uc,ud,rd,tcp-sockets,unix-sockets,udp-sockets";
    let tables = measure(&["latency", "--sizes", "64", "--op", "send", "--over", over]);
    let used: Vec<_> =
        rows(&tables[0]).iter().filter_map(|row| row["transport"].as_str()).collect();
    assert_eq!(used, ["shm", "tcp", "shm", "udp", "udp", "tcp", "unix", "udp"]);
}

#[test]
fn overlap_and_progress_are_percentages() {
    for name in ["overlap", "progress"] {
        let tables = measure(&[name, "--sizes", "8k"]);
        for row in rows(&tables[0]) {
            assert!((0.0..=100.0).contains(&value(row, name)), "{row}");
        }
    }
    let tables = measure(&["cpuload", "--counts", "1"]);
    let programs: Vec<_> = rows(&tables[0]).iter().filter_map(|row| row["x"].as_u64()).collect();
    let each = [[0; 6], [1; 6]].concat();
    assert_eq!(programs, each, "send and read over two transports, and two kinds of sockets");
}

#[test]
fn setup_and_marker_benchmarks_report_their_values() {
    let tables = measure(&["setup"]);
    assert!(rows(&tables[0]).iter().all(|row| value(row, "p50") > 0.0));
    let tables = measure(&["markers", "--sizes", "4k"]);
    let kinds: Vec<_> = rows(&tables[0]).iter().map(|row| &row["variant"]).collect();
    assert_eq!(kinds, ["plain", "CRC", "markers", "markers and CRC"]);
    assert!(rows(&tables[0]).iter().all(|row| row["transport"] == "tcp"));
}

/// Sockets on Weft need its library, which cargo does not build for this test: the lab measures
/// them.
#[test]
fn socket_benchmarks_report_their_values() {
    measure_until(&["sockets", "--sizes", "1k", "--over", "tcp-sockets"], |tables| {
        let [_, throughput, buffers, setup, copies] = tables else {
            panic!("expected five tables, all of requested sizes: {tables:?}")
        };
        let held = ["held", "buffers"].map(|name| value(&rows(buffers)[0], name));
        held.iter().all(|&bytes| bytes > 0.0)
            && value(&rows(throughput)[0], "rate") > 0.0
            && value(&rows(setup)[0], "rate") > 0.0
            && value(&rows(copies)[0], "bandwidth") > 0.0
    });
}

#[test]
fn waiting_benchmark_covers_all_policies() {
    let tables = measure(&["waiting", "--gaps", "1,200"]);
    let waits: Vec<_> = rows(&tables[0]).iter().map(|row| &row["wait"]).collect();
    let verbs = ["poll", "latency", "balanced", "cpu"];
    assert_eq!(waits, [&verbs[..], &verbs, &["poll", "events"]].concat().repeat(2));
    assert!(rows(&tables[0]).iter().all(|row| value(row, "server CPU") > 0.0));
}

#[test]
fn ratio_compares_with_plain_sockets_of_the_same_run() {
    let tables = measure(&["latency", "--sizes", "8", "--op", "send", "--over", "rc,tcp-sockets"]);
    let [own, baseline] = &rows(&tables[0])[..] else { panic!("two rows: {tables:?}") };
    let ratio = own["ratio"].as_f64().expect("a ratio");
    assert!((ratio - value(own, "p50") / value(baseline, "p50")).abs() < 1e-9);
    assert!(baseline["ratio"].is_null());
    assert_eq!(baseline["congestion"].as_str().map(str::is_empty), Some(false));
}

#[test]
fn report_has_text_html_and_csv_forms() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("report.html");
    let page = page.to_str().expect("text");
    let few = ["latency", "--sizes", "8,64", "--over", "rc", "--op", "send"];
    let text = run(&[&few[..], &["--html", page]].concat());
    assert!(text.contains("p99.9 us") && text.contains("congestion control"));
    let html = std::fs::read_to_string(page).expect("written");
    assert!(html.contains("<svg") && html.ends_with("</html>\n"));
    let csv = run(&[&few[..], &["--csv"]].concat());
    assert!(csv.lines().all(|line| line.split(',').count() == 12), "{csv}");
}

/// `weft bench serve` on a port that the system chooses; dropping it ends the process.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start() -> Self {
        let mut child = Command::new(WEFT)
            .args(["bench", "serve", "--listen", "127.0.0.1:0"])
            .stderr(Stdio::piped())
            .spawn()
            .expect("weft starts");
        let mut line = String::new();
        let errors = child.stderr.as_mut().expect("piped");
        BufReader::new(errors).read_line(&mut line).expect("a line");
        let address = line.trim().rsplit(' ').next().expect("an address").to_owned();
        Self { child, address }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("ends");
    }
}

#[test]
fn benchmarks_run_against_a_bench_server() {
    let server = Server::start();
    let there = ["--connect", &server.address, "--over", "rc,ud,rd,tcp-sockets,udp-sockets"];
    let tables = measure(&[&["latency", "--sizes", "64", "--op", "send"], &there[..]].concat());
    assert_eq!(transports(&tables[0]), ["rc", "ud", "rd", "tcp-sockets", "udp-sockets"]);
    measure(&[&["fanin", "--counts", "2"], &there[..4]].concat());
    // Transports within one host are left out.
    let local = ["latency", "--over", "unix-sockets", "--connect", &server.address];
    let output = Command::new(WEFT).arg("bench").args(local).output().expect("weft starts");
    assert!(!output.status.success());
}

#[test]
fn malformed_clients_do_not_stop_the_server() {
    use std::io::Write as _;
    let server = Server::start();
    let bad: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{}",
        b"\0\0\0\x3b{\"hello\":{\"version\":2,\"environment\":[[\"LD_PRELOAD\",\"x\"]]}}",
        b"\0",
    ];
    for bytes in bad {
        let mut stranger = std::net::TcpStream::connect(&server.address).expect("it listens");
        // The server may close the connection during the write.
        let _ = stranger.write_all(bytes);
    }
    let there = ["latency", "--sizes", "8", "--op", "send", "--over", "rc"];
    measure(&[&there[..], &["--connect", &server.address]].concat());
}

#[test]
fn invalid_arguments_are_refused() {
    for bad in [
        &["latency", "--sizes", "0"][..],
        &["latency", "--sizes", "1T"],
        &["latency", "--duration", "-1"],
        &["latency", "--rounds", "0"],
        &["latency", "--over", "carrier-pigeon"],
        &["latency", "--json", "--csv"],
        &["hotspot", "--counts", "0"],
        &["latency", "--cores", "4095", "--duration", "0.01"],
        &["latency", "--congestion", "../x"],
    ] {
        let output = Command::new(WEFT).arg("bench").args(bad).output().expect("weft starts");
        assert!(!output.status.success(), "{bad:?}");
        assert!(!output.stderr.is_empty(), "{bad:?}");
    }
}
