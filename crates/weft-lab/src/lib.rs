//! The lab runs unmodified programs on Weft.
//!
//! The tests, the demonstration (`make demo`) and the benchmark (`make bench`) share these parts: a
//! [`Stage`] determines where the two ends of a connection run, a [`Program`] is started there as a
//! user would start it, and [`parse`] reads its output.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! block fabric_loads measure_brief measure_servers tuple_servers
//! measure mpi4py rdma_crates resources
//! capture credentials guest loss servers sockets stage streams venv
//! copied copies
//! ssh
//! differ program redis_differ skip
//! hang
//! compile namespace
//! long_path
//! segments
//! crowd defect endpoint folder limits machine packages parse paths ports tun usage
//! ```

pub mod block;
pub mod capture;
mod compile;
pub mod copied;
pub mod copies;
pub mod credentials;
mod crowd;
mod defect;
pub mod differ;
pub mod endpoint;
pub mod fabric_loads;
mod folder;
pub mod guest;
mod hang;
mod limits;
mod long_path;
mod loss;
pub mod machine;
pub mod measure;
mod measure_brief;
mod measure_servers;
pub mod mpi4py;
mod namespace;
mod packages;
pub mod parse;
mod paths;
pub mod ports;
mod program;
pub mod rdma_crates;
pub mod redis_differ;
pub mod resources;
mod segments;
pub mod servers;
mod skip;
pub mod sockets;
pub mod ssh;
mod stage;
pub mod streams;
mod tun;
pub mod tuple_servers;
pub mod usage;
mod venv;

pub use compile::{
    compile, compile_cargo, compile_cgo, compile_cpp, compile_erlang, compile_example,
    compile_folder, compile_go, compile_java, compile_library, compile_plain,
};
pub use defect::defect;
pub use folder::Folder;
pub use long_path::PathSettings;
pub use namespace::{Namespace, NamespacePair, NamespaceStar, namespaces_denied};
pub use packages::{locate, require};
pub use paths::{kept, scratch, source, use_build, weft};
pub use program::{Finished, Program, Running, forced_transport};
pub use skip::note_skip;
pub use stage::Stage;
pub use venv::Venv;
