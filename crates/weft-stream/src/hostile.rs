//! Tests with a hostile peer that writes any value into the shared words. Calls may fail, but they
//! do not panic, touch nothing outside the connection, and return.

use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use proptest::prelude::*;
use weft_sys::Buffers;
use weft_testing::seeds::cases;

use crate::end::{End, Process};
use crate::flow::Flow;
use crate::hostile_access::{call, peers_words};
use crate::layout::slot_at;
use crate::limits::{BIG_RING_LEN, CONNECTIONS_MAX};
use crate::registry::Registry;
use crate::tuple::Tuple;

fn registry() -> &'static Registry {
    static REGISTRY: OnceLock<Registry> = OnceLock::new();
    REGISTRY.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a directory");
        Registry::open(dir.path()).expect("a registry")
    })
}

/// Both ends of a connection that has moved to memory. It uses the registry's last slot, behind
/// which the file ends.
fn connection(flow: Flow) -> ([TcpStream; 2], [End; 2]) {
    let registry = registry();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    let own = client.local_addr().expect("connected");
    let tuple = Tuple::new(own, client.peer_addr().expect("connected"));
    let me = Process { pid: std::process::id(), fd: 0, cookie: 0, program: [0; 16] };
    let offered = End::offer(registry, &tuple, &me, flow).expect("room");
    let found = End::find(registry, &tuple, &me, (0, 0)).expect("offered");
    found.advance(server.as_fd());
    offered.advance(client.as_fd());
    found.advance(server.as_fd());
    ([client, server], [offered, found])
}

/// Takes all slots but the last.
fn fill_registry() {
    static FILLED: OnceLock<()> = OnceLock::new();
    FILLED.get_or_init(|| {
        let bits = |at| registry().word64(crate::layout::BITMAP + 8 * at);
        (0..CONNECTIONS_MAX / 64).for_each(|at| bits(at).store(u64::MAX, Ordering::Relaxed));
        bits(CONNECTIONS_MAX / 64 - 1).store(u64::MAX >> 1, Ordering::Relaxed);
    });
}

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..4_u64,
        0..2 * BIG_RING_LEN as u64,
        (0..4_u64).prop_map(|down| u64::MAX - down),
        // Valid states of sources.
        (0..9_u64, 0..4_u64).prop_map(|(number, count)| 1 << 63 | number << 48 | count),
    ]
}

/// The last bytes of the slot before, which must stay unchanged.
fn neighbour() -> usize {
    slot_at(CONNECTIONS_MAX - 1) - size_of::<u64>()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(64)))]

    #[test]
    fn hostile_words_neither_panic_nor_touch_other_slots(
        credit: bool,
        at in 0..2_usize,
        steps in prop::collection::vec(
            (any::<prop::sample::Index>(), value(), 0..128_u8, 0..70_000_usize),
            1..40,
        ),
    ) {
        fill_registry();
        registry().open_slot(CONNECTIONS_MAX - 2).expect("accessible");
        registry().word64(neighbour()).store(7, Ordering::Relaxed);
        let (sockets, ends) = connection(if credit { Flow::Credit } else { Flow::Packed });
        let words = peers_words(CONNECTIONS_MAX - 1);
        ends[at].pass_on();
        for (which, value, what, len) in steps {
            let offset = words[which.index(words.len())];
            if offset.is_multiple_of(8) {
                registry().word64(offset).store(value, Ordering::Relaxed);
            } else {
                registry().word(offset).store(value as u32, Ordering::Relaxed);
            }
            call(&ends[at], sockets[at].as_fd(), what, len);
        }
        prop_assert_eq!(registry().word64(neighbour()).load(Ordering::Relaxed), 7);
        let generation = registry().generation(CONNECTIONS_MAX - 1);
        registry().release(CONNECTIONS_MAX - 1, generation);
    }
}

#[test]
fn source_without_bytes_is_refused() {
    fill_registry();
    let slot = CONNECTIONS_MAX - 2;
    registry().open_slot(slot).expect("accessible");
    let sources = crate::src_avail::SrcAvails::of(registry(), slot, crate::words::Role::Connector);
    let state = &registry().page(slot).sources[0][0].state;
    state.store(1 << 63, Ordering::Relaxed);
    registry().page(slot).directions[0].posted.store(1, Ordering::Relaxed);
    let mut bytes = [0; 8];
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    assert_eq!(sources.pull(Buffers::of(slices), false, false, || true, |_| true).bytes, 0);
    assert!(sources.are_refused());
}
