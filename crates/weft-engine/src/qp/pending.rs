//! Peers that the connection manager is connecting to. A queue pair that the program itself brings
//! to RTR, with attributes from `rdma_init_qp_attr`, must not dial such a peer.

use std::collections::HashMap;

use weft_sys::{Forkable, Lock};

use crate::device::Gid;

type PendingPeer = (Gid, u32);

static EXPECTED: Forkable<Lock<HashMap<PendingPeer, usize>>> =
    Forkable::new(|| Lock::new(HashMap::new()));

/// Notes that the connection manager will connect to this peer.
pub fn expect(peer: PendingPeer) {
    *EXPECTED.get().lock().entry(peer).or_insert(0) += 1;
}

/// Notes that the connection manager has connected, or has given up.
pub fn unexpect(peer: PendingPeer) {
    let mut expected = EXPECTED.get().lock();
    if let Some(count) = expected.get_mut(&peer) {
        *count -= 1;
        if *count == 0 {
            expected.remove(&peer);
        }
    }
}

/// Whether the connection manager is connecting to this peer.
pub(crate) fn is_expected(peer: &PendingPeer) -> bool {
    EXPECTED.get().lock().contains_key(peer)
}
