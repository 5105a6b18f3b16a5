//! Flow control: a message is sent only if the peer has a receive for it.
//!
//! Each end is ready for `window` messages of its peer. A message uses a credit, and the receiver
//! returns it when the program has dropped the message and its place is free again. Credits return
//! in the header of any message. They return alone when half of the window is owed; or, if the
//! program keeps messages, when the peer has no credit left, so that it could send nothing.
//!
//! **Messages of credits alone need receives, too**, and use no credit. Two beyond the window are
//! enough, because at most two are unread at a time: all credits together are `window`. One that is
//! sent because the peer has no credit left is the first of those unread, since credits in unread
//! messages are not at this end; all others return at least half of the window each. And an end
//! frees the receive of one before it uses its credits. The tests below try all this on random
//! orders, and with one receive fewer they fail.

/// The state of flow control at one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Credits {
    /// The peer's window.
    peer_window: u16,
    /// Messages that this end may send now.
    left: u16,
    /// This end's window.
    window: u16,
    /// Messages of the peer that the program has, or that are to be returned.
    used: u16,
    /// Of these, those that are to be returned.
    owed: u16,
}

/// The peer has sent more than it may, or returned more than it has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation;

impl Credits {
    pub(crate) fn new(window: u16, peer_window: u16) -> Self {
        Self { peer_window, left: peer_window, window, used: 0, owed: 0 }
    }

    /// Uses a credit for a message; `false` if there is none.
    pub(crate) fn spend(&mut self) -> bool {
        // rustc 1.95 drops the store if this subtracts `u16::from(self.left != 0)` (opt-level 3).
        let left = self.left.checked_sub(1);
        self.left = left.unwrap_or(0);
        left.is_some()
    }

    /// The credits for the header of a message that is sent now.
    pub(crate) fn give_back(&mut self) -> u16 {
        let given = std::mem::take(&mut self.owed);
        self.used -= given;
        given
    }

    /// Whether the credits have to be returned even if there is no message to send.
    pub(crate) fn is_overdue(&self) -> bool {
        self.owed != 0 && (self.owed >= self.window.div_ceil(2) || self.used == self.window)
    }

    /// Notes the credits in the header of a message of the peer.
    pub(crate) fn got_back(&mut self, credits: u16) -> Result<(), Violation> {
        let left = self.left.checked_add(credits).filter(|&left| left <= self.peer_window);
        self.left = left.ok_or(Violation)?;
        Ok(())
    }

    /// Notes that a message has arrived that used a credit.
    pub(crate) fn arrived(&mut self) -> Result<(), Violation> {
        if self.used == self.window {
            return Err(Violation);
        }
        self.used += 1;
        Ok(())
    }

    /// Notes that the place of a message is free again.
    pub(crate) fn freed(&mut self) {
        self.owed += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::limits::CREDIT_RECEIVES_MAX;

    /// What is on the way: whether it used a credit, and the credits that it returns.
    type Sent = (bool, u16);

    struct SimulatedEnd {
        credits: Credits,
        /// Receives that the peer's next messages find.
        receives: usize,
        /// Messages that have come into receives and were not looked at.
        unread: VecDeque<Sent>,
        /// Messages that the program has.
        held: u16,
    }

    impl SimulatedEnd {
        fn new(window: u16, peer_window: u16, extra: usize) -> Self {
            let credits = Credits::new(window, peer_window);
            let receives = usize::from(window) + extra;
            Self { credits, receives, unread: VecDeque::new(), held: 0 }
        }

        fn look(&mut self) {
            let Some((is_message, credits)) = self.unread.pop_front() else { return };
            if is_message {
                self.credits.arrived().unwrap();
                self.held += 1;
            } else {
                self.receives += 1;
            }
            self.credits.got_back(credits).unwrap();
        }

        /// Sends credits alone if they are overdue, as an end does after each look.
        fn overdue(&mut self) -> Option<Sent> {
            self.credits.is_overdue().then(|| (false, self.credits.give_back()))
        }

        fn free(&mut self) -> Option<Sent> {
            self.held = self.held.checked_sub(1)?;
            self.receives += 1;
            self.credits.freed();
            self.overdue()
        }
    }

    /// Runs random steps of two ends. Returns whether a message met no receive.
    fn run(seed: u64, extra: usize) -> bool {
        let mut random = fastrand::Rng::with_seed(seed);
        let windows = [random.u16(1..9), random.u16(1..9)];
        let mut ends = [
            SimulatedEnd::new(windows[0], windows[1], extra),
            SimulatedEnd::new(windows[1], windows[0], extra),
        ];
        let mut total = 0;
        for _ in 0..2_000 {
            let me = random.usize(..2);
            let sent = match random.u8(..3) {
                0 => {
                    let credits = &mut ends[me].credits;
                    credits.spend().then(|| (true, credits.give_back()))
                }
                1 => ends[me].free(),
                _ => {
                    ends[me].look();
                    ends[me].overdue()
                }
            };
            let Some(sent) = sent else { continue };
            total += 1;
            let peer = &mut ends[1 - me];
            let Some(left) = peer.receives.checked_sub(1) else { return true };
            peer.receives = left;
            peer.unread.push_back(sent);
        }
        // Once everything is read, both can send again, even if each keeps all messages but one.
        for _ in 0..100 {
            for me in 0..2 {
                ends[me].look();
                let has_one_too_many = ends[me].held == ends[me].credits.window;
                let sent = if has_one_too_many { ends[me].free() } else { ends[me].overdue() };
                if let Some(sent) = sent {
                    ends[1 - me].receives -= 1;
                    ends[1 - me].unread.push_back(sent);
                }
            }
        }
        assert!(total > 100, "hardly anything was sent");
        assert!(ends.iter().all(|end| end.credits.left != 0), "seed {seed}: both wait for ever");
        false
    }

    #[test]
    fn no_message_meets_a_missing_receive() {
        for seed in 0..300 {
            assert!(!run(seed, CREDIT_RECEIVES_MAX), "seed {seed}");
        }
    }

    #[test]
    fn one_receive_fewer_would_not_do() {
        assert!((0..300).any(|seed| run(seed, CREDIT_RECEIVES_MAX - 1)));
    }

    #[test]
    fn a_peer_that_does_not_keep_to_it_is_found_out() {
        let mut credits = Credits::new(1, 2);
        assert_eq!(credits.got_back(1), Err(Violation), "more than was spent");
        assert!(credits.spend());
        assert_eq!(credits.got_back(u16::MAX), Err(Violation));
        assert_eq!(credits.arrived(), Ok(()));
        assert_eq!(credits.arrived(), Err(Violation), "more than the window");
    }
}
