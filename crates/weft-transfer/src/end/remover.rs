//! Removes entries of the source that the sink has, in a thread of their own.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use crate::limits::PROBLEMS_SENT_MAX;
use crate::tree::removal::Removals;
use weft_sys::lock;

/// Numbers of entries that the sink has, and whether they are the last ones.
type Confirmed = (Vec<u64>, bool);

/// What is to be removed. The thread that receives messages only queues it.
#[derive(Debug)]
pub(super) struct Remover {
    removals: Arc<Removals>,
    to: Mutex<Option<Sender<Confirmed>>>,
    from: Mutex<Receiver<Confirmed>>,
    /// The numbers that the sink has sent.
    taken: AtomicU64,
}

impl Remover {
    pub(super) fn new(removals: Arc<Removals>) -> Self {
        let (to, from) = channel();
        let (to, from) = (Mutex::new(Some(to)), Mutex::new(from));
        Self { removals, to, from, taken: AtomicU64::new(0) }
    }

    /// Queues entries that the sink has. Returns false if these are more than `most` in all, or
    /// come after the last ones.
    pub(super) fn take(&self, numbers: Vec<u64>, is_last: bool, most: u64) -> bool {
        let count = numbers.len() as u64;
        if self.taken.fetch_add(count, Relaxed).saturating_add(count) > most {
            return false;
        }
        let mut to = lock(&self.to);
        let is_sent = to.as_ref().is_some_and(|to| to.send((numbers, is_last)).is_ok());
        if is_last {
            *to = None;
        }
        is_sent
    }

    /// Ends the thread when it has removed what was queued.
    pub(super) fn end(&self) {
        *lock(&self.to) = None;
    }

    /// Removes entries until the last ones are removed, and returns how many could not be; `None`
    /// if the session ends before.
    pub(super) fn run(&self, report: &dyn Fn(Vec<u8>, String)) -> Option<u64> {
        let (from, mut failed) = (lock(&self.from), 0);
        while let Ok((numbers, is_last)) = from.recv() {
            for number in numbers {
                if let Err((path, kept)) = self.removals.remove(number) {
                    failed += 1;
                    if failed <= u64::from(PROBLEMS_SENT_MAX) {
                        report(path, kept.to_string());
                    }
                }
            }
            if !is_last {
                continue;
            }
            let kept = self.removals.kept();
            if kept > 0 {
                let text = "entries stay at the source, as too many waited to be removed";
                report(Vec::new(), format!("{kept} {text}"));
            }
            return Some(failed + kept);
        }
        None
    }
}
