//! Work requests as a program posts them.

use std::sync::Arc;

use crate::ah::AddressHandle;
use crate::mw::Mw;
pub use crate::mw::WindowBind;

/// One piece of registered memory; laid out as `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the memory region that holds the range.
    pub lkey: u32,
}

bitflags::bitflags! {
    /// `ibv_send_flags`, with the same bits.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u32 {
        /// Wait for all earlier RDMA reads and atomics.
        const FENCE = 1;
        /// Report success with a completion.
        const SIGNALED = 1 << 1;
        /// Wake a peer that armed its completion queue for solicited events only.
        const SOLICITED = 1 << 2;
        /// Take the data at posting time, from memory that needs no registration.
        const INLINE = 1 << 3;
    }
}

/// What a send work request does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Message into the peer's next receive, with immediate data (network byte order bytes as the
    /// program stored them) or a remote key to invalidate.
    Send {
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
        /// Remote key that the peer's completion reports as invalidated.
        invalidate: Option<u32>,
    },
    /// Datagram into the next receive of the queue pair that it goes to, with immediate data.
    Datagram {
        /// To whom.
        to: Destination,
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
    },
    /// RDMA Write; with immediate data it also consumes a receive of the peer.
    Write {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
    },
    /// RDMA Read into the gather list.
    Read {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// 64-bit atomic addition; the old value goes to the gather list.
    FetchAdd {
        /// Address at the peer, aligned to eight bytes.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What to add.
        add: u64,
    },
    /// 64-bit atomic compare and swap; the old value goes to the gather list.
    CompareSwap {
        /// Address at the peer, aligned to eight bytes.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// What must be there.
        compare: u64,
        /// What to store then.
        swap: u64,
    },
    /// Makes a key of this side unusable.
    LocalInvalidate {
        /// The key.
        rkey: u32,
    },
    /// Binds a memory window (type 2 through a send queue, type 1 through `ibv_bind_mw`).
    BindWindow {
        /// The window.
        window: Arc<Mw>,
        /// The key that it has from now on.
        rkey: u32,
        /// What to bind it to; `None` with length 0 unbinds.
        bind: WindowBind,
    },
}

/// Where a datagram goes.
#[derive(Clone, Debug)]
pub struct Destination {
    /// To which host.
    pub ah: Arc<AddressHandle>,
    /// To which of its queue pairs, or, for a group, 0xFFFFFF.
    pub qp_num: u32,
    /// The Q_Key of that queue pair; with the highest bit set, the sender's own is sent instead.
    pub qkey: u32,
}

/// Where a send work request finds its bytes.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read when the request runs.
    Gather(&'a [Sge]),
    /// Bytes that are copied now.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub operation: Operation,
    /// How.
    pub flags: SendFlags,
    /// With which bytes.
    pub data: Data<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub wr_id: u64,
    /// Registered memory to fill, in order.
    pub sges: &'a [Sge],
}
