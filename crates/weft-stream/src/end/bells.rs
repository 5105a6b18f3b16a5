//! Bells as their reader takes them from the kernel's socket, in which there may be bytes of the
//! first phase before them and of the third behind them.

use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::End;
use crate::kernel::Kernel;
use crate::limits::WAKEUPS_LEFT_MAX;
use crate::words::NONE;

/// Bells that one call takes.
pub(super) const AT_ONCE: usize = 64;

/// What the kernel's socket has for a reader of the rings.
#[derive(Clone, Copy, Debug)]
pub(super) enum Heard {
    /// So many bells.
    Bells(usize),
    /// Bytes of the third phase.
    Bytes,
    /// The end of what the peer sends.
    End,
    /// Wakeups that stay there, for something has come for which others sleep.
    Left,
}

impl<K: Kernel> End<K> {
    /// Takes bells from the socket, but no bytes of the third phase. The reader's lock is held.
    pub(super) fn take_bells(&self, socket: K::Socket<'_>) -> Result<Heard, Errno> {
        self.take_bells_unless(socket, || false)
    }

    /// The same on behalf of those who sleep: where something has come into memory they may have
    /// been woken by a wakeup that they have yet to see, and without it they would sleep on. So it
    /// stays in the socket, and the peer wakes anew for what comes next.
    pub(super) fn take_bells_of_nothing(&self, socket: K::Socket<'_>) -> Result<Heard, Errno> {
        self.take_bells_unless(socket, || {
            if self.bells_left() > WAKEUPS_LEFT_MAX {
                return false;
            }
            // What comes after this brings another one, which is behind those that are taken.
            self.own.waits().drained();
            self.available().is_ok_and(|bytes| bytes > 0)
        })
    }

    fn take_bells_unless(
        &self,
        socket: K::Socket<'_>,
        are_left: impl Fn() -> bool,
    ) -> Result<Heard, Errno> {
        let mut bells = [0_u8; AT_ONCE];
        // Those that have been counted come before whatever else is in the socket.
        let counted = usize::try_from(self.bells_left()).unwrap_or(AT_ONCE).min(AT_ONCE);
        if counted > 0 {
            if are_left() {
                return Ok(Heard::Left);
            }
            let taken = K::take(socket, &mut bells[..counted], false)?;
            self.count_bells(taken);
            return Ok(if taken == 0 { Heard::End } else { Heard::Bells(taken) });
        }
        let seen = K::take(socket, &mut bells, true)?;
        if seen == 0 {
            return Ok(Heard::End);
        }
        // Who has sent such bytes has said so before, and rings no more.
        let left = match self.rx.words().back_at.load(Ordering::Acquire) {
            NONE => seen,
            _ => usize::try_from(self.bells_left()).unwrap_or(seen).min(seen),
        };
        if left == 0 {
            return Ok(Heard::Bytes);
        }
        if are_left() {
            return Ok(Heard::Left);
        }
        let taken = K::take(socket, &mut bells[..left], false)?;
        self.count_bells(taken);
        Ok(Heard::Bells(taken))
    }

    /// Bells that have been rung and not taken, as far as they have been counted.
    pub(super) fn bells_left(&self) -> u64 {
        let words = self.rx.words();
        let taken = words.bells_taken.load(Ordering::Relaxed);
        words.bells.load(Ordering::Acquire).saturating_sub(taken)
    }

    pub(super) fn count_bells(&self, taken: usize) {
        if taken > 0 {
            self.rx.words().bells_taken.fetch_add(taken as u64, Ordering::Relaxed);
            self.own.waits().drained();
        }
    }

    /// The third phase begins when all bells of the second have been taken.
    #[cold]
    pub(super) fn take_last_bells(&self, socket: K::Socket<'_>) -> Result<(), Errno> {
        while self.bells_left() > 0 {
            match self.take_bells(socket)? {
                Heard::Bells(taken) if taken > 0 => {}
                _ => break,
            }
        }
        Ok(())
    }
}
