//! Hooks for `LD_PRELOAD` that answer what programs ask the file system about Weft's devices.
//!
//! UCX uses a device only if `/dev/infiniband/<device>` is a character device that may be read and
//! written, and it and NCCL read a GID's type and network interface from
//! `/sys/class/infiniband/<device>/ports/1/gid_attrs`; pyverbs lists the interface in
//! `/sys/class/infiniband/<device>/device/net`. A device of Weft has no such files; these
//! hooks say what they would. Everything else falls through to the C library. `bind` and `listen`
//! are hooked, too, because a library of Weft's may hold a TCP port that the program wants.
//!
//! A hook runs wherever the program calls the C library, perhaps inside its allocator or a signal
//! handler. So each compares the path's first bytes before anything else, and none allocates,
//! locks, logs or uses the standard library's input and output; `errno` changes only as the call
//! says.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! hooks
//! directory reply
//! claim path
//! limits
//! ```

#[cfg(not(test))]
mod claim;
#[cfg(not(test))]
mod directory;
#[cfg(not(test))] // A test program keeps its own `open`.
mod hooks;
mod limits;
mod path;
#[cfg(not(test))]
mod reply;
