//! `weft ps` and `weft dump`: the queue pairs of running processes.
//!
//! A process that uses Weft answers on an abstract Unix socket named after its pid. Any user may
//! run that process, so the command checks the answer's sender, length and text.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use serde_json::{Map, Value};

use crate::limits::ANSWER_BYTES_MAX;
use crate::output::{self, printable};

/// The abstract socket's name before the pid.
const SOCKET_PREFIX: &str = "weft-debug.";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Lists the processes of this network namespace that use Weft.
///
/// # Errors
///
/// If the kernel's list of sockets cannot be read.
pub(crate) fn ps(json: bool) -> Result<()> {
    let path = "/proc/net/unix";
    let sockets = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let processes: Vec<Process> = listening_pids(&sockets).into_iter().map(Process::ask).collect();
    if json {
        let all: Vec<Value> = processes.iter().map(Process::to_json).collect();
        return output::print(&format!("{:#}\n", Value::from(all)));
    }
    let mut table =
        output::table(["PID", "PROGRAM", "DEVICES", "QUEUE PAIRS", "TRANSPORTS", "NOTE"]);
    for process in &processes {
        table.add_row(process.row());
    }
    output::print(&format!("{}\n", table.trim_fmt()))
}

/// Prints every queue pair of process `pid`.
///
/// # Errors
///
/// If the process does not use Weft, is in another network namespace, or does not answer.
pub(crate) fn dump(pid: u32, json: bool) -> Result<()> {
    let answer = ask(pid)?;
    if json {
        return output::print(&format!("{answer:#}\n"));
    }
    output::print(&describe(&answer))
}

struct Process {
    pid: u32,
    program: String,
    answer: Result<Value>,
}

impl Process {
    fn ask(pid: u32) -> Self {
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, program: program.trim_end().to_owned(), answer: ask(pid) }
    }

    fn row(&self) -> [String; 6] {
        let count = |key| {
            let list = self.answer.as_ref().ok().and_then(|answer| answer.get(key)?.as_array());
            list.map_or_else(|| "-".to_owned(), |list| list.len().to_string())
        };
        let note = self.answer.as_ref().err().map(|error| format!("{error:#}"));
        [
            self.pid.to_string(),
            printable(&self.program),
            count("devices"),
            count("queue_pairs"),
            self.answer.as_ref().map_or_else(|_| "-".to_owned(), transports),
            printable(&note.unwrap_or_default()),
        ]
    }

    fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("pid".into(), self.pid.into());
        object.insert("program".into(), self.program.clone().into());
        match &self.answer {
            Ok(answer) => object.insert("state".into(), answer.clone()),
            Err(error) => object.insert("error".into(), format!("{error:#}").into()),
        };
        object.into()
    }
}

/// Returns how many queue pairs use each transport and, for shared memory, each path of one-sided
/// operations.
fn transports(state: &Value) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for pair in state.get("queue_pairs").and_then(Value::as_array).into_iter().flatten() {
        let field = |name| pair.get(name).and_then(Value::as_str);
        let name = match (field("transport"), field("one_sided")) {
            (Some(transport), Some(way)) => format!("{transport} ({way})"),
            (Some(transport), None) => transport.to_owned(),
            (None, _) => continue,
        };
        *counts.entry(name).or_default() += 1;
    }
    let counts = counts.iter().map(|(name, count)| format!("{count} {}", printable(name)));
    counts.collect::<Vec<_>>().join(", ")
}

/// Returns the pids in the names of Weft's debug sockets, sorted, without duplicates.
fn listening_pids(sockets: &str) -> Vec<u32> {
    // The kernel prints the leading NUL of an abstract name as `@`. The name is the last column.
    let names =
        sockets.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    let pids = names.filter_map(|name| name.strip_prefix(SOCKET_PREFIX)?.parse().ok());
    let mut pids: Vec<u32> = pids.collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Requests the state of process `pid`.
fn ask(pid: u32) -> Result<Value> {
    let address = SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}{pid}"))?;
    let stream = UnixStream::connect_addr(&address).with_context(|| {
        format!("process {pid} does not use Weft, or not in this network namespace")
    })?;
    let sender = rustix::net::sockopt::socket_peercred(&stream)?.pid.as_raw_nonzero().get();
    if u32::try_from(sender) != Ok(pid) {
        bail!("process {sender} answers in the name of process {pid}");
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let mut answer = Vec::new();
    let length = (&stream)
        .take(ANSWER_BYTES_MAX)
        .read_to_end(&mut answer)
        .with_context(|| format!("process {pid} does not answer"))?;
    if length as u64 == ANSWER_BYTES_MAX {
        bail!("process {pid} sends an endless answer");
    }
    serde_json::from_slice(&answer)
        .with_context(|| format!("process {pid} sends an invalid answer"))
}

/// Formats the whole state as text: a table for each list of objects, a line for each single value.
fn describe(state: &Value) -> String {
    let Value::Object(fields) = state else { return format!("{}\n", cell(state)) };
    let mut text = String::new();
    for (name, value) in fields {
        let name = printable(name);
        match objects(value) {
            Some(rows) => text.push_str(&format!("\n{name}\n{}\n", list(&rows).trim_fmt())),
            None => text.push_str(&format!("{name}: {}\n", cell(value))),
        }
    }
    text
}

/// Returns the elements of a list that contains only objects.
fn objects(value: &Value) -> Option<Vec<&Map<String, Value>>> {
    let elements = value.as_array()?;
    elements
        .iter()
        .map(Value::as_object)
        .collect::<Option<Vec<_>>>()
        .filter(|rows| !rows.is_empty())
}

/// Returns a table with a column for every field of any row, in order of appearance.
fn list(rows: &[&Map<String, Value>]) -> Table {
    let mut columns: Vec<&String> = Vec::new();
    for column in rows.iter().flat_map(|row| row.keys()) {
        if !columns.contains(&column) {
            columns.push(column);
        }
    }
    let mut table = output::table([]);
    table.set_header(columns.iter().map(|name| printable(name).to_uppercase()));
    for row in rows {
        table.add_row(columns.iter().map(|&column| row.get(column).map_or_else(String::new, cell)));
    }
    table
}

/// Formats a value for a table cell.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::String(text) => printable(text),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let fields =
                fields.iter().map(|(name, value)| format!("{}={}", printable(name), cell(value)));
            fields.collect::<Vec<_>>().join(" ")
        }
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixListener;
    use std::process;
    use std::thread;

    use serde_json::json;

    use super::*;

    #[test]
    fn pids_are_found_in_the_list_of_sockets() {
        let sockets = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 31337 @weft-debug.4711
0000000000000000: 00000002 00000000 00010000 0001 01 31338 @weft-debug.12
0000000000000000: 00000003 00000000 00000000 0001 03 31339 @weft-debug.12
0000000000000000: 00000002 00000000 00010000 0001 01 31340 /run/weft-debug.5
0000000000000000: 00000002 00000000 00010000 0001 01 31341 @weft-debug.x
0000000000000000: 00000003 00000000 00000000 0001 03 31342
";
        assert_eq!(listening_pids(sockets), [12, 4711]);
    }

    #[test]
    fn live_process_answers() {
        let pid = process::id();
        let name = SocketAddr::from_abstract_name(format!("{SOCKET_PREFIX}{pid}")).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(br#"{"queue_pairs":[{"qpn":"0x12"}]}"#).unwrap();
        });
        assert_eq!(ask(pid).unwrap(), json!({"queue_pairs": [{"qpn": "0x12"}]}));
        server.join().unwrap();
        assert!(ask(u32::MAX).is_err());
    }

    #[test]
    fn transports_are_counted() {
        let state = json!({"queue_pairs": [
            {"transport": "shm", "one_sided": "direct"},
            {"transport": "tcp", "one_sided": null},
            {"transport": "shm", "one_sided": "direct"},
            {"transport": "shm", "one_sided": "ring"},
            {"nothing": 1},
        ]});
        assert_eq!(transports(&state), "2 shm (direct), 1 shm (ring), 1 tcp");
        assert_eq!(transports(&json!([])), "");
    }

    #[test]
    fn text_shows_every_field_and_no_control_character() {
        let state = json!({
            "program": "evil\u{1b}[2J",
            "queue_pairs": [{"qpn": "0x12", "state": "RTS"}, {"qpn": "0x13", "sent": 7}],
        });
        let text = describe(&state);
        for part in ["QPN", "STATE", "SENT", "0x12", "RTS", "0x13", "7"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\u{1b}'));
    }
}
