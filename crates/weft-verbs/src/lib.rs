//! The C ABI of Weft: `libibverbs.so.1` and `librdmacm.so.1`, for programs that were built
//! against rdma-core.
//!
//! Each module defines the exported functions of one kind of object, with the names, signatures and
//! error conventions of the verbs manual pages. A program's pointer to a C structure points to the
//! start of an `object`, which also contains the state with the engine's object. `cargo xtask dist`
//! links the result with the symbol versions of Debian 12's libraries (`abi/*.map`).
//!
//! # Layers
//!
//! Modules use only modules of their own line and of the lines below; `cargo xtask tidy` checks
//! this.
//!
//! ```text
//! beside_sockets open rdmacm
//! attributes dm event import post
//! qp_ex
//! mcast mw xrc_qp
//! qp
//! ah cq_ex srq
//! cq mr sysfs xrc
//! pd
//! context
//! handles
//! device
//! layout packed preloads presentation private_stubs rate stage unsupported
//! abi acks errno limits mutex object strings
//! ```

mod acks;
mod ah;
mod attributes;
mod beside_sockets;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod errno;
mod event;
mod handles;
mod import;
mod layout;
mod limits;
mod mcast;
mod mr;
mod mutex;
mod mw;
mod object;
mod open;
mod packed;
mod pd;
mod post;
mod preloads;
mod presentation;
mod private_stubs;
mod qp;
mod qp_ex;
mod rate;
mod rdmacm;
mod srq;
mod stage;
mod strings;
mod sysfs;
mod unsupported;
mod xrc;
mod xrc_qp;

pub mod abi;
