//! The interface to the fabric on which Weft's tools stand.
//!
//! # Layers
//!
//! A module uses modules of its own line and of the lines below. `cargo xtask tidy` checks this.
//!
//! ```text
//! sim
//! fabric
//! connect listen
//! endpoint message operation
//! blocking waiting
//! core
//! inbox state
//! mapped_file
//! common work
//! share
//! returned
//! memory
//! carrier
//! options
//! error
//! door
//! watcher
//! credits header hello sleeper stop table wakers
//! bounds limits placement
//! ```
#![doc = include_str!("guide.md")]

mod blocking;
mod bounds;
mod carrier;
mod common;
mod connect;
mod core;
mod credits;
mod door;
mod endpoint;
mod error;
mod fabric;
mod header;
mod hello;
mod inbox;
pub mod limits;
mod listen;
mod mapped_file;
mod memory;
mod message;
mod operation;
mod options;
mod placement;
mod returned;
mod share;
pub mod sim;
mod sleeper;
mod state;
mod stop;
mod table;
mod waiting;
mod wakers;
mod watcher;
mod work;

pub use connect::{Connected, Connecting};
pub use endpoint::{Batch, Close, Endpoint};
pub use error::{Error, Result};
pub use fabric::Fabric;
pub use listen::{Accept, Incoming, Listener};
pub use mapped_file::{MappedFile, SharedFile};
pub use memory::Buffer;
pub use message::{Message, Receive};
pub use operation::{Operation, Outcome};
pub use options::{Carrier, Options};
pub use placement::{HugePages, Placement};
pub use returned::Returned;
pub use share::{RemoteKey, Rights, SharedBuffer};
pub use stop::Stop;
pub use weft_engine::Errno;
