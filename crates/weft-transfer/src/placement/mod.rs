//! On which processors of a NUMA machine a copy runs.
//!
//! A copy between hosts touches each byte in its own memory, in the kernel's socket buffers and in
//! the memory of the network device. If all of them are on one node, no byte crosses the link
//! between nodes. So the threads of a copy run on the node of the device that leads to the peer,
//! and their memory is there, because Linux allocates a page on the node of the thread that touches
//! it first.

mod bind;
mod rule;
mod topology;

pub use bind::{Binding, settle};
pub use rule::{Device, Placement, Reason, place};
pub use topology::{Cpus, Node, Topology, cpu_list, interface_node};
