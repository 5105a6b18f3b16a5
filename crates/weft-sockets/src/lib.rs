//! Hooks for `LD_PRELOAD` that carry a program's TCP connections and UDP datagrams through shared
//! memory where both ends are on this host and run on Weft, and leave everything else as it is.
//!
//! The descriptor that a program has is the kernel's socket, always. So whatever is not hooked here
//! keeps its meaning, and who is not hooked (other processes, static programs) stays on TCP.
//! `weft_stream` moves the bytes; here is what the C library's calls mean for them:
//!
//! * `table`: which descriptors are ours, asked first and without a lock;
//! * `stream`: connecting, accepting, sending and receiving, with all the waiting;
//! * `zcopy`: long messages, which the receiver pulls out of the sender's memory;
//! * `remote`: connections to other hosts, over verbs; `link`: an end, of either kind;
//! * `datagram`: the same for UDP;
//! * `poll`, `epoll`: readiness of rings beside that of everything else;
//! * `extended`: one-sided and asynchronous operations for programs that ask for them;
//! * `reason`: what carries a connection, and why, for who wants to know;
//! * `process`: start, fork and end of the process; `handover`: programs that get its sockets;
//! * `confine`: what becomes of all that when a process gives up system calls;
//! * `ways`: what does not come by a hook of its own: calls by number, and which there are;
//! * `by_hand`: calls that the program makes without the C library;
//! * `hooks`: the C functions.
//!
//! A hook runs wherever the program calls the C library, perhaps inside its allocator or a signal
//! handler. So the library has a heap of its own, and a thread that holds one of its locks puts
//! handlers off until it is free (`hooks::signals`). No hook allocates, locks or logs before it
//! knows that a descriptor is ours, and `errno` changes only as the call says.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! hooks
//! confine
//! by_hand
//! poll ways
//! datagram
//! epoll
//! extended handover
//! stream
//! zcopy
//! link process
//! remote table
//! settings
//! doze next reason
//! address errno wait
//! ```

#[cfg(not(test))]
mod address;
mod by_hand;
#[cfg(not(test))]
mod confine;
#[cfg(not(test))]
mod datagram;
#[cfg(not(test))]
mod doze;
#[cfg(not(test))]
mod epoll;
#[cfg(not(test))]
mod errno;
#[cfg(not(test))]
mod extended;
#[cfg(not(test))]
mod handover;
#[cfg(not(test))]
mod hooks;
#[cfg(not(test))]
mod link;
#[cfg(not(test))]
mod next;
#[cfg(not(test))]
mod poll;
#[cfg(not(test))]
mod process;
#[cfg(not(test))]
mod reason;
#[cfg(not(test))]
mod remote;
#[cfg(not(test))]
mod settings;
#[cfg(not(test))]
mod stream;
#[cfg(not(test))]
mod table;
#[cfg(not(test))]
mod wait;
mod ways;
#[cfg(not(test))]
mod zcopy;

/// The program's own may be in the middle of something when a handler calls a hook.
#[cfg(not(test))]
#[global_allocator]
static HEAP: weft_sys::Heap = weft_sys::Heap::new();
