//! A queue pair and its registered memory.
//!
//! # Safety
//! The registered regions lie in a window. Its [`RemoteEnd`] owns the window together with the
//! queue pair, and unmaps it later: dropping the queue pair ends all use of the regions.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use weft_engine::access::Access;
use weft_engine::cm::{ConnectParam, Id, Via};
use weft_engine::cq::Cq;
use weft_engine::mr::{Mr, Observer};
use weft_engine::pd::Pd;
use weft_engine::qp::{Qp, QpCap, QpInit, QpState, QpType};
use weft_engine::wc::{Completion, Opcode, Status};
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest, Sge};
use weft_engine::{Errno, Result};
use weft_stream::remote::window::{self, StateWord, Window};
use weft_stream::remote::{Moved, PROOF_LEN, Remote, Ticket, WakeupFd, Wire};
use weft_sys::Region;

use super::hello::{Hello, Place};

use crate::limits::{BYTES_UNDER_WAY_MAX, SEND_REQUESTS_MAX, UNDER_WAY_MAX};

/// One end of a connection to another host.
pub(crate) type RemoteEnd = Remote<Verbs>;

/// Number of connections with a queue pair.
static WIRED: AtomicUsize = AtomicUsize::new(0);

/// The owner of queue pairs, which acts on their events.
pub(super) trait Maker: Send + Sync + std::fmt::Debug {
    /// Handles a request of a connection's peer. The caller's context must not drop a connection,
    /// so this must not, either.
    fn answer(&self, remote: &Weak<RemoteEnd>);

    /// Releases an identifier that has been destroyed, once its address is not used as a name any
    /// more.
    fn forget(&self, id: &Arc<Id>);
}

/// Returns whether any connection has a queue pair.
#[inline]
pub(super) fn is_any() -> bool {
    WIRED.load(Ordering::Relaxed) > 0
}

/// Forgets all queue pairs.
pub(super) fn forget_all() {
    WIRED.store(0, Ordering::Relaxed);
}

/// Completions that one poll takes.
const AT_ONCE: usize = 16;

/// Wakes sleepers when the peer has published something.
#[derive(Debug)]
struct WakeupObserver {
    wakeup_fd: Arc<WakeupFd>,
    remote: Weak<RemoteEnd>,
    maker: &'static dyn Maker,
}

impl Observer for WakeupObserver {
    fn written(&self, offset: usize, len: usize) {
        self.wakeup_fd.written(offset, len);
        if window::is_fallback_request(offset, len) {
            self.maker.answer(&self.remote);
        }
    }
}

/// A queue pair and its registered regions, before it is connected.
#[derive(Debug)]
pub(super) struct Made {
    id: Arc<Id>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    peer_state: Arc<Mr>,
    ring: Arc<Mr>,
    copy: Arc<Mr>,
    maker: &'static dyn Maker,
}

impl Made {
    /// Makes a queue pair for the window of `remote`, which must outlive it.
    pub(super) fn new(
        id: &Arc<Id>,
        pd: &Arc<Pd>,
        remote: &Arc<RemoteEnd>,
        maker: &'static dyn Maker,
    ) -> Result<Self> {
        let window = remote.window();
        let region = |at: usize, len: usize| {
            // SAFETY: the range is inside the window, which stays mapped until this value has been
            // dropped, and holds only bytes and atomic words.
            unsafe { Region::new(window.addr() + at, len) }.ok_or(Errno::INVAL)
        };
        let register = |at: usize, len: usize, access| {
            Mr::register(pd, region(at, len)?, (window.addr() + at) as u64, access)
        };
        let written = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let cq = Cq::new(pd.context(), 2 * UNDER_WAY_MAX as u32 + 16, None)?;
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            xrcd: None,
            cap: QpCap {
                max_send_wr: SEND_REQUESTS_MAX + 16,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 64,
            },
            sq_sig_all: false,
        };
        let qp = Qp::new(pd, init)?;
        let (init, mask) = id.qp_attributes(QpState::Init)?;
        qp.modify(&init, mask)?;
        let peer_state = region(window::PEER_STATE, window::PEER_STATE_LEN)?;
        let iova = (window.addr() + window::PEER_STATE) as u64;
        let observer: Arc<dyn Observer> = Arc::new(WakeupObserver {
            wakeup_fd: Arc::clone(remote.wakeup_fd()),
            remote: Arc::downgrade(remote),
            maker,
        });
        Ok(Self {
            peer_state: Mr::register_observed(pd, peer_state, iova, written, observer)?,
            ring: register(window::RING, window::RING_LEN, written)?,
            copy: register(window::COPY, window::RING_LEN, Access::empty())?,
            qp,
            cq,
            id: Arc::clone(id),
            maker,
        })
    }

    /// Returns the hello for the peer, without a proof.
    pub(super) fn hello(
        &self,
        ends: [std::net::SocketAddr; 2],
        window: &Window,
        moved: Moved,
    ) -> Hello {
        let place = |at: usize, mr: &Mr| Place { addr: (window.addr() + at) as u64, key: mr.key() };
        Hello {
            ends,
            peer_state: place(window::PEER_STATE, &self.peer_state),
            ring: place(window::RING, &self.ring),
            moved,
            proof: [0; PROOF_LEN],
        }
    }

    pub(super) fn connect(&self, hello: &Hello) -> Result<()> {
        self.id.connect(&Via::Own(Arc::clone(&self.qp)), &param(hello))
    }

    pub(super) fn accept(&self, hello: &Hello) -> Result<()> {
        self.id.accept(&Via::Own(Arc::clone(&self.qp)), &param(hello))
    }

    /// Turns it into a connected queue pair, after the peer's hello has come.
    pub(super) fn connected(self, peer: &Hello, window: &Window) -> Verbs {
        WIRED.fetch_add(1, Ordering::Relaxed);
        Verbs {
            peer_state: peer.peer_state,
            ring: peer.ring,
            window: window.addr(),
            posted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            made: self,
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        self.qp.destroy();
        for mr in [&self.peer_state, &self.ring, &self.copy] {
            let _ = mr.deregister(); // Fails only if a memory window is bound.
        }
        self.id.destroy();
        // The maker knows the identifier by its address, which must not be reused before.
        self.maker.forget(&self.id);
    }
}

fn param(hello: &Hello) -> ConnectParam {
    ConnectParam { private_data: hello.emit(), ..ConnectParam::default() }
}

/// A connected queue pair, between two windows.
#[derive(Debug)]
pub(crate) struct Verbs {
    made: Made,
    peer_state: Place,
    ring: Place,
    window: usize,
    posted: AtomicU64,
    done: AtomicU64,
    broken: AtomicBool,
}

impl Drop for Verbs {
    fn drop(&mut self) {
        WIRED.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Verbs {
    /// Returns a write of `len` bytes at an offset of the own window to the same offset of the
    /// peer's.
    fn write_of(&self, at: usize, len: usize) -> (Operation, Sge) {
        let remote_addr = self.ring.addr.wrapping_add(at as u64);
        let operation = Operation::Write { remote_addr, rkey: self.ring.key, imm: None };
        (operation, self.piece(window::COPY + at, len as u32))
    }

    fn piece(&self, at: usize, length: u32) -> Sge {
        Sge { addr: (self.window + at) as u64, length, lkey: self.made.copy.key() }
    }

    fn under_way(&self) -> u64 {
        let posted = self.posted.load(Ordering::Relaxed);
        posted.saturating_sub(self.done.load(Ordering::Relaxed))
    }

    fn may_post(&self, most: u64) -> bool {
        if self.under_way() >= most {
            self.drive();
        }
        self.under_way() < most && !self.is_broken()
    }
}

impl Verbs {
    /// Posts bytes, and then words from `first` on. The words are read under the queue's lock, so
    /// that requests and tickets are in the same order.
    fn post_words<const N: usize>(
        &self,
        bytes: &[(usize, usize)],
        first: StateWord,
        words: impl FnOnce() -> [u64; N],
    ) -> Option<Ticket> {
        if !self.may_post(if bytes.is_empty() { UNDER_WAY_MAX } else { BYTES_UNDER_WAY_MAX }) {
            return None;
        }
        let mut poster = self.made.qp.start_post();
        let mut pushed = true;
        for &(at, len) in bytes {
            let (operation, piece) = self.write_of(at, len);
            let pieces = [piece];
            let (flags, data) = (SendFlags::empty(), Data::Gather(&pieces));
            let request = SendRequest { wr_id: 0, operation, flags, data };
            pushed = pushed && poster.push(&request).is_ok();
        }
        let operation = Operation::Write {
            remote_addr: self.peer_state.addr.wrapping_add(8 * first as u64),
            rkey: self.peer_state.key,
            imm: None,
        };
        // Copied inline: by the time that the request is sent the word may have changed, ahead of
        // its bytes.
        let flags = SendFlags::INLINE | SendFlags::SIGNALED;
        let words = words().map(u64::to_ne_bytes);
        let pieces = [words.as_flattened()];
        let request = SendRequest { wr_id: 0, operation, flags, data: Data::Inline(&pieces) };
        if !pushed || poster.push(&request).is_err() {
            poster.cancel();
            return None;
        }
        Some(self.posted.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

impl Wire for Verbs {
    fn post(&self, bytes: &[(usize, usize)], word: StateWord, value: u64) -> Option<Ticket> {
        self.post_words(bytes, word, || [value])
    }

    fn post_head(&self, bytes: &[(usize, usize)], head: u64, tail: &AtomicU64) -> Option<Ticket> {
        // The tail's word follows the head's.
        self.post_words(bytes, StateWord::Head, || [head, tail.load(Ordering::Relaxed)])
    }

    fn done(&self) -> Ticket {
        self.done.load(Ordering::Acquire)
    }

    fn is_crowded(&self) -> bool {
        self.under_way() >= BYTES_UNDER_WAY_MAX
    }

    fn drive(&self) {
        let nothing = Completion::new(0, Status::Success, Opcode::Send, 0);
        let mut completions = [nothing; AT_ONCE];
        let found = self.made.cq.poll(&mut completions);
        let failed = completions[..found].iter().any(|one| one.status != Status::Success);
        if failed {
            self.broken.store(true, Ordering::Release);
        } else if found > 0 {
            self.done.fetch_add(found as u64, Ordering::AcqRel);
        }
    }

    fn rest(&self) {
        self.made.cq.context().reactor().get().about_to_wait();
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire) || self.made.qp.state() == QpState::Err
    }
}
