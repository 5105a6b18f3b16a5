//! What is acknowledged outlives a loss of power, and damage differs from a torn end.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use fastrand::Rng;
use proptest::prelude::*;
use weft_testing::seeds;

use super::record::{FileHeader, RecordHeader};
use super::*;
use crate::model::{
    Called, ClientId, Count, Criteria, Effect, ElementEnd, Name, Now, Operation, Order, Outcome,
    Rank, Request, Selection, Service, Stamp, Sync, Tuple, Wait,
};

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 100;

/// A file: the kernel has `bytes`, and the disk has `synced`.
#[derive(Clone, Debug, Default)]
struct Content {
    bytes: Vec<u8>,
    synced: Vec<u8>,
}

/// A directory. A loss of power takes what was not synced.
#[derive(Debug, Default)]
struct Disk {
    /// The file of the log, and the one that is to follow.
    files: [Option<Rc<RefCell<Content>>>; 2],
    salts: u8,
    /// How many more calls the disk does before it fails.
    left: Option<u32>,
    /// Calls that have written or synced.
    calls: u32,
}

#[derive(Clone, Debug, Default)]
struct Directory(Rc<RefCell<Disk>>);

#[derive(Debug)]
struct File {
    disk: Directory,
    content: Rc<RefCell<Content>>,
}

impl Directory {
    fn with(bytes: &[u8]) -> Self {
        let this = Self::default();
        let content = Content { bytes: bytes.to_vec(), synced: bytes.to_vec() };
        this.0.borrow_mut().files[0] = Some(Rc::new(RefCell::new(content)));
        this
    }

    fn work(&self) -> io::Result<()> {
        let mut disk = self.0.borrow_mut();
        disk.calls += 1;
        match &mut disk.left {
            Some(0) => Err(io::ErrorKind::StorageFull.into()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn log(&self) -> Rc<RefCell<Content>> {
        Rc::clone(self.0.borrow().files[0].as_ref().unwrap())
    }

    /// Cuts the power. Of what was not synced, each block may be on disk or not.
    fn lose_power(&self, rng: &mut Rng) {
        let mut disk = self.0.borrow_mut();
        disk.left = None;
        for file in disk.files.iter_mut().flatten() {
            let Content { bytes, synced } = file.borrow().clone();
            let len = rng.usize(synced.len().min(bytes.len())..=bytes.len().max(synced.len()));
            let mut after = synced;
            after.resize(len, 0);
            for at in (0..len.min(bytes.len())).step_by(7) {
                if rng.bool() {
                    let end = (at + 7).min(len).min(bytes.len());
                    after[at..end].copy_from_slice(&bytes[at..end]);
                }
            }
            *file = Rc::new(RefCell::new(Content { bytes: after.clone(), synced: after }));
        }
    }

    fn open(&self) -> Result<(Log, Service), LogError> {
        let mut service = Service::default();
        Ok((Log::open(Box::new(self.clone()), &mut service)?, service))
    }
}

impl Files for Directory {
    fn name(&self) -> String {
        "file".into()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        let content = self.0.borrow().files[0].clone();
        let file = |content| Box::new(File { disk: self.clone(), content }) as Box<dyn LogFile>;
        Ok(content.map(file))
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        self.work()?;
        let content = Rc::new(RefCell::new(Content::default()));
        self.0.borrow_mut().files[1] = Some(Rc::clone(&content));
        Ok(Box::new(File { disk: self.clone(), content }))
    }

    fn install(&mut self) -> io::Result<()> {
        self.work()?;
        let mut disk = self.0.borrow_mut();
        assert!(disk.files[1].is_some());
        disk.files[0] = disk.files[1].take();
        Ok(())
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        let mut disk = self.0.borrow_mut();
        disk.salts += 1;
        Ok([0xa0, 1, 2, 3, 4, 5, 6, disk.salts])
    }
}

impl LogFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.content.borrow().bytes.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let content = self.content.borrow();
        let found = content.bytes.get(offset as usize..).and_then(|it| it.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let worked = self.disk.work();
        // A disk that gets full takes a part.
        let bytes = if worked.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let mut content = self.content.borrow_mut();
        let end = offset as usize + bytes.len();
        if content.bytes.len() < end {
            content.bytes.resize(end, 0);
        }
        content.bytes[offset as usize..end].copy_from_slice(bytes);
        worked
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.disk.work()?;
        self.content.borrow_mut().bytes.resize(len as usize, 0);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.disk.work()?;
        let mut content = self.content.borrow_mut();
        content.synced = content.bytes.clone();
        Ok(())
    }
}

fn now(ms: u64) -> Now {
    Now { clock: Duration::from_millis(ms), ms: 1_000 + ms }
}

fn name(text: &str) -> Name {
    Rc::from(text.as_bytes())
}

fn put(element: &str, values: &[&str]) -> Operation {
    Operation::Put {
        element: name(element),
        criteria: Criteria::default(),
        end: ElementEnd::Back,
        tuples: values.iter().map(|value| Tuple::of(*value)).collect(),
        is_append: false,
    }
}

fn take(element: &str) -> Operation {
    Operation::Take {
        elements: vec![name(element)],
        end: ElementEnd::Front,
        count: Count::AtMost(1),
    }
}

fn state(service: &Service) -> Vec<Effect> {
    let mut effects = Vec::new();
    let all: Result<(), ()> = service.snapshot(|effect| {
        effects.push(effect);
        Ok(())
    });
    all.unwrap();
    effects
}

/// The state without the answers that their clients have, and without which they are. A read
/// confirms answers, too, but leaves nothing in the log.
fn essence(state: &[Effect], confirmed_in: &[Effect]) -> Vec<Effect> {
    let confirmed_of = |id: &ClientId| {
        confirmed_in.iter().find_map(|effect| match effect {
            Effect::Entered { client, confirmed } if client == id => Some(*confirmed),
            _ => None,
        })
    };
    let mut essence = Vec::new();
    for effect in state {
        match effect.clone() {
            Effect::Entered { client, .. } => {
                essence.push(Effect::Entered { client, confirmed: 0 });
            }
            Effect::Answered { client, number, outcome, .. } => {
                if confirmed_of(&client).is_some_and(|confirmed| number > confirmed) {
                    essence.push(Effect::Answered { client, confirmed: 0, number, outcome });
                }
            }
            effect => essence.push(effect),
        }
    }
    essence
}

/// Clients that do random operations.
struct Clients {
    rng: Rng,
    /// The last number of each.
    numbers: [u64; 3],
    values: u32,
    ms: u64,
}

impl Clients {
    fn new(seed: u64) -> Self {
        Self { rng: Rng::with_seed(seed), numbers: [0; 3], values: 0, ms: 0 }
    }

    fn element(&mut self) -> Name {
        name(["a", "b", "c", "d"][self.rng.usize(..4)])
    }

    fn end(&mut self) -> ElementEnd {
        if self.rng.u8(..4) == 0 { ElementEnd::Front } else { ElementEnd::Back }
    }

    fn operation(&mut self) -> Operation {
        let bound = self.rng.u32(1..=4);
        match self.rng.u8(..20) {
            0 => Operation::Delete { element: self.element() },
            1..3 => {
                let order = [Order::Arrival, Order::Key, Order::Time][self.rng.usize(..3)];
                let all = [Sync::Unbounded, Sync::Bound(bound), Sync::Unread(bound)];
                let criteria = Criteria { order, sync: all[self.rng.usize(..3)] };
                Operation::Create { element: self.element(), criteria }
            }
            3..6 => {
                let element = self.element();
                Operation::Observe { elements: vec![(element, None)], count: Count::AtMost(bound) }
            }
            6..10 => {
                let elements = vec![self.element(), self.element()];
                Operation::Take { elements, end: self.end(), count: Count::AtMost(bound) }
            }
            10..12 => Operation::Transfer {
                from: (self.element(), self.end()),
                to: (self.element(), self.end()),
            },
            12 => Operation::Read {
                element: self.element(),
                selection: Selection::Places(0, -1),
                count: 5,
            },
            _ => {
                let element = self.element();
                let tuple = |values: &mut u32| {
                    *values += 1;
                    Tuple::of(values.to_string())
                };
                let tuples = (0..bound).map(|_| tuple(&mut self.values)).collect();
                let (criteria, end) = (Criteria::default(), self.end());
                Operation::Put { element, criteria, end, tuples, is_append: false }
            }
        }
    }

    /// Changes an element in the middle.
    fn edit(&mut self, now: Now, service: &mut Service) {
        let element = self.element();
        let ranks: Vec<Rank> = service.space().tuples(&element).map(|it| it.0.clone()).collect();
        let Some(rank) = self.rng.choice(&ranks).cloned() else { return };
        self.values += 1;
        let fields = Tuple::of(self.values.to_string()).fields;
        match self.rng.u8(..4) {
            0 => {
                service.space().remove(now, &element, &[rank]);
            }
            1 => {
                service.space().trim(now, &element, self.end(), self.rng.usize(..3));
            }
            2 => {
                service.space().replace(&element, &rank, fields).unwrap();
            }
            // It may be full or have another order.
            _ => drop(service.space().insert_before(now, &element, &rank, fields)),
        }
    }

    /// Does one thing.
    fn step(&mut self, service: &mut Service) {
        self.ms += self.rng.u64(..4);
        let (at, now) = (self.rng.usize(..3), now(self.ms));
        let id = [at as u8; 16];
        let (operation, kind) = (self.operation(), self.rng.u8(..20));
        match kind {
            0 => {
                service.part(now, id);
                self.numbers[at] = 0;
            }
            1 => service.leave(now, id),
            2 => self.edit(now, service),
            3..8 => {
                service.space().call(now, operation, Wait::No);
            }
            _ => {
                // It may be there already.
                service.enter(now, id, false).unwrap();
                self.numbers[at] += 1;
                let number = self.numbers[at];
                let confirmed = number.saturating_sub(self.rng.u64(1..4));
                let wait = if self.rng.bool() {
                    Wait::Forever
                } else {
                    Wait::Until(now.clock + Duration::from_millis(5))
                };
                service.call(now, id, Request { number, confirmed, operation, wait });
            }
        }
        service.space().expire(now);
        if self.rng.bool() {
            while service.poll().is_some() {}
        }
    }
}

/// Whatever a loss of power leaves of what was not synced, all that a commit has returned for is
/// there, and the rest of the last commit is there as a whole or not at all.
#[test]
fn committed_operations_outlive_a_loss_of_power() {
    seeds::run(SEEDS, |seed| {
        let mut clients = Clients::new(seed);
        let disk = Directory::default();
        let (mut log, mut service) = disk.open().unwrap();
        for round in 0..12 {
            log = log.with_len_max(clients.rng.u64(200..5_000));
            let mut committed = state(&service);
            let mut next = None;
            for _ in 0..clients.rng.usize(1..20) {
                for _ in 0..clients.rng.usize(1..6) {
                    clients.step(&mut service);
                }
                // The disk fails within one of the commits, or after it.
                if clients.rng.u8(..8) == 0 {
                    disk.0.borrow_mut().left = Some(clients.rng.u32(..6));
                }
                let has_effects = service.effects_len() != 0;
                let result = log.commit(&mut service);
                if has_effects && result.is_err() {
                    next = Some(state(&service));
                    let again = log.commit(&mut service);
                    if !matches!(again, Err(LogError::Failed(_))) {
                        return Some(format!("round {round}: the log goes on after an error"));
                    }
                    break;
                }
                committed = state(&service);
            }
            disk.lose_power(&mut clients.rng);
            let (found_log, found) = match disk.open() {
                Ok(opened) => opened,
                Err(error) => return Some(format!("round {round}: {error}")),
            };
            let found_state = state(&found);
            let is = |expected: &[Effect]| {
                essence(&found_state, expected) == essence(expected, expected)
            };
            if !is(&committed) && !next.as_ref().is_some_and(|next| is(next)) {
                return Some(format!(
                    "round {round}: {found_state:?} in place of {committed:?}, or {next:?}"
                ));
            }
            (log, service) = (found_log, found);
            // What clients have confirmed is what the log knows of it.
            for effect in &found_state {
                if let Effect::Entered { client, .. } = effect {
                    let number = &mut clients.numbers[usize::from(client[0])];
                    *number += 1;
                }
            }
        }
        None
    });
}

/// Where a record ends, and the state there.
type Place = (usize, Vec<Effect>);

/// A log with a snapshot and some records. Returns where its snapshot ends, and all places.
fn log_with_records() -> (Vec<u8>, usize, Vec<Place>) {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    log = log.with_len_max(100);
    service.space().call(now(0), put("a", &["1", "2", "3"]), Wait::No);
    service.enter(now(0), [7; 16], false).unwrap();
    log.commit(&mut service).unwrap();
    log = log.with_len_max(u64::MAX);
    let start = disk.log().borrow().bytes.len();
    let mut ends = vec![(start, state(&service))];
    for number in 1..6 {
        let operation = if number % 2 == 0 { put("b", &["x"]) } else { take("a") };
        let request = Request { number, confirmed: 0, operation, wait: Wait::No };
        assert!(matches!(service.call(now(number), [7; 16], request), Called::Done(_)));
        log.commit(&mut service).unwrap();
        ends.push((disk.log().borrow().bytes.len(), state(&service)));
    }
    (disk.log().borrow().bytes.clone(), start, ends)
}

#[test]
fn log_that_is_cut_anywhere_leads_to_its_last_whole_record() {
    let (bytes, start, ends) = log_with_records();
    for len in 0..=bytes.len() {
        let disk = Directory::with(&bytes[..len]);
        let opened = disk.open();
        if len < start {
            assert!(opened.is_err(), "the snapshot was on disk before: {len} bytes");
            continue;
        }
        let (mut log, mut service) = opened.unwrap();
        let (end, expected) = ends.iter().rev().find(|(end, _)| *end <= len).unwrap();
        assert_eq!(state(&service), *expected, "{len} bytes");
        let cut = Cut { offset: *end as u64, len: (len - end) as u64 };
        assert_eq!(log.cut(), (cut.len != 0).then_some(cut), "{len} bytes");
        // The log goes on there.
        service.space().call(now(9), put("c", &["new"]), Wait::No);
        log.commit(&mut service).unwrap();
        let (log, again) = disk.open().unwrap();
        assert_eq!((log.cut(), state(&again)), (None, state(&service)));
    }
}

#[test]
fn changed_byte_is_found_unless_it_is_of_the_last_record() {
    let (bytes, _, ends) = log_with_records();
    let last = ends[ends.len() - 2].0;
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 0x10;
        match Directory::with(&changed).open() {
            Ok((log, service)) => {
                assert!(at >= last, "byte {at} is changed");
                assert_eq!(state(&service), ends[ends.len() - 2].1);
                assert_eq!(log.cut().unwrap().offset, last as u64);
            }
            Err(LogError::Foreign(_)) => assert!(at < FileHeader::LEN, "byte {at}"),
            Err(LogError::Damaged { offset, .. }) => {
                assert!((FileHeader::LEN..last).contains(&at), "byte {at}");
                let offset = offset as usize;
                assert!(offset <= at, "byte {at} is damaged, not one behind {offset}");
                assert!(ends.iter().all(|(end, _)| *end <= offset || *end > at));
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
}

#[test]
fn lost_or_repeated_record_is_damage() {
    let (bytes, _, ends) = log_with_records();
    let (second, third) = (ends[1].0, ends[2].0);
    let lost = [&bytes[..second], &bytes[third..]].concat();
    let repeated = [&bytes[..third], &bytes[second..]].concat();
    for (bytes, at) in [(lost, second), (repeated, third)] {
        match Directory::with(&bytes).open() {
            Err(LogError::Damaged { offset, .. }) => assert_eq!(offset, at as u64),
            other => panic!("{other:?}"),
        }
    }
}

/// A tuple that holds a whole log does not look like records, even if the last record is torn.
#[test]
fn tuples_do_not_look_like_records() {
    let (other, ..) = log_with_records();
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    let mut tuples = vec![Tuple::of(other.clone())];
    let salt = [0xa0, 1, 2, 3, 4, 5, 6, 9];
    tuples.push(Tuple::of(RecordHeader::of(100, b"").encode(salt)));
    let Operation::Put { element, criteria, end, is_append, .. } = put("a", &[]) else { panic!() };
    let put = Operation::Put { element, criteria, end, tuples, is_append };
    let before = disk.log().borrow().bytes.len();
    service.space().call(now(0), put, Wait::No);
    log.commit(&mut service).unwrap();
    let bytes = disk.log().borrow().bytes.clone();
    let torn = Directory::with(&bytes[..bytes.len() - 1]);
    let (log, service) = torn.open().unwrap();
    assert_eq!(log.cut().unwrap().offset, before as u64);
    assert!(!state(&service).iter().any(|effect| matches!(effect, Effect::Inserted { .. })));
}

/// The kernel may have a record that it could not write, and it forgets that it could not.
#[test]
fn record_whose_sync_has_failed_is_written_again() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    service.space().call(now(0), put("a", &["1"]), Wait::No);
    disk.0.borrow_mut().left = Some(1);
    assert!(matches!(log.commit(&mut service), Err(LogError::Io { what: "write to disk", .. })));
    disk.0.borrow_mut().left = None;
    // The server is started again; the kernel goes on.
    let calls = disk.0.borrow().calls;
    let (_, found) = disk.open().unwrap();
    assert_eq!(state(&found), state(&service));
    // Written again, cut to its length, synced.
    assert_eq!(disk.0.borrow().calls - calls, 3);
    disk.lose_power(&mut Rng::with_seed(1));
    assert_eq!(state(&disk.open().unwrap().1), state(&service));
}

#[test]
fn operations_of_a_turn_are_one_write_and_reads_are_none() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    for _ in 0..100 {
        service.space().call(now(0), put("a", &["1"]), Wait::No);
    }
    let calls = disk.0.borrow().calls;
    log.commit(&mut service).unwrap();
    assert_eq!(disk.0.borrow().calls - calls, 2);
    service.enter(now(0), [1; 16], false).unwrap();
    log.commit(&mut service).unwrap();
    let calls = disk.0.borrow().calls;
    for number in 1..10 {
        let elements = vec![(name("a"), None)];
        let operation = Operation::Observe { elements, count: Count::AtMost(3) };
        let request = Request { number, confirmed: number - 1, operation, wait: Wait::No };
        service.call(now(0), [1; 16], request);
    }
    log.commit(&mut service).unwrap();
    assert_eq!(disk.0.borrow().calls, calls);
}

#[test]
fn a_repeated_operation_takes_effect_once_over_restarts() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    let id = [1; 16];
    let request =
        |number, operation| Request { number, confirmed: 0, operation, wait: Wait::Forever };
    service.enter(now(0), id, false).unwrap();
    let Called::Done(put_once) = service.call(now(0), id, request(1, put("a", &["1", "2"]))) else {
        panic!()
    };
    let Called::Done(taken) = service.call(now(0), id, request(2, take("a"))) else { panic!() };
    let Called::Waits(_) = service.call(now(0), id, request(3, take("b"))) else { panic!() };
    service.space().call(now(0), put("b", &["3"]), Wait::No);
    log.commit(&mut service).unwrap();
    for len_max in [u64::MAX, 0, u64::MAX] {
        let (log, mut service) = disk.open().unwrap();
        let mut log = log.with_len_max(len_max);
        service.enter(now(0), id, true).unwrap();
        let mut again =
            |number, operation| match service.call(now(0), id, request(number, operation)) {
                Called::Done(outcome) => outcome,
                Called::Waits(_) => panic!("{number} waits"),
            };
        assert_eq!(again(1, put("a", &["1", "2"])), put_once);
        assert_eq!(again(2, take("a")), taken);
        assert!(matches!(again(3, take("b")), Outcome::Taken(0, _)));
        service.space().call(now(1), put("c", &["4"]), Wait::No);
        log.commit(&mut service).unwrap();
    }
    let mut service = disk.open().unwrap().1;
    assert_eq!(service.enter(now(0), [2; 16], true), Err(crate::model::Refusal::Stale));
}

/// A server of an earlier version would refuse the answer of an observe.
#[test]
fn log_of_an_earlier_version_is_replaced_before_anything_is_added_and_a_later_one_is_refused() {
    let as_version = |bytes: &[u8], version| {
        let head: [u8; FileHeader::LEN] = bytes[..FileHeader::LEN].try_into().unwrap();
        let head = FileHeader { version, ..FileHeader::decode(&head).unwrap() };
        [&head.encode()[..], &bytes[FileHeader::LEN..]].concat()
    };
    let version = |disk: &Directory| disk.log().borrow().synced[11];
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    service.space().call(now(0), put("a", &["1"]), Wait::No);
    log.commit(&mut service).unwrap();
    let bytes = disk.log().borrow().synced.clone();
    assert_eq!(version(&disk), 2);
    let old = Directory::with(&as_version(&bytes, 1));
    let (mut log, mut service) = old.open().unwrap();
    log.commit(&mut service).unwrap();
    assert_eq!(version(&old), 1, "there was nothing to write");
    service.space().call(now(1), put("a", &["2"]), Wait::No);
    log.commit(&mut service).unwrap();
    assert_eq!(version(&old), 2);
    service.space().call(now(2), put("a", &["3"]), Wait::No);
    log.commit(&mut service).unwrap();
    assert_eq!(state(&old.open().unwrap().1), state(&service));
    // A journal does so when it is opened.
    let old = Directory::with(&as_version(&bytes, 1));
    let open = |disk: &Directory| {
        let mut records = Vec::new();
        let each = |record: &[u8]| {
            records.push(record.to_vec());
            Ok(())
        };
        Journal::open(Box::new(disk.clone()), each).unwrap();
        records
    };
    let records = open(&old);
    assert_eq!((version(&old), records.len()), (2, 2));
    assert_eq!(open(&old), records);
    let later = as_version(&bytes, 3);
    let disk = Directory::with(&later);
    let refused = disk.open().unwrap_err();
    assert!(matches!(refused, LogError::Version { version: 3, .. }), "{refused}");
    assert_eq!(disk.log().borrow().bytes, later);
}

#[test]
fn a_repeated_observe_gets_what_it_has_marked_as_read_over_restarts() {
    let (disk, id) = (Directory::default(), [1; 16]);
    let observe = || Request {
        number: 1,
        confirmed: 0,
        operation: Operation::Observe {
            elements: vec![(name("a"), None)],
            count: Count::AtMost(1),
        },
        wait: Wait::No,
    };
    let (mut log, mut service) = disk.open().unwrap();
    let criteria = Criteria { order: Order::Arrival, sync: Sync::Unread(1) };
    let create = Operation::Create { element: name("a"), criteria };
    service.space().call(now(0), create, Wait::No);
    service.space().call(now(0), put("a", &["1"]), Wait::No);
    service.enter(now(0), id, false).unwrap();
    let Called::Done(first) = service.call(now(0), id, observe()) else { panic!() };
    service.space().call(now(0), take("a"), Wait::No);
    service.space().call(now(0), put("a", &["2"]), Wait::No);
    log.commit(&mut service).unwrap();
    for len_max in [u64::MAX, 0, u64::MAX] {
        let (log, mut service) = disk.open().unwrap();
        let mut log = log.with_len_max(len_max);
        service.enter(now(0), id, true).unwrap();
        let Called::Done(again) = service.call(now(0), id, observe()) else { panic!() };
        assert_eq!(again, first);
        service.space().call(now(1), put("c", &["4"]), Wait::No);
        log.commit(&mut service).unwrap();
    }
}

/// Otherwise the take would get what the client has put later.
#[test]
fn take_that_got_nothing_is_not_done_again_after_a_later_put() {
    let id = [1; 16];
    let request = |number, operation| Request { number, confirmed: 0, operation, wait: Wait::No };
    for is_put in [true, false] {
        let disk = Directory::default();
        let (mut log, mut service) = disk.open().unwrap();
        service.enter(now(0), id, false).unwrap();
        let nothing = Called::Done(Outcome::Nothing);
        assert_eq!(service.call(now(0), id, request(1, take("a"))), nothing);
        if is_put {
            service.call(now(0), id, request(2, put("a", &["1"])));
        }
        log.commit(&mut service).unwrap();
        // The answer outlives snapshots, and is in the log once.
        for (number, len_max) in [(3, u64::MAX), (4, 0), (5, u64::MAX)] {
            let (log, mut service) = disk.open().unwrap();
            let mut log = log.with_len_max(len_max);
            service.enter(now(0), id, true).unwrap();
            let again = service.call(now(0), id, request(1, take("a")));
            assert_eq!(again, nothing);
            service.call(now(0), id, request(number, put("b", &["1"])));
            service.call(now(0), id, request(number + 10, take("c")));
            log.commit(&mut service).unwrap();
        }
    }
}

/// Nobody knows that it was called: a log without a change is not written.
#[test]
fn take_that_got_nothing_before_no_change_is_not_logged() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    let id = [1; 16];
    service.enter(now(0), id, false).unwrap();
    log.commit(&mut service).unwrap();
    let calls = disk.0.borrow().calls;
    let request =
        |number, confirmed, operation| Request { number, confirmed, operation, wait: Wait::No };
    for number in 1..600 {
        service.call(now(0), id, request(number, number - 1, take("a")));
        log.commit(&mut service).unwrap();
    }
    assert_eq!(disk.0.borrow().calls, calls);
    // The client has all answers but the last one.
    service.call(now(0), id, request(600, 598, put("a", &["1"])));
    let answered = service.take_effects().into_iter().filter_map(|effect| match effect {
        Effect::Answered { number, .. } => Some(number),
        _ => None,
    });
    assert_eq!(answered.collect::<Vec<_>>(), [599, 600]);
}

#[test]
fn positions_and_time_stamps_go_on_after_a_restart() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    let criteria = Criteria { order: Order::Time, sync: Sync::Unbounded };
    service.space().call(now(0), Operation::Create { element: name("t"), criteria }, Wait::No);
    let mut last = (i64::MIN, Stamp::default());
    for len_max in [u64::MAX, 0, 0, u64::MAX, 0] {
        for element in ["t", "a"] {
            let call = service.space().call(now(5), put(element, &["1"]), Wait::No);
            let Called::Done(Outcome::Put(rank, _)) = call else { panic!("{call:?}") };
            assert!(rank.position > last.0);
            last.0 = rank.position;
            if element == "t" {
                assert!(rank.stamp > last.1);
                last.1 = rank.stamp;
            }
            // The element is empty at the restart, and remembers.
            service.space().call(now(5), take(element), Wait::No);
        }
        log = log.with_len_max(len_max);
        log.commit(&mut service).unwrap();
        (log, service) = disk.open().unwrap();
    }
}

/// A client that confirms what it still waits for does not make the log useless.
#[test]
fn client_that_confirms_what_waits_leaves_a_log_that_can_be_read() {
    let disk = Directory::default();
    let (mut log, mut service) = disk.open().unwrap();
    let id = [1; 16];
    service.enter(now(0), id, false).unwrap();
    let request = |number, confirmed, operation| Request {
        number,
        confirmed,
        operation,
        wait: Wait::Forever,
    };
    service.call(now(0), id, request(3, 0, take("a")));
    service.call(now(0), id, request(9, 8, put("b", &["1"])));
    service.space().call(now(0), put("a", &["1"]), Wait::No);
    log.commit(&mut service).unwrap();
    service.leave(now(0), id);
    service.enter(now(0), id, true).unwrap();
    service.call(now(0), id, request(3, 0, take("b")));
    log.commit(&mut service).unwrap();
    disk.open().unwrap();
}

#[test]
fn directory_is_for_one_server_and_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let open = || {
        let mut service = Service::default();
        let log = Log::open(Box::new(super::Directory::open(&path)?), &mut service)?;
        Ok((log, service))
    };
    let (mut log, mut service) = open().unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, LogError::Locked(_)), "{error}");
    for number in 0..50 {
        log = log.with_len_max(if number % 7 == 0 { 0 } else { u64::MAX });
        service.space().call(now(0), put("a", &[&number.to_string()]), Wait::No);
        log.commit(&mut service).unwrap();
    }
    drop(log);
    // What a server has left that was killed while it wrote a snapshot.
    std::fs::write(path.join("log.new"), b"half").unwrap();
    let (mut log, found) = open().unwrap();
    assert_eq!(state(&found), state(&service));
    log = log.with_len_max(0);
    service = found;
    // Longer than the last snapshot, so that another one is written.
    service.space().call(now(0), put("a", &[&"last".repeat(10_000)]), Wait::No);
    log.commit(&mut service).unwrap();
    assert!(!path.join("log.new").exists());
    drop(log);
    assert_eq!(state(&open().unwrap().1), state(&service));
    let file = folder.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = super::Directory::open(&file).unwrap_err();
    assert!(matches!(error, LogError::Io { what: "open", .. }), "{error}");
    std::fs::write(path.join("log"), b"something else that is long enough for a header").unwrap();
    let error = open().unwrap_err();
    assert!(matches!(error, LogError::Foreign(_)), "{error}");
}

proptest! {
    /// Any change of effects is read as something else or refused, and never makes a state that a
    /// snapshot does not make again.
    #[test]
    fn changed_effects_lead_to_a_state_or_are_refused(
        seed: u64,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut clients = Clients::new(seed);
        let mut service = Service::default();
        service.record();
        for _ in 0..40 {
            clients.step(&mut service);
        }
        let mut bytes = Vec::new();
        for effect in service.take_effects() {
            encode(&mut bytes, &effect);
        }
        for (at, byte) in &changes {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
        }
        let is_applied = crate::fuzzing::effects(&bytes);
        prop_assert!(is_applied || !changes.is_empty());
    }
}
