//! The C ABI of Weft: `libibverbs.so.1` and `librdmacm.so.1`, for programs that were built
//! against rdma-core.
//!
//! Each module defines the exported functions of one kind of object, with the names, signatures and
//! error conventions of the verbs manual pages. A program's pointer to a C structure is a pointer
//! to an `object`, which has the engine's object behind it. `cargo xtask dist` links the result
//! with the symbol versions of Debian 12's libraries (`abi/*.map`).
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! attributes dm event rdmacm
//! context
//! post qp_ex
//! mcast mw
//! qp
//! ah cq_ex import srq sysfs
//! cq device mr xrc
//! layout pd presentation private_stubs rate unsupported
//! abi acks errno mutex object strings
//! ```

mod acks;
mod ah;
mod attributes;
mod context;
mod cq;
mod cq_ex;
mod device;
mod dm;
mod errno;
mod event;
mod import;
mod layout;
mod mcast;
mod mr;
mod mutex;
mod mw;
mod object;
mod pd;
mod post;
mod presentation;
mod private_stubs;
mod qp;
mod qp_ex;
mod rate;
mod rdmacm;
mod srq;
mod strings;
mod sysfs;
mod unsupported;
mod xrc;

pub mod abi;
