//! The control socket of a running target.

use std::ffi::OsStr;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;
use serde_json::{Value, json};
use weft_sys::{lock, nanoseconds};
use weft_target::scsi::{Device, Unit};
use weft_target::server::Wakeup;
use weft_target::session::{Announcement, Portal};
use weft_target::store::CacheStats;

use super::metrics;
use super::plan::Fixed;
use super::reload::{Changes, Source, Stores, forget};
use super::request::{Answer, Request};
use super::unit::{self, Place, UnitResources};
use crate::limits::{
    CONTROL_CLIENTS_MAX, CONTROL_PAUSE, CONTROL_REQUEST_LEN_MAX, CONTROL_TIME_MAX,
};
use crate::percentile::percentile;
use crate::private_socket::PrivateSocket;

/// A control socket.
#[derive(Debug)]
pub(super) struct ControlSocket(PrivateSocket);

impl ControlSocket {
    /// Makes the socket.
    ///
    /// # Errors
    ///
    /// Those of [`PrivateSocket::bind`].
    pub(super) fn bind(path: &Path) -> Result<Self> {
        let socket = PrivateSocket::bind(path);
        Ok(Self(socket.with_context(|| format!("control socket {}", path.display()))?))
    }

    /// Answers requests on threads of its own, for as long as the process lives.
    pub(super) fn serve(&self, service: Arc<Service>) -> Result<()> {
        let listener = self.0.listener()?;
        let clients = Arc::new(Clients::default());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else {
                    // No descriptor is free, perhaps.
                    thread::sleep(CONTROL_PAUSE);
                    continue;
                };
                let (service, place) = (Arc::clone(&service), Clients::enter(&clients));
                // A client that goes away or sends nothing gets no answer, nor does one for which
                // there is no thread.
                let _ = thread::Builder::new().spawn(move || {
                    let _place = place;
                    let _ = service.handle(stream);
                });
            }
        });
        Ok(())
    }
}

/// Counts the clients that are being served.
#[derive(Debug, Default)]
struct Clients {
    count: Mutex<usize>,
    left: Condvar,
}

/// The place of a client, free again when it is dropped.
struct ClientPlace(Arc<Clients>);

impl Clients {
    /// Takes a place. Waits while there is none.
    fn enter(clients: &Arc<Self>) -> ClientPlace {
        let count = lock(&clients.count);
        let is_full = |count: &mut usize| *count >= CONTROL_CLIENTS_MAX;
        let waited = clients.left.wait_while(count, is_full);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        ClientPlace(Arc::clone(clients))
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        *lock(&self.0.count) -= 1;
        self.0.left.notify_one();
    }
}

/// The state that requests use.
pub(super) struct Service {
    portal: Arc<Portal>,
    stop: Arc<Wakeup>,
    /// What all units share.
    shared: UnitResources,
    /// Where the units of targets are. One request changes them at a time.
    stores: Mutex<Stores>,
    /// The file to read again, and what of it cannot change. `None` if there is no file.
    ///
    /// The lock lets one reload follow the other, while other requests go on: a file may be slow.
    source: Option<Mutex<(Source, Fixed)>>,
    /// Clients that wait for the end of the process.
    waiting: Mutex<Vec<UnixStream>>,
}

impl Service {
    /// Returns a service that ends the target by `stop`.
    pub(super) fn new(
        portal: Arc<Portal>,
        stop: Arc<Wakeup>,
        stores: Stores,
        shared: UnitResources,
    ) -> Self {
        let stores = Mutex::new(stores);
        Self { portal, stop, shared, stores, source: None, waiting: Mutex::default() }
    }

    /// Lets it read a file again. The values in `fixed` cannot change.
    pub(super) fn with_source(self, source: Source, fixed: Fixed) -> Self {
        Self { source: Some(Mutex::new((source, fixed))), ..self }
    }

    fn handle(&self, mut stream: UnixStream) -> Result<()> {
        // The mode of the socket keeps others out already, unless its directory was changed.
        let peer = socket_peercred(&stream)?.uid;
        ensure!(peer == geteuid() || peer.is_root(), "another user");
        let line = read_line(&mut stream)?;
        let request = serde_json::from_slice(&line).context("no request that this version knows");
        let waits = matches!(request, Ok(Request::Drain));
        let answer = match request.and_then(|request| self.answer(request)) {
            Ok(value) => Answer::Done(value),
            Err(error) => Answer::Error(format!("{error:#}")),
        };
        let mut text = serde_json::to_vec(&answer)?;
        text.push(b'\n');
        stream.set_write_timeout(Some(CONTROL_TIME_MAX))?;
        let written = stream.write_all(&text);
        if waits {
            lock(&self.waiting).push(stream);
            self.stop.notify();
        }
        Ok(written?)
    }

    fn answer(&self, request: Request) -> Result<Value> {
        match request {
            Request::Add { target, units } => self.add(target.as_deref(), &units),
            Request::List => Ok(self.list()),
            Request::Remove { target, lun } => self.remove(target.as_deref(), lun),
            Request::Resize { target, lun, len } => {
                let device = self.device(target.as_deref())?;
                self.resize(&device, lun, len)
            }
            Request::Reload { dry_run } => self.reload(dry_run),
            Request::Stats => Ok(json!({
                "sessions": self.sessions(),
                "units": self.units(),
                "cache": self.cache(),
            })),
            Request::Metrics => {
                Ok(metrics::text(&self.portal, self.shared.cache.as_deref()).into())
            }
            // The target ends once the client waits for that.
            Request::Drain => Ok(Value::Null),
        }
    }

    /// Opens all units before the first one is added: all are added, or none.
    fn add(&self, target: Option<&str>, texts: &[String]) -> Result<Value> {
        let device = self.device(target)?;
        let mut stores = lock(&self.stores);
        let mut taken = device.numbers();
        let mut opened = Vec::new();
        for text in texts {
            let add = || {
                let parsed = unit::parse(OsStr::new(text))?;
                let free = (0..=u8::MAX).find(|number| !taken.contains(number));
                let number = parsed.number.or(free).context("there are 256 units already")?;
                ensure!(!taken.contains(&number), "a unit has the number {number}");
                let place = parsed.store.clone();
                Ok((number, Arc::new(parsed.open(device.name(), number, &self.shared)?), place))
            };
            let unit = add().with_context(|| text.clone())?;
            taken.push(unit.0);
            opened.push(unit);
        }
        let mut added = Vec::new();
        for (number, unit, place) in opened {
            // Units are added by the holder of the lock only.
            ensure!(device.insert(number, unit), "a unit has the number {number}");
            stores.insert((device.name().to_owned(), number), place);
            added.push(json!({ "target": device.name(), "lun": number }));
        }
        self.portal.announce(&device, Announcement::UnitsChanged);
        Ok(added.into())
    }

    fn remove(&self, target: Option<&str>, lun: u8) -> Result<Value> {
        let device = self.device(target)?;
        let mut stores = lock(&self.stores);
        let removed = device.remove(lun).with_context(|| no_unit(&device, lun))?;
        stores.remove(&(device.name().to_owned(), lun));
        self.portal.announce(&device, Announcement::UnitsChanged);
        forget(&removed).with_context(|| format!("unit {lun} is removed"))?;
        Ok(Value::Null)
    }

    fn resize(&self, device: &Device, lun: u8, len: Option<u64>) -> Result<Value> {
        let mut stores = lock(&self.stores);
        let unit = unit(device, lun)?;
        unit.resize(len).with_context(|| format!("unit {lun}"))?;
        self.portal.announce(device, Announcement::CapacityChanged(lun));
        let size = size(&unit);
        if let (Some(place), Some(len)) = (stores.get_mut(&(device.name().to_owned(), lun)), len) {
            match place {
                Place::Path(_) | Place::Direct(_) => {}
                Place::Ram(before) | Place::Null(before) => *before = len,
            }
        }
        Ok(json!({ "size": size }))
    }

    /// Reads the file again, and serves what it says now. With `dry_run` nothing changes.
    ///
    /// # Errors
    ///
    /// If there is no file, or if what it says cannot be served: then nothing has changed. If
    /// something of what was removed could not be made safe: then all is changed.
    pub(super) fn reload(&self, dry_run: bool) -> Result<Value> {
        let source = self.source.as_ref();
        let source = lock(source.context("the target was started without --config")?);
        let (source, fixed) = &*source;
        let unchanged = "nothing has changed";
        let plan = source.read_again(fixed).context(unchanged)?;
        let mut stores = lock(&self.stores);
        let changes = Changes::prepare(plan, &self.portal, &stores, &self.shared);
        let changes = changes.context(unchanged)?;
        let report = changes.report().clone();
        if !dry_run {
            let (changed, result) = changes.apply(&self.portal);
            *stores = changed;
            result?;
        }
        Ok(report)
    }

    fn list(&self) -> Value {
        let stores = lock(&self.stores);
        let mut rows = Vec::new();
        for target in self.portal.targets() {
            let device = target.device();
            for (number, unit) in device.units() {
                let options = unit.options();
                let place = stores.get(&(device.name().to_owned(), number));
                rows.push(json!({
                    "target": device.name(),
                    "lun": number,
                    "size": size(&unit),
                    "block": options.block_len,
                    "read_only": options.is_read_only,
                    "removable": options.is_removable,
                    "write_back": options.write_back,
                    "direct": unit.is_direct(),
                    "store": place.map(Place::to_string),
                }));
            }
        }
        rows.into()
    }

    fn sessions(&self) -> Value {
        let sessions = self.portal.sessions().into_iter().map(|session| {
            let isid: String =
                session.initiator.isid.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({
                "target": session.target,
                "initiator": session.initiator.name,
                "isid": isid,
                "from": session.from.to_string(),
                "commands": session.commands,
                "read": session.read_bytes,
                "written": session.written_bytes,
            })
        });
        sessions.collect::<Vec<_>>().into()
    }

    /// The counters of each unit, by kinds of commands. Times are in microseconds, unless their
    /// names say something else.
    fn units(&self) -> Value {
        let mut rows = Vec::new();
        for target in self.portal.targets() {
            let device = target.device();
            for (number, unit) in device.units() {
                rows.extend(unit.stats().into_iter().map(|stats| {
                    let buckets = stats.buckets();
                    let time_of = |per_mille| {
                        let time = percentile(buckets.iter().copied(), per_mille)??;
                        Some(time.as_nanos() as f64 / 1e3)
                    };
                    let histogram = buckets.iter().map(|&(bound, commands)| {
                        json!({ "up_to_ns": bound.map(nanoseconds), "commands": commands })
                    });
                    json!({
                        "target": device.name(),
                        "lun": number,
                        "operation": stats.kind.name(),
                        "commands": stats.commands(),
                        "failed": stats.failed,
                        "bytes": stats.bytes,
                        "p50": time_of(500),
                        "p99": time_of(990),
                        "p99.9": time_of(999),
                        "time_ns": nanoseconds(stats.time),
                        "histogram": histogram.collect::<Vec<_>>(),
                    })
                }));
            }
        }
        rows.into()
    }

    /// The cache, with what it was to each of its units. Null if there is none.
    fn cache(&self) -> Value {
        let Some(cache) = &self.shared.cache else { return Value::Null };
        let mut rows = Vec::new();
        for target in self.portal.targets() {
            for (number, unit) in target.device().units() {
                rows.extend(unit.cache_stats().map(|CacheStats { hits, misses }| {
                    json!({
                        "target": target.device().name(),
                        "lun": number,
                        "hits": hits,
                        "misses": misses,
                    })
                }));
            }
        }
        json!({ "size": cache.len(), "used": cache.used(), "units": rows })
    }

    /// The target with a name, or the only one.
    fn device(&self, name: Option<&str>) -> Result<Arc<Device>> {
        let target = match (name, &self.portal.targets()[..]) {
            (Some(name), _) => {
                self.portal.target(name).with_context(|| format!("there is no target {name}"))?
            }
            (None, [only]) => Arc::clone(only),
            (None, _) => bail!("there are several targets: say which one with --name"),
        };
        Ok(Arc::clone(target.device()))
    }
}

/// Reads a request. The client has this much time for all of it.
fn read_line(stream: &mut UnixStream) -> Result<Vec<u8>> {
    let end = Instant::now() + CONTROL_TIME_MAX;
    let (mut line, mut part) = (Vec::new(), [0; 4_096]);
    while !line.contains(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no request in time");
        ensure!(line.len() < CONTROL_REQUEST_LEN_MAX, "the request is too long");
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            len => line.extend_from_slice(&part[..len]),
        }
    }
    Ok(line)
}

fn unit(device: &Device, lun: u8) -> Result<Arc<Unit>> {
    let units = device.units().into_iter();
    let unit = units.into_iter().find(|(number, _)| *number == lun);
    unit.map(|(_, unit)| unit).with_context(|| no_unit(device, lun))
}

fn no_unit(device: &Device, lun: u8) -> String {
    format!("{} has no unit {lun}", device.name())
}

/// The length of a unit in bytes.
fn size(unit: &Unit) -> u64 {
    unit.blocks() * u64::from(unit.options().block_len)
}

#[cfg(test)]
mod tests {
    use weft_target::security::Access;
    use weft_target::server::RANDOM;

    use super::*;

    /// Sends a line, and returns the answer.
    fn ask(path: &Path, line: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(line).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn silent_clients_delay_nobody() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = ControlSocket::bind(&path).unwrap();
        let portal = Portal::new(Vec::new(), Access::default(), RANDOM);
        let stop = Arc::new(Wakeup::new().unwrap());
        let service = Service::new(Arc::new(portal), stop, Stores::new(), UnitResources::default());
        let service = Arc::new(service);
        socket.serve(service).unwrap();
        let silent: Vec<_> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
        assert_eq!(ask(&path, b"{\"verb\":\"list\"}\n"), "{\"done\":[]}\n");
        assert!(ask(&path, b"{\"verb\":\"dance\"}\n").contains("error"));
        // None of the silent ones has been given up: the answers came while they were served.
        for mut stream in silent {
            stream.write_all(b"{\"verb\":\"list\"}\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "{\"done\":[]}\n");
        }
    }

    #[test]
    fn more_clients_than_places_are_served_one_after_another() {
        let clients = Arc::new(Clients::default());
        let places: Vec<_> = (0..CONTROL_CLIENTS_MAX).map(|_| Clients::enter(&clients)).collect();
        let waits = Arc::clone(&clients);
        let next = thread::spawn(move || drop(Clients::enter(&waits)));
        assert_eq!(*lock(&clients.count), CONTROL_CLIENTS_MAX);
        drop(places);
        next.join().unwrap();
        assert_eq!(*lock(&clients.count), 0);
    }
}
