//! A simulation of a group whose Raft is the worst that Raft may be: any server may take itself for
//! the leader, several at a time; proposals are agreed on late, in any order, or never; entries
//! arrive late; servers are killed, and get snapshots. Clients put, take and read, and repeat what
//! was not answered. Nothing that was answered is lost or there twice, no read is stale, and all
//! servers have the same state at last.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use openraft::{CommittedLeaderId, Entry, EntryPayload, LogId};
use tokio::sync::oneshot;
use weft_testing::seeds;
use weft_tuples::log::{Files, LogFile, encode};
use weft_tuples::model::{
    Called, ClientId, Count, Criteria, Effect, ElementEnd, Name, Now, Operation, Outcome,
    Request as Asked, Selection, Service, Ticket, Tuple, Wait,
};
use weft_tuples::server::Standing;

use crate::machine::{Message, Question, SnapshotMeta};
use crate::member::{Member, Request};
use crate::proposal::{Part, ProposalId, Types};
use crate::store::LogStore;

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 300;
const STEPS: u32 = 1_500;
const CLIENTS: usize = 4;
const NOW: Now = Now { clock: Duration::from_secs(1), ms: 1 };
const MEMORY: usize = 1 << 20;

/// A file in memory. What is written is on disk at once: another simulation is about losses of
/// power.
#[derive(Clone, Debug, Default)]
struct Memory(Rc<RefCell<Vec<u8>>>);

impl LogFile for Memory {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.0.borrow();
        let found = content.get(offset as usize..).and_then(|rest| rest.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (mut content, end) = (self.0.borrow_mut(), offset as usize + bytes.len());
        let len = content.len().max(end);
        content.resize(len, 0);
        content[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.borrow_mut().truncate(len as usize);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A directory in memory: its file, and the one that is to follow.
#[derive(Clone, Debug, Default)]
struct Folder(Rc<RefCell<[Option<Memory>; 2]>>);

impl Files for Folder {
    fn name(&self) -> String {
        "file".into()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        Ok(self.0.borrow()[0].clone().map(|file| Box::new(file) as Box<dyn LogFile>))
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        let file = Memory::default();
        self.0.borrow_mut()[1] = Some(file.clone());
        Ok(Box::new(file))
    }

    fn install(&mut self) -> io::Result<()> {
        let mut files = self.0.borrow_mut();
        files[0] = files[1].take();
        Ok(())
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        Ok([7; 8])
    }
}

/// Who has sent an operation: the client, its connection, and the number of the operation.
type Sender = (usize, u64, u64);

/// A server.
struct Host {
    folder: Folder,
    member: Member,
    service: Service,
    log: LogStore,
    /// Messages that have not arrived.
    messages: VecDeque<Message>,
    /// How many entries have been sent to it.
    seen: usize,
    /// The loop waits for an answer.
    is_waiting: bool,
    leads: bool,
    /// Outcomes that nobody may learn of yet.
    held: Vec<(Sender, Outcome)>,
    tickets: BTreeMap<Ticket, Sender>,
}

impl Host {
    fn start(folder: Folder, process: u64) -> Self {
        let (log, mut service) = (LogStore::in_memory(), Service::default());
        let files = Box::new(folder.clone());
        let member = Member::open(files, log.clone(), (process, MEMORY), &mut service).unwrap();
        let applied = member.snapshot().and_then(|meta| meta.last_log_id);
        Self {
            folder,
            member,
            service,
            log,
            messages: VecDeque::new(),
            seen: applied.map_or(0, |id| id.index as usize),
            is_waiting: false,
            leads: false,
            held: Vec::new(),
            tickets: BTreeMap::new(),
        }
    }
}

/// A client, which does one operation after the other.
struct Client {
    id: ClientId,
    /// The server to which it is connected.
    at: Option<usize>,
    /// The number of the connection.
    connection: u64,
    has_entered: bool,
    /// The operation was sent over this connection.
    is_sent: bool,
    number: u64,
    operation: Option<Operation>,
    /// The values that had been put into the element that is read, when the operation began.
    before: BTreeSet<u64>,
}

/// A proposal that is neither agreed on nor given up.
struct Open {
    parts: VecDeque<Part>,
    id: ProposalId,
    by: usize,
}

struct World {
    rng: Rng,
    hosts: Vec<Host>,
    processes: u64,
    clients: Vec<Client>,
    /// What is agreed on, from entry 1 on.
    log: Vec<Entry<Types>>,
    open: Vec<Open>,
    values: u64,
    put: BTreeSet<u64>,
    taken: BTreeSet<u64>,
    kept: BTreeSet<u64>,
    answers: u64,
    /// What has happened, which a failure prints.
    events: Vec<String>,
    failure: Option<String>,
}

fn name(element: &str) -> Name {
    Rc::from(element.as_bytes())
}

fn value_of(fields: &[Vec<u8>]) -> u64 {
    std::str::from_utf8(&fields[0]).unwrap().parse().unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let host = |process| Host::start(Folder::default(), process);
        let client = |at: usize| Client {
            id: [at as u8 + 1; 16],
            at: None,
            connection: 0,
            has_entered: false,
            is_sent: false,
            number: 0,
            operation: None,
            before: BTreeSet::new(),
        };
        Self {
            rng: Rng::with_seed(seed),
            hosts: (1..=3).map(host).collect(),
            processes: 3,
            clients: (0..CLIENTS).map(client).collect(),
            log: Vec::new(),
            open: Vec::new(),
            values: 0,
            put: BTreeSet::new(),
            taken: BTreeSet::new(),
            kept: BTreeSet::new(),
            answers: 0,
            events: Vec::new(),
            failure: None,
        }
    }

    fn fail(&mut self, text: String) {
        let events = self.events.join("\n");
        self.failure.get_or_insert_with(|| format!("{text}\n{events}"));
    }

    fn note(&mut self, event: String) {
        self.events.push(event);
    }

    fn run(mut self) -> Option<String> {
        for _ in 0..STEPS {
            self.step();
            if self.failure.is_some() {
                return self.failure;
            }
        }
        self.end();
        self.failure
    }

    fn step(&mut self) {
        let at = self.rng.usize(..self.hosts.len());
        match self.rng.u8(..32) {
            0..8 => self.turn(at),
            8..14 => (0..self.rng.u8(1..6)).for_each(|_| self.deliver(at)),
            14..18 => self.tell(at),
            18..22 => self.agree(),
            22..25 => self.connect(),
            25 => self.give_up(),
            26 if self.rng.bool() => {
                let leads = self.rng.bool();
                self.stand(at, leads);
            }
            27 if self.rng.bool() => {
                let leader = self.rng.usize(..self.hosts.len());
                (0..self.hosts.len()).for_each(|at| self.stand(at, at == leader));
            }
            28 if self.rng.u8(..4) == 0 => self.kill(at),
            26..29 => {}
            29 => self.hosts[at].messages.push_back(Message::Build(oneshot::channel().0)),
            30 => self.copy(at),
            _ => self.disconnect(),
        }
    }

    fn stand(&mut self, at: usize, leads: bool) {
        let standing = if leads { Standing::Leads } else { Standing::Follows(None) };
        self.hosts[at].messages.push_back(Message::Standing(standing));
    }

    /// Tells a server of entries that are agreed on.
    fn tell(&mut self, at: usize) {
        let count = self.rng.usize(..4);
        self.tell_up_to(at, self.hosts[at].seen + count);
    }

    fn tell_up_to(&mut self, at: usize, end: usize) {
        let host = &mut self.hosts[at];
        while host.seen < end.min(self.log.len()) {
            let entry = self.log[host.seen].clone();
            host.seen += 1;
            host.log.add(entry.clone());
            let EntryPayload::Normal(part) = entry.payload else { continue };
            let (id, membership) = (entry.log_id, None);
            host.messages.push_back(Message::Entry { id, membership, part: Some(part) });
        }
    }

    /// Agrees on the next part of a proposal. Those of several may be mixed.
    fn agree(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.open.len());
        if let Some(part) = self.open[at].parts.pop_front() {
            let leader = CommittedLeaderId::new(1, 0);
            let log_id = LogId::new(leader, self.log.len() as u64 + 1);
            self.log.push(Entry { log_id, payload: EntryPayload::Normal(part) });
        }
        if self.open[at].parts.is_empty() {
            self.open.remove(at);
        }
    }

    /// Tells the proposer that the time for a proposal is over. It may be agreed on later.
    fn give_up(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.open.len());
        let (id, by) = (self.open[at].id, self.open[at].by);
        self.hosts[by].messages.push_back(Message::Lost(Question::Proposal(id)));
        if self.rng.bool() {
            self.open.remove(at);
        }
    }

    fn deliver(&mut self, at: usize) {
        let Some(message) = self.hosts[at].messages.pop_front() else { return };
        self.note(format!("{at} receives {message:?}"));
        let host = &mut self.hosts[at];
        let was_waiting = host.is_waiting;
        match host.member.receive(message, &mut host.service) {
            Err(error) => self.fail(format!("server {at}: {error}")),
            Ok(None) => {}
            Ok(Some(_)) if !was_waiting => self.fail("an answer without a question".into()),
            Ok(Some(true)) => {
                host.is_waiting = false;
                self.answer_all(at);
            }
            Ok(Some(false)) => {
                host.is_waiting = false;
                self.drop_clients(at);
            }
        }
    }

    fn drop_clients(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        host.held.clear();
        host.tickets.clear();
        host.leads = false;
        for client in self.clients.iter_mut().filter(|client| client.at == Some(at)) {
            (client.at, client.has_entered, client.is_sent) = (None, false, false);
        }
    }

    /// A turn of the event loop.
    fn turn(&mut self, at: usize) {
        let host = &mut self.hosts[at];
        if host.is_waiting {
            return;
        }
        match host.member.stand(&mut host.service) {
            Err(error) => return self.fail(format!("server {at}: {error}")),
            Ok(Standing::Follows(_)) => return self.drop_clients(at),
            Ok(Standing::Leads) if !host.leads => {
                host.leads = true;
                host.service.arrive(NOW);
            }
            Ok(Standing::Leads) => {}
        }
        for number in 0..CLIENTS {
            if self.clients[number].at == Some(at) && !self.clients[number].is_sent {
                self.call(at, number);
            }
        }
        let host = &mut self.hosts[at];
        while let Some((ticket, outcome)) = host.service.poll() {
            if let Some(sender) = host.tickets.remove(&ticket) {
                host.held.push((sender, outcome));
            }
        }
        let is_answering = !host.held.is_empty();
        match host.member.commit(&mut host.service, is_answering) {
            None => self.answer_all(at),
            Some(Request::Propose(parts, id)) => {
                host.is_waiting = true;
                let parts = self.cut(parts);
                self.open.push(Open { parts, id, by: at });
            }
            Some(Request::Confirm(number)) => {
                host.is_waiting = true;
                // Raft may fail to confirm. If it confirms, it has passed on all that is agreed on.
                if self.rng.u8(..4) == 0 {
                    let lost = Message::Lost(Question::Leadership(number));
                    self.hosts[at].messages.push_back(lost);
                } else {
                    self.tell_up_to(at, usize::MAX);
                    self.hosts[at].messages.push_back(Message::Confirmed(number));
                }
            }
            Some(Request::Shorten) => self.fail("a member shortens its log by itself".into()),
        }
    }

    /// Cuts the only part of a short proposal in two, at times.
    fn cut(&mut self, parts: Vec<Part>) -> VecDeque<Part> {
        let mut parts = VecDeque::from(parts);
        if parts.len() == 1 && self.rng.bool() {
            let mut rest = parts[0].clone();
            parts[0].effects = rest.effects.split_to(self.rng.usize(..=rest.effects.len()));
            parts[0].is_last = false;
            rest.at = 1;
            parts.push_back(rest);
        }
        parts
    }

    fn call(&mut self, at: usize, number: usize) {
        let (host, client) = (&mut self.hosts[at], &mut self.clients[number]);
        if !client.has_entered {
            // It may be behind. Nobody learns of a refusal before all that is agreed on is known.
            if let Err(refusal) = host.service.enter(NOW, client.id, client.number > 1) {
                client.is_sent = true;
                let sender = (number, client.connection, client.number);
                return host.held.push((sender, Outcome::Refused(refusal)));
            }
            client.has_entered = true;
        }
        let Some(operation) = client.operation.clone() else { return };
        client.is_sent = true;
        let wait = if self.rng.u8(..4) == 0 { Wait::No } else { Wait::Forever };
        let (confirmed, count) = (client.number - 1, client.number);
        let sender = (number, client.connection, count);
        let request = Asked { number: count, confirmed, operation, wait };
        match host.service.call(NOW, client.id, request) {
            Called::Done(outcome) => host.held.push((sender, outcome)),
            Called::Waits(ticket) => drop(host.tickets.insert(ticket, sender)),
        }
    }

    fn answer_all(&mut self, at: usize) {
        for (sender, outcome) in std::mem::take(&mut self.hosts[at].held) {
            self.answer(at, sender, outcome);
        }
    }

    fn answer(&mut self, at: usize, (number, connection, count): Sender, outcome: Outcome) {
        let client = &mut self.clients[number];
        if client.at.is_none() || (client.connection, client.number) != (connection, count) {
            return;
        }
        client.is_sent = false;
        let Some(operation) = client.operation.take() else { return };
        let before = std::mem::take(&mut client.before);
        self.answers += 1;
        self.note(format!("{at} answers {number}, operation {count}: {operation:?}: {outcome:?}"));
        match (operation, outcome) {
            (Operation::Put { element, tuples, .. }, Outcome::Put(..)) => {
                let values = tuples.iter().map(|tuple| value_of(&tuple.fields));
                let all = if *element == *b"kept" { &mut self.kept } else { &mut self.put };
                all.extend(values);
            }
            (Operation::Take { .. }, Outcome::Taken(_, items)) => {
                for item in items {
                    let value = value_of(&item.fields);
                    if !self.taken.insert(value) {
                        self.fail(format!("{value} is taken twice"));
                    }
                }
            }
            (Operation::Read { .. }, Outcome::Read(items)) => {
                let read: BTreeSet<u64> = items.iter().map(|it| value_of(&it.fields)).collect();
                if read.len() != items.len() {
                    self.fail("a value is there twice".into());
                }
                if let Some(value) = before.difference(&read).next() {
                    self.fail(format!("{value} was put, and is not read"));
                }
            }
            (Operation::Take { .. }, Outcome::Nothing | Outcome::Cancelled) => {}
            (operation, outcome) => self.fail(format!("{operation:?}: {outcome:?}")),
        }
    }

    /// Lets a client begin an operation, or connect to a server.
    fn connect(&mut self) {
        let number = self.rng.usize(..CLIENTS);
        if self.clients[number].operation.is_none() {
            let operation = self.operation();
            let client = &mut self.clients[number];
            client.number += 1;
            client.operation = Some(operation);
            client.before.clone_from(&self.kept);
        }
        let mut at = self.rng.usize(..self.hosts.len());
        if self.rng.bool() {
            at = self.hosts.iter().position(|host| host.leads).unwrap_or(at);
        }
        let client = &mut self.clients[number];
        if client.at.is_none() {
            client.connection += 1;
            client.at = Some(at);
        }
    }

    fn operation(&mut self) -> Operation {
        let kind = self.rng.u8(..8);
        if kind >= 6 {
            let selection = Selection::Places(0, -1);
            return Operation::Read { element: name("kept"), selection, count: u32::MAX };
        }
        if kind >= 3 {
            let (elements, end) = (vec![name("queue")], ElementEnd::Front);
            // When one that waits for three is cancelled, others behind it are served at once.
            let count = if self.rng.bool() { Count::AtMost(2) } else { Count::Exactly(3) };
            return Operation::Take { elements, end, count };
        }
        self.values += 1;
        Operation::Put {
            element: name(if kind == 0 { "kept" } else { "queue" }),
            criteria: Criteria::default(),
            end: ElementEnd::Back,
            tuples: vec![Tuple::of(self.values.to_string())],
            is_append: false,
        }
    }

    /// Ends the connection of a client, which its server notices.
    fn disconnect(&mut self) {
        let number = self.rng.usize(..CLIENTS);
        let client = &mut self.clients[number];
        let Some(at) = client.at.take() else { return };
        let was_there = std::mem::take(&mut client.has_entered);
        client.is_sent = false;
        let host = &mut self.hosts[at];
        // While the loop waits, it notices nothing.
        if was_there && !host.is_waiting {
            host.service.leave(NOW, client.id);
            // A snapshot may be wanted before the next turn.
            if host.service.effects_len() != 0 && host.messages.is_empty() {
                host.messages.push_back(Message::Build(oneshot::channel().0));
                self.deliver(at);
            }
        }
    }

    fn kill(&mut self, at: usize) {
        self.note(format!("{at} is killed"));
        self.drop_clients(at);
        self.processes += 1;
        self.hosts[at] = Host::start(self.hosts[at].folder.clone(), self.processes);
        // The log is on disk. Entries that are not agreed on are another matter.
        let seen = self.hosts[at].seen;
        assert!(seen <= self.log.len());
    }

    /// Sends the snapshot of a server to one that lacks entries.
    fn copy(&mut self, from: usize) {
        let to = self.rng.usize(..self.hosts.len());
        let (reply, mut answer) = oneshot::channel();
        let host = &mut self.hosts[from];
        if let Err(error) = host.member.receive(Message::Read(reply), &mut host.service) {
            return self.fail(format!("server {from}: {error}"));
        }
        let Ok(Ok(Some((meta, bytes)))) = answer.try_recv() else { return };
        let index = index_of(&meta);
        let host = &mut self.hosts[to];
        if from != to && index > host.seen {
            host.seen = index;
            host.messages.push_back(Message::Install(meta, bytes, oneshot::channel().0));
        }
    }

    /// Lets all end well, and compares the servers.
    fn end(&mut self) {
        let count = self.hosts.len();
        for round in 0.. {
            (0..count).for_each(|at| self.stand(at, at == 0));
            for client in &mut self.clients {
                if client.at.is_none() && client.operation.is_some() {
                    client.connection += 1;
                    client.at = Some(0);
                }
            }
            while !self.open.is_empty() {
                self.agree();
            }
            for at in 0..count {
                self.tell_up_to(at, usize::MAX);
                while !self.hosts[at].messages.is_empty() && self.failure.is_none() {
                    self.deliver(at);
                }
                self.turn(at);
            }
            // A take of nothing waits for ever.
            for number in 0..CLIENTS {
                let client = &self.clients[number];
                if client.at == Some(0) && client.is_sent && !self.hosts[0].is_waiting {
                    self.hosts[0].service.cancel(NOW, client.id, client.number);
                }
            }
            let is_over = self.clients.iter().all(|client| client.operation.is_none());
            let are_idle = self.hosts.iter().all(|it| it.messages.is_empty() && !it.is_waiting);
            if self.failure.is_some() || is_over && are_idle && self.open.is_empty() {
                break;
            }
            if round > 1_000 {
                return self.fail("clients are not answered".into());
            }
        }
        self.compare();
    }

    fn compare(&mut self) {
        let mut states = Vec::new();
        for host in &mut self.hosts {
            let mut bytes = Vec::new();
            let all: Result<(), ()> = host.service.snapshot(|effect| {
                // A leader drops answers that a read has confirmed, and tells nobody.
                if !matches!(effect, Effect::Entered { .. } | Effect::Answered { .. }) {
                    encode(&mut bytes, &effect);
                }
                Ok(())
            });
            all.unwrap();
            states.push(bytes);
        }
        if states.iter().any(|state| *state != states[0]) {
            self.fail("servers have different states".into());
        }
        for (element, expected) in [("queue", self.put.clone()), ("kept", self.kept.clone())] {
            let read = |fields: &weft_tuples::model::Fields| value_of(fields);
            let name = name(element);
            let left: Vec<u64> =
                self.hosts[0].service.space().tuples(&name).map(|(_, it)| read(it)).collect();
            let all: BTreeSet<u64> = left.iter().copied().collect();
            if all.len() != left.len() {
                self.fail(format!("{element} has a value twice"));
            }
            if let Some(value) = all.intersection(&self.taken).next() {
                self.fail(format!("{value} was taken, and is still there"));
            }
            let lost = expected.iter().find(|it| !all.contains(it) && !self.taken.contains(it));
            if let Some(value) = lost {
                self.fail(format!("{value} was put, and is lost"));
            }
        }
        if self.answers == 0 && self.failure.is_none() {
            self.fail("nothing was answered".into());
        }
    }
}

fn index_of(meta: &SnapshotMeta) -> usize {
    meta.last_log_id.map_or(0, |id| id.index as usize)
}

#[test]
fn seeds() {
    seeds::run(SEEDS, |seed| World::new(seed).run());
}
