//! `make demo`: runs unmodified RDMA programs between two hosts without RDMA hardware, runs
//! unmodified TCP programs on one host, copies files, and serves block storage.

use std::time::Duration;

use anyhow::{Result, ensure};
use comfy_table::{Table, presets};
use weft_lab::block::{self, Storage};
use weft_lab::copies::{self, Load, Place};
use weft_lab::endpoint::Port;
use weft_lab::measure::{Bench, Placement, Tool, Unit};
use weft_lab::{Program, Stage, machine, namespaces_denied, ports};

const WRITE_BANDWIDTH: Tool = Tool::PerftestBandwidth {
    program: "ib_write_bw",
    options: "-s 65536 -n 20000",
    unit: Unit::BytesPerSecond,
};
const SEND_LATENCY: Tool =
    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 20000" };
const TCP_BANDWIDTH: [Tool; 2] = [
    Tool::Iperf3 { bytes: 65_536 },
    Tool::QperfTcpBandwidth { bytes: 65_536, unit: Unit::BytesPerSecond },
];
const TCP_LATENCY: [Tool; 1] = [Tool::QperfLatency { test: "tcp_lat", bytes: 8 }];

/// Numbers of connections for `redis-benchmark`. One connection waits for each answer; 16 keep the
/// server busy.
const CLIENTS: [u32; 2] = [1, 16];

/// Pings of `rping`. For each, the server makes an RDMA Read and an RDMA Write, and both ends
/// compare the data.
const PINGS: u32 = 1000;

fn main() -> Result<()> {
    if let Some(why) = namespaces_denied() {
        println!("Falling back to loopback: {why}");
    }
    let stage = Stage::best()?;
    let bench = Bench { stage: &stage, placement: Placement::Pinned };
    println!("Machine:   {}", machine::describe());
    println!("Path:      {}", bench.stage.describe());
    println!("Placement: {}\n", bench.placement);

    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["program on Weft", "result", "same path, plain TCP", "result", "Weft / TCP"]);
    compare(&bench, &mut table, WRITE_BANDWIDTH, &TCP_BANDWIDTH)?;
    compare(&bench, &mut table, SEND_LATENCY, &TCP_LATENCY)?;
    table.add_row([
        format!("rping -V -C {PINGS}"),
        ping(bench.stage)?,
        String::new(),
        String::new(),
        String::new(),
    ]);
    println!("{table}");
    println!("\nBandwidth: more is better. Latency, one way: less is better.");
    println!("`make bench` repeats, interleaves and takes medians.\n");
    one_host()?;
    copying()?;
    block_storage()
}

/// Compares TCP programs under `weft run` with the same programs on the kernel's TCP.
fn one_host() -> Result<()> {
    let stage = Stage::loopback();
    let bench = Bench { stage: &stage, placement: Placement::Pinned };
    println!("TCP programs on one host, {}:\n", bench.placement);
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["program", "requests by weft run", "as it is", "Weft / TCP"]);
    for clients in CLIENTS {
        let tool = |weft| Tool::Redis { clients, pipeline: 1, weft };
        let (weft, plain) = (bench.run(tool(true))?.value, bench.run(tool(false))?.value);
        table.add_row([
            tool(true).to_string(),
            tool(true).unit().show(weft),
            tool(false).unit().show(plain),
            format!("{:.2}", weft / plain),
        ]);
    }
    println!("{table}");
    println!("\n`weft top` shows such connections while they last.");
    Ok(())
}

/// Compares copies by `weft cp` with copies by other programs.
fn copying() -> Result<()> {
    use copies::Tool::{Cp, Scp, Weft, WeftToServer};
    let load = Load::large()?;
    let place = Place::new(&[load])?;
    println!("\nCopies of {load}, in memory, the second of two:\n");
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["on Weft", "result", "other program", "result", "Weft / other"]);
    for (weft, other) in [(Weft, Cp), (WeftToServer, Scp)] {
        // The first copies allocate memory. Their times are discarded.
        for tool in [weft, other] {
            place.measure(load, tool)?;
        }
        let [ours, others] = [weft, other].map(|tool| place.measure(load, tool));
        let (ours, others) = (ours?.seconds, others?.seconds);
        table.add_row([
            weft.to_string(),
            load.show(ours),
            other.to_string(),
            load.show(others),
            format!("{:.2}", others / ours),
        ]);
    }
    println!("{table}");
    Ok(())
}

/// Compares reads and writes of a unit of `weft target` with those of a unit of tgt.
fn block_storage() -> Result<()> {
    use block::Target::{Tgt, Weft};
    let storage = Storage::start()?;
    println!("\nBlock storage over iSCSI on one host, in memory:\n");
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["load", "weft target", "CPU", "tgtd", "CPU", "Weft / tgtd"]);
    for load in [block::Load::RandomReads(32), block::Load::LargeWrites] {
        let (weft, tgt) = (storage.measure(load, Weft)?, storage.measure(load, Tgt)?);
        table.add_row([
            load.to_string(),
            load.show(weft.rate),
            format!("{:.1} us", weft.cpu_micros),
            load.show(tgt.rate),
            format!("{:.1} us", tgt.cpu_micros),
            format!("{:.2}", weft.rate / tgt.rate),
        ]);
    }
    println!("{table}");
    println!("\nCPU: processor time of the target for each request.");
    Ok(())
}

fn compare(bench: &Bench<'_>, table: &mut Table, tool: Tool, baselines: &[Tool]) -> Result<()> {
    let weft = bench.run(tool)?.value;
    for &baseline in baselines {
        let tcp = bench.run(baseline)?.value;
        table.add_row([
            tool.to_string(),
            tool.unit().show(weft),
            baseline.to_string(),
            baseline.unit().show(tcp),
            format!("{:.2}", weft / tcp),
        ]);
    }
    Ok(())
}

/// Runs rping with verification, and returns a text with the number of verified pings.
fn ping(stage: &Stage) -> Result<String> {
    let timeout = Duration::from_secs(60);
    let (port, address) = (ports::next(), stage.server_address().to_string());
    let program = Program::weft("rping").line("-V -p").arg(port.to_string());
    let program = program.args(["-C", &PINGS.to_string(), "-a", &address]);
    let server = stage.server(program.clone().arg("-s")).start()?.listening(Port::Tcp(port))?;
    let client = stage.client(program.line("-c -v")).run(timeout)?.success()?;
    server.wait(timeout)?.success()?;
    let echoed = client.stdout.lines().filter(|line| line.starts_with("ping data:")).count();
    ensure!(echoed == PINGS as usize, client.error(format!("{echoed} pings came back")));
    Ok(format!("{echoed} pings, data verified"))
}
