//! Units that come, go and change while initiators use them.

use super::*;
use crate::session::Announcement;

fn unit(len: u64) -> Arc<Unit> {
    let store = Box::new(Ram::new(len).unwrap());
    Arc::new(Unit::new("another".into(), Options::default(), store))
}

const TEST_UNIT_READY: [u8; 6] = [0; 6];
const REPORT_LUNS: [u8; 12] = [0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
const READ_CAPACITY: [u8; 10] = [0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Key and code of the sense data of a command.
fn sense(data: &[u8]) -> (u8, u16) {
    // The length of the sense data precedes it.
    (data[2 + 2] & 0x0f, u16::from_be_bytes([data[2 + 12], data[2 + 13]]))
}

/// The result of a command without data on a unit.
fn state(client: &mut Client, number: u8) -> Result<(), (u8, u16)> {
    client.lun = number;
    let (status, data) = client.read(&TEST_UNIT_READY, 0);
    client.lun = 0;
    if status == 0 { Ok(()) } else { Err(sense(&data)) }
}

fn luns(client: &mut Client) -> Vec<u8> {
    let (status, data) = client.read(&REPORT_LUNS, 256);
    assert_eq!(status, 0);
    data[8..].chunks(8).map(|lun| lun[1]).collect()
}

#[test]
fn units_come_and_go_while_a_session_lasts() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let mut client = Client::logged_in(&portal, "");
    for number in [0, 3] {
        assert_eq!(state(&mut client, number), Err((6, 0x2900)));
        assert_eq!(state(&mut client, number), Ok(()));
    }
    let changed = Err((6, 0x3f0e));
    assert!(!device.insert(3, unit(4_096)), "the number is taken");
    assert_eq!(state(&mut client, 0), Ok(()));
    assert!(device.insert(7, unit(4_096)));
    // Both other units say so, once.
    assert_eq!(state(&mut client, 0), changed);
    assert_eq!(state(&mut client, 0), Ok(()));
    assert_eq!(state(&mut client, 3), changed);
    // The session reaches the new one.
    assert_eq!(state(&mut client, 7), Err((6, 0x2900)));
    assert_eq!(state(&mut client, 7), Ok(()));
    assert_eq!(luns(&mut client), [0, 3, 7]);

    assert!(device.remove(7).is_some() && device.remove(7).is_none());
    assert_eq!(state(&mut client, 7), Err((5, 0x2500)));
    // A session that asks for the units knows of the change, in all units.
    assert_eq!(luns(&mut client), [0, 3]);
    assert_eq!(state(&mut client, 0), Ok(()));
    assert_eq!(state(&mut client, 3), Ok(()));

    // Later sessions see the same.
    assert!(device.insert(9, unit(4_096)));
    let mut other = Client::logged_in(&portal, "");
    assert_eq!(state(&mut other, 9), Err((6, 0x2900)));
    assert_eq!(luns(&mut other), [0, 3, 9]);
}

#[test]
fn sessions_count_commands_and_bytes() {
    let portal = portal();
    let mut client = Client::logged_in(&portal, "");
    client.clear_attentions();
    let before = portal.sessions().remove(0);
    let shape = Shape { immediate: 512, unsolicited: 0, segment: 512 };
    assert_eq!(client.write(&write10(0, 3), &[1; 1_536], &shape), 0);
    assert_eq!(client.read(&read10(0, 2), 1_024).0, 0);
    assert_eq!(client.read(&REPORT_LUNS, 256).1.len(), 24);
    let after = portal.sessions().remove(0);
    assert_eq!((after.target.as_str(), after.from), (NAME, ADDRESSES.remote));
    assert_eq!(after.commands - before.commands, 3);
    assert_eq!(after.written_bytes - before.written_bytes, 1_536);
    assert_eq!(after.read_bytes - before.read_bytes, 1_024 + 24);
    drop(client);
    assert_eq!(portal.sessions(), []);
}

#[test]
fn a_command_of_a_removed_unit_is_completed() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let mut client = Client::logged_in(&portal, "");
    client.clear_attentions();
    let data = [7; 1_024];
    let task = client.command(0xa0, &write10(0, 2), 1_024, &[]).unwrap();
    let request = client.response();
    assert_eq!(request.header[0], 0x31);
    let removed = device.remove(0).unwrap();
    client.data_out(task, request.u32(20), &data, 0..1_024, 1_024);
    let response = client.response();
    assert_eq!((response.u32(16), response.header[3]), (task, 0));
    let mut stored = [0; 1_024];
    removed.read(0, &mut stored).unwrap();
    assert_eq!(stored, data);
}

#[test]
fn another_length_is_reported_and_bounds_commands() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let unit = device.unit([0; 8]).unwrap();
    let mut client = Client::logged_in(&portal, "");
    client.clear_attentions();
    let capacity = |client: &mut Client| {
        let (status, data) = client.read(&READ_CAPACITY, 8);
        assert_eq!(status, 0);
        u32::from_be_bytes(data[..4].try_into().unwrap()) as usize + 1
    };
    let blocks = LEN / 512;
    for len in [LEN as u64 * 2, LEN as u64 / 2] {
        unit.resize(Some(len)).unwrap();
        assert_eq!(state(&mut client, 0), Err((6, 0x2a09)));
        assert_eq!(state(&mut client, 0), Ok(()));
        assert_eq!(capacity(&mut client), len as usize / 512);
        let shape = Shape { immediate: 512, unsolicited: 0, segment: 512 };
        let last = len as usize / 512 - 1;
        assert_eq!(client.write(&write10(last, 1), &[9; 512], &shape), 0);
        let (status, data) = client.read(&read10(last + 1, 1), 512);
        assert_eq!((status, sense(&data)), (2, (5, 0x2100)));
    }
    // The same length is no change, and what was cut off is gone.
    unit.resize(None).unwrap();
    unit.resize(Some(LEN as u64)).unwrap();
    assert_eq!(state(&mut client, 0), Err((6, 0x2a09)));
    assert_eq!(state(&mut client, 0), Ok(()));
    let (status, data) = client.read(&read10(blocks / 2, 4), 2_048);
    assert_eq!((status, data), (0, vec![0; 2_048]));
    assert!(unit.resize(Some(511)).is_err());
    assert_eq!(capacity(&mut client), blocks);
}

#[test]
fn data_for_blocks_that_were_cut_off_is_not_written() {
    let portal = portal();
    let unit = portal.targets()[0].device().unit([0; 8]).unwrap();
    let mut client = Client::logged_in(&portal, "");
    client.clear_attentions();
    let task = client.command(0xa0, &write10(8, 2), 1_024, &[]).unwrap();
    let request = client.response();
    unit.resize(Some(4_096)).unwrap();
    client.data_out(task, request.u32(20), &[7; 1_024], 0..1_024, 1_024);
    let response = client.response();
    assert_eq!((response.header[3], sense(&response.data)), (2, (3, 0x0c00)));
    assert_eq!(unit.blocks(), 8);
    unit.resize(None).unwrap();
    assert_eq!(unit.blocks(), 8, "the store has grown");
}

#[test]
fn changes_are_announced_at_once_where_the_target_does_so() {
    let portal = portal();
    let device = Arc::clone(portal.targets()[0].device());
    let mut client = Client::logged_in(&portal, "");
    let changes = [Announcement::UnitsChanged, Announcement::CapacityChanged(3)];
    changes.iter().for_each(|change| portal.announce(&device, *change));
    client.exchange().unwrap();
    assert!(client.received.is_empty(), "not all initiators understand it");
    let target = Target::new(Arc::clone(&device), Access::default()).announcing(true);
    portal.replace(vec![target], Access::default(), 16);
    // What happens twice before the connection is served is said once.
    changes.iter().chain(&changes).for_each(|change| portal.announce(&device, *change));
    client.exchange().unwrap();
    for (number, code) in [(0, 0x3f0e), (3, 0x2a09)] {
        let message = client.response();
        assert_eq!((message.header[0], message.header[9], message.header[36]), (0x32, number, 0));
        assert_eq!((message.u32(16), sense(&message.data)), (NO_TAG, (6, code)));
    }
    assert!(client.received.is_empty());
    // Sessions with other devices hear nothing.
    let other = Device::new(NAME.into(), BTreeMap::new());
    portal.announce(&other, Announcement::UnitsChanged);
    client.exchange().unwrap();
    assert!(client.received.is_empty());
}
