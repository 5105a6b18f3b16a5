//! fio's `rdma` engine: Write, Read and Send, in processes and in threads.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::{Finished, Program, Stage, ensure_data, ports, scratch, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(60);
const SIZE_BYTES: u64 = 32 << 20;

/// The client's operation.
const VERBS: [&str; 3] = ["write", "read", "send"];

/// The counters of the only job of a report.
fn job(end: &Finished) -> Result<Value> {
    // fio may print remarks before the report.
    let start = end.stdout.find('{').with_context(|| end.error("no report"))?;
    let report: Value =
        serde_json::from_str(&end.stdout[start..]).with_context(|| end.error("no report"))?;
    report.pointer("/jobs/0").cloned().with_context(|| end.error("no job"))
}

fn transfer(stage: &Stage, verb: &str, options: &str) -> Result<()> {
    let port = ports::next();
    let program = Program::weft("fio")
        .line("--ioengine=rdma --output-format=json --bs=64k --iodepth=16")
        .args([format!("--port={port}"), format!("--size={SIZE_BYTES}")])
        .directory(scratch("fio")?)
        .line(options);
    // In this engine the reading job is the server and the writing job the client, for every verb.
    let server = program.clone().line("--name=target --rw=read");
    let client = program
        .args(["--name=initiator", "--rw=write", &format!("--verb={verb}")])
        .arg(format!("--hostname={}", stage.server_address()));
    let ends = stage.converse(&server, Port::Tcp(port), &client, TIMEOUT);
    let (_, client) = ends.with_context(|| format!("{verb} {options}"))?;
    let job = job(&client)?;
    ensure!(job["error"] == 0, client.error("fio reports an error"));
    let moved = &job["write"]["io_bytes"];
    ensure_data!(*moved == SIZE_BYTES, "{}", client.error(format!("{moved} bytes")));
    Ok(())
}

#[test]
fn in_a_process() -> Result<()> {
    VERBS.iter().try_for_each(|&verb| transfer(&Stage::loopback(), verb, ""))
}

#[test]
fn in_a_thread() -> Result<()> {
    VERBS.iter().try_for_each(|&verb| transfer(&Stage::loopback(), verb, "--thread"))
}

#[test]
fn across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    VERBS.iter().try_for_each(|&verb| transfer(&stage, verb, ""))
}

/// Each block carries a checksum that the receiving side verifies.
#[test]
fn verified() -> Result<()> {
    let verify = "--verify=crc32c --verify_fatal=1";
    transfer(&Stage::loopback(), "send", &format!("{verify} --do_verify=0"))
}
