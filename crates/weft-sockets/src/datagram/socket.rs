//! Effects on a socket of all calls but those that move datagrams.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use weft_stream::datagram::{Datagrams, Inbox, Owner};
use weft_stream::rules::Role;

use super::options::Meaning;
use super::{Datagram, DatagramReason};
use crate::descriptor::{Descriptor, own_address};
use crate::kernel::{Host, Kernel as _};
use crate::table::Place;
use crate::{settings, shared_files};

impl Datagram {
    /// Records the socket's entry in the descriptor table.
    pub(crate) fn placed(&self, place: Place) {
        let _ = self.place.set(place);
    }

    /// Returns the state of a socket that the program was started with, if it has an inbox, which
    /// may hold datagrams.
    pub(crate) fn inherited(fd: RawFd) -> Option<Self> {
        let own = own_address(fd).filter(|own| own.port() != 0)?;
        let cookie = Host::cookie(Descriptor::of(fd).as_fd()).ok()?;
        let datagram = Self::fresh(own.is_ipv6());
        let inbox = datagram.datagrams()?.find(own.port(), cookie)?;
        if inbox.is_left() {
            datagram.off.store(1, Ordering::Relaxed);
        }
        // The options' earlier values are unknown; these are the safe assumptions.
        datagram.receive_limit.store(1, Ordering::Relaxed);
        datagram.bound();
        datagram.inbox.set(inbox).is_ok().then_some(datagram)
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// Returns the number of epoll instances that watch the socket.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        &self.watches
    }

    /// Returns the number of epoll instances that report datagrams in the inbox.
    pub(crate) fn announced(&self) -> &AtomicU32 {
        &self.announced
    }

    /// Falls back to the kernel. Datagrams in the inbox can still be received.
    pub(crate) fn fall_back_to_udp(&self, why: DatagramReason) {
        self.received_log.note(why);
        self.off.store(1, Ordering::Relaxed);
        if let Some(inbox) = self.inbox.get() {
            inbox.fall_back_to_udp();
        }
    }

    pub(crate) fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed) != 0
    }

    /// Records that `bind(2)` has succeeded.
    pub(crate) fn bound(&self) {
        self.bound.store(1, Ordering::Relaxed);
    }

    /// Records a `connect(2)`: the socket has another peer, perhaps another address, or no peer.
    pub(crate) fn connected(&self, fd: RawFd) {
        self.bound();
        self.routes.lock().connected = None;
        self.routes.lock().others.clear();
        if let Some(inbox) = self.inbox.get() {
            inbox.moved(own_address(fd).map_or(0, |own| own.port()));
        }
    }

    /// Records that the program has set an option.
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
            Meaning::Kernels => self.fall_back_to_udp(DatagramReason::Option),
        }
    }

    pub(super) fn datagrams(&self) -> Option<&'static Datagrams> {
        *self.datagrams.get_or_init(shared_files::datagrams)
    }

    /// Returns the inbox, which is made when the program first receives or waits.
    #[inline]
    pub(crate) fn inbox(&self, fd: RawFd) -> Option<&Inbox> {
        match self.inbox.get() {
            Some(inbox) => Some(inbox),
            None if self.is_off() || self.bound.load(Ordering::Relaxed) == 0 => None,
            None => self.make_inbox(fd),
        }
    }

    /// Returns the inbox, if it has been made.
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
                return Err(DatagramReason::Multicast);
            }
            if !settings::allows(Role::Listen, own) {
                return Err(DatagramReason::Rule);
            }
            let owner = Owner {
                port: own.port(),
                cookie: Host::cookie(Descriptor::of(fd).as_fd())
                    .map_err(|_| DatagramReason::Room)?,
                pid: std::process::id(),
                limit: limit(fd),
                shared: self.shared.load(Ordering::Relaxed) != 0,
            };
            let datagrams = self.datagrams().ok_or(DatagramReason::Room)?;
            let inbox = Inbox::register(datagrams, &owner).ok_or(DatagramReason::Room)?;
            if inbox.is_left() {
                inbox.release(); // A process that shares the socket has fallen back.
                return Err(DatagramReason::PassedOn);
            }
            Ok(inbox)
        };
        let inbox = match made() {
            Ok(inbox) => inbox,
            Err(why) => {
                self.received_log.note(why);
                self.off.store(1, Ordering::Relaxed);
                return None;
            }
        };
        if self.inbox.set(inbox).is_err() {
            inbox.release(); // Another thread has made it first.
        }
        self.inbox.get()
    }

    /// Counts a child that is about to inherit the socket. One `fork` counts once.
    pub(crate) fn forking(&self, fork: u32) {
        if self.fork.swap(fork, Ordering::Relaxed) != fork
            && let Some(inbox) = self.inbox.get()
        {
            inbox.retain();
        }
    }

    /// Prepares for the close of this process's last descriptor of the socket.
    pub(crate) fn closing(&self, fd: RawFd) {
        self.log_at_close(fd);
        self.off.store(1, Ordering::Relaxed);
        if let Some(inbox) = self.inbox.get() {
            inbox.shut();
        }
    }
}

impl Drop for Datagram {
    /// Releases the inbox: no call is in progress any more.
    fn drop(&mut self) {
        if let Some(inbox) = self.inbox.get() {
            inbox.release();
        }
    }
}

/// Returns the size of the socket's receive buffer in bytes.
fn limit(fd: RawFd) -> u32 {
    let bytes = Host::option(Descriptor::of(fd).as_fd(), libc::SO_RCVBUF).unwrap_or(0);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
