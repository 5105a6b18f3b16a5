//! A word that threads sleep on: the kernel's futex, or a model of it in a model check (`--cfg
//! loom`).

#[cfg(loom)]
pub(crate) use model::Futex;
#[cfg(not(loom))]
pub(crate) use real::Futex;

#[cfg(not(loom))]
mod real {
    use std::ops::Deref;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use crate::calls::time::Timespec;

    use crate::calls::{Sharing, futex_wait, futex_wake};

    /// An atomic word on which threads of one process sleep.
    pub(crate) struct Futex(AtomicU32);

    impl Futex {
        pub(crate) const fn new(value: u32) -> Self {
            Self(AtomicU32::new(value))
        }

        /// Sleeps while the word is `value`, until woken or interrupted, for `time` at most. It may
        /// also return for no reason.
        pub(crate) fn wait(&self, value: u32, time: Option<Duration>) {
            // Only a time that is out of range cannot be converted; it means no timeout.
            let time = time.and_then(|time| Timespec::try_from(time).ok());
            let _ = futex_wait(&self.0, Sharing::Threads, value, time.as_ref());
        }

        /// Wakes one sleeping thread, if there is any.
        pub(crate) fn wake_one(&self) {
            futex_wake(&self.0, Sharing::Threads, 1);
        }
    }

    impl Deref for Futex {
        type Target = AtomicU32;
        fn deref(&self) -> &AtomicU32 {
            &self.0
        }
    }
}

#[cfg(loom)]
mod model {
    use std::ops::Deref;
    use std::time::Duration;

    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    /// A model of the kernel's futex, which compares the word under the lock that waking takes, too
    /// (`futex(2)`).
    pub(crate) struct Futex {
        word: AtomicU32,
        bucket: Mutex<()>,
        sleepers: Condvar,
    }

    impl Futex {
        pub(crate) fn new(value: u32) -> Self {
            let (bucket, sleepers) = (Mutex::new(()), Condvar::new());
            Self { word: AtomicU32::new(value), bucket, sleepers }
        }

        pub(crate) fn wait(&self, value: u32, time: Option<Duration>) {
            if time.is_some() {
                // A timed sleep may end at any time.
                return thread::yield_now();
            }
            let bucket = self.bucket.lock().expect("a model does not panic here");
            if self.word.load(Ordering::SeqCst) == value {
                drop(self.sleepers.wait(bucket).expect("a model does not panic here"));
            }
        }

        pub(crate) fn wake_one(&self) {
            drop(self.bucket.lock().expect("a model does not panic here"));
            self.sleepers.notify_one();
        }
    }

    impl Deref for Futex {
        type Target = AtomicU32;
        fn deref(&self) -> &AtomicU32 {
            &self.word
        }
    }
}
