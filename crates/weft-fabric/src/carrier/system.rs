//! The system's `libibverbs` and `librdmacm`, for RDMA devices.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use weft_engine::access::Access;
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, device};
use weft_rdma::{BATCH, Change, Device, Ended, Pair, PairRequest, Piece, Remote, Verb};
use weft_sys::{Lock, Region, wait_readable};

use super::{Event, Room};
use crate::error::{Error, Result};
use crate::limits::RESOLVE_TIME_MAX;

pub(crate) use weft_rdma::Registration;

#[derive(Clone, Debug)]
pub(crate) struct Domain(Arc<Device>);

/// The system's error number of an error.
fn errno(error: &io::Error) -> Errno {
    if let Some(errno) = Errno::from_io_error(error) {
        return errno;
    }
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => Errno::NODEV,
        io::ErrorKind::ConnectionRefused => Errno::CONNREFUSED,
        io::ErrorKind::HostUnreachable => Errno::HOSTUNREACH,
        io::ErrorKind::InvalidInput => Errno::INVAL,
        io::ErrorKind::NotConnected => Errno::NOTCONN,
        io::ErrorKind::StorageFull => Errno::NOMEM,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::IO,
    }
}

/// Ends a registration.
pub(super) fn ended(registration: &Registration) -> Result<(), Errno> {
    registration.end().map_err(|error| errno(&error))
}

impl Domain {
    /// Opens the RDMA device of an interface, or of the first interface that has one.
    pub(super) fn open(interface: Option<&str>) -> Result<Self> {
        let all =
            device::list().map_err(|errno| Error::system("list the network interfaces", errno))?;
        let is_chosen =
            |device: &&device::Device| interface.is_none_or(|name| device.interface == name);
        let mut chosen = all.iter().filter(is_chosen).peekable();
        if chosen.peek().is_none() {
            return Err(Error::NoDevice { name: interface.map(str::to_owned) });
        }
        let mut reason = String::new();
        for &address in chosen.flat_map(|device| &device.addresses) {
            match Device::at(address) {
                Ok(device) => return Ok(Self(device)),
                Err(error) => reason = format!("{address}: {error}"),
            }
        }
        Err(Error::NoCard { reason })
    }

    pub(super) fn private_data_max(&self) -> usize {
        match self.0.is_iwarp() {
            true => weft_rdma::IWARP_PRIVATE_DATA_MAX,
            false => weft_rdma::PRIVATE_DATA_MAX,
        }
    }

    pub(super) fn has_atomics(&self) -> bool {
        self.0.has_atomics()
    }

    pub(super) fn reads_need_writes(&self) -> bool {
        self.0.is_iwarp()
    }

    pub(super) fn register(&self, region: Region, access: Access) -> Result<Registration, Errno> {
        Registration::new(&self.0, region, access.bits()).map_err(|error| errno(&error))
    }

    pub(super) fn link(&self, peer: SocketAddr, room: &Room) -> Result<SystemLink, Errno> {
        let pair = Pair::to(&self.0, peer, &pair_room(room), RESOLVE_TIME_MAX);
        pair.map(SystemLink).map_err(|error| errno(&error))
    }

    pub(super) fn answer(&self, caller: Caller, room: &Room) -> Result<SystemLink, Errno> {
        let pair = caller.pair(&self.0, &pair_room(room));
        pair.map(SystemLink).map_err(|error| errno(&error))
    }
}

fn pair_room(room: &Room) -> weft_rdma::Room {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (sends, receives) = (number(room.sends), number(room.receives));
    weft_rdma::Room { sends, receives, value: room.value }
}

#[derive(Debug)]
pub(crate) struct Listening {
    listener: Lock<weft_rdma::Listener>,
    /// The listener's own descriptor, of which this is a duplicate.
    fd: OwnedFd,
    pub(super) address: SocketAddr,
}

/// A peer that wants to connect.
pub(crate) type Caller = weft_rdma::Request;

impl Listening {
    pub(super) fn new(address: SocketAddr) -> Result<Self, Errno> {
        let listener = weft_rdma::Listener::bind(address).map_err(|error| errno(&error))?;
        let address = listener.address().ok_or(Errno::INVAL)?;
        let fd = rustix::io::fcntl_dupfd_cloexec(listener.as_fd(), 0)?;
        Ok(Self { listener: Lock::new(listener), fd, address })
    }

    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        let request = self.listener.lock().try_request().ok()??;
        let private_data = request.private_data().to_vec();
        Some(Event::Called(super::Caller::System(request), private_data))
    }
}

#[derive(Debug)]
pub(crate) struct SystemLink(Pair);

impl SystemLink {
    pub(super) fn connect(&self, private_data: &[u8]) -> Result<(), Errno> {
        self.0.connect(private_data).map_err(|error| errno(&error))
    }

    pub(super) fn accept(&self, private_data: &[u8]) -> Result<(), Errno> {
        self.0.accept(private_data).map_err(|error| errno(&error))
    }

    pub(super) fn events_fd(&self) -> BorrowedFd<'_> {
        self.0.events_fd()
    }

    pub(super) fn event(&self) -> Option<Event> {
        loop {
            return Some(match self.0.change().ok()?? {
                Change::Established(private_data) => Event::Established(private_data),
                Change::Refused { by_program, private_data } => {
                    Event::Refused { by_program, private_data }
                }
                Change::Failed(errno) => Event::Failed(Errno::from_raw_os_error(errno)),
                Change::Disconnected => Event::Disconnected,
                Change::Other => continue,
            });
        }
    }

    pub(super) fn disconnect(&self) {
        self.0.disconnect();
    }

    pub(super) fn destroy(&self) {
        self.0.end();
    }

    pub(super) fn post_receive(&self, request: &RecvRequest<'_>) -> Result<(), Errno> {
        let [sge] = request.sges else { return Err(Errno::INVAL) };
        self.0.receive(request.wr_id, piece(sge)).map_err(|error| errno(&error))
    }

    pub(super) fn post(&self, request: &SendRequest<'_>) -> Result<(), Errno> {
        let verb = verb(&request.operation).ok_or(Errno::OPNOTSUPP)?;
        let is_reported = request.flags.contains(SendFlags::SIGNALED);
        let id = request.wr_id;
        let post = |data| self.0.post(&PairRequest { id, verb, data, is_reported });
        let posted = match request.data {
            Data::Gather([]) => post(weft_rdma::Data::Pieces(&[])),
            Data::Gather([one]) => post(weft_rdma::Data::Pieces(&[piece(one)])),
            Data::Gather([one, two]) => post(weft_rdma::Data::Pieces(&[piece(one), piece(two)])),
            Data::Gather(_) => return Err(Errno::INVAL),
            Data::Inline(bytes) => post(weft_rdma::Data::Value(bytes)),
        };
        posted.map_err(|error| errno(&error))
    }

    pub(super) fn poll(&self, space: &mut [Completion]) -> usize {
        let mut count = 0;
        // Until nothing is left, since some requests are not reported.
        while count < space.len() {
            let max = (space.len() - count).min(BATCH);
            let polled = self.0.poll(max, |ended| {
                space[count] = completion(ended);
                count += 1;
            });
            // The events of the connection tell of a device that has failed.
            if polled.is_ok_and(|polled| polled == max) {
                continue;
            }
            break;
        }
        count
    }

    pub(super) fn arm(&self) {
        // As `poll`.
        let _ = self.0.arm();
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd()
    }

    pub(super) fn await_event(&self, limit: Option<Duration>) {
        if wait_readable([self.fd()], limit) == Ok([true]) {
            // A signal is as good as an event: the thread looks again.
            let _ = self.0.take_event();
        }
    }

    pub(super) fn take_events(&self) {
        while matches!(self.0.take_event(), Ok(true)) {}
    }
}

fn piece(sge: &Sge) -> Piece {
    Piece { address: sge.addr, len: sge.length, key: sge.lkey }
}

/// The operation in the terms of the system's libraries; `None` for what endpoints do not use.
fn verb(operation: &Operation) -> Option<Verb> {
    let remote = |address, key| Remote { address, key };
    Some(match *operation {
        Operation::Send { imm: None, invalidate: None } => Verb::Send,
        Operation::Write { remote_addr, rkey, imm: None } => Verb::Write(remote(remote_addr, rkey)),
        Operation::Read { remote_addr, rkey } => Verb::Read(remote(remote_addr, rkey)),
        Operation::FetchAdd { remote_addr, rkey, add } => {
            Verb::FetchAdd(remote(remote_addr, rkey), add)
        }
        Operation::CompareSwap { remote_addr, rkey, compare, swap } => {
            Verb::CompareSwap(remote(remote_addr, rkey), compare, swap)
        }
        _ => return None,
    })
}

fn completion(ended: Ended) -> Completion {
    let mut completion = Completion::new(ended.id, status(ended.status), Opcode::Send, 0);
    completion.byte_len = ended.len;
    completion
}

/// The status of this number; those of later versions of the libraries are general failures.
fn status(number: u32) -> Status {
    const ALL: [Status; 22] = [
        Status::Success,
        Status::LocLenErr,
        Status::LocQpOpErr,
        Status::LocEecOpErr,
        Status::LocProtErr,
        Status::WrFlushErr,
        Status::MwBindErr,
        Status::BadRespErr,
        Status::LocAccessErr,
        Status::RemInvReqErr,
        Status::RemAccessErr,
        Status::RemOpErr,
        Status::RetryExcErr,
        Status::RnrRetryExcErr,
        Status::LocRddViolErr,
        Status::RemInvRdReqErr,
        Status::RemAbortErr,
        Status::InvEecnErr,
        Status::InvEecStateErr,
        Status::FatalErr,
        Status::RespTimeoutErr,
        Status::GeneralErr,
    ];
    ALL.get(number as usize).copied().unwrap_or(Status::GeneralErr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_keep_their_numbers() {
        for number in 0..22 {
            assert_eq!(status(number) as u32, number);
        }
        assert_eq!(status(22), Status::GeneralErr);
    }
}
