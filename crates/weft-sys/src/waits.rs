//! The words by which two processes that share memory wake each other: a thread that waits says so
//! in words of its own side, which the peer reads when it has brought something, or made room.
//!
//! There are two ways to wait. A futex waiter ([`FutexWord`]) is woken by a futex. A sleeper is in
//! the kernel, on the socket that both sides have, and is woken by a byte that the peer sends over
//! it: a wakeup. At most one wakeup is in the socket at a time.
//!
//! On both sides what is written comes before what is read, with a full barrier between: a thread
//! that waits looks once more after it has said so, and the peer asks after it has brought
//! something, so that at least one of them sees the other.

use crate::alarm::Tag;
use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::futex_word::FutexWord;
use crate::presence::{is_asleep, rise, settle_down};

const DRAINED: u32 = 0;
const PENDING: u32 = 1;

/// One side's words, all zero at first. They may have any value: the peer can write them.
#[derive(Clone, Copy, Debug)]
pub struct Waits<'a> {
    /// Threads that sleep in the kernel until a wakeup is sent.
    pub sleepers: &'a AtomicU32,
    /// The sleep of one of them ([`Tag`]); 0 if none has said so.
    pub tag: &'a AtomicU64,
    /// Whether a wakeup has been sent that has not been drained yet.
    pub wakeup: &'a AtomicU32,
    /// Threads that wait by a futex until something is brought.
    pub futex: FutexWord<'a>,
    /// Who waits for room, in bits of the user's.
    pub wanted: &'a AtomicU32,
}

/// Which thread a wakeup is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// Nobody sleeps.
    None,
    /// One does, and nobody else: an [`Alarm`](crate::Alarm) may tell that it is awake by now.
    Tagged(Tag),
    /// Somebody does.
    Some,
}

/// Of one's own side.
impl Waits<'_> {
    /// The calling thread is about to sleep in the kernel, and must look once more before it does.
    pub fn settle_down(self) {
        settle_down(self.sleepers);
    }

    /// It sleeps no more.
    pub fn rise(self) {
        rise(self.sleepers);
    }

    /// Publishes the tag of this sleep before it begins. `None` clears it: before the thread rises,
    /// or, if it goes on counting as asleep, before it looks once more.
    pub fn tag(self, tag: Option<Tag>) {
        self.tag.store(tag.map_or(0, Tag::to_word), Ordering::Release);
    }

    /// The wakeup has been taken from the socket: from here on another is sent. What was brought
    /// meanwhile, without a wakeup, must be looked for after this.
    pub fn drained(self) {
        self.wakeup.store(DRAINED, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// The calling thread waits for room, and must look once more before it sleeps. Returns the
    /// word's value, upon which it may sleep by a futex.
    pub fn want_room(self, how: u32) -> u32 {
        let before = self.wanted.fetch_or(how, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        before | how
    }
}

/// Of the peer's side.
impl Waits<'_> {
    /// Something has been brought: wakes futex waiters. Returns who sleeps and has to be sent a
    /// wakeup.
    #[inline]
    pub fn wake_futex_waiters(self) -> Sleeper {
        let asleep = is_asleep(self.sleepers);
        self.futex.wake();
        if asleep { self.sleeper() } else { Sleeper::None }
    }

    /// Who is asleep.
    #[cold]
    fn sleeper(self) -> Sleeper {
        let tag = self.tag.load(Ordering::Acquire);
        let sleepers = self.sleepers.load(Ordering::Acquire);
        // It has counted all the time between, so if there was one, it was that.
        let is_it = sleepers == 1 && self.tag.load(Ordering::Relaxed) == tag;
        Tag::from_word(tag).filter(|_| is_it).map_or(Sleeper::Some, Sleeper::Tagged)
    }

    /// Whether a wakeup is to be sent now: not while the last one has not been drained. It counts
    /// as sent from here on.
    #[must_use]
    pub fn claim_wakeup(self) -> bool {
        self.wakeup.swap(PENDING, Ordering::AcqRel) == DRAINED
    }

    /// The wakeup that was claimed could not be sent.
    pub fn unclaim_wakeup(self) {
        self.wakeup.store(DRAINED, Ordering::Release);
    }

    /// Whether somebody waits for the room that has been made.
    #[inline]
    #[must_use]
    pub fn is_room_wanted(self) -> bool {
        fence(Ordering::SeqCst);
        self.wanted.load(Ordering::Relaxed) != 0
    }

    /// Returns who waits for room, but those who are in `kept`; they wait no more.
    #[must_use]
    pub fn take_wanted(self, kept: u32) -> u32 {
        self.wanted.fetch_and(kept, Ordering::AcqRel) & !kept
    }
}

/// Every order in which the two sides can meet: `make test` runs it with `--cfg loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::alarm::{Alarm, Stage};
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    /// What both sides share: how much has been brought and taken, the reader's and the writer's
    /// words, and the socket, with the wakeups that are in it.
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

        /// As the kernel does for a byte that comes.
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
            word.settle_down();
            let found = !model.is_empty();
            bringer.join().expect("no panic");
            assert!(found || !word.has_waiters(), "it would wait on");
        });
    }

    const COUNT: u32 = 2;

    /// A reader and what is brought to it, with a wakeup wherever one is due. Loom would report a
    /// reader that never ended for want of one: nobody could go on.
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

    /// A reader that sleeps until a wakeup comes gets all that is brought, though a wakeup is sent
    /// only where none is pending.
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
                own.settle_down();
                if model.is_empty() {
                    if model.drain() {
                        own.drained();
                    } else if model.is_empty() {
                        model.sleep();
                    }
                }
                own.rise();
            }
        });
    }

    /// The same for one that counts as asleep all the time, as in an instance of epoll.
    #[test]
    fn reader_that_always_counts_as_asleep_gets_a_wakeup() {
        check_wakeups(|model| {
            let own = waits(&model.reader);
            own.settle_down();
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

    /// A writer that waits for room either sees it or is known to wait.
    #[test]
    fn writer_that_waits_for_room_is_woken() {
        const BY_FUTEX: u32 = 1;
        loom::model(|| {
            let model = Arc::new(Model::default());
            model.bring(); // There is room for one.
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

    /// A thread that sleeps for two peers at once, each of which brings something once.
    #[derive(Default)]
    struct Instance {
        sources: [(AtomicU32, Words); 2],
        alarm: AtomicU64,
        /// Whether there is a wakeup in the socket of each.
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

        /// Sleeps as in the kernel: until a wakeup arrives. Returns and clears the flags.
        fn sleep(&self) -> [bool; 2] {
            let mut wakeups = self.wakeups.lock().expect("a model does not panic here");
            while *wakeups == [false; 2] {
                wakeups = self.arrival.wait(wakeups).expect("a model does not panic here");
            }
            std::mem::take(&mut *wakeups)
        }
    }

    /// Peers that send a wakeup only if nobody else has: the sleeper finds all that they bring.
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
            own.iter().for_each(|own| own.settle_down());
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

    /// What the sleeper and one that adds a source share, with a lock.
    #[derive(Default)]
    struct Joining {
        instance: Instance,
        /// Whether the second source has been added, and the tag of the sleep that goes on.
        state: Mutex<(bool, Option<Tag>)>,
    }

    impl Joining {
        fn add(&self) {
            let mut state = self.state.lock().expect("a model does not panic here");
            state.0 = true;
            let Some(tag) = state.1 else { return };
            let own = waits(&self.instance.sources[1].1);
            own.settle_down();
            own.tag(Some(tag));
            fence(Ordering::SeqCst);
            if self.instance.is_brought(1) {
                self.instance.wake(1);
            }
        }
    }

    /// A source that is added during a sleep gets that sleep's tag: the alarm is enough for it,
    /// too.
    #[test]
    fn connection_added_during_a_sleep_is_found_after_it() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
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
            own[0].settle_down();
            let (mut is_settled, mut got) = (false, [false; 2]);
            while got != [true; 2] {
                let tag = alarm.next(0);
                let mut state = joining.state.lock().expect("a model does not panic here");
                if state.0 {
                    if !is_settled && instance.sources[1].1.0[0].load(Ordering::Relaxed) == 0 {
                        own[1].settle_down();
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
