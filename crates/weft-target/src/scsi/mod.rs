//! SCSI: a device with its units, and the commands that they know (SAM-5, SPC-5, SBC-4).
//!
//! A command is first planned: everything that is known from its descriptor block is checked. The
//! plan says which data goes where. So the session moves data between a store and the network
//! without a buffer in between, and a transport with RDMA may do the same.
//!
//! Planning waits for no store. What may wait is in the plan, and may be carried out by any thread.

mod access;
mod blocks;
mod call;
mod copy;
mod device;
mod failure;
mod inquiry;
mod keep;
mod lookup;
mod medium;
mod meter;
mod mode;
mod nexus;
mod persistent;
mod plan;
mod provisioning;
mod report;
mod reservations;
mod reserve;
mod sense;
mod state;
mod table;
mod unit;

pub use call::{Finish, Plan, Run};
pub use copy::spans_units;
pub use device::Device;
pub use failure::Failure;
pub use keep::{Keeper, Kept};
pub use meter::{Ended, Kind, KindStats};
pub use nexus::{Initiator, Nexus, NexusId};
pub use plan::{finish, plan, plan_without_unit, run};
pub use sense::{Sense, status};
pub use unit::{Begun, Options, Stream, Unit, serial};
