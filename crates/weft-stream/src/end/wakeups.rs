//! Wakeups as their reader takes them from the kernel's socket, in which there may be bytes of the
//! first phase before them and of the third behind them.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::End;
use crate::kernel::Kernel;
use crate::limits::WAKEUPS_LEFT_MAX;
use crate::words::NONE;

/// Wakeups that one call takes.
pub(super) const AT_ONCE: usize = 64;

/// What the kernel's socket has for a reader of the rings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Drained {
    /// So many wakeups.
    Wakeups(usize),
    /// Bytes of the third phase.
    Bytes,
    /// The end of what the peer sends.
    End,
    /// Wakeups that stay there, for something has come for which others sleep.
    Left,
}

impl<K: Kernel> End<K> {
    /// Takes wakeups from the socket, but no bytes of the third phase. The reader's lock is held.
    pub(super) fn take_wakeups(&self, socket: K::Socket<'_>) -> Result<Drained, Errno> {
        self.take_wakeups_unless(socket, || false)
    }

    /// The same on behalf of those who sleep: where something has come into memory they may have
    /// been woken by a wakeup that they have yet to see, and without it they would sleep on. So it
    /// stays in the socket, and the peer wakes anew for what comes next.
    pub(super) fn take_wakeups_of_nothing(&self, socket: K::Socket<'_>) -> Result<Drained, Errno> {
        self.take_wakeups_unless(socket, || {
            if self.wakeups_left() > WAKEUPS_LEFT_MAX {
                return false;
            }
            // What comes after this brings another one, which is behind those that are taken.
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
        // Those that have been counted come before whatever else is in the socket.
        let counted = usize::try_from(self.wakeups_left()).unwrap_or(AT_ONCE).min(AT_ONCE);
        if counted > 0 {
            if are_left() {
                return Ok(Drained::Left);
            }
            let taken = K::take(socket, &mut wakeups[..counted], false)?;
            self.count_wakeups(taken);
            return Ok(if taken == 0 { Drained::End } else { Drained::Wakeups(taken) });
        }
        let seen = K::take(socket, &mut wakeups, true)?;
        if seen == 0 {
            return Ok(Drained::End);
        }
        // A peer that has sent such bytes has published that before, and sends no more wakeups.
        let left = match self.rx.words().back_at.load(Ordering::Acquire) {
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
        self.count_wakeups(taken);
        Ok(Drained::Wakeups(taken))
    }

    /// Wakeups that have been sent and not taken, as far as they have been counted.
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

    /// The third phase begins when all wakeups of the second have been taken.
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
