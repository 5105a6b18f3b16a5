//! Hooks for `LD_PRELOAD` that answer a program's questions to the file system about Weft's
//! devices.
//!
//! UCX uses a device only if `/dev/infiniband/<device>` is a character device that it may read and
//! write. UCX and NCCL read a GID's type and network interface from
//! `/sys/class/infiniband/<device>/ports/1/gid_attrs`, and pyverbs lists the interface in
//! `/sys/class/infiniband/<device>/device/net`. Weft's devices have no such files, so these hooks
//! emulate them. All other paths go to the C library. `bind` and `listen` are hooked because Weft's
//! verbs library may hold a TCP port that the program wants.
//!
//! A hook runs wherever the program calls the C library, perhaps inside its allocator or a signal
//! handler. So each hook first compares the path's first bytes, and none allocates, locks, logs or
//! uses the standard library's input and output; `errno` changes only as the call documents.
//!
//! # Layers
//!
//! A module uses the modules of its own line and of the lines below. `cargo xtask tidy` checks it.
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
// Test builds leave out the hooks: they would intercept the test program's own calls.
#[cfg(not(test))]
mod hooks;
mod limits;
mod path;
#[cfg(not(test))]
mod reply;
