//! Threads of the simulation. Each has a stack of its own, and runs only when the scheduler resumes
//! it. The scheduler may also end it.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

// The alternative passes the stack's own handle through everything that runs on it.
#[allow(deprecated)]
use generator::yield_;
use generator::{Generator, Gn};

/// Number of words of a stack.
const STACK_LEN: usize = 1 << 15;

type Job = Box<dyn FnOnce()>;

thread_local! {
    /// The job that the next fiber begins with.
    static JOB: RefCell<Option<Job>> = const { RefCell::new(None) };
    /// The panic of a job.
    static PANIC: Cell<Option<Box<dyn Any + Send>>> = const { Cell::new(None) };
}

/// How a pause ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resume {
    GoOn,
    /// The world has ended: unwind the stack, so that it can be reused.
    Die,
}

/// Panic payload that unwinds the stack of a killed thread.
struct Killed;

/// A stack on which jobs run one after the other.
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

    /// Runs a job up to its first pause. Returns whether the job is over.
    pub(super) fn begin(&mut self, job: Job) -> bool {
        JOB.set(Some(job));
        self.go(Resume::GoOn)
    }

    /// Runs the job up to its next pause. Returns whether the job is over.
    pub(super) fn go_on(&mut self) -> bool {
        self.go(Resume::GoOn)
    }

    /// Unwinds a job that has not finished.
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

/// Returns to the scheduler. Called in a fiber; does nothing while the fiber is unwound.
pub(super) fn pause() {
    if !std::thread::panicking() {
        pause_with(false);
    }
}
