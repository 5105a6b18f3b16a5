//! Threads of the simulation: each has a stack of its own, and goes on only when the scheduler says
//! so. Which one that is, and whether it dies instead, is the scheduler's to say.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[allow(deprecated)] // The other way hands the stack's own handle through all that runs on it.
use generator::yield_;
use generator::{Generator, Gn};

/// Words of a stack.
const STACK_LEN: usize = 1 << 15;

type Job = Box<dyn FnOnce()>;

thread_local! {
    /// What the fiber that goes on next begins with.
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// What a job has panicked with.
    static PANIC: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
}

/// How a pause ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    GoOn,
    /// The world has ended: the stack is unwound, to be used again.
    Die,
}

/// Why a stack is unwound whose thread has been killed.
struct Killed;

/// A stack, on which one job after the other runs.
pub(super) struct Fiber(Generator<'static, Resume, bool>);

impl Fiber {
    pub(super) fn new() -> Self {
        Self(Gn::new_opt(STACK_LEN, || {
            loop {
                let job = JOB.take().expect("a job");
                if let Err(why) = catch_unwind(AssertUnwindSafe(job))
                    && !why.is::<Killed>()
                {
                    PANIC.set(Some(why));
                }
                pause_with(true);
            }
        }))
    }

    /// Runs a job up to its first pause. Whether it is over.
    pub(super) fn begin(&mut self, job: Job) -> bool {
        JOB.set(Some(job));
        self.go(Resume::GoOn)
    }

    /// Runs it up to its next pause.
    pub(super) fn go_on(&mut self) -> bool {
        self.go(Resume::GoOn)
    }

    /// Ends a job in the middle.
    pub(super) fn unwind(&mut self) {
        assert!(self.go(Resume::Die), "a stack that unwinds does not pause");
    }

    fn go(&mut self, how: Resume) -> bool {
        let is_over = self.0.raw_send(Some(how)).expect("a fiber has no end");
        if let Some(why) = PANIC.take() {
            resume_unwind(why);
        }
        is_over
    }
}

#[allow(deprecated)]
fn pause_with(is_over: bool) {
    if yield_::<Resume, bool>(is_over) == Some(Resume::Die) {
        resume_unwind(Box::new(Killed));
    }
}

/// Lets the scheduler go on. To be called in a fiber; returns at once in one that is unwound.
pub(super) fn pause() {
    if !std::thread::panicking() {
        pause_with(false);
    }
}
