//! Commands that others abort while they are under way, and stores that fail.

use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};
use std::{io, thread};

use super::*;
use crate::limits::REGISTRATIONS_MAX;
use crate::scsi::{Failure, Initiator, Nexus, NexusId, Stream};
use crate::store::{Extent, Store};

const PREEMPT: u8 = 0x04;
const PREEMPT_AND_ABORT: u8 = 0x05;
/// All registered initiators may write, others may read.
const WRITE_EXCLUSIVE_REGISTRANTS: u8 = 0x05;

/// An initiator with a name of its own, which has seen the unit attention of its login.
pub(super) fn initiator(portal: &Arc<Portal>, name: &str) -> Client {
    let mut client = Client::new(portal);
    let text = format!("InitiatorName=iqn.2026-01.org.example:{name}\0TargetName={NAME}\0");
    client.send(&login(0x87, &text)).unwrap();
    assert_eq!(client.response().login_status(), login_status::SUCCESS);
    client.clear_attentions();
    client
}

pub(super) fn whole(len: usize) -> Shape {
    Shape { immediate: len, unsolicited: 0, segment: len }
}

/// PERSISTENT RESERVE OUT with both keys, and with initiators that are to be registered too.
fn reserve_out(client: &mut Client, action: u8, keys: [u64; 2], initiators: &[u8]) -> u8 {
    reserve_out_with(client, action, keys, 0, initiators)
}

/// The same, with flags.
pub(super) fn reserve_out_with(
    client: &mut Client,
    action: u8,
    keys: [u64; 2],
    flags: u8,
    initiators: &[u8],
) -> u8 {
    let mut list = [keys[0].to_be_bytes(), keys[1].to_be_bytes(), [0; 8]].concat();
    list[20] = flags;
    if !initiators.is_empty() {
        list[20] |= 0x08;
        list.extend((initiators.len() as u32).to_be_bytes());
        list.extend(initiators);
    }
    let mut cdb = [0x5f, action, WRITE_EXCLUSIVE_REGISTRANTS, 0, 0, 0, 0, 0, 0, 0];
    cdb[5..9].copy_from_slice(&(list.len() as u32).to_be_bytes());
    client.write(&cdb, &list, &whole(list.len()))
}

/// Starts a write of a block, and returns its tag and the tag of the R2T that asks for its data.
fn start_write(client: &mut Client, block: usize) -> (u32, u32) {
    let task = client.command(0xa0, &write10(block, 1), 512, &[]).unwrap();
    let request = client.response();
    assert_eq!(request.header[0], 0x31);
    (task, request.u32(20))
}

#[test]
fn preempt_and_abort_ends_commands_of_preempted_initiators_only() {
    for (action, is_aborted) in [(PREEMPT, false), (PREEMPT_AND_ABORT, true)] {
        let portal = portal();
        let unit = portal.targets()[0].device().unit([0; 8]).unwrap();
        let [mut one, mut victim, mut other] =
            ["one", "victim", "other"].map(|name| initiator(&portal, name));
        for (client, key) in [(&mut one, 1), (&mut victim, 2), (&mut other, 3)] {
            assert_eq!(reserve_out(client, 0x00, [0, key], &[]), 0);
        }
        assert_eq!(reserve_out(&mut one, 0x01, [1, 0], &[]), 0);
        let (preempted, kept) = (start_write(&mut victim, 0), start_write(&mut other, 1));
        assert_eq!(reserve_out(&mut one, action, [1, 2], &[]), 0);

        other.data_out(kept.0, kept.1, &[3; 512], 0..512, 512);
        let response = other.response();
        assert_eq!((response.u32(16), response.header[3]), (kept.0, 0), "a command is lost");
        victim.data_out(preempted.0, preempted.1, &[2; 512], 0..512, 512);
        assert_eq!(victim.received.is_empty(), is_aborted);
        let mut stored = [0; 1_024];
        unit.read(0, &mut stored).unwrap();
        assert_eq!((stored[0], stored[512]), (if is_aborted { 0 } else { 2 }, 3));
    }
}

#[test]
fn registrations_are_made_all_or_none() {
    let portal = portal();
    let mut client = initiator(&portal, "one");
    let ids = |count: usize| -> Vec<u8> {
        let id = |number: usize| {
            let mut id = format!("....iqn.a:{number:03},i,0x800000000001\0").into_bytes();
            id.resize(id.len().next_multiple_of(4), 0);
            let len = (id.len() - 4) as u8;
            id[..4].copy_from_slice(&[0x45, 0, 0, len]);
            id
        };
        (0..count).flat_map(id).collect()
    };
    let mut count = |expected: usize| {
        let (status, data) = client.read(&[0x5e, 0, 0, 0, 0, 0, 0, 0x80, 0, 0], 0x8000);
        assert_eq!((status, data.len()), (0, 8 + 8 * expected));
    };
    count(0);
    let out = |ids: &[u8]| reserve_out(&mut initiator(&portal, "two"), 0, [0, 9], ids);
    assert_eq!(out(&ids(REGISTRATIONS_MAX)), 2, "one too many");
    count(0);
    assert_eq!(out(&ids(REGISTRATIONS_MAX - 1)), 0);
    count(REGISTRATIONS_MAX);
}

/// Memory whose writes wait, or fail.
#[derive(Debug)]
struct Slow {
    memory: Ram,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    state: Mutex<Step>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    #[default]
    Idle,
    Writing,
    MayEnd,
    Written,
}

impl Progress {
    fn now(&self) -> Step {
        *self.state.lock().unwrap()
    }

    fn set(&self, step: Step) {
        *self.state.lock().unwrap() = step;
        self.changed.notify_all();
    }

    fn wait_for(&self, step: Step) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(state, |state| *state < step).unwrap());
    }
}

impl Store for Slow {
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
        if bytes.first() == Some(&0xff) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.progress.set(Step::Writing);
        self.progress.wait_for(Step::MayEnd);
        self.memory.write(offset, bytes)?;
        self.progress.set(Step::Written);
        Ok(())
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

/// A portal with a slow unit.
fn slow() -> (Arc<Portal>, Arc<Unit>, Arc<Progress>) {
    let progress = Arc::new(Progress::default());
    let memory = Ram::new(LEN as u64).unwrap();
    let store = Box::new(Slow { memory, progress: Arc::clone(&progress) });
    let unit = Arc::new(Unit::new("slow".into(), Options::default(), store));
    let device = Device::new(NAME.into(), BTreeMap::from([(0, Arc::clone(&unit))]));
    let target = Target::new(Arc::new(device), Access::default());
    let portal = Portal::new(vec![target], Access::default(), Random(fill));
    (Arc::new(portal), unit, progress)
}

/// A LOGICAL UNIT RESET is complete when no command that it aborts changes a block any more.
#[test]
fn a_reset_waits_for_a_write_that_has_begun() {
    let (portal, unit, progress) = slow();
    let [mut writer, mut other] = ["writer", "other"].map(|name| initiator(&portal, name));
    let begun = unit.begin(NexusId(u64::MAX));
    thread::scope(|scope| {
        scope.spawn(|| writer.command(0xa0, &write10(0, 1), 512, &[7; 512]).unwrap());
        progress.wait_for(Step::Writing);
        let reset = scope.spawn(|| {
            let fields: [(usize, &[u8]); 2] = [(16, &[9; 4]), (20, &[0xff; 4])];
            other.send(&pdu(0x42, 0x85, &fields, &[])).unwrap();
            assert_eq!(other.response().header[2], 0);
            progress.now()
        });
        while !unit.is_aborted(begun) {
            thread::yield_now();
        }
        // A reset that does not wait gets the time to be complete.
        (0..1_000).for_each(|_| thread::yield_now());
        progress.set(Step::MayEnd);
        assert_eq!(reset.join().unwrap(), Step::Written, "complete before the write");
    });
}

/// Data that is on its way to the store when its command is aborted does not get there.
#[test]
fn an_aborted_command_does_not_write() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let unit = device.unit([0; 8]).unwrap();
    let initiator = Arc::new(Initiator { name: "iqn.a".into(), isid: [0; 6] });
    let nexus = Nexus { id: NexusId(77), initiator };
    device.attach(&nexus);
    let write = |begun| unit.stream(begun, Stream::Write { through: true }, 0, 0, &[7; 512]);
    let begun = unit.begin(nexus.id);
    device.reset_unit(&unit);
    assert_eq!(write(begun), Err(Failure::Aborted));
    let mut stored = [1; 512];
    unit.read(0, &mut stored).unwrap();
    assert_eq!(stored, [0; 512]);
    assert_eq!(write(unit.begin(nexus.id)), Ok(()));
}

#[test]
fn a_store_without_space_is_no_broken_medium() {
    let (portal, ..) = slow();
    let mut client = initiator(&portal, "one");
    client.command(0xa0, &write10(0, 1), 512, &[0xff; 512]).unwrap();
    let response = client.response();
    let sense = &response.data[2..];
    assert_eq!((response.header[3], sense[2], &sense[12..14]), (2, 7, &[0x27, 0x07][..]));
}
