//! The measurements of the lab itself, on programs that need no RDMA.

use anyhow::{Result, ensure};
use weft_lab::measure::{Bench, Placement, Tool, Unit};
use weft_lab::{Stage, skip_without_namespaces};

fn measures_tcp(stage: Stage) -> Result<()> {
    let bench = Bench { stage: &stage, placement: Placement::Pinned };
    let iperf3 = Tool::Iperf3 { bytes: 65_536 };
    let rate = Tool::QperfTcpBandwidth { bytes: 64, unit: Unit::MessagesPerSecond };
    for tool in [iperf3, rate, Tool::QperfLatency { test: "tcp_lat", bytes: 8 }] {
        let sample = bench.run(tool)?;
        println!("{tool}: {} {:?}", tool.unit().show(sample.value), sample.cpu_per_message);
        ensure!(sample.value > 0.0, "{tool}: {sample:?}");
        ensure!(sample.cpu_per_message.iter().all(|&cpu| cpu > 0.0), "{tool}: {sample:?}");
    }
    Ok(())
}

#[test]
fn loopback() -> Result<()> {
    measures_tcp(Stage::loopback())
}

#[test]
fn namespaces() -> Result<()> {
    skip_without_namespaces!();
    measures_tcp(Stage::namespaces()?)
}
