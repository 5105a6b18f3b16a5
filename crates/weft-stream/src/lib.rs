//! Byte streams through memory that processes of one host share. The sockets library and the tools
//! that watch it build on this crate.
//!
//! Each connection starts as an ordinary TCP connection. The connecting side offers it in a
//! [`Registry`]; the accepting side finds the offer by the addresses of both ends. When both have
//! agreed, the stream moves to rings in shared memory ([`End`]). The kernel's socket stays open: it
//! carries wakeups, reports the peer's end, and carries the bytes again where the rings cannot.
//!
//! # Layers
//!
//! A module uses modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! inheritance remote snapshot
//! holding hostile_access stat_slot
//! end
//! fetch queue
//! credit peer_socket
//! alarms grants holders pullers ring src_avail sweep tcp_recv
//! datagram kernel words
//! plan registry
//! layout slot_file
//! delivery
//! bitmap flow recv_options path_selector limits fault_backoff live_peers pipes proc_tcp rules
//! reason sock_diag tuple
//! ```

// Unit tests have files of integration tests, which name this crate.
#[cfg(test)]
extern crate self as weft_stream;

mod alarms;
mod bitmap;
mod credit;
pub mod datagram;
mod delivery;
mod end;
mod fault_backoff;
mod fetch;
mod flow;
mod grants;
mod holders;
mod holding;
#[cfg(test)]
mod hostile;
#[doc(hidden)]
pub mod hostile_access;
pub mod inheritance;
mod kernel;
mod layout;
pub mod limits;
mod live_peers;
mod path_selector;
mod peer_socket;
mod pipes;
mod plan;
mod proc_tcp;
mod pullers;
mod queue;
mod reason;
mod recv_options;
mod registry;
pub mod remote;
mod ring;
pub mod rules;
#[cfg(test)]
mod sim;
mod slot_file;
mod snapshot;
mod sock_diag;
mod src_avail;
mod stat_slot;
mod sweep;
mod tcp_recv;
mod tuple;
mod words;

pub use alarms::OwnAlarm;
pub use end::{ArrivalMark, Carrier, Delays, End, Process, PutBack, ReportedEdge};
pub use fault_backoff::FaultBackoff;
pub use fetch::Fetch;
pub use flow::Flow;
pub use grants::{Grant, GrantId, Grants, InUse};
pub use holding::Holding;
pub use kernel::{Holder, Kernel, Linux};
pub use path_selector::{PathSelector, Way};
pub use plan::Plan;
pub use reason::Reason;
pub use recv_options::RecvOptions;
pub use registry::{Registry, is_local};
pub use slot_file::{OpenError, directory};
pub use snapshot::{ConnectionSnapshot, DirectionSnapshot, SideSnapshot, Totals};
pub use src_avail::{Owner, SrcAvailNumber};
pub use stat_slot::StatSlot;
pub use tcp_recv::recv_behind_part;
pub use tuple::Tuple;
pub use words::Role;
