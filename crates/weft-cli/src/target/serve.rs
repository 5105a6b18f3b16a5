//! `weft target serve`.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::available_parallelism;

use anyhow::{Context as _, Result, ensure};
use rustix::system::sysinfo;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use weft_target::cache::{Cache, Topology};
use weft_target::server::{CLOCK, Event, Options, RANDOM, RdmaListener, Server, Wakeup};
use weft_target::session::Portal;

use super::control::{ControlSocket, Service};
use super::kept::StateDirectory;
use super::plan::Plan;
use super::reload::{Source, Stores, open};
use super::unit::UnitResources;
use crate::args::TargetServeArgs;
use crate::listening::listen;
use crate::notify::{State, notify};
use crate::{output, signals};

/// Serves until a signal or `weft target drain` ends it.
pub(super) fn serve(args: &TargetServeArgs) -> Result<()> {
    let source = args.config.clone();
    let source = source.map(|path| Source::new(path, args.control.clone(), args.state.clone()));
    let Plan { targets: planned, discovery, sessions_max, fixed } = match &source {
        Some(source) => source.read()?,
        None => Plan::of_arguments(args)?,
    };
    let kept = fixed.state.as_deref().map(StateDirectory::open).transpose()?;
    let shared = UnitResources { kept, cache: fixed.cache.map(cache).transpose()? };
    let mut stores = Stores::new();
    let mut targets = Vec::new();
    for target in planned {
        targets.push(open(target, &shared, &mut stores)?);
    }
    let bind = |address| listen(address, "--listen");
    let listeners: Vec<_> = fixed.listen.iter().map(bind).collect::<Result<_>>()?;
    let rdma: Vec<_> = fixed.iser.iter().map(listen_over_rdma).collect::<Result<_>>()?;
    let portal = Portal::new(targets, discovery, RANDOM);
    let portal = Arc::new(portal.with_sessions_max(sessions_max).with_clock(CLOCK));
    let stop = stop_on_signals()?;
    let control = fixed.control.as_deref().map(ControlSocket::bind).transpose()?;
    let mut service = Service::new(Arc::clone(&portal), Arc::clone(&stop), stores, shared);
    let has_file = source.is_some();
    if let Some(source) = source {
        service = service.with_source(source, fixed.clone());
    }
    let service = Arc::new(service);
    if has_file {
        reload_on_hangup(&service)?;
    }
    if let Some(control) = &control {
        control.serve(service)?;
    }
    announce(&portal, &listeners, &rdma)?;
    // A process without a service manager may have inherited the address of one.
    if let Err(error) = notify(State::Ready) {
        output::complain(error);
    }
    let loops = fixed.loops.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
    let options = Options { loops, logins: fixed.logins, drain_time: fixed.drain_time };
    let server = Server::new(Arc::clone(&portal), options, Arc::new(reporter()));
    server.run(listeners, rdma, &stop).context("event loop")?;
    // All is served that could be. A manager that is gone does not keep units from being flushed.
    let _ = notify(State::Stopping);
    flush(&portal)
}

/// Allocates the cache of blocks.
fn cache(len: u64) -> Result<Arc<Cache>> {
    let memory = sysinfo();
    let total = memory.totalram.saturating_mul(memory.mem_unit.into());
    ensure!(len < total, "a cache of {len} bytes: this machine has a memory of {total}");
    let cache = Cache::new(Topology::of_this_machine(), len);
    Ok(Arc::new(cache.with_context(|| format!("a cache of {len} bytes"))?))
}

fn listen_over_rdma(address: &SocketAddr) -> Result<RdmaListener> {
    RdmaListener::bind(*address).with_context(|| {
        format!(
            "iSER at {address} (a host without an RDMA card needs the command under \
             `weft run --no-sockets`)"
        )
    })
}

/// Prints the URL of each unit, and behind those of an address that it is listened at.
fn announce(portal: &Portal, listeners: &[TcpListener], rdma: &[RdmaListener]) -> Result<()> {
    for listener in rdma {
        let address = listener.address();
        announce_units(portal, "iser", address)?;
        let device = listener.device_name();
        output::print(&format!("listening on {address} of the RDMA device {device}\n"))?;
    }
    for listener in listeners {
        let address = listener.local_addr()?;
        announce_units(portal, "iscsi", address)?;
        output::print(&format!("listening on {address}\n"))?;
    }
    Ok(())
}

fn announce_units(portal: &Portal, scheme: &str, address: SocketAddr) -> Result<()> {
    for target in portal.targets() {
        let device = target.device();
        for (number, unit) in device.units() {
            let len = u64::from(unit.options().block_len) * unit.blocks();
            let (name, len) = (device.name(), indicatif::BinaryBytes(len));
            output::print(&format!("{scheme}://{address}/{name}/{number}  {len}\n"))?;
        }
    }
    Ok(())
}

/// A wakeup that SIGTERM and SIGINT notify, each time.
fn stop_on_signals() -> Result<Arc<Wakeup>> {
    let stop = Arc::new(Wakeup::new()?);
    let notified = Arc::clone(&stop);
    signals::on(&[SIGINT, SIGTERM], move || {
        notified.notify();
    })?;
    Ok(stop)
}

/// Reads the file again at each SIGHUP.
fn reload_on_hangup(service: &Arc<Service>) -> Result<()> {
    let service = Arc::clone(service);
    signals::on(&[SIGHUP], move || match service.reload(false) {
        Ok(report) => {
            let count = |key| report.get(key).and_then(Value::as_array).map_or(0, Vec::len);
            let (added, removed) = (count("added"), count("removed"));
            // Nobody may be there to read it.
            let _ = output::print(&format!("reloaded: {added} added, {removed} removed\n"));
        }
        Err(error) => output::complain(error),
    })
}

/// Makes what initiators have written safe.
fn flush(portal: &Portal) -> Result<()> {
    let targets = portal.targets();
    let units = targets.iter().flat_map(|target| target.device().units());
    let unsafe_units: Vec<String> = units
        .filter(|(_, unit)| unit.flush().is_err())
        .map(|(number, _)| number.to_string())
        .collect();
    ensure!(unsafe_units.is_empty(), "cannot flush unit {}", unsafe_units.join(", "));
    Ok(())
}

/// Prints what an operator should see: connections that end for a reason.
fn reporter() -> impl Fn(Event) {
    let refused = AtomicU64::new(0);
    move |event| match event {
        Event::Ended(from, Some(closed)) => output::complain(format!("{from}: {closed}")),
        Event::NotAccepted(error) => output::complain(format!("cannot accept: {error}")),
        Event::Refused(from) => {
            let count = 1 + refused.fetch_add(1, Ordering::Relaxed);
            // A flood of connections is no flood of lines.
            if count.is_power_of_two() {
                output::complain(format!(
                    "{from}: closed, since too many connections have not logged in ({count} in all)"
                ));
            }
        }
        Event::Connected(_) | Event::Ended(_, None) => {}
    }
}
