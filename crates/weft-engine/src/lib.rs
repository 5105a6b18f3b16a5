//! Verbs objects, and the engine that moves their data.
//!
//! A program opens a [`Context`] on a [`device::Device`], makes protection domains, memory regions,
//! completion queues and queue pairs in it, connects queue pairs (by the connection manager in
//! [`cm`], or by queue pair number and GID alone), posts work and polls completions. The names, the
//! rules and the error numbers are those of the verbs manual pages.
//!
//! # Layers
//!
//! A module uses modules of its own line and of the lines below. `cargo xtask tidy` checks this.
//!
//! ```text
//! open
//! debug rendezvous
//! acceptor cm rd
//! qp
//! ud
//! link
//! xrc
//! srq
//! queue
//! wr
//! registered
//! ah mw
//! mr
//! pd shm
//! cq
//! channel
//! context keys mpa
//! numbers strangers tcp
//! udp
//! pool timer watched
//! reactor
//! limits
//! hello
//! access attr clock device event log presence random wc
//! ```
#![doc = include_str!("quick_start.md")]

mod acceptor;
pub mod access;
mod ah;
mod attr;
pub mod channel;
pub mod clock;
pub mod cm;
pub mod context;
pub mod cq;
mod debug;
pub mod device;
pub mod event;
pub mod hello;
mod keys;
pub mod limits;
mod link;
pub mod log;
pub mod mpa;
pub mod mr;
pub mod mw;
mod numbers;
mod open;
pub mod pd;
mod pool;
mod presence;
pub mod qp;
mod queue;
mod random;
pub mod rd;
pub mod reactor;
mod registered;
mod rendezvous;
mod shm;
#[cfg(test)]
mod sim;
pub mod srq;
mod strangers;
mod tcp;
mod timer;
pub mod ud;
mod udp;
mod watched;
pub mod wc;
pub mod wr;
pub mod xrc;

pub use context::Context;
pub use weft_sys::Errno;

/// The result of a call of this crate: a value, or the `errno` that the verbs manual names.
pub type Result<T> = std::result::Result<T, Errno>;
