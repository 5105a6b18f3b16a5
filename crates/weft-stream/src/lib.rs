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
//! holding places shown
//! end
//! queue
//! credit peer_socket
//! alarms grants holders pullers ring source sweep
//! datagram kernel words
//! plan registry
//! layout slot_file
//! bitmap flow recv_options path_selector limits fault_backoff pipes proc_tcp reason rules
//! sock_diag tuple
//! ```

mod alarms;
mod bitmap;
mod credit;
pub mod datagram;
mod end;
mod fault_backoff;
mod flow;
mod grants;
mod holders;
mod holding;
#[cfg(test)]
mod hostile;
pub mod inheritance;
mod kernel;
mod layout;
pub mod limits;
mod path_selector;
mod peer_socket;
mod pipes;
#[doc(hidden)]
pub mod places;
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
mod shown;
#[cfg(test)]
mod sim;
mod slot_file;
mod snapshot;
mod sock_diag;
mod source;
mod sweep;
mod tuple;
mod words;

pub use alarms::OwnAlarm;
pub use end::{Carrier, Delays, End, Process, Pulse, PutBack, ReportedEdge};
pub use fault_backoff::FaultBackoff;
pub use flow::Flow;
pub use grants::{Grant, GrantId, Grants, InUse};
pub use holding::Holding;
pub use kernel::{Held, Kernel, Linux};
pub use path_selector::{PathSelector, Way};
pub use plan::Plan;
pub use reason::Reason;
pub use recv_options::RecvOptions;
pub use registry::{Registry, is_local};
pub use shown::Shown;
pub use slot_file::{OpenError, directory};
pub use snapshot::{ConnectionSnapshot, DirectionSnapshot, SideSnapshot, Totals};
pub use source::{Owner, SourceNumber};
pub use tuple::Tuple;
pub use words::Role;
