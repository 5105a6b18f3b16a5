//! A host for tests that records completions, states and events.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::ops::DerefMut;

use super::memory::{FakeKeys, FakeMemory, Piece};
use crate::attr::QpState;
use crate::event::EventKind;
use crate::link::host::{Completions, Effects, Memory, Work};
use crate::mw::Mw;
use crate::queue::recv::{RecvQueue, RecvWork};
use crate::queue::send::{SendLimits, SendQueue};
use crate::wc::{Completion, Status};
use crate::wr::{Data, Operation, RecvRequest, SendFlags, SendRequest, WindowBind};
use crate::{Errno, Result};

/// What was reported to the program besides completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raised {
    Event(EventKind),
    Drained,
    LastReceive,
    Invalidated(u32),
}

/// A receive queue, and the completions of its receives.
#[derive(Debug)]
struct Receives {
    queue: RecvQueue,
    completed: Vec<Completion>,
}

impl Receives {
    fn new() -> Self {
        Self { queue: RecvQueue::new(16, 4), completed: Vec::new() }
    }
}

pub(super) struct TestHost {
    memory: FakeMemory,
    sends: RefCell<SendQueue>,
    sent: RefCell<Vec<Completion>>,
    receives: RefCell<RecvQueue>,
    received: RefCell<Vec<Completion>>,
    named: RefCell<BTreeMap<u32, Receives>>,
    states: RefCell<Vec<QpState>>,
    raised: RefCell<Vec<Raised>>,
}

impl TestHost {
    pub(super) fn new(number: u32) -> Self {
        let limits = SendLimits {
            max_wr: 16,
            max_sge: 4,
            max_inline: 64,
            max_message: 1 << 20,
            sq_sig_all: false,
        };
        Self {
            memory: FakeMemory::new(number),
            sends: RefCell::new(SendQueue::new(limits)),
            sent: RefCell::default(),
            receives: RefCell::new(Receives::new().queue),
            received: RefCell::default(),
            named: RefCell::default(),
            states: RefCell::default(),
            raised: RefCell::default(),
        }
    }

    pub(super) fn memory(&self) -> &FakeMemory {
        &self.memory
    }

    pub(super) fn post(&self, wr_id: u64, operation: Operation, data: Data<'_>) {
        self.post_with(SendFlags::SIGNALED, 0, wr_id, operation, data);
    }

    pub(super) fn post_to(&self, srqn: u32, wr_id: u64, operation: Operation, data: Data<'_>) {
        self.post_with(SendFlags::SIGNALED, srqn, wr_id, operation, data);
    }

    pub(super) fn post_with(
        &self,
        flags: SendFlags,
        srqn: u32,
        wr_id: u64,
        operation: Operation,
        data: Data<'_>,
    ) {
        let request = SendRequest { wr_id, operation, flags, data };
        self.sends.borrow_mut().push(&request, srqn).expect("room");
    }

    pub(super) fn post_receive(&self, wr_id: u64, piece: Piece) {
        let sges = [self.memory().sge(piece)];
        self.receives.borrow_mut().push(&RecvRequest { wr_id, sges: &sges }).expect("room");
    }

    pub(super) fn add_queue(&self, number: u32) {
        self.named.borrow_mut().insert(number, Receives::new());
    }

    pub(super) fn post_named_receive(&self, number: u32, wr_id: u64, piece: Piece) {
        let sges = [self.memory().sge(piece)];
        let mut named = self.named.borrow_mut();
        let queue = &mut named.get_mut(&number).expect("added").queue;
        queue.push(&RecvRequest { wr_id, sges: &sges }).expect("room");
    }

    /// The `wr_id`s of the receives that are posted.
    pub(super) fn receives_left(&self) -> Vec<u64> {
        self.receives.borrow().wr_ids()
    }

    pub(super) fn named_receives_left(&self, number: u32) -> Vec<u64> {
        self.named.borrow()[&number].queue.wr_ids()
    }

    /// The completed send requests, with their status.
    pub(super) fn sent(&self) -> Vec<(u64, Status)> {
        self.sent.borrow().iter().map(|done| (done.wr_id, done.status)).collect()
    }

    /// The `vendor_err` of the first completed send request.
    pub(super) fn vendor_err(&self) -> u32 {
        self.sent.borrow()[0].vendor_err
    }

    pub(super) fn requests_left(&self) -> usize {
        self.sends.borrow().len()
    }

    pub(super) fn received(&self) -> Vec<Completion> {
        self.received.borrow().clone()
    }

    pub(super) fn received_by(&self, number: u32) -> Vec<Completion> {
        self.named.borrow()[&number].completed.clone()
    }

    pub(super) fn states(&self) -> Vec<QpState> {
        self.states.borrow().clone()
    }

    pub(super) fn raised(&self) -> Vec<Raised> {
        self.raised.borrow().clone()
    }

    fn raise(&self, raised: Raised) {
        self.raised.borrow_mut().push(raised);
    }
}

impl Work for TestHost {
    type Queue = u32;

    fn sends(&self) -> impl DerefMut<Target = SendQueue> {
        self.sends.borrow_mut()
    }

    fn may_have_unsent(&self) -> bool {
        self.sends.borrow().unsent() != 0
    }

    fn note_unsent(&self, _sends: &SendQueue) {}

    fn receives(&self) -> impl DerefMut<Target = RecvQueue> {
        self.receives.borrow_mut()
    }

    fn has_receive(&self) -> bool {
        self.receives.borrow().len() != 0
    }

    fn take_receive(&self, queue: Option<&u32>, work: &mut RecvWork) -> bool {
        match queue {
            Some(number) => {
                self.named.borrow_mut().get_mut(number).is_some_and(|named| named.queue.pop(work))
            }
            None => self.receives.borrow_mut().pop(work),
        }
    }

    fn give_back_receive(&self, queue: Option<&u32>, work: &RecvWork) {
        match queue {
            Some(number) => {
                self.named.borrow_mut().get_mut(number).expect("added").queue.give_back(work);
            }
            None => self.receives.borrow_mut().give_back(work),
        }
    }

    fn find_queue(&self, number: u32) -> Option<u32> {
        self.named.borrow().contains_key(&number).then_some(number)
    }
}

impl Memory for TestHost {
    type Keys = FakeKeys;

    fn context(&self) -> &FakeMemory {
        &self.memory
    }

    fn receive_context<'a>(&'a self, _queue: Option<&'a u32>) -> &'a FakeMemory {
        &self.memory
    }

    fn invalidate(&self, key: u32) -> bool {
        self.raise(Raised::Invalidated(key));
        true
    }

    fn invalidate_for_peer(&self, key: u32) -> bool {
        self.invalidate(key)
    }

    fn bind(&self, _window: &Mw, _rkey: u32, _bind: &WindowBind) -> Result<()> {
        Err(Errno::INVAL)
    }
}

impl Effects for TestHost {
    fn send_completions(&self) -> impl Completions {
        self.sent.borrow_mut()
    }

    fn receive_completions(&self) -> impl Completions {
        self.received.borrow_mut()
    }

    fn complete_receive(&self, queue: Option<&u32>, completion: Completion, _solicited: bool) {
        match queue {
            Some(number) => {
                let mut named = self.named.borrow_mut();
                named.get_mut(number).expect("it was found").completed.push(completion);
            }
            None => self.receive_completions().push(completion, false),
        }
    }

    fn enter_state(&self, state: QpState) {
        self.states.borrow_mut().push(state);
    }

    fn raise(&self, event: EventKind) {
        self.raise(Raised::Event(event));
    }

    fn send_queue_drained(&self) {
        self.raise(Raised::Drained);
    }

    fn last_receive_taken(&self) {
        self.raise(Raised::LastReceive);
    }
}

impl Completions for RefMut<'_, Vec<Completion>> {
    fn has_room(&self) -> bool {
        true
    }

    fn push(&mut self, completion: Completion, _solicited: bool) {
        Vec::push(self, completion);
    }
}
