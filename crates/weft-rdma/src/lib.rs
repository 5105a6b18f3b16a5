//! RDMA devices, through the system's `libibverbs` and `librdmacm`.
//!
//! Both libraries are loaded when they are first needed, so a program that uses this crate runs on
//! hosts without them, too. Under `weft run` Weft's own libraries are loaded in their place.
//!
//! A [`Device`] is found by an IP address of this host. [`Region`]s are memory that a device can
//! access. A [`Connection`] is a reliable queue pair: [`Connection::to`] prepares one to a
//! [`Listener`], and a listener's [`Request`] becomes one. A connection receives messages, and
//! writes into memory of its peer. A [`Pair`] is the same with all operations and for several
//! threads, whose owner waits for it and drives it; it uses memory of others by [`Registration`]s.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! listener
//! pair
//! connection
//! queue region registration
//! device
//! id
//! address libraries limits waker
//! ```

mod address;
mod connection;
mod device;
mod id;
mod libraries;
mod limits;
mod listener;
mod pair;
mod queue;
mod region;
mod registration;
mod waker;

pub use connection::{Connection, Next, Remote};
pub use device::Device;
pub use libraries::LoadError;
pub use limits::{BATCH, IWARP_PRIVATE_DATA_MAX, PRIVATE_DATA_MAX};
pub use listener::{Listener, Request};
pub use pair::{Change, Data, Ended, Pair, Piece, Request as PairRequest, Room, Verb};
pub use queue::Completion;
pub use region::{Access, Region};
pub use registration::Registration;
pub use waker::Waker;
