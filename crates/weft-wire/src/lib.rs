//! Sans-I/O iWARP: formats and state machines of RDMA over TCP, and over datagrams.
//!
//! | layer | RFC | module |
//! | --- | --- | --- |
//! | MPA, framing and connection setup | 5044, 6581 | [`mpa`] |
//! | DDP, placement | 5041 | [`ddp`] |
//! | RDMAP, operations | 5040, 7306 | [`rdmap`] |
//! | reliable datagrams, in place of MPA | none | [`rd`] |
//! | UD queue pairs, RDMAP over UDP | none | [`datagram`] |
//! | which Terminate answers which misbehaviour | all | [`error`] |
//!
//! This crate uses no sockets, clocks, random sources or threads. Input comes as slices that may be
//! split anywhere, and output goes into buffers of the caller. Nothing depends on time.
//!
//! # The panic contract
//!
//! *Parsing* (`parse`, `decode`, `input`, `push`, `check`) never panics, whatever the bytes are.
//! *Emitting* (`emit`, `seal`, `insert`) panics only if the caller violates a precondition in the
//! function's `# Panics` section, such as a minimum buffer length. No bytes of a peer can cause
//! that.
//!
//! # Allocation
//!
//! The data path ([`mpa::fpdu`], [`ddp`], [`rdmap`]) does not allocate. Connection setup, and the
//! marker path, which is used only if a peer asks for markers, write into `Vec`s.
//!
//! # Citations
//!
//! A rule of an RFC is cited by `//= rfc5044#section-4.1`, followed by its verbatim text behind
//! `//#`. `//= type=test` marks the citation of a test. `cargo xtask rfc` compares the citations
//! with `rfc/sections.txt`, `rfc/exceptions.toml` and `rfc/quotations.txt`.
//!
//! # Layers
//!
//! A module uses modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! datagram
//! rdmap error
//! ddp mpa rd
//! bytes crc
//! limits
//! ```

#![forbid(unsafe_code)]

mod bytes;
pub mod crc;
pub mod datagram;
pub mod ddp;
pub mod error;
mod limits;
pub mod mpa;
pub mod rd;
pub mod rdmap;
