//! A server without sockets. It does what that of the product does with its connections.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use weft_tuples::input::Input;
use weft_tuples::log::Log;
use weft_tuples::model::{ClientId, Now, Service, Ticket};
use weft_tuples::native::Connection;

use super::disk::Disk;

/// A log that has grown by this gets a snapshot.
const LOG_LEN_MAX: u64 = 2_000;

#[derive(Debug, Default)]
struct ServedLink {
    connection: Connection,
    input: Input,
    entered: Option<ClientId>,
}

#[derive(Debug)]
pub(super) struct Server {
    service: Service,
    log: Log,
    links: BTreeMap<usize, ServedLink>,
    tickets: HashMap<Ticket, usize>,
    clients: HashMap<ClientId, usize>,
    /// Connections that are closed, because their clients have other ones.
    closed: Vec<usize>,
    ms: u64,
}

impl Server {
    pub(super) fn start(disk: &Disk, ms: u64) -> Result<Self, String> {
        let mut service = Service::default();
        let log = Log::open(Box::new(disk.clone()), &mut service).map_err(|e| e.to_string())?;
        let log = log.with_len_max(LOG_LEN_MAX);
        let (links, tickets, clients) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Ok(Self { service, log, links, tickets, clients, closed: Vec::new(), ms })
    }

    fn now(&self) -> Now {
        Now { clock: Duration::from_millis(self.ms), ms: 1_700_000_000_000 + self.ms }
    }

    /// Handles bytes of a connection. Returns false if the peer does not speak the protocol.
    pub(super) fn receive(&mut self, link: usize, bytes: &[u8]) -> bool {
        let input = &mut self.links.entry(link).or_default().input;
        input.space()[..bytes.len()].copy_from_slice(bytes);
        input.received(bytes.len());
        let is_right = self.handle(link);
        self.answer();
        is_right
    }

    fn handle(&mut self, key: usize) -> bool {
        let now = self.now();
        let Some(link) = self.links.get_mut(&key) else { return true };
        let handled = link.connection.handle(now, &mut link.input, &mut self.service);
        let client = link.connection.client();
        link.entered = client.or(link.entered);
        let Ok(tickets) = handled else { return false };
        self.tickets.extend(tickets.into_iter().map(|ticket| (ticket, key)));
        if let Some(id) = client
            && let Some(earlier_key) = self.clients.insert(id, key).filter(|it| *it != key)
            && let Some(earlier) = self.links.get_mut(&earlier_key)
        {
            earlier.connection.replaced();
            self.closed.push(earlier_key);
        }
        true
    }

    fn answer(&mut self) {
        while let Some((ticket, outcome)) = self.service.poll() {
            let Some(key) = self.tickets.remove(&ticket) else { continue };
            if let Some(link) = self.links.get_mut(&key) {
                link.connection.answer(ticket, outcome);
                self.handle(key);
            }
        }
    }

    /// Writes the log, and returns what each connection has to send.
    pub(super) fn commit(&mut self) -> Result<Vec<(usize, Vec<u8>)>, String> {
        self.log.commit(&mut self.service).map_err(|e| e.to_string())?;
        let send = |(key, link): (&usize, &mut ServedLink)| {
            let output = link.connection.output().to_vec();
            link.connection.sent(output.len());
            (!output.is_empty()).then_some((*key, output))
        };
        Ok(self.links.iter_mut().filter_map(send).collect())
    }

    /// Notices that a connection is lost.
    pub(super) fn close(&mut self, key: usize) {
        let Some(link) = self.links.remove(&key) else { return };
        if let Some(id) = link.entered.filter(|id| self.clients.get(id) == Some(&key)) {
            self.clients.remove(&id);
        }
        if let Some(id) = link.connection.client() {
            self.service.leave(self.now(), id);
        }
        self.answer();
    }

    /// Returns the connections that the server has closed.
    pub(super) fn closed(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.closed)
    }

    pub(super) fn pass_time(&mut self, ms: u64) {
        self.ms += ms;
        let now = self.now();
        self.service.space().expire(now);
        self.answer();
    }

    pub(super) fn ms(&self) -> u64 {
        self.ms
    }
}
