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
        /// Wait for all earlier RDMA Reads and atomics.
        const FENCE = 1;
        /// Report success with a completion.
        const SIGNALED = 1 << 1;
        /// Raise an event at a peer that armed its completion queue for solicited events only.
        const SOLICITED = 1 << 2;
        /// Copy the data when the request is posted; the memory needs no registration.
        const INLINE = 1 << 3;
    }
}

/// What a send work request does.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Sends a message into the peer's next receive, with immediate data (in network byte order, as
    /// the program stored it) or with a remote key to invalidate.
    Send {
        /// Immediate data for the peer's completion.
        imm: Option<u32>,
        /// Remote key that the peer's completion reports as invalidated.
        invalidate: Option<u32>,
    },
    /// Sends a datagram, with immediate data, into the next receive of the destination's queue
    /// pair.
    Datagram {
        /// The destination.
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
    /// RDMA Read into the scatter list.
    Read {
        /// Address at the peer.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
    },
    /// 64-bit atomic addition; the old value goes to the scatter list.
    FetchAdd {
        /// Address at the peer, aligned to eight bytes.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The value to add.
        add: u64,
    },
    /// 64-bit atomic compare and swap; the old value goes to the scatter list.
    CompareSwap {
        /// Address at the peer, aligned to eight bytes.
        remote_addr: u64,
        /// The peer's key.
        rkey: u32,
        /// The expected value.
        compare: u64,
        /// The value to store if the expected one is there.
        swap: u64,
    },
    /// Invalidates a key of this side.
    LocalInvalidate {
        /// The key.
        rkey: u32,
    },
    /// Binds a memory window (type 2 through a send queue, type 1 through `ibv_bind_mw`).
    BindWindow {
        /// The window.
        window: Arc<Mw>,
        /// The window's new key.
        rkey: u32,
        /// The memory to bind it to; `None` with length 0 unbinds.
        bind: WindowBind,
    },
}

/// The destination of a datagram.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The host.
    pub ah: Arc<AddressHandle>,
    /// The queue pair of that host, or 0xFFFFFF for a multicast group.
    pub qp_num: u32,
    /// The Q_Key of that queue pair. If its highest bit is set, the sender's own Q_Key is sent
    /// instead.
    pub qkey: u32,
}

/// The bytes of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory, read when the request is processed.
    Gather(&'a [Sge]),
    /// Bytes that are copied when the request is posted.
    Inline(&'a [&'a [u8]]),
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub operation: Operation,
    /// The send flags.
    pub flags: SendFlags,
    /// The bytes to send, or the memory to fill.
    pub data: Data<'a>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Registered memory to fill, in this order.
    pub sges: &'a [Sge],
}
