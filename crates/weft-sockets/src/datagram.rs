//! UDP sockets: sending to inboxes, and receiving from one's own and from the kernel.
//!
//! A receiver looks at both. Its inbox is open only while it looks: what was put there came before
//! what the kernel took when it was shut, so the inbox is read first, and it is opened again when
//! the kernel has nothing more. So datagrams of one sender keep their order, though UDP does not
//! ask for it.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, ssize_t};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getpeername, getsockname, socket_with,
    sockopt,
};
use weft_stream::datagram::{Arrival, DATAGRAM_LEN_MAX, Datagrams, Inbox, Owner, Put, receiver_of};
use weft_stream::is_local;
use weft_stream::rules::Role;
use weft_sys::{Buffers, Lock, Spin};

use crate::stream::{borrow, is_nonblocking};
use crate::wait::{self, Wait};
use crate::{errno, settings};

/// Datagrams in a row from the inbox after which the kernel has its turn.
const MEMORY_TURNS_MAX: u32 = 64;
/// Receivers that a socket's sender remembers.
const ROUTES_MAX: usize = 1_024;
const SPIN_MAX_NS: u64 = 2_000_000;
/// Nanoseconds between two questions to the kernel while looking.
const ASK_NS: u64 = 5_000;
/// How long a receiver that has something may take nothing until its sender shuts its inbox: it may
/// be dead, or read by ways that we do not see.
const STALL_NS: u64 = 5_000_000;
/// How long it is believed who receives at an address that several sockets may have.
const SHARED_BELIEF_NS: u64 = 100_000_000;

/// Which source the next receive has to take from, because the program has looked at it.
mod peeked {
    pub(super) const NOTHING: u32 = 0;
    pub(super) const MEMORY: u32 = 1;
    pub(super) const KERNEL: u32 = 2;
}

/// What is known of a UDP socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    is_v6: bool,
    /// It is the kernel's: a feature is in use that only the kernel has.
    off: AtomicU32,
    /// It may have a port.
    bound: AtomicU32,
    shared: AtomicU32,
    v6_only: AtomicU32,
    /// Bytes of a datagram that is not complete are in the kernel (`MSG_MORE`).
    corked: AtomicU32,
    /// The file of inboxes, once it has been asked for.
    datagrams: OnceLock<Option<&'static Datagrams>>,
    inbox: OnceLock<Inbox>,
    spin: Spin,
    /// The kernel may have datagrams that were sent before those in the inbox.
    kernel_first: AtomicU32,
    memory_turns: AtomicU32,
    peeked: AtomicU32,
    routes: Lock<Routes>,
    watches: AtomicU32,
    /// The last fork that it has been told of.
    fork: AtomicU32,
}

/// Who receives what is sent.
#[derive(Debug, Default)]
struct Routes {
    connected: Option<Route>,
    others: HashMap<SocketAddr, Route>,
}

/// Who receives at an address, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Route {
    to: SocketAddr,
    /// What its port's word said when the kernel was asked.
    changes: u32,
    /// The inbox, and the sender's address as it is seen there. `None`: the kernel's.
    inbox: Option<(Inbox, SocketAddr)>,
    asked_at: u64,
    /// When the receiver was last seen to have taken something, and how much it had taken then.
    checked_at: u64,
    taken: u64,
}

/// What a call to receive has brought.
#[derive(Debug)]
pub(crate) enum Received {
    /// What the kernel's call returned; `errno` is its.
    Kernel(ssize_t),
    Memory(Arrival),
}

impl Datagram {
    /// A socket just made.
    pub(crate) fn fresh(is_v6: bool) -> Self {
        Self {
            is_v6,
            off: AtomicU32::new(0),
            bound: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            v6_only: AtomicU32::new(0),
            corked: AtomicU32::new(0),
            datagrams: OnceLock::new(),
            inbox: OnceLock::new(),
            spin: Spin::new(),
            kernel_first: AtomicU32::new(0),
            memory_turns: AtomicU32::new(0),
            peeked: AtomicU32::new(peeked::NOTHING),
            routes: Lock::new(Routes::default()),
            watches: AtomicU32::new(0),
            fork: AtomicU32::new(0),
        }
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// How many epoll instances watch it.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        &self.watches
    }

    /// From here on it is the kernel's. What waits in the inbox can still be received.
    pub(crate) fn leave(&self) {
        self.off.store(1, Ordering::Relaxed);
        if let Some(inbox) = self.inbox.get() {
            inbox.shut();
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed) != 0
    }

    /// `bind(2)` has succeeded.
    pub(crate) fn bound(&self) {
        self.bound.store(1, Ordering::Relaxed);
    }

    /// `connect(2)` has been called: another peer, perhaps another address, or none.
    pub(crate) fn connected(&self, fd: RawFd) {
        self.bound();
        self.routes.lock().connected = None;
        self.routes.lock().others.clear();
        if let Some(inbox) = self.inbox.get() {
            inbox.moved(own_address(fd).map_or(0, |own| own.port()));
        }
    }

    /// The program has set an option.
    pub(crate) fn option(&self, fd: RawFd, level: c_int, name: c_int, value: c_int) {
        match Meaning::of(level, name) {
            Meaning::Harmless => {}
            Meaning::Shares if value != 0 => {
                self.shared.store(1, Ordering::Relaxed);
                if let Some(inbox) = self.inbox.get() {
                    inbox.become_shared();
                }
            }
            Meaning::Shares => {}
            Meaning::V6Only => self.v6_only.store(u32::from(value != 0), Ordering::Relaxed),
            Meaning::Limits => {
                if let Some(inbox) = self.inbox.get() {
                    inbox.limit(limit(fd));
                }
            }
            Meaning::Kernels if value == 0 => {}
            Meaning::Kernels => self.leave(),
        }
    }

    fn datagrams(&self) -> Option<&'static Datagrams> {
        *self.datagrams.get_or_init(settings::datagrams)
    }

    /// Its inbox; made when the program first asks for what has come.
    #[inline]
    pub(crate) fn inbox(&self, fd: RawFd) -> Option<&Inbox> {
        match self.inbox.get() {
            Some(inbox) => Some(inbox),
            None if self.is_off() || self.bound.load(Ordering::Relaxed) == 0 => None,
            None => self.make_inbox(fd),
        }
    }

    /// Its inbox, if it has been made.
    #[inline]
    pub(crate) fn known_inbox(&self) -> Option<&Inbox> {
        self.inbox.get()
    }

    #[cold]
    fn make_inbox(&self, fd: RawFd) -> Option<&Inbox> {
        let own = own_address(fd).filter(|own| own.port() != 0)?;
        let ip = own.ip().to_canonical();
        let made = || {
            if ip.is_multicast() || !settings::allows(Role::Listen, own) {
                return None;
            }
            let owner = Owner {
                port: own.port(),
                cookie: sockopt::socket_cookie(borrow(fd)).ok()?,
                pid: std::process::id(),
                limit: limit(fd),
                shared: self.shared.load(Ordering::Relaxed) != 0,
            };
            Inbox::register(self.datagrams()?, &owner)
        };
        let Some(inbox) = made() else {
            self.off.store(1, Ordering::Relaxed);
            return None;
        };
        if self.inbox.set(inbox).is_err() {
            inbox.release(); // Another thread was quicker.
        }
        self.inbox.get()
    }

    /// Receives as `recvmsg(2)` does. `kernel` is the kernel's call with other flags.
    pub(crate) fn receive(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
    ) -> Received {
        let Some(inbox) = self.inbox(fd) else { return Received::Kernel(kernel(flags)) };
        if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
            return Received::Kernel(kernel(flags));
        }
        let before = errno::get();
        let keep = flags & libc::MSG_PEEK != 0;
        if !self.is_kernels_turn()
            && let Some(arrival) = self.take(inbox, buffers, keep)
        {
            return Received::Memory(arrival);
        }
        let wait = Wait::begin(&self.spin);
        let looks = inbox.is_used() && !self.is_off() && wait.would_look();
        if inbox.is_shut() && !looks {
            return self.sleep(inbox, buffers, flags, kernel, wait);
        }
        let dont_wait = is_nonblocking(fd, flags);
        // While datagrams come through memory the kernel can wait for its turn.
        let mut ask = dont_wait
            || inbox.is_shut()
            || self.memory_turns.load(Ordering::Relaxed) == 0
            || self.is_kernels_turn();
        loop {
            if ask {
                let received = kernel(flags | libc::MSG_DONTWAIT);
                if received >= 0 || errno::last() != Errno::AGAIN {
                    return self.kernel_gave(received, keep);
                }
                self.kernel_is_empty(inbox);
                if let Some(arrival) = self.take(inbox, buffers, keep) {
                    errno::set_raw(before);
                    return Received::Memory(arrival);
                }
                if dont_wait {
                    errno::set(Errno::AGAIN);
                    return Received::Kernel(-1);
                }
            }
            if looks {
                if let Some(received) = self.look(inbox, &wait, flags, kernel) {
                    wait.end();
                    return self.kernel_gave(received, keep);
                }
                ask = self.kernel_first.load(Ordering::Relaxed) != 0;
                if ask && !inbox.is_empty() {
                    continue;
                }
                if let Some(arrival) = self.take(inbox, buffers, keep) {
                    wait.end();
                    errno::set_raw(before);
                    return Received::Memory(arrival);
                }
            }
            return self.sleep(inbox, buffers, flags, kernel, wait);
        }
    }

    /// Sleeps in the kernel, as the program has asked it to, unless something is there.
    fn sleep(
        &self,
        inbox: &Inbox,
        buffers: Buffers<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
        wait: Wait<'_>,
    ) -> Received {
        let keep = flags & libc::MSG_PEEK != 0;
        let before = errno::get();
        inbox.begin_sleep();
        if let Some(arrival) = self.take(inbox, buffers, keep) {
            inbox.end_sleep();
            wait.end();
            errno::set_raw(before);
            return Received::Memory(arrival);
        }
        let received = kernel(flags);
        let why = errno::get();
        inbox.end_sleep();
        if received < 0 && why == libc::EAGAIN {
            self.kernel_is_empty(inbox);
        } else {
            wait.end();
        }
        errno::set_raw(why);
        self.kernel_gave(received, keep)
    }

    /// Looks for as long as that has paid, at the kernel now and then. What the kernel has given.
    fn look(
        &self,
        inbox: &Inbox,
        wait: &Wait<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
    ) -> Option<ssize_t> {
        let mut asked = wait::now();
        let mut found = None;
        wait.look(SPIN_MAX_NS, || {
            if !inbox.is_empty() {
                return true;
            }
            let time = wait::now();
            if time >= asked + ASK_NS {
                asked = time;
                let received = kernel(flags | libc::MSG_DONTWAIT);
                if received >= 0 || errno::last() != Errno::AGAIN {
                    found = Some((received, errno::get()));
                } else {
                    self.kernel_is_empty(inbox);
                }
            }
            found.is_some()
        });
        let (received, why) = found?;
        errno::set_raw(why);
        Some(received)
    }

    fn is_kernels_turn(&self) -> bool {
        match self.peeked.load(Ordering::Relaxed) {
            peeked::MEMORY => false,
            peeked::KERNEL => true,
            _ => {
                self.kernel_first.load(Ordering::Relaxed) != 0
                    || self.memory_turns.load(Ordering::Relaxed) >= MEMORY_TURNS_MAX
            }
        }
    }

    fn take(&self, inbox: &Inbox, buffers: Buffers<'_>, keep: bool) -> Option<Arrival> {
        let arrival = inbox.take(buffers, keep)?;
        self.memory_turns.fetch_add(1, Ordering::Relaxed);
        let next = if keep { peeked::MEMORY } else { peeked::NOTHING };
        if self.peeked.load(Ordering::Relaxed) != next {
            self.peeked.store(next, Ordering::Relaxed);
        }
        Some(arrival)
    }

    fn kernel_gave(&self, received: ssize_t, keep: bool) -> Received {
        self.memory_turns.store(0, Ordering::Relaxed);
        let next = if keep && received >= 0 { peeked::KERNEL } else { peeked::NOTHING };
        self.peeked.store(next, Ordering::Relaxed);
        Received::Kernel(received)
    }

    /// The kernel has nothing: opens the inbox, and has the kernel asked once more before it is
    /// read, for what it took until then.
    pub(crate) fn kernel_is_empty(&self, inbox: &Inbox) {
        self.memory_turns.store(0, Ordering::Relaxed);
        if inbox.is_shut() && inbox.is_empty() && !self.is_off() {
            self.kernel_first.store(1, Ordering::Relaxed);
            inbox.open();
        } else if self.kernel_first.load(Ordering::Relaxed) != 0 {
            self.kernel_first.store(0, Ordering::Relaxed);
        }
    }

    /// The length of the datagram that comes next, if it is in the inbox.
    pub(crate) fn next_len(&self) -> Option<usize> {
        let len = self.inbox.get()?.next_len()?;
        self.peeked.store(peeked::MEMORY, Ordering::Relaxed);
        Some(len)
    }

    /// Sends as `sendmsg(2)` does, to `to` or to the peer. `None`: the kernel is to do it.
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
        self.bound(); // By the kernel, if it was not.
        let (inbox, own) = match inbox {
            Ok(inbox) => inbox.filter(|_| len <= DATAGRAM_LEN_MAX)?,
            Err(errno) => return Some(Err(errno)),
        };
        match inbox.put(own, buffers) {
            Put::Done | Put::Dropped => Some(Ok(len)),
            Put::Shut | Put::Gone => None,
        }
    }

    /// The inbox of who receives at an address. An error is one that the socket has had before.
    fn route(
        &self,
        fd: RawFd,
        to: Option<SocketAddr>,
    ) -> Result<Option<(Inbox, SocketAddr)>, Errno> {
        let Some(datagrams) = self.datagrams() else { return Ok(None) };
        // A signal's handler may have interrupted a sender.
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
        let inbox = if changes == 0 { None } else { self.ask(fd, to, target) };
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
                if routes.others.len() >= ROUTES_MAX {
                    routes.others.clear();
                }
                routes.others.insert(to, route);
            }
            None => routes.connected = Some(route),
        }
        if inbox.is_some()
            && let Ok(Err(error)) = sockopt::socket_error(borrow(fd))
        {
            return Err(error); // The kernel would tell it with this datagram.
        }
        Ok(inbox)
    }

    /// Asks the kernel who receives at an address, and finds the inbox.
    #[cold]
    fn ask(
        &self,
        fd: RawFd,
        to: Option<SocketAddr>,
        target: SocketAddr,
    ) -> Option<(Inbox, SocketAddr)> {
        let canonical = SocketAddr::new(target.ip().to_canonical(), target.port());
        let mapped = self.is_v6 && canonical.is_ipv4();
        if mapped && self.v6_only.load(Ordering::Relaxed) != 0 {
            return None;
        }
        if let SocketAddr::V6(target) = target
            && target.scope_id() != 0
        {
            return None;
        }
        let mut own = own_address(fd)?;
        if own.port() == 0 && to.is_some() && self.bind_to_any_port(fd) {
            own = own_address(fd)?;
        }
        let mut ip = own.ip().to_canonical();
        if ip.is_unspecified() {
            ip = source_towards(canonical)?;
        }
        let source = SocketAddr::new(ip, own.port());
        let same_family = source.is_ipv4() == canonical.is_ipv4();
        if own.port() == 0
            || !same_family
            || !is_local(source, canonical)
            || !settings::allows(Role::Connect, canonical)
        {
            return None;
        }
        let cookie = receiver_of(source, canonical).ok()??;
        let inbox = self.datagrams()?.find(canonical.port(), cookie)?;
        Some((inbox, source))
    }

    /// The kernel binds a socket that has no port when it sends; so that there is one before.
    fn bind_to_any_port(&self, fd: RawFd) -> bool {
        let any = if self.is_v6 {
            SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), 0)
        } else {
            SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0)
        };
        bind(borrow(fd), &any).is_ok()
    }

    /// A relative will be born that has the socket, too. A `fork` counts once.
    pub(crate) fn forking(&self, fork: u32) {
        if self.fork.swap(fork, Ordering::Relaxed) != fork
            && let Some(inbox) = self.inbox.get()
        {
            inbox.retain();
        }
    }

    /// The last descriptor of this process is about to be closed.
    pub(crate) fn closing(&self) {
        self.leave();
    }
}

impl Drop for Datagram {
    /// No call is under way any more, either.
    fn drop(&mut self) {
        if let Some(inbox) = self.inbox.get() {
            inbox.release();
        }
    }
}

impl Route {
    /// Whether the receiver is still who it was, and takes what comes.
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
        !shared || now < self.asked_at + SHARED_BELIEF_NS
    }
}

/// What an option means for datagrams through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// Nothing.
    Harmless,
    /// Others may have the same address.
    Shares,
    V6Only,
    /// How much may wait.
    Limits,
    /// Only the kernel can do that, or we do not know it.
    Kernels,
}

impl Meaning {
    fn of(level: c_int, name: c_int) -> Self {
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => Self::Shares,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Self::V6Only,
            (libc::SOL_SOCKET, libc::SO_RCVBUF | libc::SO_RCVBUFFORCE) => Self::Limits,
            (
                libc::SOL_SOCKET,
                libc::SO_SNDBUF
                | libc::SO_SNDBUFFORCE
                | libc::SO_RCVTIMEO
                | libc::SO_SNDTIMEO
                | libc::SO_BROADCAST
                | libc::SO_PRIORITY
                | libc::SO_KEEPALIVE
                | libc::SO_LINGER
                | libc::SO_BUSY_POLL,
            )
            | (
                libc::IPPROTO_IP,
                libc::IP_TOS
                | libc::IP_TTL
                | libc::IP_MTU_DISCOVER
                | libc::IP_RECVERR
                | libc::IP_MULTICAST_IF
                | libc::IP_MULTICAST_TTL
                | libc::IP_MULTICAST_LOOP
                | libc::IP_MULTICAST_ALL
                | libc::IP_ADD_MEMBERSHIP
                | libc::IP_DROP_MEMBERSHIP,
            )
            | (
                libc::IPPROTO_IPV6,
                libc::IPV6_TCLASS
                | libc::IPV6_UNICAST_HOPS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_RECVERR
                | libc::IPV6_MULTICAST_IF
                | libc::IPV6_MULTICAST_HOPS
                | libc::IPV6_MULTICAST_LOOP
                | libc::IPV6_ADD_MEMBERSHIP
                | libc::IPV6_DROP_MEMBERSHIP,
            ) => Self::Harmless,
            _ => Self::Kernels,
        }
    }
}

fn own_address(fd: RawFd) -> Option<SocketAddr> {
    getsockname(borrow(fd)).ok()?.try_into().ok()
}

fn peer_address(fd: RawFd) -> Option<SocketAddr> {
    getpeername(borrow(fd)).ok()??.try_into().ok()
}

/// Bytes that the kernel lets wait at a socket.
fn limit(fd: RawFd) -> u32 {
    let bytes = sockopt::socket_recv_buffer_size(borrow(fd)).unwrap_or(0);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Which of this host's addresses the kernel sends from to a target.
fn source_towards(target: SocketAddr) -> Option<IpAddr> {
    let family = if target.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let probe = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    connect(&probe, &target).ok()?;
    let source: SocketAddr = getsockname(&probe).ok()?.try_into().ok()?;
    Some(source.ip())
}
