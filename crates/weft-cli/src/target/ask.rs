//! The commands that ask a running target.

use std::ffi::{OsStr, OsString};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, absolute};

use anyhow::{Context as _, Result, anyhow, bail};
use indicatif::{BinaryBytes, HumanCount};
use serde_json::Value;

use super::request::{Answer, Request};
use super::unit;
use crate::args::{
    ControlArgs, TargetAddArgs, TargetNameArgs, TargetReloadArgs, TargetResizeArgs, TargetShowArgs,
    TargetStatsArgs, TargetUnitArgs,
};
use crate::limits::ANSWER_BYTES_MAX;
use crate::output::{self, printable};

/// `weft target add`.
pub(super) fn add(args: &TargetAddArgs) -> Result<()> {
    let TargetNameArgs { control, name } = &args.target;
    let units = args.units.iter().map(|unit| absolute_unit(unit)).collect::<Result<_>>()?;
    let added = ask(control, &Request::Add { target: name.clone(), units })?;
    for unit in added.as_array().into_iter().flatten() {
        output::print(&format!("{}/{}\n", text(unit, "target"), number(unit, "lun")))?;
    }
    Ok(())
}

/// `weft target list`.
pub(super) fn list(args: &TargetShowArgs) -> Result<()> {
    let units = ask(&args.control, &Request::List)?;
    if args.json {
        return print_json(&units);
    }
    let mut table = output::table(["TARGET", "LUN", "SIZE", "BLOCK", "OPTIONS", "STORE"]);
    for unit in units.as_array().into_iter().flatten() {
        let has = |option: &&str| unit.get(*option).and_then(Value::as_bool) == Some(true);
        let options = ["read_only", "removable", "write_back", "direct"].into_iter().filter(has);
        let options = options.map(|option| option.replace('_', "-")).collect::<Vec<_>>();
        table.add_row([
            text(unit, "target"),
            number(unit, "lun").to_string(),
            BinaryBytes(number(unit, "size")).to_string(),
            number(unit, "block").to_string(),
            options.join(","),
            text(unit, "store"),
        ]);
    }
    output::print(&format!("{}\n", table.trim_fmt()))
}

/// `weft target remove`.
pub(super) fn remove(args: &TargetUnitArgs) -> Result<()> {
    let TargetNameArgs { control, name } = &args.target;
    ask(control, &Request::Remove { target: name.clone(), lun: args.lun }).map(drop)
}

/// `weft target resize`.
pub(super) fn resize(args: &TargetResizeArgs) -> Result<()> {
    let TargetUnitArgs { target: TargetNameArgs { control, name }, lun } = &args.unit;
    let request = Request::Resize { target: name.clone(), lun: *lun, len: args.size };
    let answer = ask(control, &request)?;
    output::print(&format!("{}\n", BinaryBytes(number(&answer, "size"))))
}

/// `weft target reload`.
pub(super) fn reload(args: &TargetReloadArgs) -> Result<()> {
    let TargetShowArgs { control, json } = &args.show;
    let report = ask(control, &Request::Reload { dry_run: args.dry_run })?;
    if *json {
        return print_json(&report);
    }
    for change in ["added", "removed"] {
        for unit in report.get(change).and_then(Value::as_array).into_iter().flatten() {
            let (target, lun, store) =
                (text(unit, "target"), number(unit, "lun"), text(unit, "store"));
            output::print(&format!("{change} {target}/{lun}  {store}\n"))?;
        }
    }
    Ok(())
}

/// `weft target stats`.
pub(super) fn stats(args: &TargetStatsArgs) -> Result<()> {
    let TargetShowArgs { control, json } = &args.show;
    if args.prometheus {
        let metrics = ask(control, &Request::Metrics)?;
        let text = metrics.as_str().context("the target sends no text")?;
        return output::print(text);
    }
    let stats = ask(control, &Request::Stats)?;
    if *json {
        return print_json(&stats);
    }
    let rows = |key: &str| stats.get(key).and_then(Value::as_array).into_iter().flatten();
    let mut table = output::table(["TARGET", "INITIATOR", "FROM", "COMMANDS", "READ", "WRITTEN"]);
    for session in rows("sessions") {
        table.add_row([
            text(session, "target"),
            text(session, "initiator"),
            text(session, "from"),
            HumanCount(number(session, "commands")).to_string(),
            BinaryBytes(number(session, "read")).to_string(),
            BinaryBytes(number(session, "written")).to_string(),
        ]);
    }
    output::print(&format!("{}\n\n", table.trim_fmt()))?;
    let mut table = output::table([
        "TARGET",
        "LUN",
        "OPERATION",
        "COMMANDS",
        "FAILED",
        "BYTES",
        "P50",
        "P99",
        "P99.9",
    ]);
    for unit in rows("units") {
        let [half, most, nearly_all] = ["p50", "p99", "p99.9"].map(|key| micros(unit, key));
        table.add_row([
            text(unit, "target"),
            number(unit, "lun").to_string(),
            text(unit, "operation"),
            HumanCount(number(unit, "commands")).to_string(),
            HumanCount(number(unit, "failed")).to_string(),
            BinaryBytes(number(unit, "bytes")).to_string(),
            half,
            most,
            nearly_all,
        ]);
    }
    output::print(&format!("{}\n", table.trim_fmt()))?;
    match stats.get("cache") {
        Some(cache) if cache.is_object() => print_cache(cache),
        _ => Ok(()),
    }
}

fn print_cache(cache: &Value) -> Result<()> {
    let mut table = output::table(["TARGET", "LUN", "CACHE HITS", "MISSES"]);
    for unit in cache.get("units").and_then(Value::as_array).into_iter().flatten() {
        table.add_row([
            text(unit, "target"),
            number(unit, "lun").to_string(),
            HumanCount(number(unit, "hits")).to_string(),
            HumanCount(number(unit, "misses")).to_string(),
        ]);
    }
    let [used, size] = ["used", "size"].map(|key| BinaryBytes(number(cache, key)));
    output::print(&format!("\n{}\n\ncache: {used} of {size}\n", table.trim_fmt()))
}

/// A time, if there is one.
fn micros(row: &Value, key: &str) -> String {
    duration(row.get(key).and_then(Value::as_f64))
}

/// A time in microseconds, if there is one.
pub(super) fn duration(micros: Option<f64>) -> String {
    match micros {
        Some(micros) if micros < 1e3 => format!("{micros:.1} us"),
        Some(micros) if micros < 1e6 => format!("{:.1} ms", micros / 1e3),
        Some(micros) => format!("{:.1} s", micros / 1e6),
        None => "-".to_owned(),
    }
}

/// `weft target drain`: the answer ends when the process has ended.
pub(super) fn drain(args: &ControlArgs) -> Result<()> {
    ask(args, &Request::Drain).map(drop)
}

/// A unit whose path does not depend on this process's directory.
fn absolute_unit(unit: &OsStr) -> Result<String> {
    let context = || unit.display().to_string();
    let store = unit::parse(unit).with_context(context)?.store;
    if store.path().is_none_or(Path::is_absolute) {
        return to_text(unit);
    }
    let mut directory = absolute(".").context("the working directory")?.into_os_string();
    directory.push("/");
    // A comma in a path is doubled.
    let escaped: Vec<u8> = directory
        .as_bytes()
        .iter()
        .flat_map(|&byte| std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }))
        .collect();
    let mut whole = OsStr::from_bytes(&escaped).to_owned();
    whole.push(unit);
    to_text(&whole)
}

fn to_text(unit: &OsStr) -> Result<String> {
    let text = OsString::from(unit).into_string();
    text.map_err(|unit| anyhow!("{}: names of files have to be UTF-8 here", unit.display()))
}

/// Sends a request, and waits for the answer.
pub(super) fn ask(args: &ControlArgs, request: &Request) -> Result<Value> {
    let path = args.control.display();
    let mut stream = UnixStream::connect(&args.control).with_context(|| {
        format!("no weft target serve listens at {path} (--control names another)")
    })?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    let mut answer = Vec::new();
    stream
        .write_all(&line)
        .and_then(|()| stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer))
        .with_context(|| format!("the target at {path} does not answer"))?;
    match serde_json::from_slice(&answer) {
        Ok(Answer::Done(value)) => Ok(value),
        Ok(Answer::Error(error)) => bail!("{}", printable(&error)),
        Err(_) => bail!("the target at {path} has ended, or sends no answer of this version"),
    }
}

pub(super) fn print_json(value: &Value) -> Result<()> {
    output::print(&format!("{value:#}\n"))
}

fn text(row: &Value, key: &str) -> String {
    printable(row.get(key).and_then(Value::as_str).unwrap_or("-"))
}

fn number(row: &Value, key: &str) -> u64 {
    row.get(key).and_then(Value::as_u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_units_become_absolute() {
        let here = absolute(".").unwrap();
        let whole = |text: &str| absolute_unit(OsStr::new(text)).unwrap();
        assert_eq!(whole("ram:1M,lun=3"), "ram:1M,lun=3");
        assert_eq!(whole("/a,,b,lun=3"), "/a,,b,lun=3");
        let place = |text: &str| unit::parse(OsStr::new(text)).unwrap().store;
        assert_eq!(place(&whole("a,,b,read-only")), unit::Place::Path(here.join("a,b")));
        assert!(whole("a,read-only").ends_with("/a,read-only"));
        assert!(absolute_unit(OsStr::new("a,x")).is_err());
    }
}
