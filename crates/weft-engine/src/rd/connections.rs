//! The connections of a port: ends that have receives and a queue of requests, as queue pairs have.
//!
//! A connection is a route between two ports, on which both know that the other has accepted it: a
//! request to connect, and an answer ([`Frame`]). Its messages, Writes, Reads and atomics
//! are those of the protocol below, which keeps their order. Each end knows how many receives the
//! other has posted, as the program above says it; a message without one is a violation, and ends
//! the connection. So does a refused access to memory. An end that has got nothing for a while asks
//! whether the peer is there.
//!
//! This module has no socket, clock or random source.

use std::collections::{BTreeSet, HashMap, VecDeque};

use weft_wire::rd::{FRAME_DATA_MAX, Frame, Reason};

use super::limits::{CALLS_MAX, LOOK, PING};
use super::machine::Machine;
use super::memory::{Memory, Party};
use super::neighbours::Neighbours;
use super::peer::Bond;
use super::request::{AtomicOp, Buffer, Data, Notice, PeerAddress, Request, Route, Status};
use crate::limits::WEFT_PRIVATE_DATA_MAX;
use crate::wc::{Completion, Opcode, Status as WcStatus};
use crate::wr::{self, Operation, SendFlags, SendRequest, Sge};
use crate::{Errno, Result};

/// How many requests and receives an end has room for.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    /// Requests to send, to write, to read.
    pub sends: usize,
    /// Receives.
    pub receives: usize,
}

/// What an end learns of its connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The connection is made; the peer's private data.
    Established(Vec<u8>),
    /// The peer has refused.
    Refused {
        /// Whether its program has; otherwise nobody listens there.
        by_program: bool,
        /// Its private data.
        private_data: Vec<u8>,
    },
    /// The connection cannot be made.
    Failed(Errno),
    /// The connection has ended.
    Disconnected,
}

/// Who has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wakeup {
    Completions(u32),
    Changes(u32),
    Calls,
}

/// A request to connect that the program has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Call {
    route: Route,
    serial: u64,
}

impl Call {
    pub(super) fn peer(&self) -> PeerAddress {
        self.route.peer()
    }
}

/// What is at the end of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Call(u64),
    End(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EndPhase {
    /// It will connect, or accept.
    New,
    /// It waits for an answer.
    Calling,
    Open,
    /// It has said that it ends, and waits until the peer knows.
    Leaving,
    Over,
}

/// One end of a connection.
#[derive(Debug)]
struct ConnectedEnd {
    route: Route,
    phase: EndPhase,
    room: Room,
    receives: VecDeque<(u64, Buffer)>,
    /// Requests for which the machine has no room, in order.
    waiting: VecDeque<Work>,
    /// Requests that the machine has, and those of them that use memory of the program.
    in_machine: usize,
    in_memory: usize,
    /// Whether it is among those that wait for room in the machine.
    is_blocked: bool,
    /// Requests whose completions have not been taken.
    under_way: usize,
    completions: VecDeque<Completion>,
    changes: VecDeque<Change>,
    is_armed: bool,
}

/// A request of the program.
#[derive(Debug)]
struct Work {
    wr_id: u64,
    is_reported: bool,
    task: Task,
}

#[derive(Debug)]
enum Task {
    Send(Bytes),
    Write { bytes: Bytes, key: u32, addr: u64 },
    Read { into: Buffer, key: u32, addr: u64 },
    Atomic { op: AtomicOp, into: Buffer, key: u32, addr: u64 },
    Goodbye,
}

/// The bytes of a request: by value, or in two pieces of registered memory.
#[derive(Debug)]
enum Bytes {
    Value(Box<[u8]>),
    Pieces([Buffer; 2]),
}

/// A request that the machine has.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Work { wr_id: u64, is_reported: bool, uses_memory: bool },
    Control,
    Goodbye,
}

const _: () = assert!(FRAME_DATA_MAX == WEFT_PRIVATE_DATA_MAX, "carriers have the same room");

/// The identifier of requests of which nobody asks.
const NOBODY: u64 = 0;
/// The number of the endpoint that takes calls. Others are of ends that have called.
pub(super) const LISTENER: u16 = 0;
/// No bytes.
const NOTHING: Buffer = Buffer { key: 0, addr: 0, len: 0 };

/// All connections of a port.
#[derive(Debug, Default)]
pub(super) struct Connections {
    ends: HashMap<u32, ConnectedEnd>,
    routes: HashMap<Route, Bound>,
    calls: VecDeque<(Call, Vec<u8>)>,
    listens: bool,
    /// Calls that were not answered, taken or not.
    unanswered: usize,
    asked: HashMap<u64, Asked>,
    last_id: u64,
    last_serial: u64,
    last_number: u32,
    last_local: u16,
    /// Ends whose requests wait for room in the machine.
    blocked: VecDeque<u32>,
    /// When ends ask whether their peer is there.
    pings: BTreeSet<(u64, u32)>,
    neighbours: Neighbours,
    rung: Vec<Wakeup>,
}

impl Connections {
    /// Whom to wake.
    pub(super) fn rung(&mut self) -> impl Iterator<Item = Wakeup> {
        self.rung.drain(..)
    }

    /// Takes calls from now on.
    pub(super) fn listen(&mut self) {
        self.listens = true;
    }

    /// Takes no calls from now on, and refuses those that the program has not taken.
    pub(super) fn stop_listening(&mut self, now: u64, machine: &mut Machine) {
        self.listens = false;
        for (call, _) in std::mem::take(&mut self.calls) {
            self.refuse(now, machine, call, false, &[]);
        }
    }

    /// The next call.
    pub(super) fn next_call(&mut self) -> Option<(Call, Vec<u8>)> {
        self.calls.pop_front()
    }

    pub(super) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Makes an end that will call a peer.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if all numbers are used for that peer.
    pub(super) fn add(&mut self, machine: &Machine, peer: PeerAddress, room: Room) -> Result<u32> {
        for _ in 0..u16::MAX {
            self.last_local = self.last_local.checked_add(1).unwrap_or(1);
            let route = Route::new(self.last_local, peer);
            if !self.routes.contains_key(&route) && !machine.knows(&route) {
                return Ok(self.insert(route, room));
            }
        }
        Err(Errno::ADDRNOTAVAIL)
    }

    /// Makes an end that will accept a call.
    ///
    /// # Errors
    /// `ECONNRESET` if the peer has given up.
    pub(super) fn add_called(&mut self, call: Call, room: Room) -> Result<u32> {
        self.answered(call)?;
        Ok(self.insert(call.route, room))
    }

    fn insert(&mut self, route: Route, room: Room) -> u32 {
        self.last_number = self.last_number.wrapping_add(1);
        let number = self.last_number;
        self.routes.insert(route, Bound::End(number));
        let end = ConnectedEnd {
            route,
            phase: EndPhase::New,
            room,
            receives: VecDeque::new(),
            waiting: VecDeque::new(),
            in_machine: 0,
            in_memory: 0,
            is_blocked: false,
            under_way: 0,
            completions: VecDeque::new(),
            changes: VecDeque::new(),
            is_armed: false,
        };
        self.ends.insert(number, end);
        number
    }

    /// Removes a call from those that wait for an answer.
    fn answered(&mut self, call: Call) -> Result<()> {
        if self.routes.get(&call.route) != Some(&Bound::Call(call.serial)) {
            return Err(Errno::CONNRESET);
        }
        self.routes.remove(&call.route);
        self.unanswered -= 1;
        Ok(())
    }

    /// Calls the peer.
    ///
    /// # Errors
    /// Those of the machine; `EISCONN` if the end has done so.
    pub(super) fn connect(
        &mut self,
        now: u64,
        machine: &mut Machine,
        number: u32,
        private_data: &[u8],
    ) -> Result<()> {
        let end = self.ends.get_mut(&number).ok_or(Errno::NOTCONN)?;
        if end.phase != EndPhase::New {
            return Err(Errno::ISCONN);
        }
        // Its program has chosen this peer, which may use its keys as soon as it has accepted.
        machine.set_bond(now, end.route, Bond::Connected)?;
        let route = end.route;
        let called = self.control(now, machine, number, Frame::Call(private_data));
        if let Err(errno) = called {
            machine.sever(now, &route);
            return Err(errno);
        }
        self.begin(now, number, EndPhase::Calling);
        Ok(())
    }

    /// Accepts the call.
    ///
    /// # Errors
    /// Those of the machine; `ECONNRESET` if the peer has given up.
    pub(super) fn accept(
        &mut self,
        now: u64,
        machine: &mut Machine,
        number: u32,
        private_data: &[u8],
    ) -> Result<()> {
        let end = self.ends.get_mut(&number).ok_or(Errno::NOTCONN)?;
        if end.phase != EndPhase::New {
            return Err(Errno::CONNRESET);
        }
        machine.set_bond(now, end.route, Bond::Connected)?;
        self.control(now, machine, number, Frame::Answer(private_data))?;
        self.begin(now, number, EndPhase::Open);
        Ok(())
    }

    fn begin(&mut self, now: u64, number: u32, phase: EndPhase) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.phase = phase;
            self.pings.insert((now + PING, number));
            self.neighbours.add(now, end.route.peer().socket, number);
        }
    }

    /// Refuses a call.
    pub(super) fn refuse(
        &mut self,
        now: u64,
        machine: &mut Machine,
        call: Call,
        by_program: bool,
        private_data: &[u8],
    ) {
        if self.answered(call).is_ok() {
            say(now, machine, call.route, Frame::Refusal { by_program, private_data });
            machine.release(&call.route);
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the end has no room for it, `EINVAL` if it has not one piece.
    pub(super) fn post_receive(&mut self, number: u32, wr_id: u64, sges: &[Sge]) -> Result<()> {
        let &[sge] = sges else { return Err(Errno::INVAL) };
        let end = self.ends.get_mut(&number).ok_or(Errno::NOTCONN)?;
        if end.receives.len() >= end.room.receives {
            return Err(Errno::NOMEM);
        }
        end.receives.push_back((wr_id, piece(&sge)));
        if end.phase == EndPhase::Over {
            self.flush_receives(number);
        }
        Ok(())
    }

    /// Posts a request.
    ///
    /// # Errors
    /// `ENOMEM` if the end has no room for it, `EINVAL` and `EOPNOTSUPP` for one of a kind that it
    /// does not have.
    pub(super) fn post(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        number: u32,
        request: &SendRequest<'_>,
    ) -> Result<()> {
        let task = task(request)?;
        let (wr_id, is_reported) = (request.wr_id, request.flags.contains(SendFlags::SIGNALED));
        let end = self.ends.get_mut(&number).ok_or(Errno::NOTCONN)?;
        if end.under_way >= end.room.sends {
            return Err(Errno::NOMEM);
        }
        end.under_way += 1;
        match end.phase {
            EndPhase::New | EndPhase::Calling => {
                end.under_way -= 1;
                return Err(Errno::NOTCONN);
            }
            EndPhase::Over | EndPhase::Leaving => {
                self.complete(number, sent(wr_id, WcStatus::WrFlushErr));
            }
            EndPhase::Open => {
                end.waiting.push_back(Work { wr_id, is_reported, task });
                self.submit(now, machine, memory, number);
            }
        }
        Ok(())
    }

    /// Moves completions into `space`, and returns how many.
    pub(super) fn poll(&mut self, number: u32, space: &mut [Completion]) -> usize {
        let Some(end) = self.ends.get_mut(&number) else { return 0 };
        let mut count = 0;
        for place in space {
            let Some(completion) = end.completions.pop_front() else { break };
            end.under_way -= usize::from(completion.opcode == Opcode::Send);
            *place = completion;
            count += 1;
        }
        count
    }

    /// Has the next completion wake who waits.
    pub(super) fn arm(&mut self, number: u32) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.is_armed = true;
        }
    }

    /// The next change of the connection, and whether there are more.
    pub(super) fn change(&mut self, number: u32) -> (Option<Change>, bool) {
        let Some(end) = self.ends.get_mut(&number) else { return (None, false) };
        (end.changes.pop_front(), !end.changes.is_empty())
    }

    /// Ends the connection, behind what was posted.
    pub(super) fn disconnect(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        number: u32,
    ) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        match end.phase {
            EndPhase::New => {
                let route = end.route;
                if route.local == LISTENER {
                    let frame = Frame::Refusal { by_program: true, private_data: &[] };
                    say(now, machine, route, frame);
                }
                self.over(machine, number, None);
            }
            EndPhase::Calling | EndPhase::Open => {
                end.phase = EndPhase::Leaving;
                let work = Work { wr_id: NOBODY, is_reported: false, task: Task::Goodbye };
                end.waiting.push_back(work);
                self.submit(now, machine, memory, number);
            }
            EndPhase::Leaving | EndPhase::Over => {}
        }
    }

    /// Removes an end. What it has sent by value still goes to the peer; nothing uses its memory
    /// any more.
    pub(super) fn remove(&mut self, now: u64, machine: &mut Machine, number: u32) {
        let Some(end) = self.ends.get(&number) else { return };
        let (route, uses_memory) = (end.route, end.in_memory != 0);
        let has_left = end.phase == EndPhase::Leaving && end.waiting.is_empty() && !uses_memory;
        if uses_memory {
            machine.sever(now, &route);
        }
        match end.phase {
            EndPhase::New if route.local == LISTENER => {
                let frame = Frame::Refusal { by_program: true, private_data: &[] };
                say(now, machine, route, frame);
            }
            EndPhase::Calling | EndPhase::Open | EndPhase::Leaving if !has_left => {
                say(now, machine, route, Frame::Goodbye);
            }
            _ => {}
        }
        self.over(machine, number, None);
        self.asked.retain(|_, asked| asked.number != number);
        self.ends.remove(&number);
    }

    /// Handles what has happened below, and continues what waited for it.
    pub(super) fn run(&mut self, now: u64, machine: &mut Machine, memory: &mut dyn Memory) {
        while let Some(notice) = machine.next_notice(now) {
            match notice {
                Notice::Received { route, bytes } => {
                    self.received(now, machine, memory, route, &bytes);
                }
                Notice::Completed { id, status } => self.completed(now, machine, id, status),
                Notice::Lost { route, status } => self.lost(now, machine, route, status),
            }
        }
        while let Some(number) = self.blocked.pop_front() {
            if let Some(end) = self.ends.get_mut(&number) {
                end.is_blocked = false;
            }
            if !self.submit(now, machine, memory, number) {
                break;
            }
        }
    }

    /// When [`Connections::expire`] must be called, if nothing else happens.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        let ping = self.pings.first().map(|&(at, _)| at);
        ping.into_iter().chain(self.neighbours.next_timeout()).min()
    }

    /// Asks the peers that were silent for a while whether they are there.
    pub(super) fn expire(&mut self, now: u64, machine: &mut Machine) {
        while let Some(&(at, number)) = self.pings.first()
            && at <= now
        {
            self.pings.pop_first();
            if let Some(next) = self.ask(now, machine, number, PING) {
                self.pings.insert((next, number));
            }
        }
        while let Some((address, number)) = self.neighbours.due(now) {
            let next = self.ask(now, machine, number, LOOK).unwrap_or(now + LOOK);
            self.neighbours.put_off(address, next);
        }
    }

    /// Asks the peer of an end whether it is there, if it has said nothing for a time. Returns when
    /// that may be necessary again; `None` if the end asks no more.
    fn ask(&mut self, now: u64, machine: &mut Machine, number: u32, silence: u64) -> Option<u64> {
        let end = self.ends.get(&number)?;
        if !matches!(end.phase, EndPhase::Calling | EndPhase::Open) {
            return None;
        }
        let due = machine.seen_at(&end.route).unwrap_or(0) + silence;
        if due <= now && end.in_machine == 0 {
            // If there is no room, others wait for their peers, and this end asks later.
            let _ = self.control(now, machine, number, Frame::Ping);
        }
        Some(if due > now { due } else { now + silence })
    }

    /// Sends a frame, whose failure ends the connection.
    fn control(
        &mut self,
        now: u64,
        machine: &mut Machine,
        number: u32,
        frame: Frame<'_>,
    ) -> Result<()> {
        let end = self.ends.get_mut(&number).ok_or(Errno::NOTCONN)?;
        self.last_id += 1;
        machine.post_on(now, end.route, self.last_id, Request::Send(frame.encode()))?;
        end.in_machine += 1;
        self.asked.insert(self.last_id, Asked { number, what: What::Control });
        Ok(())
    }

    /// Gives the machine the requests of an end, as far as it has room. Returns whether it has.
    fn submit(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        number: u32,
    ) -> bool {
        loop {
            let Some(end) = self.ends.get_mut(&number) else { return true };
            let Some(work) = end.waiting.front() else { return true };
            if matches!(work.task, Task::Goodbye) && end.in_machine != 0 {
                // The peer answers nothing any more once it has seen it.
                return true;
            }
            if !machine.has_room(work.task.own_bytes()) {
                if !std::mem::replace(&mut end.is_blocked, true) {
                    self.blocked.push_back(number);
                }
                return false;
            }
            let (wr_id, what) = (work.wr_id, work.what());
            let request = work.task.request(memory);
            end.waiting.pop_front();
            self.last_id += 1;
            let posted = request.and_then(|request| {
                let posted = machine.post_on(now, end.route, self.last_id, request);
                posted.map_err(|_| WcStatus::LocLenErr)
            });
            match posted {
                Ok(()) => {
                    end.in_machine += 1;
                    end.in_memory += usize::from(what.uses_memory());
                    self.asked.insert(self.last_id, Asked { number, what });
                }
                Err(status) => {
                    self.complete(number, sent(wr_id, status));
                    self.fail(now, machine, number);
                }
            }
        }
    }

    fn received(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        route: Route,
        bytes: &[u8],
    ) {
        let frame = Frame::parse(bytes);
        match (self.routes.get(&route).copied(), frame) {
            (_, Some(Frame::Call(private_data))) if route.local == LISTENER => {
                // One that is there has ended, which the peer could not say.
                self.lost(now, machine, route, Status::PeerRestarted);
                self.called(now, machine, route, private_data);
            }
            (Some(Bound::Call(serial)), Some(Frame::Goodbye)) => {
                self.forget_call(machine, Call { route, serial });
            }
            (Some(Bound::Call(_)), _)
            | (None, None | Some(Frame::Goodbye | Frame::Refusal { .. })) => {}
            (Some(Bound::End(number)), frame) => self.take(now, machine, memory, number, frame),
            // The peer does not know that this end is gone.
            (None, Some(_)) => say(now, machine, route, Frame::Goodbye),
        }
    }

    fn called(&mut self, now: u64, machine: &mut Machine, route: Route, private_data: &[u8]) {
        let is_room = self.listens && self.unanswered < CALLS_MAX;
        if !is_room || machine.set_bond(now, route, Bond::Called).is_err() {
            let frame = Frame::Refusal { by_program: false, private_data: &[] };
            return say(now, machine, route, frame);
        }
        self.last_serial += 1;
        let call = Call { route, serial: self.last_serial };
        self.routes.insert(route, Bound::Call(call.serial));
        self.unanswered += 1;
        self.calls.push_back((call, private_data.to_vec()));
        self.rung.push(Wakeup::Calls);
    }

    fn forget_call(&mut self, machine: &mut Machine, call: Call) {
        if self.answered(call).is_ok() {
            machine.release(&call.route);
            self.calls.retain(|(other, _)| *other != call);
        }
    }

    /// Takes what the peer of an end says.
    fn take(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        number: u32,
        frame: Option<Frame<'_>>,
    ) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        match (end.phase, frame) {
            (EndPhase::Calling, Some(Frame::Answer(private_data))) => {
                end.phase = EndPhase::Open;
                self.tell(number, Change::Established(private_data.to_vec()));
            }
            (EndPhase::Calling, Some(Frame::Refusal { by_program, private_data })) => {
                let private_data = private_data.to_vec();
                self.over(machine, number, Some(Change::Refused { by_program, private_data }));
            }
            (EndPhase::Open | EndPhase::Leaving, Some(Frame::Message(bytes))) => {
                self.deliver(now, machine, memory, number, bytes);
            }
            (EndPhase::Calling, Some(Frame::Goodbye)) => {
                let route = end.route;
                machine.sever(now, &route);
                self.over(machine, number, Some(Change::Failed(Errno::CONNRESET)));
            }
            (_, Some(Frame::Goodbye)) => {
                let route = end.route;
                machine.sever(now, &route);
                self.over(machine, number, Some(Change::Disconnected));
            }
            // An answer to a call that was given up.
            (EndPhase::Leaving, Some(Frame::Answer(_) | Frame::Refusal { .. }))
            | (_, Some(Frame::Ping)) => {}
            _ => self.fail(now, machine, number),
        }
    }

    /// Puts a message into the next receive of an end.
    fn deliver(
        &mut self,
        now: u64,
        machine: &mut Machine,
        memory: &mut dyn Memory,
        number: u32,
        bytes: &[u8],
    ) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        let Some((wr_id, place)) = end.receives.pop_front() else {
            return self.fail(now, machine, number);
        };
        let status = match u32::try_from(bytes.len()) {
            Ok(0) => WcStatus::Success,
            Ok(len) if len <= place.len => {
                match memory.write(Party::Local, place.key, place.addr, bytes) {
                    Ok(()) => WcStatus::Success,
                    Err(_) => WcStatus::LocProtErr,
                }
            }
            _ => WcStatus::LocLenErr,
        };
        // Checked above.
        let len = bytes.len() as u32;
        self.complete(number, received(wr_id, status, len));
        if status != WcStatus::Success {
            self.fail(now, machine, number);
        }
    }

    fn completed(&mut self, now: u64, machine: &mut Machine, id: u64, status: Status) {
        let Some(Asked { number, what }) = self.asked.remove(&id) else { return };
        let Some(end) = self.ends.get_mut(&number) else { return };
        end.in_machine -= 1;
        end.in_memory -= usize::from(what.uses_memory());
        let phase = end.phase;
        let may_leave = phase == EndPhase::Leaving && end.in_machine == 0;
        if may_leave && !std::mem::replace(&mut end.is_blocked, true) {
            self.blocked.push_back(number);
        }
        match what {
            What::Work { wr_id, is_reported, .. } => {
                let is_over = phase == EndPhase::Over;
                let status = if is_over { WcStatus::WrFlushErr } else { wc_status(status) };
                if is_reported || status != WcStatus::Success {
                    self.complete(number, sent(wr_id, status));
                } else {
                    end.under_way -= 1;
                }
                if status != WcStatus::Success && !is_over {
                    self.fail(now, machine, number);
                }
            }
            What::Control if status != Status::Success && phase != EndPhase::Over => {
                let route = end.route;
                self.lost(now, machine, route, status);
            }
            What::Control => {}
            What::Goodbye => self.over(machine, number, Some(Change::Disconnected)),
        }
    }

    /// Handles that there is no peer any more.
    fn lost(&mut self, now: u64, machine: &mut Machine, route: Route, status: Status) {
        match self.routes.get(&route) {
            Some(&Bound::End(number)) => {
                let is_calling =
                    self.ends.get(&number).is_some_and(|end| end.phase == EndPhase::Calling);
                machine.sever(now, &route);
                let change = match status {
                    _ if !is_calling => Change::Disconnected,
                    Status::PeerUnreachable => Change::Failed(Errno::TIMEDOUT),
                    Status::PeerGone => Change::Failed(Errno::CONNREFUSED),
                    _ => Change::Failed(Errno::CONNRESET),
                };
                self.over(machine, number, Some(change));
            }
            Some(&Bound::Call(serial)) => self.forget_call(machine, Call { route, serial }),
            None => {}
        }
    }

    /// Ends the connection of an end at once, and tells the peer.
    fn fail(&mut self, now: u64, machine: &mut Machine, number: u32) {
        let Some(end) = self.ends.get(&number) else { return };
        if end.phase == EndPhase::Over {
            return;
        }
        let route = end.route;
        machine.sever(now, &route);
        say(now, machine, route, Frame::Goodbye);
        self.over(machine, number, Some(Change::Disconnected));
    }

    /// Notes that the connection of an end is over. What the machine still has ends by itself.
    fn over(&mut self, machine: &mut Machine, number: u32, change: Option<Change>) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.phase == EndPhase::Over {
            return;
        }
        end.phase = EndPhase::Over;
        self.neighbours.remove(end.route.peer().socket, number);
        if self.routes.get(&end.route) == Some(&Bound::End(number)) {
            self.routes.remove(&end.route);
            machine.release(&end.route);
        }
        for work in std::mem::take(&mut end.waiting) {
            if !matches!(work.task, Task::Goodbye) {
                self.complete(number, sent(work.wr_id, WcStatus::WrFlushErr));
            }
        }
        self.flush_receives(number);
        if let Some(change) = change {
            self.tell(number, change);
        }
    }

    fn flush_receives(&mut self, number: u32) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        for (wr_id, _) in std::mem::take(&mut end.receives) {
            self.complete(number, received(wr_id, WcStatus::WrFlushErr, 0));
        }
    }

    fn complete(&mut self, number: u32, completion: Completion) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        end.completions.push_back(completion);
        if std::mem::take(&mut end.is_armed) {
            self.rung.push(Wakeup::Completions(number));
        }
    }

    fn tell(&mut self, number: u32, change: Change) {
        if let Some(end) = self.ends.get_mut(&number) {
            end.changes.push_back(change);
            self.rung.push(Wakeup::Changes(number));
        }
    }
}

/// Sends a frame of whose fate nobody asks.
fn say(now: u64, machine: &mut Machine, route: Route, frame: Frame<'_>) {
    // If there is no room, the peer asks, and learns it then.
    let _ = machine.post_on(now, route, NOBODY, Request::Send(frame.encode()));
}

/// The completion of a request to send.
fn sent(wr_id: u64, status: WcStatus) -> Completion {
    Completion::new(wr_id, status, Opcode::Send, 0)
}

/// The completion of a receive.
fn received(wr_id: u64, status: WcStatus, len: u32) -> Completion {
    let completion = Completion::new(wr_id, status, Opcode::Recv, 0);
    Completion { byte_len: len, ..completion }
}

fn wc_status(status: Status) -> WcStatus {
    match status {
        Status::Success => WcStatus::Success,
        Status::LocalAccess(_) => WcStatus::LocProtErr,
        // The peer's end is gone.
        Status::Refused(Reason::NotConnected) => WcStatus::WrFlushErr,
        Status::Refused(Reason::TooLong) => WcStatus::RemInvReqErr,
        Status::Refused(_) => WcStatus::RemAccessErr,
        Status::PeerRestarted | Status::PeerUnreachable | Status::PeerGone => WcStatus::RetryExcErr,
    }
}

fn piece(sge: &Sge) -> Buffer {
    Buffer { key: sge.lkey, addr: sge.addr, len: sge.length }
}

/// What a request asks for.
fn task(request: &SendRequest<'_>) -> Result<Task> {
    let bytes = || match request.data {
        wr::Data::Gather([]) => Ok(Bytes::Value(Box::default())),
        wr::Data::Gather([one]) => Ok(Bytes::Pieces([piece(one), NOTHING])),
        wr::Data::Gather([one, two]) => Ok(Bytes::Pieces([piece(one), piece(two)])),
        wr::Data::Gather(_) => Err(Errno::INVAL),
        wr::Data::Inline(parts) => Ok(Bytes::Value(parts.concat().into())),
    };
    let into = || match request.data {
        wr::Data::Gather([one]) => Ok(piece(one)),
        _ => Err(Errno::INVAL),
    };
    Ok(match request.operation {
        Operation::Send { imm: None, invalidate: None } => Task::Send(bytes()?),
        Operation::Write { remote_addr: addr, rkey: key, imm: None } => {
            Task::Write { bytes: bytes()?, key, addr }
        }
        Operation::Read { remote_addr: addr, rkey: key } => Task::Read { into: into()?, key, addr },
        Operation::FetchAdd { remote_addr: addr, rkey: key, add } => {
            let op = AtomicOp::FetchAdd { add, mask: 0 };
            Task::Atomic { op, into: into()?, key, addr }
        }
        Operation::CompareSwap { remote_addr: addr, rkey: key, compare, swap } => {
            let (swap_mask, compare_mask) = (u64::MAX, u64::MAX);
            let op = AtomicOp::CmpSwap { swap, swap_mask, compare, compare_mask };
            Task::Atomic { op, into: into()?, key, addr }
        }
        _ => return Err(Errno::OPNOTSUPP),
    })
}

impl Bytes {
    fn len(&self) -> usize {
        match self {
            Self::Value(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(|piece| piece.len as usize).sum(),
        }
    }

    fn append(
        &self,
        memory: &mut dyn Memory,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), WcStatus> {
        match self {
            Self::Value(bytes) => out.extend_from_slice(bytes),
            Self::Pieces(pieces) => {
                for &Buffer { key, addr, len } in pieces.iter().filter(|piece| piece.len != 0) {
                    let read = memory.read(Party::Local, key, addr, len as usize, out);
                    read.map_err(|_| WcStatus::LocProtErr)?;
                }
            }
        }
        Ok(())
    }
}

impl Task {
    /// Whether the request uses memory of the program until it ends.
    fn uses_memory(&self) -> bool {
        match self {
            Self::Send(_) | Self::Goodbye => false,
            Self::Write { bytes, .. } => matches!(bytes, Bytes::Pieces([_, NOTHING])),
            Self::Read { .. } | Self::Atomic { .. } => true,
        }
    }

    /// Bytes that the request will own.
    fn own_bytes(&self) -> usize {
        match self {
            Self::Send(bytes) => 1 + bytes.len(),
            Self::Goodbye => 1,
            Self::Write { bytes, .. } if !self.uses_memory() => bytes.len(),
            Self::Write { .. } | Self::Read { .. } | Self::Atomic { .. } => 0,
        }
    }

    fn request(&self, memory: &mut dyn Memory) -> std::result::Result<Request, WcStatus> {
        Ok(match self {
            Self::Goodbye => Request::Send(Frame::Goodbye.encode()),
            Self::Send(bytes) => {
                let mut message = Frame::message(bytes.len());
                bytes.append(memory, &mut message)?;
                Request::Send(message.into())
            }
            &Self::Write { bytes: Bytes::Pieces([from, NOTHING]), key, addr } => {
                Request::Write { data: Data::Registered(from), key, addr }
            }
            &Self::Write { ref bytes, key, addr } => {
                let mut out = Vec::with_capacity(bytes.len());
                bytes.append(memory, &mut out)?;
                Request::Write { data: Data::Bytes(out.into()), key, addr }
            }
            &Self::Read { into, key, addr } => Request::Read { into, key, addr },
            &Self::Atomic { op, into, key, addr } => Request::Atomic { op, into, key, addr },
        })
    }
}

impl Work {
    fn what(&self) -> What {
        let &Self { wr_id, is_reported, ref task } = self;
        match task {
            Task::Goodbye => What::Goodbye,
            task => What::Work { wr_id, is_reported, uses_memory: task.uses_memory() },
        }
    }
}

impl What {
    fn uses_memory(self) -> bool {
        matches!(self, Self::Work { uses_memory: true, .. })
    }
}

#[cfg(test)]
impl Connections {
    /// Whether nothing is left of connections whose ends were removed.
    pub(super) fn is_clean(&self) -> bool {
        self.ends.is_empty()
            && self.routes.is_empty()
            && self.calls.is_empty()
            && self.unanswered == 0
            && self.asked.is_empty()
            && self.neighbours.is_empty()
    }
}
