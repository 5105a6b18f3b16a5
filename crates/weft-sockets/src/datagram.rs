//! UDP sockets: what is known of one, from `socket(2)` to `close(2)`.
//!
//! A receiver looks at its inbox and at the kernel's socket. The inbox is open only while it looks,
//! or dozes: what was put there came before what the kernel took when it was shut, so the inbox is
//! read first, and it is opened again when the kernel has nothing more. So datagrams of one sender
//! keep their order, though UDP does not ask for it.

mod options;
mod recv;
mod send;
mod told;

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::c_int;
use rustix::net::{getsockname, sockopt};
use weft_stream::datagram::{Datagrams, Dozes, Inbox, Owner};
use weft_stream::rules::Role;
use weft_sys::calls::socket_cookie;
use weft_sys::{SectionLock, SectionOnce, Spin};

use options::Meaning;
pub(crate) use recv::Received;
use recv::peeked;
use send::Routes;
use told::Told;
pub(crate) use told::Why;

use crate::descriptor::borrow;
use crate::table::Place;
use crate::{settings, shared_files};

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
    datagrams: SectionOnce<Option<&'static Datagrams>>,
    inbox: SectionOnce<Inbox>,
    spin: Spin,
    dozes: Dozes,
    /// Datagrams that senders have handed to the kernel because the inbox was shut, and that have
    /// been received or lost.
    accounted: AtomicU64,
    /// The program has taken a datagram. Until then it may only be waiting for one to hand the
    /// socket on to another program, which may not be on Weft (inetd): that one has to find it.
    receives: AtomicU32,
    /// `SO_RCVTIMEO` has been set.
    receive_limit: AtomicU32,
    /// When the kernel was last seen to have nothing.
    kernel_empty_at: AtomicU64,
    /// The kernel may have datagrams that were sent before those in the inbox.
    kernel_first: AtomicU32,
    memory_turns: AtomicU32,
    peeked: AtomicU32,
    routes: SectionLock<Routes>,
    told_sent: Told,
    told_received: Told,
    watches: AtomicU32,
    /// Epoll instances that announce what waits in memory.
    announced: AtomicU32,
    /// The last fork that it has been told of.
    fork: AtomicU32,
    /// Where it stands among the program's sockets.
    place: SectionOnce<Place>,
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
            datagrams: SectionOnce::new(),
            inbox: SectionOnce::new(),
            spin: Spin::new(),
            dozes: Dozes::new(),
            accounted: AtomicU64::new(0),
            receives: AtomicU32::new(0),
            receive_limit: AtomicU32::new(0),
            kernel_empty_at: AtomicU64::new(0),
            kernel_first: AtomicU32::new(0),
            memory_turns: AtomicU32::new(0),
            peeked: AtomicU32::new(peeked::NOTHING),
            routes: SectionLock::new(Routes::default()),
            told_sent: Told::new(),
            told_received: Told::new(),
            watches: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            fork: AtomicU32::new(0),
            place: SectionOnce::new(),
        }
    }

    /// It stands among the program's sockets from here on.
    pub(crate) fn placed(&self, place: Place) {
        let _ = self.place.set(place);
    }

    /// One that the program was started with, and that has an inbox: there may be something in it.
    pub(crate) fn inherited(fd: RawFd) -> Option<Self> {
        let own = own_address(fd).filter(|own| own.port() != 0)?;
        let cookie = socket_cookie(borrow(fd)).ok()?;
        let datagram = Self::fresh(own.is_ipv6());
        let inbox = datagram.datagrams()?.find(own.port(), cookie)?;
        if inbox.is_left() {
            datagram.off.store(1, Ordering::Relaxed);
        }
        // What is not known of its options is the safe answer.
        datagram.receive_limit.store(1, Ordering::Relaxed);
        datagram.bound();
        datagram.inbox.set(inbox).is_ok().then_some(datagram)
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// How many epoll instances watch it.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        &self.watches
    }

    /// How many epoll instances announce what waits in memory.
    pub(crate) fn announced(&self) -> &AtomicU32 {
        &self.announced
    }

    /// From here on it is the kernel's. What waits in the inbox can still be received.
    pub(crate) fn leave(&self, why: Why) {
        self.told_received.note(why);
        self.off.store(1, Ordering::Relaxed);
        if let Some(inbox) = self.inbox.get() {
            inbox.leave();
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
            Meaning::Timeout => self.receive_limit.store(1, Ordering::Relaxed),
            Meaning::Kernels if value == 0 => {}
            Meaning::Kernels => self.leave(Why::Option),
        }
    }

    fn datagrams(&self) -> Option<&'static Datagrams> {
        *self.datagrams.get_or_init(shared_files::datagrams)
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
            if ip.is_multicast() {
                return Err(Why::Multicast);
            }
            if !settings::allows(Role::Listen, own) {
                return Err(Why::Rule);
            }
            let owner = Owner {
                port: own.port(),
                cookie: socket_cookie(borrow(fd)).map_err(|_| Why::Room)?,
                pid: std::process::id(),
                limit: limit(fd),
                shared: self.shared.load(Ordering::Relaxed) != 0,
            };
            let datagrams = self.datagrams().ok_or(Why::Room)?;
            let inbox = Inbox::register(datagrams, &owner).ok_or(Why::Room)?;
            if inbox.is_left() {
                inbox.release(); // A relative knows that it is the kernel's.
                return Err(Why::PassedOn);
            }
            Ok(inbox)
        };
        let inbox = match made() {
            Ok(inbox) => inbox,
            Err(why) => {
                self.told_received.note(why);
                self.off.store(1, Ordering::Relaxed);
                return None;
            }
        };
        if self.inbox.set(inbox).is_err() {
            inbox.release(); // Another thread was quicker.
        }
        self.inbox.get()
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
    pub(crate) fn closing(&self, fd: RawFd) {
        self.tell_at_last(fd);
        self.off.store(1, Ordering::Relaxed);
        if let Some(inbox) = self.inbox.get() {
            inbox.shut();
        }
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

fn own_address(fd: RawFd) -> Option<SocketAddr> {
    getsockname(borrow(fd)).ok()?.try_into().ok()
}

/// Bytes that the kernel lets wait at a socket.
fn limit(fd: RawFd) -> u32 {
    let bytes = sockopt::socket_recv_buffer_size(borrow(fd)).unwrap_or(0);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
