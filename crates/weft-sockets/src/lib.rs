//! Hooks for `LD_PRELOAD` that carry a program's TCP connections and UDP datagrams through shared
//! memory if both ends run on this host with Weft. All other traffic stays on the kernel.
//!
//! The program's descriptor is always a kernel socket. So calls that are not hooked here keep their
//! meaning, and processes without the hooks (other programs, static programs) stay on TCP.
//! `weft_stream` moves the bytes; this crate gives the C library's calls their meaning for them:
//!
//! * `hooks`: the C functions; `start`: the library's start and end in a process;
//! * `ways`: calls that arrive by other ways than a hook of their own, such as calls by number;
//!   `reach`: the table of system calls;
//! * `process`: forks and the end of the process; `handover`: passing sockets to another program;
//!   `seccomp_fallback`: what happens when a process installs a seccomp filter;
//! * `epoll`, `poll`: readiness of rings together with that of all other descriptors;
//! * `open`: descriptors that Weft knows, of any kind; `sockets`: those that are sockets;
//! * `stream`: TCP: connecting, accepting, sending and receiving, with all waiting; `datagram`:
//!   UDP;
//! * `extended`: one-sided and asynchronous operations for programs that ask for them;
//! * `zcopy`: long messages, which the receiver copies directly out of the sender's memory;
//! * `remote`: connections to other hosts, over verbs; `link`: a connection's end, local or remote;
//! * `by_hand`: system calls that the program makes without the C library;
//! * `table`: the descriptor table, which is read without a lock;
//! * `brief`: connections that end too soon to gain from shared memory; `child_starts`: forks that
//!   run while another thread opens a socket; `closes`: closes in progress; `sleepers`: how readers
//!   notify threads that wait in epoll instances; `stall`: writers whose peers do not read;
//! * `reason`: what carries each connection, and why, for logs and `weft stat`;
//! * `shared_files`: files that processes of one user share; `settings`: the environment; `mode`:
//!   whether Weft carries anything in this process;
//! * `unseen_fork`: forks that the hooks did not see;
//! * `identity`, `handlers`, `descriptor`, `arguments`, `address`: the process, its signal
//!   handlers, its descriptors, and arguments of calls;
//! * `kernel`: the trait for all questions to the kernel, and the fake kernel of the unit tests;
//! * `wait`, `futex_wait`, `next`, `errno`: waiting, and the C library's own functions.
//!
//! A hook runs wherever the program calls the C library, perhaps inside its allocator or a signal
//! handler. So this library has its own heap, and a thread that holds one of its locks defers
//! signal handlers until the lock is free (`hooks::signals`). No hook allocates, locks or logs
//! before it knows that a descriptor is Weft's, and `errno` changes only as the call documents.
//!
//! # Layers
//!
//! A module uses the modules of its own line and of the lines below. `cargo xtask tidy` checks it.
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
//! child_starts brief closes reason shared_files sleepers stall table
//! handlers settings
//! identity
//! descriptor unseen_fork
//! futex_wait
//! wait
//! kernel
//! next
//! address arguments errno limits mode reach
//! ```

// Test builds leave out the hooks: they would intercept the test program's own calls.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod address;
mod arguments;
mod brief;
mod by_hand;
mod child_starts;
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

/// A signal handler may call a hook while the program's own allocator holds its locks.
#[cfg_attr(not(test), global_allocator)]
static HEAP: weft_sys::Heap = weft_sys::Heap::new();
