//! Stores that take their time: commands that are under way at once, and what waits for them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::{io, thread};

use super::aborts::{initiator, whole};
use super::*;
use crate::cache::{Cache, Layout, Topology};
use crate::store::{Cached, Extent, Store};

const BLOCK: usize = 512;

/// Memory that is never at hand at once. Its writes wait while it is shut.
#[derive(Debug)]
struct Distant {
    memory: Ram,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
pub(super) struct Gate {
    /// It is shut; writes that wait.
    state: Mutex<(bool, usize)>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, is_shut: bool) {
        self.state.lock().unwrap().0 = is_shut;
        self.changed.notify_all();
    }

    fn wait_for_writes(&self, count: usize) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |(_, waiting)| *waiting < count).unwrap());
    }

    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        self.changed.notify_all();
        state = self.changed.wait_while(state, |(is_shut, _)| *is_shut).unwrap();
        state.1 -= 1;
    }
}

/// A test that fails opens the gate, and does not hang.
struct OpenAtEnd<'a>(&'a Gate);

impl Drop for OpenAtEnd<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

impl Store for Distant {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn medium_len(&self) -> io::Result<u64> {
        self.memory.medium_len()
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.memory.resize(len)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.gate.pass();
        self.memory.write(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.memory.flush()
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.memory.discard(range)
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        self.memory.extent(offset)
    }

    fn is_thin(&self) -> bool {
        true
    }
}

pub(super) fn distant() -> (Arc<Portal>, Arc<Unit>, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let store = Distant { memory: Ram::new(LEN as u64).unwrap(), gate: Arc::clone(&gate) };
    let unit = Arc::new(Unit::new("distant".into(), Options::default(), Box::new(store)));
    let device = Device::new(NAME.into(), BTreeMap::from([(0, Arc::clone(&unit))]));
    let target = Target::new(Arc::new(device), Access::default());
    let portal = Portal::new(vec![target], Access::default(), Random(fill));
    (Arc::new(portal), unit, gate)
}

/// An initiator whose jobs are carried out when the test says so.
fn patient(portal: &Arc<Portal>, name: &str) -> Client {
    let mut client = initiator(portal, name);
    client.jobs = Some(Vec::new());
    client
}

impl Client {
    /// Takes a job that may be carried out.
    fn job(&mut self, at: usize) -> Job {
        self.jobs.as_mut().unwrap().remove(at)
    }

    fn jobs(&self) -> usize {
        self.jobs.as_ref().unwrap().len()
    }

    /// Carries a job out.
    fn run_job(&mut self, at: usize) {
        let done = self.job(at).run();
        self.connection.complete(done);
        self.exchange().unwrap();
    }

    fn manage(&mut self, function: u8, referenced: u32) {
        let fields: [(usize, &[u8]); 3] =
            [(9, &[self.lun]), (16, &[9; 4]), (20, &referenced.to_be_bytes())];
        self.send(&pdu(0x42, 0x80 | function, &fields, &[])).unwrap();
    }

    fn write_block(&mut self, block: usize, value: u8) -> u32 {
        self.command(0xa0, &write10(block, 1), 512, &[value; BLOCK]).unwrap()
    }
}

fn stored(unit: &Unit, block: usize) -> u8 {
    let mut stored = [0; BLOCK];
    unit.read((block * BLOCK) as u64, &mut stored).unwrap();
    stored[0]
}

#[test]
fn commands_are_under_way_at_once_and_others_are_answered_meanwhile() {
    let (portal, unit, _) = distant();
    let mut client = patient(&portal, "one");
    let tasks: Vec<u32> = (0..8).map(|block| client.write_block(block, 1 + block as u8)).collect();
    let read = client.command(0xc0, &read10(100, 1), 512, &[]).unwrap();
    assert_eq!((client.jobs(), client.received.len()), (9, 0), "one job for each command");
    // One that needs no block.
    let task = client.command(0xc0, &[0; 6], 0, &[]).unwrap();
    assert_eq!(client.response().u32(16), task);
    client.run_job(8);
    assert_eq!(client.response().u32(16), read);
    for task in tasks.into_iter().rev() {
        client.run_job(client.jobs() - 1);
        let response = client.response();
        assert_eq!((response.u32(16), response.header[3]), (task, 0));
    }
    assert!((0..8).all(|block| stored(&unit, block) == 1 + block as u8));
}

#[test]
fn an_abort_is_complete_when_the_store_has_finished() {
    let (portal, unit, _) = distant();
    let mut client = patient(&portal, "one");
    let (begun, waiting) = (client.write_block(0, 1), client.write_block(0, 2));
    assert_eq!(client.jobs(), 1, "blocks that are written are waited for");
    // ABORT TASK of one that has not begun.
    client.manage(1, waiting);
    assert_eq!(client.response().header[2], 0);
    client.manage(1, begun);
    assert!(client.received.is_empty(), "complete before the write");
    client.run_job(0);
    let response = client.response();
    assert_eq!((response.header[0], response.header[2]), (0x22, 0));
    assert!(client.received.is_empty(), "an aborted command has a response");
    assert_eq!((stored(&unit, 0), client.jobs()), (1, 0));
    client.manage(1, begun);
    assert_eq!(client.response().header[2], 1, "there is no such task any more");
}

#[test]
fn a_logout_and_the_end_of_a_connection_leave_nothing_behind() {
    let (portal, unit, _) = distant();
    let mut client = patient(&portal, "one");
    client.write_block(0, 1);
    let job = client.job(0);
    // It may have begun: the logout waits.
    client.send(&pdu(0x46, 0x80, &[(24, &client.next_command.to_be_bytes())], &[])).unwrap();
    assert!(client.received.is_empty());
    client.connection.complete(job.run());
    assert_eq!(client.exchange(), Err(Closed::LoggedOut));
    assert_eq!((client.response().header[0], stored(&unit, 0)), (0x26, 1));

    let mut client = patient(&portal, "one");
    client.write_block(0, 2);
    let job = client.job(0);
    drop(client);
    assert_eq!(portal.sessions().len(), 0);
    let _done = job.run();
    assert_eq!(stored(&unit, 0), 1, "a write of a session that has ended");
}

/// A new session of an initiator begins when nothing of the one before can happen any more, be its
/// connection still there or not.
#[test]
fn a_session_begins_when_the_one_before_does_nothing_any_more() {
    for is_gone in [false, true] {
        let (portal, unit, gate) = distant();
        let mut first = patient(&portal, "one");
        first.write_block(0, 1);
        first.write_block(1, 1);
        gate.set(true);
        let (begun, not_begun) = (first.job(0), first.job(0));
        thread::scope(|scope| {
            let _open = OpenAtEnd(&gate);
            let write = scope.spawn(|| begun.run());
            gate.wait_for_writes(1);
            let first = (!is_gone).then_some(first);
            let mut second = Client::new(&portal);
            second.jobs = Some(Vec::new());
            let text = format!("InitiatorName=iqn.2026-01.org.example:one\0TargetName={NAME}\0");
            second.send(&login(0x87, &text)).unwrap();
            assert!(second.received.is_empty(), "the session has begun");
            assert!(!second.connection.is_logged_in());
            // A third one would not know what to wait for.
            let mut third = Client::new(&portal);
            let refused = Closed::Refused(login_status::OUT_OF_RESOURCES);
            assert_eq!(third.send(&login(0x87, &text)), Err(refused));
            let replace = second.job(0);
            let replaced = scope.spawn(|| replace.run());
            (0..1_000).for_each(|_| thread::yield_now());
            assert!(!replaced.is_finished());
            gate.set(false);
            let _done = write.join().unwrap();
            second.connection.complete(replaced.join().unwrap());
            second.exchange().unwrap();
            assert_eq!(second.response().login_status(), login_status::SUCCESS);
            let _done = not_begun.run();
            assert_eq!([0, 1].map(|block| stored(&unit, block)), [1, 0]);
            if let Some(mut first) = first {
                assert_eq!(first.exchange(), Err(Closed::Replaced));
            }
            second.jobs = None;
            second.clear_attentions();
            assert_eq!(second.write(&write10(1, 1), &[3; BLOCK], &whole(BLOCK)), 0);
        });
    }
}

/// An initiator that sends more than the store takes is made to wait.
#[test]
fn input_waits_for_a_store_that_does_not_take_it() {
    let (portal, ..) = distant();
    let mut client = Client::logged_in(&portal, "FirstBurstLength=262144\0");
    client.clear_attentions();
    client.jobs = Some(Vec::new());
    let data = vec![1; 256 << 10];
    let mut count = 0;
    while client.connection.wants_input() {
        let cdb = write10(count * 4 % 1_000, 512);
        client.command(0xa0, &cdb, data.len() as u32, &data).unwrap();
        count += 1;
    }
    assert_eq!(count, (16 << 20) / data.len());
    while client.jobs() > 0 {
        client.run_job(0);
    }
    assert!(client.connection.wants_input());
    for _ in 0..count {
        assert_eq!(client.response().header[3], 0);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: usize,
        count: usize,
    },
    Read {
        first: usize,
        count: usize,
    },
    Fill {
        first: usize,
        count: usize,
    },
    Or {
        first: usize,
        count: usize,
    },
    Flush,
    /// Carries out one of the jobs that may be carried out.
    Run(usize),
}

const BLOCKS: usize = 12;

fn step() -> impl Strategy<Value = Step> {
    let place = || (0..BLOCKS - 4, 1..=4_usize);
    prop_oneof![
        4 => place().prop_map(|(first, count)| Step::Write { first, count }),
        3 => place().prop_map(|(first, count)| Step::Read { first, count }),
        1 => place().prop_map(|(first, count)| Step::Fill { first, count }),
        1 => place().prop_map(|(first, count)| Step::Or { first, count }),
        1 => Just(Step::Flush),
        6 => any::<usize>().prop_map(Step::Run),
    ]
}

/// Commands that have been sent, with the blocks that reads are to return.
struct Queue {
    client: Client,
    model: [u8; BLOCKS],
    expected: HashMap<u32, Vec<u8>>,
    number: u8,
}

impl Queue {
    fn take(&mut self, step: Step) {
        self.number = self.number.wrapping_add(1);
        let (client, number) = (&mut self.client, self.number);
        let mut expected = Vec::new();
        let task = match step {
            Step::Run(at) => {
                if client.jobs() > 0 {
                    client.run_job(at % client.jobs());
                }
                return;
            }
            Step::Write { first, count } => {
                self.model[first..first + count].fill(number);
                let data = vec![number; count * BLOCK];
                client.command(0xa0, &write10(first, count), data.len() as u32, &data)
            }
            Step::Read { first, count } => {
                expected = self.model[first..first + count].to_vec();
                client.command(0xc0, &read10(first, count), (count * BLOCK) as u32, &[])
            }
            Step::Fill { first, count } => {
                self.model[first..first + count].fill(number);
                let mut cdb = write10(first, count);
                cdb[0] = 0x41;
                client.command(0xa0, &cdb, BLOCK as u32, &[number; BLOCK])
            }
            Step::Or { first, count } => {
                self.model[first..first + count].iter_mut().for_each(|each| *each |= number);
                let mut cdb = [0; 16];
                (cdb[0], cdb[9], cdb[13]) = (0x8b, first as u8, count as u8);
                let data = vec![number; count * BLOCK];
                client.command(0xa0, &cdb, data.len() as u32, &data)
            }
            Step::Flush => {
                let mut cdb = write10(0, 0);
                cdb[0] = 0x35;
                client.command(0x80, &cdb, 0, &[])
            }
        };
        self.expected.insert(task.unwrap(), expected);
    }

    fn check_responses(&mut self) -> Result<(), TestCaseError> {
        while !self.client.received.is_empty() {
            let response = self.client.response();
            prop_assert_eq!(response.header[3], 0, "{:?}", response);
            let expected = self.expected.remove(&response.u32(16)).expect("a command");
            let read: Vec<u8> = response.data.chunks(BLOCK).map(|block| block[0]).collect();
            prop_assert_eq!(read, expected);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Commands that are under way at once have the effect that they have one after the other,
    /// whichever of their jobs are carried out first.
    #[test]
    fn commands_at_once_are_like_one_after_the_other(
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let (portal, unit, _) = distant();
        let (client, expected) = (patient(&portal, "one"), HashMap::new());
        let mut queue = Queue { client, model: [0; BLOCKS], expected, number: 0 };
        for step in steps {
            queue.take(step);
            queue.check_responses()?;
        }
        while queue.client.jobs() > 0 {
            queue.client.run_job(queue.client.jobs() - 1);
            queue.check_responses()?;
        }
        prop_assert!(queue.expected.is_empty(), "commands without a response");
        for (block, value) in queue.model.iter().enumerate() {
            prop_assert_eq!(stored(&unit, block), *value);
        }
    }
}

#[test]
fn work_without_a_range_goes_to_all_nodes_in_turn() {
    let layout = Layout { block_len: 32 << 10, group: 4, partitions_per_node: 1, nodes: 2 };
    let topology = Topology::parse("node cpus=1022\nnode cpus=1023").unwrap();
    let cache = Arc::new(Cache::with_layout(topology, layout, 8).unwrap());
    let store = Cached::new(Box::new(Ram::new(LEN as u64).unwrap()), cache).unwrap();
    let unit = Unit::new("cached".into(), Options::default(), Box::new(store));
    let workers = |range| std::ptr::from_ref(unit.workers(range));
    let [first, second, third] = [None; 3].map(workers);
    assert!(first != second && first == third);
    let (near, remote) = (Some((0, 4_096)), Some((128 << 10, 4_096)));
    assert_eq!([near, remote, near, remote].map(workers), [first, second, first, second]);
}
