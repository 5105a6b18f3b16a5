//! One end of a connection, to a peer on this host or on another.

use std::os::fd::BorrowedFd;

use weft_stream::remote::WakeupFd;
use weft_stream::{Carrier, Delays, Kernel as _, Reason, RecvOptions};
use weft_sys::Buffers;
use weft_sys::calls::event::Timespec;
use weft_sys::calls::io::Errno;

use crate::kernel::{End, Host, Kernel as _};
use crate::remote::RemoteEnd;

/// An end. Callers look for a local end first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AnyEnd<'a> {
    /// Both ends are on this host.
    Local(&'a End),
    /// The peer is on another host.
    Remote(&'a RemoteEnd),
}

macro_rules! both {
    ($($(#[$doc:meta])* fn $name:ident(&self $(, $arg:ident: $kind:ty)*) $(-> $result:ty)?;)*) => {
        impl<'a> AnyEnd<'a> {
            $(
                $(#[$doc])*
                #[inline]
                pub(crate) fn $name(self $(, $arg: $kind)*) $(-> $result)? {
                    match self {
                        AnyEnd::Local(end) => end.$name($($arg),*),
                        AnyEnd::Remote(remote) => remote.$name($($arg),*),
                    }
                }
            )*
        }
    };
}

both! {
    fn try_recv(
        &self,
        socket: BorrowedFd<'_>,
        to: Buffers<'_>,
        options: RecvOptions
    ) -> Result<usize, Errno>;
    fn recv_delivered(
        &self,
        socket: BorrowedFd<'_>,
        bytes: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]) -> usize
    ) -> Result<usize, Errno>;
    fn settle(&self, socket: BorrowedFd<'_>, may_have_ended: bool, own: u32) -> Result<bool, Errno>;
    fn shut_read(&self);
    fn end_sleep(&self);
    fn note_reset(&self);
    fn carrier_in(&self) -> Carrier;
    fn carrier_out(&self) -> Carrier;
    fn unread(&self) -> usize;
    fn room(&self) -> usize;
    fn progress(&self) -> (u64, u64);
    fn is_writable(&self) -> bool;
    fn is_full(&self) -> bool;
    fn is_ending(&self) -> bool;
    fn is_send_answered(&self) -> bool;
    fn has_fallen_back(&self) -> bool;
    fn has_peer_shut(&self) -> bool;
    fn begin_sleep(&self);
    fn want_room(&self);
}

impl<'a> AnyEnd<'a> {
    /// Handles the peer's requests, as [`End::advance`]. For a peer on another host a thread does
    /// that.
    #[inline]
    pub(crate) fn advance(self, socket: BorrowedFd<'_>) {
        if let Self::Local(end) = self {
            end.advance(socket);
        }
    }

    /// Notes for a call that sends that the kernel has reported the peer's end, as
    /// [`End::hang_up_unread`].
    pub(crate) fn hang_up_unread(self, socket: BorrowedFd<'_>) {
        match self {
            Self::Local(end) => end.hang_up_unread(socket),
            Self::Remote(remote) => remote.hang_up(),
        }
    }

    /// Returns whether the kernel's reset is an end, as [`End::is_reset_for_wakeups`].
    pub(crate) fn is_reset_for_wakeups(self) -> bool {
        matches!(self, Self::Local(end) if end.is_reset_for_wakeups())
    }

    /// Drains wakeup bytes from the kernel's socket, as [`End::drain_wakeups`].
    #[inline]
    pub(crate) fn drain_wakeups(self, socket: BorrowedFd<'_>) {
        if let Self::Local(end) = self {
            end.drain_wakeups(socket);
        }
    }

    /// Drains wakeup bytes of a connection that has fallen back to TCP, so that the kernel does not
    /// count them as data. Returns whether there may have been some.
    #[inline]
    pub(crate) fn drain_wakeups_if_left(self, socket: BorrowedFd<'_>) -> bool {
        let Self::Local(end) = self else { return false };
        let may_be_woken = end.has_fallen_back() && !end.is_over();
        if may_be_woken {
            end.drain_wakeups(socket);
        }
        may_be_woken
    }

    /// Returns how many unread bytes TCP and memory have. `None`: the kernel knows.
    pub(crate) fn all_unread(self, socket: BorrowedFd<'_>) -> Option<usize> {
        loop {
            let carrier = self.carrier_in();
            let unread = self.all_unread_by(carrier, socket);
            // Bytes that have moved to TCP meanwhile were no longer where they were looked for.
            if unread != Some(0) || self.carrier_in() == carrier {
                return unread;
            }
        }
    }

    /// Does the same while the next bytes come by this carrier.
    fn all_unread_by(self, carrier: Carrier, socket: BorrowedFd<'_>) -> Option<usize> {
        if carrier == Carrier::Memory {
            return Some(self.unread() + self.unread_behind(socket));
        }
        let Self::Local(end) = self else { return None };
        let (before, behind) = end.unread_of_two_phases()?;
        let at_kernel = Host::unread(socket).ok()?;
        // Wakeup bytes may be among them, unless TCP carries the last phase, too.
        let before = usize::try_from(before).unwrap_or(usize::MAX);
        let by_tcp = if end.has_fallen_back() { at_kernel } else { at_kernel.min(before) };
        Some(by_tcp.saturating_add(behind))
    }

    /// Returns how many bytes in the kernel's socket follow those in memory.
    pub(crate) fn unread_behind(self, socket: BorrowedFd<'_>) -> usize {
        match self {
            Self::Local(end) if end.has_fallen_back() => {
                end.drain_wakeups(socket); // Wakeup bytes are not part of the stream.
                Host::unread(socket).unwrap_or(0)
            }
            _ => 0,
        }
    }

    /// Ends this side's direction, before the kernel's socket is shut down.
    pub(crate) fn shut_write(self, socket: BorrowedFd<'_>) {
        match self {
            Self::Local(end) => {
                let was_in_memory = !end.has_fallen_back();
                end.put_back_own(socket);
                if was_in_memory && end.has_fallen_back() {
                    end.note_fallback(Reason::Shut);
                }
                end.shut_write();
            }
            Self::Remote(remote) => remote.shut_write(socket),
        }
    }

    /// Receives without waiting: what poll has reported as readable can be read. See
    /// [`End::try_recv_shown`].
    pub(crate) fn try_recv_shown(
        self,
        socket: BorrowedFd<'_>,
        to: Buffers<'_>,
        options: RecvOptions,
    ) -> Result<usize, Errno> {
        match self {
            Self::Local(end) => end.try_recv_shown(socket, to, options),
            Self::Remote(remote) => remote.try_recv(socket, to, options),
        }
    }

    /// Frees the ring's space that has been read for the peer's writer. To another host reading
    /// does that.
    #[inline]
    pub(crate) fn acknowledge(self, socket: BorrowedFd<'_>) {
        if let Self::Local(end) = self {
            end.acknowledge(socket);
        }
    }

    /// Returns how many unread bytes there are; from a peer on another host, those that had come at
    /// the last call of [`remote::drive`](crate::remote::drive).
    #[inline]
    pub(crate) fn seen(self) -> usize {
        match self {
            Self::Local(end) => end.unread(),
            Self::Remote(remote) => remote.seen(),
        }
    }

    /// Returns when the oldest unread byte came, as [`weft_sys::time_stamp`]; 0 for a peer on
    /// another host.
    #[inline]
    pub(crate) fn arrived_at(self) -> u64 {
        match self {
            Self::Local(end) => end.arrived_at(),
            Self::Remote(_) => 0,
        }
    }

    /// Returns the end if the peer is on another host.
    #[inline]
    pub(crate) fn remote(self) -> Option<&'a RemoteEnd> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }

    /// Returns the delay options as the program has set them; `None`: the kernel knows.
    #[inline]
    pub(crate) fn delays(self) -> Option<Delays<'a>> {
        match self {
            Self::Local(end) => end.delays(),
            Self::Remote(_) => None,
        }
    }

    /// Returns the descriptor that wakes a sleeper, besides the kernel's socket.
    #[inline]
    pub(crate) fn wakeup_fd(self) -> Option<&'a WakeupFd> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote.wakeup_fd()),
        }
    }

    /// Returns how many wakeups have been taken from the kernel's socket.
    #[inline]
    pub(crate) fn wakeups_taken(self) -> u64 {
        match self {
            Self::Local(end) => end.wakeups_taken(),
            Self::Remote(_) => 0,
        }
    }

    /// Returns whether the peer can notify when it has made room.
    #[inline]
    pub(crate) fn can_be_woken(self) -> bool {
        match self {
            Self::Local(end) => end.can_be_woken(),
            Self::Remote(remote) => remote.can_be_woken(),
        }
    }

    /// Returns whether the kernel has nothing new to report. For a peer on another host it may
    /// always have.
    #[inline]
    pub(crate) fn is_quiet(self) -> bool {
        match self {
            Self::Local(end) => end.is_quiet(),
            Self::Remote(_) => false,
        }
    }

    /// Sleeps until the peer has written, as [`End::futex_wait`]. Returns at once for a peer on
    /// another host.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled.
    #[inline]
    pub(crate) fn futex_wait(self, time: &Timespec) -> Result<(), Errno> {
        match self {
            Self::Local(end) => {
                end.begin_futex_wait().map_or(Ok(()), |word| Host::wait_for_peer(word, time))
            }
            Self::Remote(_) => Ok(()),
        }
    }
}
