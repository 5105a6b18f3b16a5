//! A connection over RDMA: a thread that takes messages and completions from its queue pair.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_rdma::{Access, Completion, Device, Listener, Next, Region, Remote, Request};

use super::staging::Staging;
use crate::iser::{Action, Buffer, Datamover, HEADER_LEN, Message};
use crate::limits::{
    LOGIN_SWEEP_INTERVAL, MESSAGE_DATA_LEN_MAX, MESSAGES_MAX, RDMA_SPIN_TIME, RDMA_TIME_MAX,
    STAGING_LEN, TRANSFERS_MAX,
};
use crate::session::{Addresses, Closed, Connection, Done, Portal, Wake};
use crate::wire::{self, pdu_len};
use weft_sys::{HostCount, lock};

/// The longest message in bytes, with both headers and the longest additional header.
const SLOT_LEN: usize = HEADER_LEN + wire::HEADER_LEN + 255 * 4 + MESSAGE_DATA_LEN_MAX;
/// In the number of a request: it is not a receive.
const TRANSFER: u64 = 1 << 63;

/// A listener for connections over RDMA, on one device.
#[derive(Debug)]
pub struct RdmaListener {
    listener: Listener,
    device: Arc<Device>,
    address: SocketAddr,
}

impl RdmaListener {
    /// Listens at an address of a device.
    ///
    /// # Errors
    ///
    /// If the libraries are missing, or the address has no device or is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let device = Device::at(address.ip())?;
        Ok(Self { listener: Listener::bind(address)?, device, address })
    }

    /// The name of the device.
    #[must_use]
    pub fn device_name(&self) -> String {
        self.device.name()
    }

    /// The next initiator that wants to connect, if there is one.
    pub(super) fn request(&mut self) -> io::Result<Option<Requested>> {
        let request = self.listener.try_request()?;
        Ok(request.map(|request| {
            // An address that is none of IP is in no network that may log in.
            let remote = request.peer().unwrap_or_else(|| SocketAddr::from(([0; 4], 0)));
            let addresses = Addresses { local: self.address, remote };
            Requested { request, device: Arc::clone(&self.device), addresses }
        }))
    }

    /// The address it listens at.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl AsFd for RdmaListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// An initiator that wants to connect.
pub(super) struct Requested {
    request: Request,
    device: Arc<Device>,
    addresses: Addresses,
}

impl Requested {
    /// The initiator's address.
    pub(super) fn from(&self) -> SocketAddr {
        self.addresses.remote
    }

    /// Accepts the connection.
    ///
    /// # Errors
    ///
    /// If the device has no resources, or the initiator has gone.
    pub(super) fn accept(self, portal: Arc<Portal>) -> io::Result<Served> {
        Served::accept(self.request, &self.device, self.addresses, portal)
    }
}

/// Posted requests, in the order in which they complete.
#[derive(Debug)]
enum Transfer {
    /// Bytes of the staging memory are sent or written.
    Out(usize),
    /// The data of the PDU with this header is read to an offset of the staging memory.
    In { held: usize, at: usize, header: [u8; wire::HEADER_LEN] },
}

/// A connection with its queue pair.
pub(super) struct Served {
    outbox: Outbox,
    /// Received messages, each in a slot of its own.
    input: Region,
    /// Messages that are not handled yet: their slots and lengths.
    pending: VecDeque<(usize, usize)>,
    /// The message that is being handled.
    message: Vec<u8>,
    connection: Connection,
    datamover: Datamover,
    /// Results of jobs.
    done: Arc<Mutex<Vec<Done>>>,
}

/// The queue pair, and what it sends, writes and reads.
struct Outbox {
    link: weft_rdma::Connection,
    memory: Region,
    staging: Staging,
    transfers: VecDeque<Transfer>,
}

impl Served {
    fn accept(
        request: Request,
        device: &Arc<Device>,
        addresses: Addresses,
        portal: Arc<Portal>,
    ) -> io::Result<Self> {
        let input = Region::new(device, MESSAGES_MAX * SLOT_LEN, Access::Local)?;
        // A read of iWARP arrives as a write of the peer's.
        let memory = Region::new(device, STAGING_LEN, Access::Remote)?;
        let depth = (TRANSFERS_MAX as u32, MESSAGES_MAX as u32);
        let link = request.accept(device, depth, RDMA_TIME_MAX, |link| {
            (0..MESSAGES_MAX).try_for_each(|slot| post_receive(link, &input, slot))
        })?;
        let waker = link.waker();
        let wake = Wake::new(move || waker.close());
        Ok(Self {
            connection: Connection::over_rdma(portal, addresses, wake),
            outbox: Outbox {
                link,
                memory,
                staging: Staging::new(STAGING_LEN),
                transfers: VecDeque::with_capacity(TRANSFERS_MAX),
            },
            input,
            pending: VecDeque::new(),
            message: vec![0; SLOT_LEN],
            datamover: Datamover::default(),
            done: Arc::default(),
        })
    }

    /// Closes the connection from another thread.
    pub(super) fn waker(&self) -> weft_rdma::Waker {
        self.outbox.link.waker()
    }

    /// Serves until the connection ends. The permit is given up at the login, which has this much
    /// time. `seconds_to_log_out` says whether the initiator has to log out. `None` if the
    /// initiator has closed the connection.
    pub(super) fn run(
        mut self,
        permit: HostCount,
        time: Duration,
        seconds_to_log_out: impl Fn() -> Option<u16>,
    ) -> Option<Closed> {
        let (since, mut permit, mut is_asked) = (Instant::now(), Some(permit), false);
        loop {
            if let Some(seconds) = seconds_to_log_out().filter(|_| !is_asked) {
                is_asked = true;
                if let Err(closed) = self.connection.ask_to_log_out(seconds) {
                    return Some(closed);
                }
            }
            if let Err(closed) = self.advance() {
                self.finish();
                return Some(closed);
            }
            if self.connection.is_logged_in() {
                if permit.take().is_some() {
                    self.datamover.set_whole_buffers(self.connection.has_whole_buffers());
                }
            } else if since.elapsed() > time {
                return Some(Closed::Protocol("no login in time"));
            }
            match self.next(permit.is_some().then_some(LOGIN_SWEEP_INTERVAL)) {
                Ok(Next::Completed(completion)) => self.complete(completion),
                Ok(Next::TimedOut) => {}
                // Another thread has closed it.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                    return Some(self.connection.why_closed());
                }
                Ok(Next::Ended) => return None,
                Err(error) => return Some(Closed::Rdma(error.to_string())),
            }
        }
    }

    /// Waits for a completion: it looks for a while before it sleeps.
    fn next(&mut self, wait: Option<Duration>) -> io::Result<Next> {
        match self.outbox.link.look_for(RDMA_SPIN_TIME)? {
            Some(next) => Ok(next),
            None => self.outbox.link.next(wait),
        }
    }

    /// Handles messages and results, and posts what follows from them, as far as there is room.
    fn advance(&mut self) -> Result<(), Closed> {
        for done in std::mem::take(&mut *lock(&self.done)) {
            self.connection.complete(done);
        }
        loop {
            let has_more = self.connection.handle()?;
            self.hand_out();
            let has_posted = self.post()?;
            if self.connection.wants_input()
                && let Some((slot, len)) = self.pending.pop_front()
            {
                self.handle_message(slot, len)?;
            } else if !(has_more && has_posted) {
                return Ok(());
            }
        }
    }

    /// Hands out what waits for a store.
    fn hand_out(&mut self) {
        while let Some(job) = self.connection.next_job() {
            let (done, waker) = (Arc::clone(&self.done), self.outbox.link.waker());
            job.start(move |result| {
                lock(&done).push(result);
                waker.interrupt();
            });
        }
    }

    /// Gives a message to the connection, and its slot back to the device.
    fn handle_message(&mut self, slot: usize, len: usize) -> Result<(), Closed> {
        let message = &mut self.message[..len];
        self.input.copy_out(slot * SLOT_LEN, message);
        let (pdu, padding) = self.datamover.receive(message)?;
        feed(&mut self.connection, pdu.len(), |from, to| {
            to.copy_from_slice(&pdu[from..from + to.len()]);
        });
        feed(&mut self.connection, padding, |_, to| to.fill(0));
        // It fails if the connection has ended, which the next wait reports.
        let _ = post_receive(&mut self.outbox.link, &self.input, slot);
        Ok(())
    }

    /// Posts the output as far as there is room. Returns whether anything was posted.
    fn post(&mut self) -> Result<bool, Closed> {
        let mut has_posted = false;
        loop {
            let output = self.connection.output();
            let Some(header) = output.first_chunk::<{ wire::HEADER_LEN }>() else {
                return Ok(has_posted);
            };
            let lens = pdu_len(header);
            let pdu = &output[..lens.len];
            // What a PDU leads to is known only when it cannot be taken back, so room for the most
            // is wanted: a write with a message, or a read.
            let needed = (SLOT_LEN + pdu.len()).max(Datamover::get_len(header));
            if !self.outbox.has_room(needed) {
                return Ok(has_posted);
            }
            match self.datamover.send(header)? {
                Action::Send(message) => self.outbox.send(&message, pdu)?,
                Action::Put { to, data, message } => {
                    self.outbox.put(to, &pdu[data], message.as_ref())?;
                }
                Action::Get { from, len, header } => self.outbox.get(from, len, header)?,
            }
            self.connection.sent(lens.len + lens.padding);
            has_posted = true;
        }
    }

    fn complete(&mut self, completion: Completion) {
        if completion.id & TRANSFER == 0 {
            let len = (completion.len as usize).min(SLOT_LEN);
            self.pending.push_back((completion.id as usize, len));
            return;
        }
        match self.outbox.transfers.pop_front() {
            Some(Transfer::Out(held)) => self.outbox.staging.give_back(held),
            Some(Transfer::In { held, at, header }) => {
                let (memory, lens) = (&self.outbox.memory, pdu_len(&header));
                feed(&mut self.connection, header.len(), |from, to| {
                    to.copy_from_slice(&header[from..from + to.len()]);
                });
                feed(&mut self.connection, lens.data_len, |from, to| {
                    memory.copy_out(at + from, to)
                });
                feed(&mut self.connection, lens.padding, |_, to| to.fill(0));
                self.outbox.staging.give_back(held);
            }
            None => {}
        }
    }

    /// Waits until what was posted has been delivered.
    fn finish(&mut self) {
        let end = Instant::now() + RDMA_TIME_MAX;
        while !self.outbox.transfers.is_empty() && Instant::now() < end {
            match self.next(Some(RDMA_TIME_MAX)) {
                Ok(Next::Completed(completion)) if completion.id & TRANSFER != 0 => {
                    self.outbox.transfers.pop_front();
                }
                Ok(Next::Completed(_)) => {}
                _ => return,
            }
        }
    }
}

impl Outbox {
    /// Whether a transfer of this many bytes can be posted.
    fn has_room(&self, len: usize) -> bool {
        self.transfers.len() < TRANSFERS_MAX && self.staging.has_room(len)
    }

    fn send(&mut self, message: &Message, pdu: &[u8]) -> Result<(), Closed> {
        let data = &pdu[message.data.clone()];
        let len = message.headers.len() + data.len();
        let (at, held) = self.staging.take(len).ok_or(NO_ROOM)?;
        self.memory.copy_in(at, &message.headers);
        self.memory.copy_in(at + message.headers.len(), data);
        let nowhere = Remote { address: 0, key: 0 };
        let posted = self.link.post_write(TRANSFER, &self.memory, at, 0, nowhere, len);
        self.posted(posted, Transfer::Out(held))
    }

    /// Writes data, and sends the message without data behind it, if there is one.
    fn put(&mut self, to: Buffer, data: &[u8], message: Option<&Message>) -> Result<(), Closed> {
        let headers = message.map_or(&[][..], |message| &message.headers);
        let (at, held) = self.staging.take(data.len() + headers.len()).ok_or(NO_ROOM)?;
        self.memory.copy_in(at, data);
        self.memory.copy_in(at + data.len(), headers);
        let (to, len) = (remote(to), data.len());
        let posted = match headers.len() {
            0 => self.link.post_put(TRANSFER, &self.memory, at, len, to),
            message => self.link.post_write(TRANSFER, &self.memory, at, len, to, message),
        };
        self.posted(posted, Transfer::Out(held))
    }

    fn get(
        &mut self,
        from: Buffer,
        len: usize,
        header: [u8; wire::HEADER_LEN],
    ) -> Result<(), Closed> {
        let (at, held) = self.staging.take(len).ok_or(NO_ROOM)?;
        let posted = self.link.post_get(TRANSFER, &self.memory, at, len, remote(from));
        self.posted(posted, Transfer::In { held, at, header })
    }

    fn posted(&mut self, posted: io::Result<()>, transfer: Transfer) -> Result<(), Closed> {
        posted.map_err(|error| Closed::Rdma(error.to_string()))?;
        self.transfers.push_back(transfer);
        Ok(())
    }
}

/// Room is asked for before.
const NO_ROOM: Closed = Closed::Protocol("no memory is left for a transfer");

/// Appends `len` bytes to what the connection has received. `fill` gets the offset of a part among
/// them, and where it goes.
fn feed(connection: &mut Connection, len: usize, mut fill: impl FnMut(usize, &mut [u8])) {
    let mut done = 0;
    while done < len {
        let space = connection.space();
        let part = space.len().min(len - done);
        fill(done, &mut space[..part]);
        connection.received(part);
        done += part;
    }
}

fn post_receive(link: &mut weft_rdma::Connection, input: &Region, slot: usize) -> io::Result<()> {
    link.post_receive(slot as u64, input, slot * SLOT_LEN, SLOT_LEN)
}

fn remote(Buffer { key, address }: Buffer) -> Remote {
    Remote { address, key }
}
