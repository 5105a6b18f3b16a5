//! Identifiers of the connection manager, each with an event channel of its own.
//!
//! # Safety
//! An [`Id`] owns its identifier and its channel, and destroys both when it is dropped, the
//! identifier first. Each event is copied and acknowledged at once, so no pointer into one is kept.
//! The libraries allow calls from any thread; `&mut self` keeps the calls that change an identifier
//! apart.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use weft_abi::{
    RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_CONNECT_ERROR,
    RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_DEVICE_REMOVAL, RDMA_CM_EVENT_DISCONNECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_ROUTE_ERROR,
    RDMA_CM_EVENT_ROUTE_RESOLVED, RDMA_CM_EVENT_UNREACHABLE, RDMA_PS_TCP, ibv_context,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_event_channel,
};

use crate::address::CAddress;
use crate::libraries::Functions;
use crate::limits::BACKLOG_MAX;

/// Returns the error of a call that returns -1.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Puts a descriptor of a library into non-blocking mode.
pub(crate) fn unblock(fd: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?)
}

/// Waits until one of the descriptors is readable, and returns which are.
pub(crate) fn wait_for<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    end: Option<Instant>,
) -> io::Result<[bool; N]> {
    let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) => return Ok(fds.map(|fd| !fd.revents().is_empty())),
            Err(error) => return Err(error.into()),
        }
    }
}

/// An event channel.
#[derive(Debug)]
struct Channel {
    raw: NonNull<rdma_event_channel>,
    functions: &'static Functions,
}

impl Channel {
    fn new(functions: &'static Functions) -> io::Result<Self> {
        // SAFETY: the function takes nothing.
        let raw = unsafe { (functions.rdma_create_event_channel)() };
        let raw = NonNull::new(raw).ok_or_else(io::Error::last_os_error)?;
        let channel = Self { raw, functions };
        unblock(channel.fd())?;
        Ok(channel)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live until `self` is dropped, and its field never changes.
        let fd = unsafe { self.raw.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: `self` owns the channel. Identifiers on it are destroyed before it.
        unsafe { (self.functions.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

/// An event of the connection manager.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    /// Whether the event is of the identifier whose channel it came on, not of a request to it.
    pub(crate) is_own: bool,
    /// The new identifier of a connection request; it belongs to the receiver of the event.
    pub(crate) request: Option<RawId>,
    /// The private data of a connection request, or of the answer to one.
    pub(crate) private_data: Vec<u8>,
    /// How many reads at a time the peer of a connection request answers.
    pub(crate) reads: u8,
}

impl Event {
    /// Returns what an unexpected event means.
    pub(crate) fn error(&self) -> io::Error {
        let (kind, text) = match self.kind {
            RDMA_CM_EVENT_ADDR_ERROR | RDMA_CM_EVENT_ROUTE_ERROR => {
                (io::ErrorKind::AddrNotAvailable, "no RDMA device leads there")
            }
            RDMA_CM_EVENT_REJECTED => (io::ErrorKind::ConnectionRefused, "the peer has refused"),
            RDMA_CM_EVENT_UNREACHABLE => (io::ErrorKind::HostUnreachable, "no answer"),
            RDMA_CM_EVENT_CONNECT_ERROR => (io::ErrorKind::Other, "connecting failed"),
            RDMA_CM_EVENT_DISCONNECTED => {
                (io::ErrorKind::ConnectionReset, "the peer has disconnected")
            }
            RDMA_CM_EVENT_DEVICE_REMOVAL => {
                (io::ErrorKind::NotConnected, "the RDMA device was removed")
            }
            _ => return io::Error::other(format!("event {} ({})", self.kind, self.status)),
        };
        match self.status {
            status if status < 0 => {
                let cause = io::Error::from_raw_os_error(status.saturating_neg());
                io::Error::new(kind, format!("{text}: {cause}"))
            }
            _ => io::Error::new(kind, text),
        }
    }
}

/// The identifier of a connection request. Dropping it refuses the connection.
#[derive(Debug)]
pub(crate) struct RawId {
    raw: NonNull<rdma_cm_id>,
    functions: &'static Functions,
}

// SAFETY: an identifier belongs to the process, not to a thread, and `RawId` owns it.
unsafe impl Send for RawId {}

impl RawId {
    /// The peer's address. `None` if it has none of IP.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        // SAFETY: `self` owns the identifier. The libraries set the address before they report the
        // request, and never change it.
        let address = unsafe { &self.raw.as_ref().route.addr.__bindgen_anon_2 };
        // SAFETY: the union is as large as any address. Its family, which all of its members begin
        // with, says which one it is; zeros are none.
        unsafe { CAddress::read(ptr::from_ref(address).cast()) }
    }
}

impl RawId {
    /// Refuses the connection, with private data for the peer.
    pub(crate) fn refuse(&self, private_data: &[u8]) {
        let len = u8::try_from(private_data.len()).unwrap_or(u8::MAX);
        let data = private_data.as_ptr().cast();
        // If it fails, the peer has gone, or has an answer already.
        // SAFETY: `self` owns the identifier. The private data is at least as long, and borrowed
        // during the call.
        let _ = unsafe { (self.functions.rdma_reject)(self.raw.as_ptr(), data, len) };
    }
}

impl Drop for RawId {
    fn drop(&mut self) {
        self.refuse(&[]);
        // SAFETY: `self` owns the identifier, all of its events are acknowledged, and it has no
        // queue pair.
        unsafe { (self.functions.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

/// An identifier with its own event channel.
#[derive(Debug)]
pub(crate) struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Channel,
    functions: &'static Functions,
}

// SAFETY: an identifier and its channel belong to the process, not to a thread, and `Id` owns them.
unsafe impl Send for Id {}
// SAFETY: a shared reference only reads fields that change during calls with `&mut self`, and
// descriptors.
unsafe impl Sync for Id {}

impl Id {
    /// Creates an identifier for reliable connections.
    pub(crate) fn new(functions: &'static Functions) -> io::Result<Self> {
        let channel = Channel::new(functions)?;
        let mut raw = ptr::null_mut();
        // SAFETY: `channel` owns the channel, and `raw` is a local variable for the result.
        let created = unsafe {
            (functions.rdma_create_id)(
                channel.raw.as_ptr(),
                &raw mut raw,
                ptr::null_mut(),
                RDMA_PS_TCP,
            )
        };
        check(created)?;
        let raw = NonNull::new(raw).ok_or(io::ErrorKind::Other)?;
        Ok(Self { raw, channel, functions })
    }

    /// Takes the identifier of a connection request, and gives it an event channel of its own.
    pub(crate) fn of(request: RawId) -> io::Result<Self> {
        let functions = request.functions;
        let channel = Channel::new(functions)?;
        // SAFETY: `request` owns the identifier, whose events are all acknowledged, and `channel`
        // owns the channel.
        let migrated =
            unsafe { (functions.rdma_migrate_id)(request.raw.as_ptr(), channel.raw.as_ptr()) };
        check(migrated)?;
        let raw = request.raw;
        // The identifier now belongs to the result.
        std::mem::forget(request);
        Ok(Self { raw, channel, functions })
    }

    pub(crate) fn as_ptr(&self) -> *mut rdma_cm_id {
        self.raw.as_ptr()
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.functions
    }

    /// Readable if there is an event.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// The context of the identifier's device; NULL before the identifier has one.
    pub(crate) fn context(&self) -> *mut ibv_context {
        // SAFETY: `self` owns the identifier. The libraries change the field only during calls with
        // `&mut self`.
        unsafe { self.raw.as_ref() }.verbs
    }

    /// The address of this host that the identifier has; `None` if it has none of IP.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        // SAFETY: `self` owns the identifier. The libraries change the field only during calls with
        // `&mut self`.
        let address = unsafe { &self.raw.as_ref().route.addr.__bindgen_anon_1 };
        // SAFETY: the union is as large as any address. Its family, which all of its members begin
        // with, says which one it is; zeros are none.
        unsafe { CAddress::read(ptr::from_ref(address).cast()) }
    }

    /// Binds the identifier to an address of this host.
    pub(crate) fn bind(&mut self, address: SocketAddr) -> io::Result<()> {
        let mut to = CAddress::of(address);
        // SAFETY: `self` owns the identifier, and `to` is a local variable with a whole address.
        let bound = unsafe { (self.functions.rdma_bind_addr)(self.as_ptr(), to.as_mut_ptr()) };
        check(bound)
    }

    /// Waits for connection requests from now on.
    pub(crate) fn listen(&mut self) -> io::Result<()> {
        // SAFETY: `self` owns the identifier. One that is not bound gets an error.
        check(unsafe { (self.functions.rdma_listen)(self.as_ptr(), BACKLOG_MAX) })
    }

    /// Finds the device that leads to an address, from the address `from` of this host if that is
    /// given.
    pub(crate) fn resolve(
        &mut self,
        from: Option<IpAddr>,
        to: SocketAddr,
        end: Instant,
    ) -> io::Result<()> {
        let mut from = from.map(|from| CAddress::new(from, 0));
        let from = from.as_mut().map_or(ptr::null_mut(), CAddress::as_mut_ptr);
        let mut to = CAddress::of(to);
        let time = milliseconds(end);
        // SAFETY: `self` owns the identifier, and both addresses are NULL or whole ones of callers
        // that outlive the call.
        let begun = unsafe {
            (self.functions.rdma_resolve_addr)(self.as_ptr(), from, to.as_mut_ptr(), time)
        };
        check(begun)?;
        self.expect(RDMA_CM_EVENT_ADDR_RESOLVED, end)
    }

    /// Finds the route to the address that has been resolved.
    pub(crate) fn resolve_route(&mut self, end: Instant) -> io::Result<()> {
        // SAFETY: `self` owns the identifier. One without an address gets an error.
        let begun =
            unsafe { (self.functions.rdma_resolve_route)(self.as_ptr(), milliseconds(end)) };
        check(begun)?;
        self.expect(RDMA_CM_EVENT_ROUTE_RESOLVED, end)
    }

    /// Waits for an event of this kind.
    ///
    /// # Errors
    /// If another event comes, or none until `end`.
    pub(crate) fn expect(&mut self, kind: rdma_cm_event_type, end: Instant) -> io::Result<()> {
        loop {
            if let Some(event) = self.event()? {
                return if event.kind == kind { Ok(()) } else { Err(event.error()) };
            }
            if Instant::now() >= end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"));
            }
            wait_for([self.fd()], Some(end))?;
        }
    }

    /// Returns the next event, if there is one.
    pub(crate) fn event(&mut self) -> io::Result<Option<Event>> {
        let mut raw: *mut rdma_cm_event = ptr::null_mut();
        // SAFETY: `self` owns the channel, and `raw` is a local variable for the result.
        let got =
            unsafe { (self.functions.rdma_get_cm_event)(self.channel.raw.as_ptr(), &raw mut raw) };
        match check(got) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
            Err(error) => return Err(error),
        }
        // SAFETY: the library has returned a live event, which is acknowledged below.
        let event = unsafe { &*raw };
        let (kind, status, id) = (event.event, event.status, event.id);
        let (mut request, mut private_data, mut reads) = (None, Vec::new(), 0);
        let is_answer = matches!(kind, RDMA_CM_EVENT_ESTABLISHED | RDMA_CM_EVENT_REJECTED);
        if is_answer || kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            // SAFETY: the events of reliable connections have this part of the union; it is all
            // zeros where there are no parameters.
            let param = unsafe { &event.param.conn };
            if !param.private_data.is_null() {
                let (data, len) = (param.private_data.cast(), param.private_data_len.into());
                // SAFETY: the library guarantees that many bytes until the event is acknowledged.
                private_data = unsafe { std::slice::from_raw_parts(data, len) }.to_vec();
            }
            reads = param.initiator_depth;
        }
        if kind == RDMA_CM_EVENT_CONNECT_REQUEST {
            let functions = self.functions;
            request = NonNull::new(id).map(|raw| RawId { raw, functions });
        }
        // SAFETY: the event is live and not used afterwards: all parts have been copied.
        unsafe { (self.functions.rdma_ack_cm_event)(raw) };
        let is_own = id == self.raw.as_ptr();
        Ok(Some(Event { kind, status, is_own, request, private_data, reads }))
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: `self` owns the identifier. All of its events are acknowledged, and its queue
        // pair is destroyed, since a `Connection` does that before it drops its identifier.
        unsafe { (self.functions.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

/// Returns the time until `end` as the libraries expect it.
fn milliseconds(end: Instant) -> c_int {
    let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX)
}
