//! The attributes with which a queue pair is created.

use std::sync::Arc;

use crate::attr::{QpCap, QpType};
use crate::cq::Cq;
use crate::srq::Srq;
use crate::xrc::Xrcd;

/// The attributes with which a queue pair is created (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// The transport service.
    pub qp_type: QpType,
    /// The completion queue of sends.
    pub send_cq: Arc<Cq>,
    /// The completion queue of receives.
    pub recv_cq: Arc<Cq>,
    /// The shared receive queue, instead of a receive queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// The XRC domain whose shared receive queues a peer may name, for [`QpType::XrcRecv`].
    pub xrcd: Option<Arc<Xrcd>>,
    /// The sizes of its queues.
    pub cap: QpCap,
    /// Whether every send request produces a completion.
    pub sq_sig_all: bool,
}
