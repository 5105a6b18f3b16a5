//! What a queue pair is made of.

use std::sync::Arc;

use crate::attr::{QpCap, QpType};
use crate::cq::Cq;
use crate::srq::Srq;
use crate::xrc::Xrcd;

/// What a queue pair is made of (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Type.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Arc<Cq>,
    /// Where receives complete.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, instead of a receive queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// Whose shared receive queues a peer may send to, for [`QpType::XrcRecv`].
    pub xrcd: Option<Arc<Xrcd>>,
    /// Sizes.
    pub cap: QpCap,
    /// Every send work request is signalled.
    pub sq_sig_all: bool,
}
