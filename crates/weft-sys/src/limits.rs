//! The bounds of this crate: how often a thread tries, and how much one call takes.
#![cfg_attr(loom, allow(dead_code))]

/// How often a thread looks at a lock before it sleeps. The sections are some hundred nanoseconds
/// long.
pub(crate) const LOCK_SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 100 };
/// How often a thread looks at a lock that processes share before it yields. The sections are some
/// hundred nanoseconds long, and a copy.
pub(crate) const SHARED_LOCK_SPINS_MAX: u32 = 200;
/// How often it yields before it sleeps.
pub(crate) const SHARED_LOCK_YIELDS_MAX: u32 = 8;
/// Offers of the core in a row that no thread took up, after which none seems to want it: a poller
/// may have been quick.
pub(crate) const REFUSED_MAX: u32 = 64;
/// Bytes of a mapping's name. Longer ones are those of files.
pub(crate) const MAPS_NAME_MAX: usize = 128;
/// Bytes of a line of `/proc/PID/maps` that matter: the name begins in column 73 or a little
/// later.
pub(crate) const MAPS_LINE_MAX: usize = 256;
/// Pieces of the other process's memory that one call takes.
pub const PIECES_MAX: usize = 16;
/// Bytes that one call reads; the kernel's bound is a little below 2 GiB.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 30;
/// How much longer than its pages a segment is: `mremap` lets the program's memory grow by what
/// follows, which has to be there and empty.
pub(crate) const GROWTH_MAX: usize = 1 << 40;
/// A system call with its arguments, in hexadecimal.
pub(crate) const CALL_LEN_MAX: usize = 256;
/// Bytes of a path below `/proc`.
pub(crate) const PATH_LEN_MAX: usize = 64;
/// Runs that one system call sends.
pub const SEND_RUNS_MAX: usize = 32;
/// Datagrams that the kernel takes as one run.
pub const SEGMENTS_MAX: usize = 64;
