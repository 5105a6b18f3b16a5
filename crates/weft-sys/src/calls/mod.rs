//! System calls of Weft's libraries. They have the names, types and results of rustix, but go
//! through the gate of `system_call`: where the kernel reports calls made elsewhere, one of rustix
//! costs a signal. The crates of these libraries therefore make no call by rustix itself, which
//! `cargo xtask tidy` checks.
//!
//! The calls of the data path are in this module; the others are in modules that are named as
//! rustix's are.

mod data;
pub mod event;
pub mod fs;
pub mod io;
pub mod mm;
pub mod net;
pub mod pipe;
pub mod process;
pub mod rand;
mod raw;
pub mod sockopt;
pub mod thread;
pub mod time;

pub use data::{
    Sharing, epoll_event, events_now, file_flags, futex_wait, futex_wait_any, futex_wake,
    is_at_mark, is_ready, is_tcp_open, poll, read, read_at, read_cached_at, recv_bytes,
    sched_yield, seek, send_bytes, set_tcp_cork, set_tcp_nodelay, socket_cookie, socket_option,
    socket_timeout, take_events, tcp_cork, tcp_nodelay, tcp_outstanding, tcp_received,
    tcp_round_trip, type_and_size, write,
};
pub(crate) use raw::{call, option_of, set_option};
