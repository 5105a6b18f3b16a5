//! Sends datagrams: finds the receiver at an address, and writes to its inbox.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use libc::c_int;
use weft_stream::datagram::{DATAGRAM_LEN_MAX, Inbox, Put};
use weft_stream::is_local;
use weft_stream::rules::Role;
use weft_sys::Buffers;
use weft_sys::calls::io::Errno;

use super::{Datagram, DatagramReason};
use crate::descriptor::{Descriptor, own_address};
use crate::kernel::{Host, Kernel as _};
use crate::limits::DATAGRAM_ROUTES_MAX;
use crate::{settings, wait};

/// How long a receiver with waiting datagrams may read none before the sender shuts its inbox. It
/// may be dead, or read by calls that Weft does not see.
const STALL_NS: u64 = 5_000_000;
/// How long a sender trusts the receiver of an address that several sockets may share.
const SHARED_RECHECK_NS: u64 = 100_000_000;

/// The receivers of a socket's datagrams.
#[derive(Debug, Default)]
pub(super) struct Routes {
    pub(super) connected: Option<Route>,
    pub(super) others: HashMap<SocketAddr, Route>,
}

/// The receiver at an address, as far as the sender knows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    to: SocketAddr,
    /// The value of its port's change word when the kernel was asked.
    changes: u32,
    /// The inbox, and the sender's address as the receiver sees it. `None`: the kernel delivers.
    inbox: Option<(Inbox, SocketAddr)>,
    asked_at: u64,
    /// When the receiver was last seen to make progress; `taken` is its count then.
    checked_at: u64,
    taken: u64,
}

impl Datagram {
    /// Sends like `sendmsg(2)`, to `to` or to the peer. `None`: the kernel is to send it.
    pub(crate) fn send(
        &self,
        fd: RawFd,
        to: Option<SocketAddr>,
        buffers: Buffers<'_>,
        flags: c_int,
    ) -> Option<Result<usize, Errno>> {
        const PLAIN: c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
        if self.bound.load(Ordering::Relaxed) == 0 && to.is_none() {
            return None;
        }
        if flags & !PLAIN != 0 {
            if flags & libc::MSG_MORE != 0 {
                self.corked.store(1, Ordering::Relaxed);
            }
            self.bound();
            return None;
        }
        if self.corked.load(Ordering::Relaxed) != 0 {
            self.corked.store(0, Ordering::Relaxed);
            return None;
        }
        if self.is_off() {
            return None;
        }
        let len = buffers.len();
        let inbox = self.route(fd, to);
        self.bound(); // Sending has bound it, if the program has not.
        let (inbox, own) = match inbox {
            Ok(inbox) => inbox.filter(|_| len <= DATAGRAM_LEN_MAX)?,
            Err(errno) => return Some(Err(errno)),
        };
        match inbox.put(own, buffers) {
            Put::Done | Put::Dropped => Some(Ok(len)),
            Put::Shut | Put::Gone => None,
        }
    }

    /// Returns the inbox of the receiver at an address. An error is the socket's pending error.
    fn route(
        &self,
        fd: RawFd,
        to: Option<SocketAddr>,
    ) -> Result<Option<(Inbox, SocketAddr)>, Errno> {
        let Some(datagrams) = self.datagrams() else { return Ok(None) };
        // A signal handler may have interrupted a sender that holds this lock.
        let Some(mut routes) = self.routes.try_lock() else { return Ok(None) };
        let known = match to {
            Some(to) => routes.others.get_mut(&to),
            None => routes.connected.as_mut(),
        };
        if let Some(route) = known
            && route.changes == datagrams.changes(route.to.port())
            && route.is_believed()
        {
            return Ok(route.inbox);
        }
        let Some(target) = to.or_else(|| peer_address(fd)) else { return Ok(None) };
        let changes = datagrams.changes(target.port());
        let found =
            if changes == 0 { Err(DatagramReason::Receiver) } else { self.ask(fd, to, target) };
        let inbox = found.ok();
        let now = wait::now();
        let route = Route {
            to: target,
            changes,
            inbox,
            asked_at: now,
            checked_at: now,
            taken: inbox.map_or(0, |(inbox, _)| inbox.taken()),
        };
        match to {
            Some(to) => {
                if routes.others.len() >= DATAGRAM_ROUTES_MAX {
                    routes.others.clear();
                }
                routes.others.insert(to, route);
            }
            None => routes.connected = Some(route),
        }
        drop(routes);
        match found {
            Ok((_, from)) => self.log_sent(from, target),
            Err(why) => self.sent_log.note(why),
        }
        if inbox.is_some()
            && let Some(error) = Host::take_error(Descriptor::of(fd).as_fd())
        {
            return Err(error); // The kernel would report the pending error on this send.
        }
        Ok(inbox)
    }

    /// Asks the kernel which socket receives at an address, and finds its inbox.
    #[cold]
    fn ask(
        &self,
        fd: RawFd,
        to: Option<SocketAddr>,
        target: SocketAddr,
    ) -> Result<(Inbox, SocketAddr), DatagramReason> {
        let canonical = SocketAddr::new(target.ip().to_canonical(), target.port());
        let mapped = self.is_v6 && canonical.is_ipv4();
        if mapped && self.v6_only.load(Ordering::Relaxed) != 0 {
            return Err(DatagramReason::Address);
        }
        if let SocketAddr::V6(target) = target
            && target.scope_id() != 0
        {
            return Err(DatagramReason::Address);
        }
        let mut own = own_address(fd).ok_or(DatagramReason::Address)?;
        if own.port() == 0 && to.is_some() && self.bind_to_any_port(fd) {
            own = own_address(fd).ok_or(DatagramReason::Address)?;
        }
        let mut ip = own.ip().to_canonical();
        if ip.is_unspecified() {
            ip = Host::source_towards(canonical).ok_or(DatagramReason::Address)?;
        }
        let source = SocketAddr::new(ip, own.port());
        let same_family = source.is_ipv4() == canonical.is_ipv4();
        if own.port() == 0 || !same_family {
            return Err(DatagramReason::Address);
        }
        if !is_local(source, canonical) {
            return Err(DatagramReason::Remote);
        }
        if !settings::allows(Role::Connect, canonical) {
            return Err(DatagramReason::Rule);
        }
        let receiver = Host::receiver_of(source, canonical);
        let find = |cookie| self.datagrams()?.find(canonical.port(), cookie);
        receiver.and_then(find).map(|inbox| (inbox, source)).ok_or(DatagramReason::Receiver)
    }

    /// Binds a socket without a port, as the kernel does when it sends, so that it has an address
    /// before the datagram is in the inbox.
    fn bind_to_any_port(&self, fd: RawFd) -> bool {
        let any = if self.is_v6 {
            SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0)
        } else {
            SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0)
        };
        Host::bind(Descriptor::of(fd).as_fd(), &any).is_ok()
    }
}

impl Route {
    /// Returns whether the receiver is still the same socket, and makes progress.
    fn is_believed(&mut self) -> bool {
        let Some((inbox, _)) = self.inbox else { return true };
        let waiting = !inbox.is_empty();
        let shared = inbox.is_shared();
        if !waiting && !shared {
            return true;
        }
        let now = wait::now();
        if !waiting {
            self.checked_at = now;
        } else if inbox.taken() != self.taken {
            self.taken = inbox.taken();
            self.checked_at = now;
        } else if now >= self.checked_at + STALL_NS {
            inbox.shut();
        }
        !shared || now < self.asked_at + SHARED_RECHECK_NS
    }
}

fn peer_address(fd: RawFd) -> Option<SocketAddr> {
    Host::peer_address(Descriptor::of(fd).as_fd())
}
