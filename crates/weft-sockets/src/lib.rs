//! Hooks for `LD_PRELOAD` that carry a program's TCP connections and UDP datagrams through shared
//! memory where both ends are on this host and run on Weft, and leave everything else as it is.
//!
//! The descriptor that a program has is the kernel's socket, always. So whatever is not hooked here
//! keeps its meaning, and who is not hooked (other processes, static programs) stays on TCP.
//! `weft_stream` moves the bytes; here is what the C library's calls mean for them:
//!
//! * `hooks`: the C functions; `start`: the library's start and end in a process;
//! * `ways`: what does not come by a hook of its own, such as calls by number; `reach`: which
//!   calls there are;
//! * `process`: forks and the end of the process; `handover`: programs that get its sockets;
//!   `seccomp_fallback`: what becomes of all when a process gives up system calls;
//! * `epoll`, `poll`: readiness of rings beside that of everything else;
//! * `open`: descriptors of ours, whatever they stand for; `sockets`: those that are sockets;
//! * `stream`: TCP: connecting, accepting, sending and receiving, with all the waiting;
//!   `datagram`: UDP;
//! * `extended`: one-sided and asynchronous operations for programs that ask for them;
//! * `zcopy`: long messages, which the receiver pulls out of the sender's memory;
//! * `remote`: connections to other hosts, over verbs; `link`: an end, of either kind;
//! * `by_hand`: calls that the program makes without the C library;
//! * `table`: what is known of a descriptor, found without a lock;
//! * `brief`: connections that are not worth shared memory; `births`: children that are born beside
//!   a thread that opens a socket; `closes`: closes that have begun;
//!   `sleepers`: what those who read tell those who wait in epoll instances; `stall`: writers
//!   whose peers read nothing;
//! * `reason`: what carries a connection, and why, for who wants to know;
//! * `shared_files`: what processes of one user share; `settings`: the environment;
//!   `mode`: whether anything is carried;
//! * `unseen_fork`: children that the process learns of late;
//! * `identity`, `handlers`, `descriptor`, `arguments`, `address`: what the kernel says of the
//!   process, its signal handlers, its descriptors, and calls;
//! * `kernel`: what all of these ask of the kernel, and a kernel of the unit tests' own;
//! * `wait`, `futex_wait`, `next`, `errno`: waiting, and the C library's own functions.
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
//! start
//! hooks ways
//! process
//! seccomp_fallback handover
//! open poll
//! epoll
//! sockets
//! datagram stream
//! extended zcopy
//! link
//! remote
//! by_hand
//! births brief closes reason shared_files sleepers stall table
//! handlers settings
//! identity
//! descriptor unseen_fork
//! futex_wait
//! wait
//! kernel
//! next
//! address arguments errno limits mode reach
//! ```

// The hooks, which use most of it, are not there in tests: they would get the test program's calls.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod address;
mod arguments;
mod births;
mod brief;
mod by_hand;
mod closes;
mod datagram;
mod descriptor;
mod epoll;
mod errno;
mod extended;
mod futex_wait;
mod handlers;
mod handover;
#[cfg(not(test))]
mod hooks;
mod identity;
mod kernel;
mod limits;
mod link;
mod mode;
mod next;
mod open;
mod poll;
mod process;
#[cfg(test)]
mod program;
mod reach;
mod reason;
mod remote;
mod seccomp_fallback;
mod settings;
mod shared_files;
mod sleepers;
mod sockets;
mod stall;
#[cfg(not(test))]
mod start;
mod stream;
mod table;
mod unseen_fork;
mod wait;
mod ways;
mod zcopy;

/// The program's own may be in the middle of something when a handler calls a hook.
#[cfg_attr(not(test), global_allocator)]
static HEAP: weft_sys::Heap = weft_sys::Heap::new();
