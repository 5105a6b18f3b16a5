//! Sans-I/O iWARP: the formats and state machines of RDMA over TCP, and over datagrams.
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
//! There is no socket, clock, random source or thread in this crate. Bytes come in as slices cut
//! anywhere, bytes go out into buffers of the caller, and time is the caller's affair.
//!
//! # The panic contract
//!
//! *Parsing* (`parse`, `decode`, `input`, `push`, `check`) never panics, whatever the bytes are.
//! *Emitting* (`emit`, `seal`, `insert`) panics only when the caller breaks a precondition that the
//! function's `# Panics` section names, such as a buffer that is too small; no byte of a peer can
//! bring that about.
//!
//! # Allocation
//!
//! The data path ([`mpa::fpdu`], [`ddp`], [`rdmap`]) allocates nothing. Connection setup and the
//! marker path, which only a peer that asks for markers puts into use, write into `Vec`s.
//!
//! # Citations
//!
//! A rule taken from an RFC is marked `//= rfc5044#section-4.1`, followed by the sentence, word
//! for word, behind `//#`. `//= type=test` marks the citation of a test. `cargo xtask rfc` compares
//! these with `rfc/sections.txt`, `rfc/exceptions.toml` and `rfc/quotations.txt`.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
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
