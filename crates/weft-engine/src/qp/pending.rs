//! Peers towards which the connection manager is connecting: a queue pair that a program brings to
//! RTR itself, with attributes from `rdma_init_qp_attr`, must not dial such a peer on its own.

use std::collections::HashMap;

use weft_sys::{Forkable, Lock};

use crate::device::Gid;

type Peer = (Gid, u32);

static EXPECTED: Forkable<Lock<HashMap<Peer, usize>>> = Forkable::new(|| Lock::new(HashMap::new()));

/// The connection manager will bring the connection to this peer.
pub fn expect(peer: Peer) {
    *EXPECTED.get().lock().entry(peer).or_insert(0) += 1;
}

/// It has, or it has given up.
pub fn unexpect(peer: Peer) {
    let mut expected = EXPECTED.get().lock();
    if let Some(count) = expected.get_mut(&peer) {
        *count -= 1;
        if *count == 0 {
            expected.remove(&peer);
        }
    }
}

/// Whether the connection manager is at it.
pub(crate) fn is_expected(peer: &Peer) -> bool {
    EXPECTED.get().lock().contains_key(peer)
}
