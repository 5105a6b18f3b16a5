//! `weft-fabric` with blocking calls.

use std::collections::VecDeque;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use weft_fabric::{
    Carrier, Connected, Endpoint, Fabric, Listener, Operation, Options, RemoteKey, Rights,
    SharedBuffer,
};

use crate::{Load, Measured, Meter, announce, measure};

/// Messages under way.
pub(crate) const WINDOW: usize = 64;

fn open(carrier: Carrier) -> Result<Fabric> {
    Ok(Fabric::open(Options { carrier, ..Options::default() })?)
}

/// Listens for a client, and shares the memory that it accesses.
pub(crate) fn offer(
    load: Load,
    at: SocketAddr,
    carrier: Carrier,
) -> Result<(Listener, SharedBuffer)> {
    let fabric = open(carrier)?;
    let listener = fabric.listen(at)?;
    announce(listener.address())?;
    let (start, len) = (load.shared_at(), load.shared_len());
    let range = start..if load == Load::AddInside { start + 8 } else { len };
    Ok((listener, fabric.alloc(len)?.share(Rights::ALL, range)?))
}

/// Serves one client until it closes the connection. Returns since when.
pub(crate) fn serve(load: Load, at: SocketAddr, carrier: Carrier) -> Result<Meter> {
    let (listener, shared) = offer(load, at, carrier)?;
    let endpoint = listener.accept().wait()?.accept(&shared.key().to_bytes())?;
    let meter = Meter::start();
    while let Ok(message) = endpoint.receive().wait() {
        if load != Load::Rate || message.is_empty() {
            endpoint.send(&message)?.wait()?;
        }
    }
    Ok(meter)
}

/// Measures a load as a client.
pub(crate) fn dial(load: Load, to: SocketAddr, carrier: Carrier) -> Result<Measured> {
    let fabric = open(carrier)?;
    let Connected { endpoint, private_data } = fabric.connect(to, b"")?.wait()?;
    let key = RemoteKey::from_bytes(&private_data).context("no key")?;
    let measured = match load {
        Load::PingPong => measure(load, |count| ping(&endpoint, count)),
        Load::Rate => measure(load, |count| send(&endpoint, count)),
        Load::Read => {
            let mut buffer = Some(fabric.alloc(8)?);
            measure(load, |count| {
                for _ in 0..count {
                    let taken = buffer.take().context("no buffer")?;
                    buffer = Some(endpoint.read(taken, .., &key, 0)?.wait()?);
                }
                Ok(())
            })
        }
        Load::Write(len) => {
            let mut buffer = Some(fabric.alloc(len)?);
            measure(load, |count| {
                for _ in 0..count {
                    let taken = buffer.take().context("no buffer")?;
                    buffer = Some(endpoint.write(taken, .., &key, 0)?.wait()?);
                }
                Ok(())
            })
        }
        Load::Add | Load::AddInside => measure(load, |count| {
            for _ in 0..count {
                endpoint.fetch_add(&key, 0, 1)?.wait()?;
            }
            Ok(())
        }),
        Load::UnderWay => bail!("that is for futures"),
    }?;
    endpoint.close().wait()?;
    Ok(measured)
}

fn ping(endpoint: &Endpoint, count: u64) -> Result<()> {
    for number in 0..count {
        endpoint.send(&number.to_be_bytes())?.wait()?;
        ensure!(endpoint.receive().wait()?.len() == 8);
    }
    Ok(())
}

fn send(endpoint: &Endpoint, count: u64) -> Result<()> {
    let mut under_way: VecDeque<Operation<()>> = VecDeque::with_capacity(WINDOW);
    for _ in 0..count {
        if under_way.len() == WINDOW
            && let Some(first) = under_way.pop_front()
        {
            first.wait()?;
        }
        under_way.push_back(endpoint.send(&[7; 64])?);
    }
    // The server answers when all have come.
    endpoint.send(b"")?.wait()?;
    endpoint.receive().wait()?;
    Ok(())
}
