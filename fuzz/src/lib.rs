//! Bodies of the fuzz targets, separate from libFuzzer, so that ordinary tests can run them on the
//! corpus and on random input.
//!
//! `cargo +nightly fuzz run wire_frame` fuzzes; `cargo test --test fuzz` replays the corpus.

pub mod engine;
pub mod mpa;
pub mod rd;
pub mod remote;
pub mod shared;
pub mod stream;
pub mod target_connection;
pub mod transfer_keys;
pub mod transfer_session;
pub mod transfer_tree;
pub mod wire;
