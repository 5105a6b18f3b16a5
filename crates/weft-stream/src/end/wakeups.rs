//! Reads wakeups from the kernel's socket. Before them there may be bytes of the first TCP phase,
//! and behind them bytes of the last one.

use std::sync::atomic::Ordering;

use weft_sys::calls::io::Errno;

use super::End;
use crate::kernel::Kernel;
use crate::limits::WAKEUPS_LEFT_MAX;
use crate::words::NONE;

/// Number of wakeups that one call takes.
pub(super) const AT_ONCE: usize = 64;

/// What a reader of the rings has found in the kernel's socket.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drained {
    /// This many wakeups, which have been taken.
    Wakeups(usize),
    /// Bytes of the last TCP phase.
    Bytes,
    /// The peer's end of stream.
    End,
    /// Wakeups that stay in the socket, because something has come that other threads wait for.
    Left,
}

impl<K: Kernel> End<K> {
    /// Takes wakeups from the socket, but no bytes of the last phase. The caller holds the reader's
    /// lock.
    pub(super) fn take_wakeups(&self, socket: K::Socket<'_>) -> Result<Drained, Errno> {
        self.take_wakeups_unless(socket, || false)
    }

    /// Takes wakeups, unless something has come into memory. In that case other sleepers may have
    /// been woken by a wakeup that they have yet to see, and would sleep on without it. So it stays
    /// in the socket, and the peer sends another one for what comes next.
    pub(super) fn take_wakeups_of_nothing(&self, socket: K::Socket<'_>) -> Result<Drained, Errno> {
        self.take_wakeups_unless(socket, || {
            if self.wakeups_left() > WAKEUPS_LEFT_MAX {
                return false;
            }
            // What comes from here on brings another wakeup, behind those that are taken.
            self.own.waits().drained();
            self.available().is_ok_and(|bytes| bytes > 0)
        })
    }

    fn take_wakeups_unless(
        &self,
        socket: K::Socket<'_>,
        are_left: impl Fn() -> bool,
    ) -> Result<Drained, Errno> {
        let mut wakeups = [0_u8; AT_ONCE];
        // Counted wakeups come before anything else in the socket.
        let counted = usize::try_from(self.wakeups_left()).unwrap_or(AT_ONCE).min(AT_ONCE);
        if counted > 0 {
            if are_left() {
                return Ok(Drained::Left);
            }
            let taken = K::take(socket, &mut wakeups[..counted], false)?;
            K::moment();
            self.count_wakeups(taken);
            return Ok(if taken == 0 { Drained::End } else { Drained::Wakeups(taken) });
        }
        let seen = K::take(socket, &mut wakeups, true)?;
        if seen == 0 {
            return Ok(Drained::End);
        }
        K::moment();
        // Before it sends bytes of the last phase the peer publishes its start, and it sends no
        // wakeups afterwards.
        let left = match self.rx.words().tcp_resume_seq.load(Ordering::Acquire) {
            NONE => seen,
            _ => usize::try_from(self.wakeups_left()).unwrap_or(seen).min(seen),
        };
        if left == 0 {
            return Ok(Drained::Bytes);
        }
        if are_left() {
            return Ok(Drained::Left);
        }
        let taken = K::take(socket, &mut wakeups[..left], false)?;
        K::moment();
        self.count_wakeups(taken);
        Ok(Drained::Wakeups(taken))
    }

    /// Wakeups that have been sent and not taken, as far as the peer has counted them.
    pub(super) fn wakeups_left(&self) -> u64 {
        let words = self.rx.words();
        let taken = words.wakeups_taken.load(Ordering::Relaxed);
        words.wakeups.load(Ordering::Acquire).saturating_sub(taken)
    }

    /// Whether wakeups wait in the socket.
    pub(crate) fn has_wakeups(&self) -> bool {
        self.wakeups_left() > 0
    }

    pub(super) fn count_wakeups(&self, taken: usize) {
        if taken > 0 {
            self.rx.words().wakeups_taken.fetch_add(taken as u64, Ordering::Relaxed);
            self.own.waits().drained();
        }
    }

    /// Takes the remaining wakeups, behind which the last phase begins.
    #[cold]
    pub(super) fn take_last_wakeups(&self, socket: K::Socket<'_>) -> Result<(), Errno> {
        while self.wakeups_left() > 0 {
            match self.take_wakeups(socket)? {
                Drained::Wakeups(taken) if taken > 0 => {}
                _ => break,
            }
        }
        Ok(())
    }
}
