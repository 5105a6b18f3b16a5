//! Limits of this crate: numbers of attempts, and sizes of one call.
#![cfg_attr(loom, allow(dead_code))]

/// Number of times that a thread checks a lock before it sleeps. Critical sections take some
/// hundred nanoseconds.
pub(crate) const LOCK_SPINS_MAX: u32 = if cfg!(loom) { 1 } else { 100 };
/// Number of times that a thread checks a lock shared by processes before it yields. Critical
/// sections take some hundred nanoseconds, plus a copy.
pub(crate) const SHARED_LOCK_SPINS_MAX: u32 = 200;
/// Number of yields before the thread sleeps.
pub(crate) const SHARED_LOCK_YIELDS_MAX: u32 = 8;
/// Consecutive yields that no thread used, after which no thread seems to need the core. A polling
/// thread may have returned quickly from a yield, so a few prove nothing.
pub(crate) const REFUSED_MAX: u32 = 64;
/// Maximum length of a mapping's name. Longer names belong to files.
pub(crate) const MAPS_NAME_MAX: usize = 128;
/// Number of relevant bytes in a line of `/proc/PID/maps`: the name begins in column 73 or a little
/// later.
pub(crate) const MAPS_LINE_MAX: usize = 256;
/// Maximum number of pieces of another process's memory in one call.
pub const PIECES_MAX: usize = 16;
/// Maximum number of bytes that one call reads; the kernel's limit is a little below 2 GiB.
pub(crate) const CALL_BYTES_MAX: usize = 1 << 30;
/// Number of bytes by which a segment's file is longer than its pages. `mremap` lets the program's
/// memory grow into them, so they must exist and be zero.
pub(crate) const GROWTH_MAX: usize = 1 << 40;
/// Maximum length of a system call with its arguments, in hexadecimal.
pub(crate) const CALL_LEN_MAX: usize = 256;
/// Maximum length of a path below `/proc`.
pub(crate) const PATH_LEN_MAX: usize = 64;
/// Maximum number of runs that one system call sends.
pub const SEND_RUNS_MAX: usize = 32;
/// Maximum number of datagrams that the kernel takes as one run.
pub const SEGMENTS_MAX: usize = 64;
/// Maximum number of descriptors that a packet passes on.
pub const PASSED_FDS_MAX: usize = 2;
/// Maximum number of mappings of files at a time, which the handler of missing pages looks through.
pub(crate) const FILE_MAPPINGS_MAX: usize = 1_024;
