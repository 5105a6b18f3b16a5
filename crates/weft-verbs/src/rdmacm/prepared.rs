//! What `rdma_create_ep` leaves for later.

use crate::abi::ibv_qp_init_attr;

/// What `rdma_create_ep` leaves for later.
#[derive(Default)]
pub(super) struct Prepared {
    /// How to make the queue pairs of the connections that a listener gets.
    pub(super) qp_init: Option<ibv_qp_init_attr>,
    /// Private data that goes before the program's in a connection request.
    pub(super) connect: Vec<u8>,
}
