//! Queue pairs.
//!
//! A queue pair has three locks, always taken in this order: `conn` (protocol state and socket),
//! `sq` and `rq` (posted work). Posting takes only the queue's lock; a posting thread that finds
//! `conn` locked sets a bit in `pending_work`, which the holder reads after unlocking.

pub mod conn;
mod connect;
mod datagram;
mod drive;
mod first_fpdu;
mod host;
mod init;
mod life;
mod modify;
pub(crate) mod peers;
pub mod pending;
mod post;
mod service;
mod sharing;
mod snapshot;
mod stalled;
mod transition;
mod work;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use weft_sys::{Lock, NoteLock};

pub use crate::attr::{AddressVector, AttrMask, GlobalRoute, QpAttr, QpCap, QpState, QpType};
use crate::context::Context;
use crate::cq::{Cq, CqUser};
use crate::event::Object;
use crate::pd::{Pd, PdUser};
use crate::queue::recv::RecvQueue;
use crate::queue::send::SendQueue;
use crate::srq::{Srq, SrqUser};
use crate::timer::Timer;
use crate::ud::Datagram;
use crate::xrc::Xrcd;

use conn::Conn;
pub use conn::Connection;
pub use init::QpInit;
pub use peers::{all, find};
pub use post::Poster;
pub(crate) use snapshot::Snapshot;
pub use transition::required;

/// Notified of the end of a queue pair's connection; implemented by the connection manager.
pub trait Monitor: Send + Sync + std::fmt::Debug {
    /// The connection has ended: closed by the peer, by a failure, or by an error of this side.
    fn disconnected(&self);
}

/// References that keep the queue pair's objects from being destroyed before it.
#[derive(Debug)]
#[allow(dead_code)] // Kept for their `Drop`.
struct Holds {
    pd: PdUser,
    send_cq: CqUser,
    recv_cq: CqUser,
    srq: Option<SrqUser>,
}

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    me: Weak<Self>,
    number: u32,
    ack_stag: u32,
    init: QpInit,
    pd: Arc<Pd>,
    holds: Lock<Option<Holds>>,
    /// The C ABI's pointer for this object; events carry it to the program.
    pub cookie: AtomicUsize,
    attr: Lock<QpAttr>,
    state: AtomicU32,
    pub(crate) sq: Lock<SendQueue>,
    pub(crate) rq: Lock<RecvQueue>,
    conn: NoteLock<Conn>,
    /// The state of a queue pair for datagrams, whose connection stays idle.
    datagram: Option<Datagram>,
    pending_work: AtomicU32,
    deferred: AtomicBool,
    /// Changed only under the lock of `sq`.
    has_unsent: AtomicBool,
    /// Whether the last deferred requests were several, so that a request to an idle connection is
    /// probably followed by others.
    posts_bursts: AtomicBool,
    awaiting_receive: AtomicBool,
    retry_timer: Lock<Option<Timer>>,
    monitor: Lock<Option<Weak<dyn Monitor>>>,
    last_wqe_reported: AtomicBool,
    /// Number of users that have opened the queue pair. Each of them destroys it once.
    users: AtomicUsize,
}

impl Qp {
    /// The queue pair number, 24 bits.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The transport service.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.init.qp_type
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        self.pd.context()
    }

    /// The completion queue of sends.
    #[must_use]
    pub fn send_cq(&self) -> &Arc<Cq> {
        &self.init.send_cq
    }

    /// The completion queue of receives.
    #[must_use]
    pub fn recv_cq(&self) -> &Arc<Cq> {
        &self.init.recv_cq
    }

    /// The shared receive queue, if it has one.
    #[must_use]
    pub fn srq(&self) -> Option<&Arc<Srq>> {
        self.init.srq.as_ref()
    }

    /// The XRC domain, on the target of an extended connection.
    pub(crate) fn xrcd(&self) -> Option<&Arc<Xrcd>> {
        self.init.xrcd.as_ref()
    }

    /// The current state, which an error may have changed since the last `modify`.
    #[must_use]
    pub fn state(&self) -> QpState {
        QpState::from_raw(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    pub(crate) fn me(&self) -> Arc<Self> {
        // `&self` comes from an `Arc` (see `new`), so the upgrade succeeds.
        self.me.upgrade().expect("a queue pair lives in an Arc")
    }
}

impl Object for Qp {
    fn cookie(&self) -> &AtomicUsize {
        &self.cookie
    }
}
