//! The words by which two processes that share memory wake each other. A thread that waits
//! publishes that in words of its own side; the peer reads them after it has brought something, or
//! made room.
//!
//! There are two ways to wait. A futex waiter ([`FutexWord`]) is woken by a futex. A sleeper is in
//! the kernel, on the socket that both sides have, and is woken by a byte that the peer sends over
//! it: a wakeup. At most one wakeup is in the socket at a time.
//!
//! Each side writes before it reads, with a full barrier between: a thread publishes its wait and
//! then checks once more, and the peer brings something and then reads the words. So at least one
//! of them sees the other.

use crate::alarm::Tag;
use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::futex_word::FutexWord;
use crate::presence::{begin_sleep, end_sleep, is_asleep};

const DRAINED: u32 = 0;
const PENDING: u32 = 1;

/// One side's words, all initially zero. They may have any value, because the peer can write them.
#[derive(Clone, Copy, Debug)]
pub struct Waits<'a> {
    /// Number of threads that sleep in the kernel until a wakeup is sent.
    pub sleepers: &'a AtomicU32,
    /// The sleep of one of them ([`Tag`]); 0 if it has not been published.
    pub tag: &'a AtomicU64,
    /// Whether a wakeup has been sent that has not been drained yet.
    pub wakeup: &'a AtomicU32,
    /// The word of threads that wait by a futex until something is brought.
    pub futex: FutexWord<'a>,
    /// How threads wait for room, in bits that the user defines.
    pub wanted: &'a AtomicU32,
}

/// The threads that a wakeup is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// No thread sleeps.
    None,
    /// Only one thread sleeps; an [`Alarm`](crate::Alarm) may show that it has been woken already.
    Tagged(Tag),
    /// Some threads sleep.
    Some,
}

/// Methods for the own side.
impl Waits<'_> {
    /// Counts the calling thread as asleep in the kernel. It must check once more before it sleeps.
    pub fn begin_sleep(self) {
        begin_sleep(self.sleepers);
    }

    /// Counts that the thread has woken.
    pub fn end_sleep(self) {
        end_sleep(self.sleepers);
    }

    /// Publishes this sleeper's tag before it sleeps. `None` clears it: before the thread stops
    /// counting as asleep, or, if it goes on counting, before it checks once more.
    pub fn tag(self, tag: Option<Tag>) {
        self.tag.store(tag.map_or(0, Tag::to_word), Ordering::Release);
    }

    /// Records that the wakeup has been taken from the socket: from here on another one is sent.
    /// The caller must check afterwards for what was brought meanwhile without a wakeup.
    pub fn drained(self) {
        self.wakeup.store(DRAINED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Records that the calling thread waits for room. It must check once more before it sleeps.
    /// Returns the word's value, with which it may sleep by a futex.
    pub fn want_room(self, how: u32) -> u32 {
        let before = self.wanted.fetch_or(how, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before | how
    }
}

/// Methods for the peer's side.
impl Waits<'_> {
    /// Wakes futex waiters, after something has been brought. Returns which sleepers have to be
    /// sent a wakeup.
    #[inline]
    pub fn wake_futex_waiters(self) -> Sleeper {
        let asleep = is_asleep(self.sleepers);
        self.futex.wake();
        if asleep { self.sleeper() } else { Sleeper::None }
    }

    /// Which threads sleep.
    #[cold]
    fn sleeper(self) -> Sleeper {
        let tag = self.tag.load(Ordering::Acquire);
        let sleepers = self.sleepers.load(Ordering::Acquire);
        // The count was one at the end, and the tag did not change: so the only sleeper is the one
        // with the tag.
        let is_it = sleepers == 1 && self.tag.load(Ordering::Relaxed) == tag;
        Tag::from_word(tag).filter(|_| is_it).map_or(Sleeper::Some, Sleeper::Tagged)
    }

    /// Whether a wakeup has to be sent now: not while the last one has not been drained. It counts
    /// as sent from here on.
    #[must_use]
    pub fn claim_wakeup(self) -> bool {
        self.wakeup.swap(PENDING, Ordering::AcqRel) == DRAINED
    }

    /// Takes back [`Waits::claim_wakeup`], because the wakeup could not be sent.
    pub fn unclaim_wakeup(self) {
        self.wakeup.store(DRAINED, Ordering::Release);
    }

    /// Whether a thread waits for the room that has been made.
    #[inline]
    #[must_use]
    pub fn is_room_wanted(self) -> bool {
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Returns how threads have waited for room, except for the bits in `kept`, and clears the
    /// returned bits.
    #[must_use]
    pub fn take_wanted(self, kept: u32) -> u32 {
        self.wanted.fetch_and(kept, Ordering::AcqRel) & !kept
    }
}

/// Model checks of all interleavings of the two sides: `make test` runs them with `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::alarm::{Alarm, Stage};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// The state that both sides share: how much has been brought and taken, the words of reader
    /// and writer, and the number of wakeups in the socket.
    #[derive(Default)]
    struct Model {
        brought: AtomicU32,
        taken: AtomicU32,
        reader: Words,
        writer: Words,
        wakeups: Mutex<u32>,
        arrival: Condvar,
    }

    type Words = ([AtomicU32; 4], AtomicU64);

    fn waits(([sleepers, wakeup, futex, wanted], tag): &Words) -> Waits<'_> {
        Waits { sleepers, tag, wakeup, futex: FutexWord::on(futex), wanted }
    }

    impl Model {
        fn is_empty(&self) -> bool {
            self.brought.load(Ordering::Acquire) == self.taken.load(Ordering::Relaxed)
        }

        fn bring(&self) {
            let brought = self.brought.load(Ordering::Relaxed);
            self.brought.store(brought + 1, Ordering::Release);
        }

        fn take(&self) -> bool {
            let is_something = !self.is_empty();
            if is_something {
                let taken = self.taken.load(Ordering::Relaxed);
                self.taken.store(taken + 1, Ordering::Release);
            }
            is_something
        }

        /// Delivers a wakeup, as the kernel does with a byte.
        fn send_wakeup(&self) {
            *self.wakeups.lock().expect("a model does not panic here") += 1;
            self.arrival.notify_one();
        }

        /// Takes the wakeups that are in the socket.
        fn drain(&self) -> bool {
            let mut wakeups = self.wakeups.lock().expect("a model does not panic here");
            std::mem::take(&mut *wakeups) > 0
        }

        /// Sleeps until there is a wakeup in the socket, which stays there.
        fn sleep(&self) {
            let mut wakeups = self.wakeups.lock().expect("a model does not panic here");
            while *wakeups == 0 {
                wakeups = self.arrival.wait(wakeups).expect("a model does not panic here");
            }
        }
    }

    /// A futex waiter either sees what has been brought or is woken.
    #[test]
    fn futex_waiter_sees_what_comes_or_is_woken() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let peer = Arc::clone(&model);
            let bringer = thread::spawn(move || {
                peer.bring();
                waits(&peer.reader).wake_futex_waiters();
            });
            let word = waits(&model.reader).futex;
            word.begin_wait();
            let found = !model.is_empty();
            bringer.join().expect("no panic");
            assert!(found || !word.has_waiters(), "it would wait on");
        });
    }

    const COUNT: u32 = 2;

    /// Checks a reader, to which things are brought with the necessary wakeups. Loom reports a
    /// reader that waits for ever, because no thread can run then.
    fn check_wakeups(read: impl Fn(&Model) + Copy + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model::default());
            let peer = Arc::clone(&model);
            let bringer = thread::spawn(move || {
                for _ in 0..COUNT {
                    peer.bring();
                    let reader = waits(&peer.reader);
                    if reader.wake_futex_waiters() != Sleeper::None && reader.claim_wakeup() {
                        peer.send_wakeup();
                    }
                }
            });
            read(&model);
            bringer.join().expect("no panic");
        });
    }

    /// A reader that sleeps until a wakeup comes gets everything, although no wakeup is sent while
    /// one is pending.
    #[test]
    fn sleeping_reader_gets_a_wakeup() {
        check_wakeups(|model| {
            let own = waits(&model.reader);
            let mut got = 0;
            while got < COUNT {
                if model.take() {
                    got += 1;
                    continue;
                }
                own.begin_sleep();
                if model.is_empty() {
                    if model.drain() {
                        own.drained();
                    } else if model.is_empty() {
                        model.sleep();
                    }
                }
                own.end_sleep();
            }
        });
    }

    /// The same for a reader that always counts as asleep, as in an epoll instance.
    #[test]
    fn reader_that_always_counts_as_asleep_gets_a_wakeup() {
        check_wakeups(|model| {
            let own = waits(&model.reader);
            own.begin_sleep();
            let mut got = 0;
            while got < COUNT {
                if model.take() {
                    got += 1;
                } else if model.drain() {
                    own.drained();
                } else {
                    model.sleep();
                }
            }
        });
    }

    /// A writer that waits for room either sees the room or is seen waiting.
    #[test]
    fn writer_that_waits_for_room_is_woken() {
        const BY_FUTEX: u32 = 1;
        loom::model(|| {
            let model = Arc::new(Model::default());
            model.bring(); // There is room for one item.
            let peer = Arc::clone(&model);
            let reader = thread::spawn(move || {
                assert!(peer.take());
                let writer = waits(&peer.writer);
                writer.is_room_wanted() && writer.take_wanted(0) == BY_FUTEX
            });
            let own = waits(&model.writer);
            let value = own.want_room(BY_FUTEX);
            assert_eq!(value, BY_FUTEX);
            let found = model.taken.load(Ordering::Acquire) == 1;
            let woken = reader.join().expect("no panic");
            assert!(found || woken);
        });
    }

    /// A thread that sleeps for two peers, each of which brings something once.
    #[derive(Default)]
    struct Instance {
        sources: [(AtomicU32, Words); 2],
        alarm: AtomicU64,
        /// Whether there is a wakeup in the socket of each peer.
        wakeups: Mutex<[bool; 2]>,
        arrival: Condvar,
    }

    impl Instance {
        fn bring(&self, which: usize) {
            let (brought, words) = &self.sources[which];
            brought.store(1, Ordering::Release);
            let reader = waits(words);
            let tag = match reader.wake_futex_waiters() {
                Sleeper::None => return,
                Sleeper::Tagged(tag) => Some(tag),
                Sleeper::Some => None,
            };
            let alarm = Alarm::on(&self.alarm);
            if tag.is_some_and(|tag| alarm.stage(tag) == Stage::Woken) {
                return;
            }
            if reader.claim_wakeup() {
                self.wake(which);
            }
            if let Some(tag) = tag {
                alarm.has_woken(tag);
            }
        }

        fn wake(&self, which: usize) {
            self.wakeups.lock().expect("a model does not panic here")[which] = true;
            self.arrival.notify_one();
        }

        fn is_brought(&self, which: usize) -> bool {
            self.sources[which].0.load(Ordering::Acquire) != 0
        }

        /// Sleeps in the kernel until a wakeup arrives. Returns and clears the flags.
        fn sleep(&self) -> [bool; 2] {
            let mut wakeups = self.wakeups.lock().expect("a model does not panic here");
            while *wakeups == [false; 2] {
                wakeups = self.arrival.wait(wakeups).expect("a model does not panic here");
            }
            std::mem::take(&mut *wakeups)
        }
    }

    /// A peer sends a wakeup only if no other peer has, and the sleeper finds everything that was
    /// brought.
    #[test]
    fn one_alarm_is_enough_for_all() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let instance = Arc::new(Instance::default());
            let peers = [0, 1].map(|which| {
                let peer = Arc::clone(&instance);
                thread::spawn(move || peer.bring(which))
            });
            let alarm = Alarm::on(&instance.alarm);
            let own = [0, 1].map(|which| waits(&instance.sources[which].1));
            own.iter().for_each(|own| own.begin_sleep());
            let mut got = [false; 2];
            while got != [true; 2] {
                let tag = alarm.next(0);
                own.iter().for_each(|own| own.tag(Some(tag)));
                alarm.begin(tag);
                let found = [0, 1].map(|which| !got[which] && instance.is_brought(which));
                if found != [false; 2] {
                    got = [0, 1].map(|which| got[which] || found[which]);
                    alarm.end(tag);
                    continue;
                }
                let woken = instance.sleep();
                alarm.end(tag);
                (0..2).filter(|&which| woken[which]).for_each(|which| own[which].drained());
                got = [0, 1].map(|which| got[which] || instance.is_brought(which));
            }
            for peer in peers {
                peer.join().expect("no panic");
            }
        });
    }

    /// The state that the sleeper shares with a thread that adds a source, with a lock.
    #[derive(Default)]
    struct Joining {
        instance: Instance,
        /// Whether the second source has been added, and the tag of the current sleep.
        state: Mutex<(bool, Option<Tag>)>,
    }

    impl Joining {
        fn add(&self) {
            let mut state = self.state.lock().expect("a model does not panic here");
            state.0 = true;
            let Some(tag) = state.1 else { return };
            let own = waits(&self.instance.sources[1].1);
            own.begin_sleep();
            own.tag(Some(tag));
            fence(Ordering::SeqCst);
            if self.instance.is_brought(1) {
                self.instance.wake(1);
            }
        }
    }

    /// A source that is added during a sleep gets that sleep's tag, so one alarm is enough for it,
    /// too. With `LOOM_MAX_PREEMPTIONS=2` the model takes half a minute.
    #[test]
    fn connection_added_during_a_sleep_is_found_after_it() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(1));
        builder.check(|| {
            let joining = Arc::new(Joining::default());
            let start = |run: fn(&Joining)| {
                let joining = Arc::clone(&joining);
                thread::spawn(move || run(&joining))
            };
            let others = [
                start(|joining| joining.instance.bring(0)),
                start(|joining| joining.instance.bring(1)),
                start(Joining::add),
            ];
            let instance = &joining.instance;
            let alarm = Alarm::on(&instance.alarm);
            let own = [0, 1].map(|which| waits(&instance.sources[which].1));
            own[0].begin_sleep();
            let (mut is_settled, mut got) = (false, [false; 2]);
            while got != [true; 2] {
                let tag = alarm.next(0);
                let mut state = joining.state.lock().expect("a model does not panic here");
                if state.0 {
                    if !is_settled && instance.sources[1].1.0[0].load(Ordering::Relaxed) == 0 {
                        own[1].begin_sleep();
                    }
                    is_settled = true;
                    own[1].tag(Some(tag));
                }
                own[0].tag(Some(tag));
                alarm.begin(tag);
                state.1 = Some(tag);
                drop(state);
                let find = |got: [bool; 2], joined: bool| {
                    let is_new =
                        |which: usize| instance.is_brought(which) && (which == 0 || joined);
                    [0, 1].map(|which| got[which] || is_new(which))
                };
                let found = find(got, is_settled);
                if found == got {
                    let woken = instance.sleep();
                    (0..2).filter(|&which| woken[which]).for_each(|which| own[which].drained());
                }
                let mut state = joining.state.lock().expect("a model does not panic here");
                alarm.end(tag);
                state.1 = None;
                let joined = state.0;
                drop(state);
                got = find(found, joined);
            }
            for other in others {
                other.join().expect("no panic");
            }
        });
    }
}
