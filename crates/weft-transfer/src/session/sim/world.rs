//! The simulated world: time, the control channel, the data channels and their failures.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use fastrand::Rng;

use super::super::{
    Arrivals, BlockRefused, Connection, Event, Offer, Policy, SinkState, Write, WriteResult,
};
use super::Mutation;
use super::path::{Channel, Flight, header};
use super::session::{BLOCK_SIZE, Check, NOTHING, Session};
use crate::limits::BLOCK_SIZE_MIN;
use crate::wire::{BlockHeader, Body, Cancel, Code, Message, Open, OpenReply, Role, Terms, Token};

/// Indexes of the two ends.
const SOURCE: usize = 0;
const SINK: usize = 1;
/// The most events of a run.
const EVENTS_MAX: u32 = 200_000;
/// The most lines of a report.
const NOTES_MAX: usize = 150;

#[derive(Clone, Debug)]
enum Act {
    /// A message reaches an end.
    Message {
        side: usize,
        bytes: Vec<u8>,
    },
    Begin {
        flight: usize,
    },
    Finish {
        flight: usize,
    },
    Placed {
        flight: usize,
    },
    Done {
        flight: usize,
    },
    Up {
        side: usize,
        channel: u16,
    },
    Down {
        side: usize,
        channel: u16,
    },
    Break,
    Open {
        session: usize,
    },
    Load {
        session: usize,
    },
    Release {
        session: usize,
        buffer: u32,
    },
    Cancel {
        session: usize,
        side: usize,
    },
    /// An end continues with work that it had postponed.
    Poll,
}

pub(super) struct World {
    rng: Rng,
    now: u64,
    order: u64,
    acts: BTreeMap<(u64, u64), Act>,
    arrivals: Arrivals,
    /// The end that initiates the connection.
    initiator: usize,
    ends: [Connection; 2],
    /// When the last message to each end arrives, and the delay of a message.
    last_message: [u64; 2],
    delay: u64,
    /// Whether an end is postponing its messages.
    is_slow: [bool; 2],
    sessions: Vec<Session>,
    by_number: BTreeMap<u32, usize>,
    channels: BTreeMap<u16, Channel>,
    next_channel: u16,
    flights: Vec<Flight>,
    mutation: Option<Mutation>,
    mutated: u32,
    used: Option<Write>,
    is_request_open: bool,
    notes: VecDeque<String>,
}

impl World {
    pub(super) fn new(seed: u64, mutation: Option<Mutation>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let arrivals = if rng.bool() { Arrivals::Seen } else { Arrivals::NotSeen };
        let initiator = rng.usize(..2);
        let agent = || "sim".to_owned();
        let offer = Offer { channels: 8, block_size: BLOCK_SIZE_MIN, features: 3, agent: agent() };
        let most = Terms {
            version: 1,
            channels: 4,
            block_size: BLOCK_SIZE_MIN * 2,
            features: 2,
            token: Token([7; 16]),
            agent: agent(),
        };
        let policy = Policy { most, block_size_min: BLOCK_SIZE_MIN, sessions: 8 };
        let mut ends = [
            Connection::initiate(offer, Duration::ZERO),
            Connection::accept(policy, Duration::ZERO),
        ];
        if initiator == SINK {
            ends.reverse();
        }
        let count = rng.usize(1..5);
        let sessions = (1..).take(count).map(|number| Session::new(&mut rng, number, arrivals));
        let sessions = sessions.collect();
        let delay = rng.u64(1..300);
        let mut world = Self {
            rng,
            now: 0,
            order: 0,
            acts: BTreeMap::new(),
            arrivals,
            initiator,
            ends,
            last_message: [0; 2],
            delay,
            is_slow: [false; 2],
            sessions,
            by_number: BTreeMap::new(),
            channels: BTreeMap::new(),
            next_channel: 0,
            flights: Vec::new(),
            mutation,
            mutated: 0,
            used: None,
            is_request_open: false,
            notes: VecDeque::new(),
        };
        world.plan();
        world
    }

    fn plan(&mut self) {
        for _ in 0..self.rng.u32(1..5) {
            let at = self.rng.u64(..500);
            self.add_channel(at);
        }
        for _ in 0..self.rng.u32(..4) {
            let at = self.rng.u64(..8_000);
            self.at(at, Act::Break);
        }
        for session in 0..self.sessions.len() {
            if let Some((is_sink, at)) = self.sessions[session].plan.cancel {
                self.at(at, Act::Cancel { session, side: usize::from(is_sink) });
            }
        }
    }

    /// Runs the simulation to its end.
    pub(super) fn run(&mut self) -> Check {
        self.pump()?;
        let mut events = 0;
        while let Some(((at, _), act)) = self.acts.pop_first() {
            self.now = at;
            self.act(act)?;
            self.pump()?;
            events += 1;
            if events > EVENTS_MAX {
                return Err("it goes on for ever".into());
            }
        }
        self.sessions.iter().try_for_each(Session::check_end)
    }

    pub(super) fn is_mutated(&self) -> bool {
        self.mutated != 0
    }

    /// Returns a report of the last events.
    pub(super) fn report(&self) -> String {
        self.notes.iter().map(|note| format!("{note}\n")).collect()
    }

    fn note(&mut self, what: &str) {
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{}: {what}", self.now));
    }

    fn at(&mut self, at: u64, act: Act) {
        self.order += 1;
        self.acts.insert((at.max(self.now), self.order), act);
    }

    /// Whether to apply a defect now. If so, the application is counted.
    fn mutates(&mut self, mutation: Mutation) -> bool {
        let mutates = self.mutation == Some(mutation);
        self.mutated += u32::from(mutates);
        mutates
    }

    fn add_channel(&mut self, at: u64) {
        self.next_channel += 1;
        let number = self.next_channel;
        let sink_up = at + self.rng.u64(..400);
        let source_up = at + self.rng.u64(..400);
        let channel = Channel::new(&mut self.rng, sink_up);
        self.channels.insert(number, channel);
        if self.rng.u8(..6) == 0 {
            // The sink opens the channel late, about when the source gives it up or after that.
            let lost = source_up + self.rng.u64(1..600);
            self.at(lost, Act::Down { side: SOURCE, channel: number });
            self.add_channel(at);
        }
        self.at(source_up, Act::Up { side: SOURCE, channel: number });
        self.at(sink_up, Act::Up { side: SINK, channel: number });
    }

    fn act(&mut self, act: Act) -> Check {
        match act {
            Act::Message { side, bytes } => {
                let message = Message::parse(&bytes).map_err(|error| format!("{error}"))?;
                return self.handle_message(side, message);
            }
            Act::Begin { flight } => return self.begin(flight),
            Act::Finish { flight } => return self.finish(flight),
            Act::Placed { flight } => return self.place(flight),
            Act::Done { flight } => self.done(flight),
            Act::Up { side, channel } => self.up(side, channel),
            Act::Down { side, channel } => self.down(side, channel),
            Act::Break => self.break_channel(),
            Act::Open { session } => self.open(session),
            Act::Load { session } => self.load(session),
            Act::Release { session, buffer } => return self.release(session, buffer),
            Act::Cancel { session, side } => self.cancel(session, side),
            Act::Poll => {}
        }
        Ok(())
    }

    fn handle_message(&mut self, side: usize, message: Message) -> Check {
        let now = Duration::from_micros(self.now);
        let event = self.ends[side].handle_control(message, now);
        let fault = |fault| format!("the other end takes for a fault: {fault}");
        match event.map_err(fault)? {
            Some(Event::Established(_)) if side == self.initiator => {
                for session in 0..self.sessions.len() {
                    let at = self.now + self.rng.u64(..2_000);
                    self.at(at, Act::Open { session });
                }
            }
            Some(Event::Open { session: number, open }) => {
                let session = usize::from(open.job[0]);
                self.by_number.insert(number, session);
                let reply = OpenReply::Accepted { job: open.job };
                self.ends[side].answer(number, reply).expect("it is asked for");
                self.open_end(side, session);
            }
            Some(Event::OpenReply { session: number, reply }) => {
                assert!(matches!(reply, OpenReply::Accepted { .. }));
                self.open_end(side, self.by_number[&number]);
            }
            Some(Event::Session(message)) => {
                let session = self.by_number[&message.session];
                let session = &mut self.sessions[session];
                let result = match (side, &mut session.source, &mut session.sink) {
                    (SOURCE, Some(source), _) => source.handle_control(message.body),
                    (_, _, Some(sink)) => sink.handle_control(message.body),
                    _ => return Err("a message before the session".into()),
                };
                return result.map_err(fault);
            }
            Some(Event::Refused { .. } | Event::Cancelled(_)) => {
                return Err("the connection has ended".into());
            }
            Some(Event::Listen | Event::Grant(_) | Event::ListenReply(_)) => {
                return Err("a listener, which no end has asked for".into());
            }
            Some(Event::Established(_)) | None => {}
        }
        Ok(())
    }

    fn open(&mut self, session: usize) {
        let role = if self.initiator == SOURCE { Role::Source } else { Role::Sink };
        let job = vec![u8::try_from(session).expect("few")];
        let number = self.ends[self.initiator].open(Open { role, job }).expect("few");
        self.by_number.insert(number, session);
        self.sessions[session].number = number;
    }

    fn open_end(&mut self, side: usize, session: usize) {
        let run = &mut self.sessions[session];
        if side == SOURCE {
            run.open_source()
        } else {
            run.open_sink()
        }
        for (number, channel) in &self.channels {
            if channel.is_open[side] {
                assert!(run.channel_up(side == SINK, *number), "there was nothing of it before");
            }
        }
        if side == SOURCE {
            self.at(self.now, Act::Load { session });
        }
    }

    fn load(&mut self, session: usize) {
        let run = &mut self.sessions[session];
        let Some(source) = &mut run.source else { return };
        let (Some(&seq), Some(&block)) = (run.to_load.front(), run.idle_blocks.last()) else {
            return;
        };
        let len = if seq + 1 == run.plan.blocks { 7 } else { BLOCK_SIZE };
        if source.submit(seq, block, len).is_err() {
            return;
        }
        run.to_load.pop_front();
        run.idle_blocks.pop();
        run.blocks[block as usize] = run.content(seq);
        let at = self.now + run.plan.load;
        self.at(at, Act::Load { session });
    }

    fn release(&mut self, session: usize, buffer: u32) -> Check {
        let run = &mut self.sessions[session];
        run.check_release(buffer)?;
        run.sink.as_mut().expect("it is open").release(buffer).map_err(|misuse| misuse.to_string())
    }

    fn cancel(&mut self, session: usize, side: usize) {
        let run = &mut self.sessions[session];
        let cancel = Cancel { code: Code::Stopped, text: "enough".into() };
        let is_over = match (side, &mut run.source, &mut run.sink) {
            (SOURCE, Some(source), _) => source.ending().is_some(),
            (SINK, _, Some(sink)) => sink.ending().is_some(),
            _ => {
                // The session is not open yet, so try again later.
                self.at(self.now + 500, Act::Cancel { session, side });
                return;
            }
        };
        if is_over {
            return;
        }
        self.note(&format!("session {session} is cancelled by {side}"));
        let run = &mut self.sessions[session];
        match (side, &mut run.source, &mut run.sink) {
            (SOURCE, Some(source), _) => source.cancel(cancel),
            (_, _, Some(sink)) => sink.cancel(cancel),
            _ => {}
        }
        if self.mutation == Some(Mutation::ClosedEarly) && side == SOURCE {
            let number = self.sessions[session].number;
            self.mutated += 1;
            self.send(
                SINK,
                Message::of(
                    number,
                    Body::Cancel(Cancel { code: Code::Stopped, text: String::new() }),
                ),
            );
            self.send(SINK, Message::of(number, Body::Closed));
        }
    }

    fn break_channel(&mut self) {
        let up: Vec<u16> = self
            .channels
            .iter()
            .filter(|(_, channel)| channel.cut == u64::MAX && channel.is_open != [false; 2])
            .map(|(number, _)| *number)
            .collect();
        let at = self.now + self.rng.u64(1..2_000);
        if up.is_empty() {
            self.add_channel(at);
            return;
        }
        let number = up[self.rng.usize(..up.len())];
        let by = self.rng.u8(..4);
        let (soon, late) = (self.rng.u64(..50), self.rng.u64(..1_500));
        self.note(&format!("channel {number} breaks: {by}"));
        // Possibly only one end notices the failure, and data in flight may still arrive.
        let channel = self.channels.get_mut(&number).expect("it is there");
        channel.cut = self.now + if by == 0 { 1 << 40 } else { soon };
        if by != 1 {
            self.at(self.now + soon, Act::Down { side: SOURCE, channel: number });
        }
        if by != 0 {
            self.at(self.now + late, Act::Down { side: SINK, channel: number });
        }
        self.add_channel(at);
        if self.rng.u8(..4) == 0 {
            let (session, side) = (self.rng.usize(..self.sessions.len()), self.rng.usize(..2));
            let at = self.now + self.rng.u64(..100);
            self.sessions[session].plan.cancel.get_or_insert((side == SINK, at));
            self.at(at, Act::Cancel { session, side });
        }
    }

    fn up(&mut self, side: usize, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.is_open[side] = true;
        // The channel broke before this end opened it.
        let is_broken = channel.cut < self.now || channel.is_dead[side];
        let mut may_be = true;
        for session in &mut self.sessions {
            may_be &= session.channel_up(side == SINK, number);
        }
        if !may_be {
            self.down(side, number);
        } else if is_broken {
            self.at(self.now + 1, Act::Down { side, channel: number });
        }
    }

    fn down(&mut self, side: usize, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        channel.is_dead[side] = true;
        if !std::mem::take(&mut channel.is_open[side]) {
            return;
        }
        self.note(&format!("channel {number} is down at {side}"));
        if side == SINK {
            for flight in self.flights.iter_mut().filter(|flight| flight.write.channel == number) {
                flight.is_arriving = false;
            }
            for sink in self.sessions.iter_mut().filter_map(|session| session.sink.as_mut()) {
                sink.channel_down(number);
            }
            // The source's transport fails in the end, even for sessions that the sink opens later.
            let at = self.now + self.rng.u64(1_000..10_000);
            self.at(at, Act::Down { side: SOURCE, channel: number });
            return;
        }
        // The sink notices the end of the connection some time later.
        let at = self.now + self.rng.u64(200..3_000);
        self.at(at, Act::Down { side: SINK, channel: number });
        let is_silent = self.mutates(Mutation::LostNotResent);
        let results_first = self.rng.bool();
        for is_result in [results_first, !results_first] {
            if is_result {
                self.give_back(number, is_silent);
            } else if !is_silent {
                for source in self.sessions.iter_mut().filter_map(|run| run.source.as_mut()) {
                    source.channel_down(number);
                }
            }
        }
    }

    /// The source's transport returns its writes of a channel.
    fn give_back(&mut self, number: u16, is_silent: bool) {
        for index in 0..self.flights.len() {
            let flight = &mut self.flights[index];
            if flight.write.channel != number || !flight.is_pending {
                continue;
            }
            flight.is_pending = false;
            let has_left = flight.times.begin <= self.now + 200 || self.rng.bool();
            let result = match (is_silent, has_left) {
                (true, _) => WriteResult::Sent,
                (false, true) => WriteResult::Failed,
                (false, false) => WriteResult::NotSent,
            };
            flight.is_withdrawn = result == WriteResult::NotSent;
            self.written(index, result);
        }
    }

    fn written(&mut self, flight: usize, result: WriteResult) {
        let Flight { session, write, .. } = self.flights[flight];
        self.note(&format!("session {session} block {} is {result:?}", write.seq));
        let source = self.sessions[session].source.as_mut().expect("it writes");
        source.handle_written(write.block, result).expect("it has the block");
    }

    /// Returns the channel of a block in flight, if data still reaches the sink on it.
    fn gets_through(&self, flight: usize) -> bool {
        let Flight { write, is_withdrawn, .. } = &self.flights[flight];
        let channel = &self.channels[&write.channel];
        channel.is_open[SINK] && self.now <= channel.cut && !is_withdrawn
    }

    fn begin(&mut self, index: usize) -> Check {
        if !self.gets_through(index) {
            return Ok(());
        }
        let Flight { session, write, .. } = self.flights[index];
        let run = &mut self.sessions[session];
        let header = header(run.number, &write);
        let header = BlockHeader::parse(&header.emit()).map_err(|error| error.to_string())?;
        let sink = run.sink.as_mut().expect("a credit has come from it");
        match sink.begin_arrival(write.channel, &header) {
            Ok(()) => {
                run.buffers[write.credit.buffer as usize] = NOTHING;
                self.flights[index].is_arriving = true;
                Ok(())
            }
            Err(BlockRefused::Over) => Ok(()),
            Err(error) => Err(format!("the sink takes for a fault: {error}")),
        }
    }

    fn finish(&mut self, index: usize) -> Check {
        let gets_through = self.gets_through(index);
        let Flight { session, write, content, ref mut is_arriving, .. } = self.flights[index];
        if !std::mem::take(is_arriving) {
            return Ok(());
        }
        let run = &mut self.sessions[session];
        let sink = run.sink.as_mut().expect("it reads");
        let buffer = write.credit.buffer;
        if !gets_through {
            sink.abort_arrival(write.channel, buffer).expect("it is arriving");
            return Ok(());
        }
        sink.finish_arrival(write.channel, buffer)
            .map_err(|misuse| format!("a block reaches a buffer in another use: {misuse}"))?;
        run.buffers[buffer as usize] = content;
        run.arrived.insert(write.seq);
        self.note(&format!("session {session} block {} has arrived", write.seq));
        if self.mutates(Mutation::ArrivesTwice) {
            self.at(self.now + 1, Act::Begin { flight: index });
        }
        Ok(())
    }

    /// Writes a block into the sink's memory, which the sink does not see.
    fn place(&mut self, index: usize) -> Check {
        if !self.gets_through(index) {
            return Ok(());
        }
        let Flight { session, write, content, .. } = self.flights[index];
        self.flights[index].is_placed = true;
        let run = &mut self.sessions[session];
        let sink = run.sink.as_ref().expect("a credit has come from it");
        let buffer = write.credit.buffer;
        if sink.is_memory_free() || sink.state(buffer) != Some(SinkState::Granted) {
            let (seq, state) = (write.seq, sink.state(buffer));
            return Err(format!("block {seq} reaches buffer {buffer} in another use: {state:?}"));
        }
        run.buffers[buffer as usize] = content;
        run.arrived.insert(write.seq);
        self.note(&format!("session {session} block {} is placed", write.seq));
        Ok(())
    }

    fn done(&mut self, index: usize) {
        let flight = &self.flights[index];
        // A write into memory completes when the source gets its confirmation, which a lost write
        // never gets.
        let is_known = self.arrivals == Arrivals::Seen || flight.is_placed;
        let is_open = self.channels[&flight.write.channel].is_open[SOURCE];
        if flight.is_pending
            && is_open
            && (is_known || self.mutation == Some(Mutation::NoticedEarly))
        {
            self.flights[index].is_pending = false;
            self.written(index, WriteResult::Sent);
        }
    }

    /// Polls both ends of all sessions until none has work.
    fn pump(&mut self) -> Check {
        let now = Duration::from_micros(self.now);
        // An end may postpone its messages, so that a later message carries more.
        for side in [SOURCE, SINK] {
            self.is_slow[side] = self.rng.u8(..4) == 0;
            if self.is_slow[side] {
                let at = self.now + self.rng.u64(1..100);
                self.at(at, Act::Poll);
            }
        }
        loop {
            let mut is_progress = false;
            for side in [SOURCE, SINK] {
                while let Some(message) = self.ends[side].poll_control(now) {
                    if !matches!(message.body, Body::Ping(_) | Body::Pong(_)) {
                        self.send(1 - side, message);
                    }
                }
            }
            for session in 0..self.sessions.len() {
                is_progress |= self.pump_session(session)?;
                self.sessions[session].check()?;
            }
            if !is_progress {
                return Ok(());
            }
        }
    }

    fn pump_session(&mut self, session: usize) -> Result<bool, String> {
        let run = &mut self.sessions[session];
        let mut is_progress = run.exchange_records()?;
        run.finish();
        if !self.is_slow[SOURCE]
            && let Some(source) = &mut self.sessions[session].source
            && let Some(message) = source.poll_control()
        {
            let has_credit = source.credits() != 0;
            if matches!(message.body, Body::CreditRequest) && has_credit {
                return Err("a request in spite of credits".into());
            }
            self.send(SINK, message);
            is_progress = true;
        }
        let run = &mut self.sessions[session];
        while let Some(freed) = run.source.as_mut().and_then(|source| source.poll_free()) {
            run.check_freed(freed)?;
            is_progress = true;
        }
        if is_progress && !run.to_load.is_empty() {
            let at = self.now + run.plan.load;
            self.at(at, Act::Load { session });
        }
        while let Some(channel) =
            self.sessions[session].source.as_mut().and_then(|source| source.poll_close())
        {
            let at = self.now + self.rng.u64(..20);
            self.at(at, Act::Down { side: SOURCE, channel });
        }
        while let Some(write) =
            self.sessions[session].source.as_mut().and_then(|source| source.poll_write())
        {
            self.write(session, write)?;
            is_progress = true;
        }
        self.pump_sink(session).map(|is_more| is_progress | is_more)
    }

    fn pump_sink(&mut self, session: usize) -> Result<bool, String> {
        let mut is_progress = false;
        let run = &mut self.sessions[session];
        let Some(sink) = &mut run.sink else { return Ok(false) };
        if !self.is_slow[SINK]
            && let Some(message) = sink.poll_control()
        {
            self.send(SOURCE, message);
            is_progress = true;
        }
        let Some(sink) = &mut self.sessions[session].sink else { return Ok(false) };
        let mut ready: Vec<_> = std::iter::from_fn(|| sink.poll_ready()).collect();
        if ready.len() > 1 && self.mutates(Mutation::ReorderSkipped) {
            ready.reverse();
        }
        for ready in ready {
            is_progress = true;
            self.sessions[session].check_ready(ready)?;
            let drain = self.sessions[session].plan.drain;
            let at = self.now + if drain == 0 { 0 } else { self.rng.u64(..2 * drain) };
            if ready.seq != 3 || !self.mutates(Mutation::ReleaseDropped) {
                self.at(at, Act::Release { session, buffer: ready.buffer });
            }
        }
        let Some(sink) = &mut self.sessions[session].sink else { return Ok(false) };
        let closes: Vec<u16> = std::iter::from_fn(|| sink.poll_close()).collect();
        for channel in closes {
            if self.mutates(Mutation::FencedEarly)
                && let Some(sink) = &mut self.sessions[session].sink
            {
                sink.channel_down(channel);
            } else {
                let at = self.now + self.rng.u64(..100);
                self.at(at, Act::Down { side: SINK, channel });
            }
        }
        Ok(is_progress)
    }

    fn write(&mut self, session: usize, mut write: Write) -> Check {
        if let Some(used) = self.used
            && used.seq != write.seq
            && self.mutates(Mutation::CreditReused)
        {
            write.credit = used.credit;
        }
        self.used = Some(write);
        let is_mutated = self.mutation == Some(Mutation::CreditReused);
        if !is_mutated {
            self.sessions[session].check_write(&write)?;
        }
        let channel = self.channels.get_mut(&write.channel).expect("it has been up");
        if !channel.is_open[SOURCE] {
            return Err(format!("block {} is written on a closed channel", write.seq));
        }
        let is_seen = self.arrivals == Arrivals::Seen;
        let mut times = channel.times(&mut self.rng, self.now, write.len, is_seen);
        if !is_seen && self.mutates(Mutation::NoticedEarly) {
            times.done = self.now;
        }
        let mut content = self.sessions[session].blocks[write.block as usize];
        if write.seq % 5 == 4 && self.mutates(Mutation::FilledEarly) {
            content = NOTHING - 1;
        }
        let flight = self.flights.len();
        self.flights.push(Flight {
            session,
            write,
            content,
            times,
            is_pending: true,
            is_arriving: false,
            is_withdrawn: false,
            is_placed: false,
        });
        self.note(&format!("session {session}: {write:?}"));
        if is_seen {
            self.at(times.begin, Act::Begin { flight });
            self.at(times.finish, Act::Finish { flight });
        } else {
            self.at(times.finish, Act::Placed { flight });
        }
        self.at(times.done, Act::Done { flight });
        Ok(())
    }

    /// Sends a message to an end.
    fn send(&mut self, side: usize, mut message: Message) {
        match &mut message.body {
            Body::CreditRequest => {
                self.is_request_open = true;
                if self.mutates(Mutation::RequestDropped) {
                    return;
                }
            }
            Body::Credits(credits)
                if !credits.credits.is_empty()
                    && std::mem::take(&mut self.is_request_open)
                    && self.mutation == Some(Mutation::GrantDropped) =>
            {
                self.mutated += 1;
                credits.credits.clear();
            }
            Body::Credits(credits)
                if self.mutation == Some(Mutation::AcknowledgedEarly)
                    && credits.ranges.is_empty()
                    && credits.cumulative != 0 =>
            {
                self.mutated += 1;
                credits.cumulative += 1;
            }
            Body::ChannelLost(_) if self.mutation == Some(Mutation::LostNotResent) => return,
            _ => {}
        }
        match &message.body {
            Body::Records(records) => self.note(&format!("to {side}: {} records", records.len())),
            _ => self.note(&format!("to {side}: {message:?}")),
        }
        let at = (self.now + self.rng.u64(1..=self.delay)).max(self.last_message[side]);
        self.last_message[side] = at;
        self.at(at, Act::Message { side, bytes: message.emit() });
    }
}
