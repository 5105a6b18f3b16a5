//! The arguments of `rdma_create_ep` that later calls use.

use crate::abi::ibv_qp_init_attr;

/// The arguments of `rdma_create_ep` that later calls use.
#[derive(Default)]
pub(super) struct Prepared {
    /// The attributes for the queue pairs of a listener's connections.
    pub(super) qp_init: Option<ibv_qp_init_attr>,
    /// Private data that precedes the program's in a connection request.
    pub(super) connect: Vec<u8>,
}
