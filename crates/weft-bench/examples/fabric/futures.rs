//! `weft-fabric` as futures on tokio.

use std::collections::VecDeque;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use tokio::runtime::{Builder, Runtime};
use weft_fabric::{Carrier, Connected, Endpoint, Fabric, Operation, Options, RemoteKey};

use crate::fabric::{WINDOW, offer};
use crate::{Load, Measured, Meter, measure};

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_current_thread().build()?)
}

/// Serves one client until it closes the connection. Returns since when.
pub(crate) fn serve(load: Load, at: SocketAddr) -> Result<Meter> {
    runtime()?.block_on(async {
        let (listener, shared) = offer(load, at, Carrier::Engine)?;
        let endpoint = listener.accept().await?.accept(&shared.key().to_bytes())?;
        let meter = Meter::start();
        while let Ok(message) = endpoint.receive().await {
            if load != Load::Rate || message.is_empty() {
                endpoint.send(&message)?.await?;
            }
        }
        Ok(meter)
    })
}

/// Measures a load as a client.
pub(crate) fn dial(load: Load, to: SocketAddr) -> Result<Measured> {
    let runtime = runtime()?;
    let fabric = Fabric::open(Options::default())?;
    let Connected { endpoint, private_data } =
        runtime.block_on(async { fabric.connect(to, b"")?.await })?;
    let key = RemoteKey::from_bytes(&private_data).context("no key")?;
    let measured = match load {
        Load::PingPong => measure(load, |count| runtime.block_on(ping(&endpoint, count))),
        Load::Rate => measure(load, |count| runtime.block_on(send(&endpoint, count))),
        Load::UnderWay => runtime.block_on(keep(&endpoint, &key, load.operations())),
        Load::Read => {
            let mut buffer = Some(fabric.alloc(8)?);
            measure(load, |count| {
                runtime.block_on(async {
                    for _ in 0..count {
                        let taken = buffer.take().context("no buffer")?;
                        buffer = Some(endpoint.read(taken, .., &key, 0)?.await?);
                    }
                    Ok(())
                })
            })
        }
        Load::Write(len) => {
            let mut buffer = Some(fabric.alloc(len)?);
            measure(load, |count| {
                runtime.block_on(async {
                    for _ in 0..count {
                        let taken = buffer.take().context("no buffer")?;
                        buffer = Some(endpoint.write(taken, .., &key, 0)?.await?);
                    }
                    Ok(())
                })
            })
        }
        Load::Add | Load::AddInside => measure(load, |count| {
            runtime.block_on(async {
                for _ in 0..count {
                    endpoint.fetch_add(&key, 0, 1)?.await?;
                }
                Ok(())
            })
        }),
    }?;
    runtime.block_on(endpoint.close())?;
    Ok(measured)
}

async fn ping(endpoint: &Endpoint, count: u64) -> Result<()> {
    for number in 0..count {
        endpoint.send(&number.to_be_bytes())?.await?;
        ensure!(endpoint.receive().await?.len() == 8);
    }
    Ok(())
}

async fn send(endpoint: &Endpoint, count: u64) -> Result<()> {
    let mut under_way: VecDeque<Operation<()>> = VecDeque::with_capacity(WINDOW);
    for _ in 0..count {
        if under_way.len() == WINDOW
            && let Some(first) = under_way.pop_front()
        {
            first.await?;
        }
        under_way.push_back(endpoint.send(&[7; 64])?);
    }
    // The server answers when all have come.
    endpoint.send(b"")?.await?;
    endpoint.receive().await?;
    Ok(())
}

/// Has `count` tasks wait for an operation each, all of which are under way at the same time.
/// Measures their memory.
async fn keep(endpoint: &Endpoint, key: &RemoteKey, count: u64) -> Result<Measured> {
    let before = resident()?;
    let meter = Meter::start();
    let batch = endpoint.batch();
    let all: Vec<_> = (0..count).map(|_| endpoint.fetch_add(key, 0, 1)).collect();
    let bytes_each = resident()?.saturating_sub(before) / count;
    drop(batch);
    for operation in all {
        operation?.await?;
    }
    Ok(Measured { bytes_each, ..meter.stop(count) })
}

/// Bytes of memory that this process has.
fn resident() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = text.split(' ').nth(1).context("no size")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}
