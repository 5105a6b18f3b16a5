//! Persistent reservations that outlive the target.

use std::io;
use std::sync::Mutex;

use super::aborts::{initiator, reserve_out_with, whole};
use super::*;
use crate::scsi::{Keeper, Kept};

/// What is kept, by a medium that a test lets fail.
#[derive(Clone, Debug, Default)]
struct Medium(Arc<Mutex<(Kept, bool)>>);

impl Medium {
    fn kept(&self) -> Kept {
        self.0.lock().unwrap().0.clone()
    }

    fn fail(&self, fails: bool) {
        self.0.lock().unwrap().1 = fails;
    }

    /// A target that has just been started.
    fn start(&self) -> Arc<Portal> {
        let store = Box::new(Ram::new(LEN as u64).unwrap());
        let unit = Unit::new("serial".into(), Options::default(), store);
        let unit = unit.with_keeper(Box::new(self.clone()), self.kept()).unwrap();
        let device = Device::new(NAME.into(), BTreeMap::from([(0, Arc::new(unit))]));
        let target = Target::new(Arc::new(device), Access::default());
        Arc::new(Portal::new(vec![target], Access::default(), Random(fill)))
    }
}

impl Keeper for Medium {
    fn keep(&self, kept: &Kept) -> io::Result<()> {
        let mut state = self.0.lock().unwrap();
        if state.1 {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        state.0 = kept.clone();
        Ok(())
    }
}

const APTPL: u8 = 0x01;

fn register(client: &mut Client, keys: [u64; 2], flags: u8) -> u8 {
    reserve_out_with(client, 0x00, keys, flags, &[])
}

fn reserve(client: &mut Client, key: u64) -> u8 {
    reserve_out_with(client, 0x01, [key, 0], 0, &[])
}

/// The keys of all registrations, and the key of the holder.
fn reservations(client: &mut Client) -> (Vec<u64>, Option<u64>) {
    let mut read = |action: u8| {
        let (status, data) = client.read(&[0x5e, action, 0, 0, 0, 0, 0, 1, 0, 0], 256);
        assert_eq!(status, 0);
        data[8..].to_vec()
    };
    let key = |bytes: &[u8]| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    (read(0).chunks(8).map(key).collect(), read(1).first_chunk::<8>().map(|bytes| key(bytes)))
}

fn write(client: &mut Client) -> u8 {
    client.write(&write10(0, 1), &[1; 512], &whole(512))
}

#[test]
fn reservations_are_there_again_if_their_initiator_asked_for_it() {
    let medium = Medium::default();
    let portal = medium.start();
    let [mut one, mut other, mut stranger] =
        ["one", "other", "stranger"].map(|name| initiator(&portal, name));
    assert_eq!(register(&mut one, [0, 1], 0), 0);
    assert_eq!(reserve(&mut one, 1), 0);
    assert!(medium.kept().is_empty(), "nobody has asked for it");
    assert_eq!(register(&mut other, [0, 2], APTPL), 0);
    assert_eq!(write(&mut stranger), 0x18);

    let portal = medium.start();
    let [mut one, mut other, mut stranger] =
        ["one", "other", "stranger"].map(|name| initiator(&portal, name));
    assert_eq!(reservations(&mut stranger), (vec![1, 2], Some(1)));
    assert_eq!([write(&mut stranger), write(&mut one), write(&mut other)], [0x18, 0, 0]);
    // PTPL_C and PTPL_A.
    let (status, data) = one.read(&[0x5e, 2, 0, 0, 0, 0, 0, 0, 8, 0], 8);
    assert_eq!((status, data[2] & 1, data[3] & 1), (0, 1, 1));
    // PREEMPT is kept, and so is the end of it all.
    assert_eq!(reserve_out_with(&mut other, 0x04, [2, 1], 0, &[]), 0);
    let mut after = initiator(&medium.start(), "after");
    assert_eq!(reservations(&mut after), (vec![2], Some(2)));
    assert_eq!(register(&mut other, [2, 2], 0), 0);
    assert!(medium.kept().is_empty(), "the last registration has not asked for it");
    assert_eq!(write(&mut initiator(&medium.start(), "stranger")), 0);
}

#[test]
fn a_change_that_cannot_be_kept_does_not_happen() {
    let medium = Medium::default();
    let portal = medium.start();
    let [mut one, mut other] = ["one", "other"].map(|name| initiator(&portal, name));
    assert_eq!(register(&mut one, [0, 1], APTPL), 0);
    medium.fail(true);
    assert_eq!(reserve(&mut one, 1), 2);
    assert_eq!(register(&mut other, [0, 2], APTPL), 2);
    assert_eq!(reservations(&mut other), (vec![1], None));
    medium.fail(false);
    assert_eq!(reserve(&mut one, 1), 0);
    assert_eq!(reservations(&mut other), (vec![1], Some(1)));
    assert_eq!(medium.kept().registrations.len(), 1);
}

#[test]
fn aptpl_is_refused_without_a_state_directory() {
    let portal = portal();
    let mut client = initiator(&portal, "one");
    assert_eq!(register(&mut client, [0, 1], APTPL), 2);
    assert_eq!(reservations(&mut client), (vec![], None));
}

#[test]
fn a_removed_unit_keeps_nothing() {
    let medium = Medium::default();
    let portal = medium.start();
    let mut client = initiator(&portal, "one");
    assert_eq!(register(&mut client, [0, 1], APTPL), 0);
    let unit = portal.targets()[0].device().remove(0).unwrap();
    assert!(!medium.kept().is_empty());
    unit.forget_kept().unwrap();
    assert!(medium.kept().is_empty());
}
