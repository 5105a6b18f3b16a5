//! The declarations of `weft_socket.h`, which documents each call.

use libc::{c_int, c_void, iovec, size_t};

pub use crate::limits::{WEFT_KEYS_MAX, WEFT_PIECES_MAX, WEFT_POSTED_MAX};

/// The level of the options, which no protocol uses.
pub const SOL_WEFT: c_int = 0x5745_4654;
/// Option, an `int`: 1 switches the socket to extended mode, for good.
pub const WEFT_MODE: c_int = 1;
/// Read-only option: a pointer to [`Calls`].
pub const WEFT_CALLS: c_int = 2;
/// The version of [`Calls`].
pub const WEFT_VERSION: u32 = 1;

/// Right: the peer may read.
pub const WEFT_READ: u32 = 1;
/// Right: the peer may write.
pub const WEFT_WRITE: u32 = 2;
/// Right: the peer may change 64-bit words atomically.
pub const WEFT_ATOMIC: u32 = 4;

/// The name of a registration. It is sent to the peer unchanged, because both are on one host.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Key {
    /// 64 random bits.
    pub secret: u64,
    /// Length of the registered memory in bytes.
    pub length: u64,
    /// Index in the owner's table.
    pub index: u32,
    /// `WEFT_READ` and so on, for the program's information: the owner's table decides.
    pub rights: u32,
}

impl Key {
    /// Bytes of a key on its way to the peer.
    pub const LEN: usize = size_of::<Self>();

    /// Returns the key as bytes for the peer.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.secret.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.length.to_ne_bytes());
        bytes[16..20].copy_from_slice(&self.index.to_ne_bytes());
        bytes[20..].copy_from_slice(&self.rights.to_ne_bytes());
        bytes
    }

    /// Returns the key that these bytes encode.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        Self { secret: word(0), length: word(8), index: half(16), rights: half(20) }
    }
}

/// The kind of a completed operation.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `post_put`
    Put = 1,
    /// `post_get`
    Get = 2,
    /// `post_fetch_add`
    FetchAdd = 3,
    /// `post_compare_swap`
    CompareSwap = 4,
    /// `post_send`
    Send = 5,
    /// `post_recv`
    Recv = 6,
}

/// The result of a posted operation.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The id that was posted.
    pub id: u64,
    /// Number of bytes, or a negative errno.
    pub result: i64,
    /// For atomic operations, the word's old value.
    pub value: u64,
    /// An [`Operation`].
    pub operation: u32,
    /// Always 0.
    pub reserved: u32,
}

/// The table of calls. Each returns 0 or a count, or a negative errno. Later versions append calls.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // `weft_socket.h` documents each.
pub struct Calls {
    pub version: u32,
    pub size: u32,
    pub allocate: unsafe extern "C" fn(size_t, *mut *mut c_void) -> c_int,
    pub release: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub register_memory: unsafe extern "C" fn(c_int, *mut c_void, size_t, u32, *mut Key) -> c_int,
    pub deregister: unsafe extern "C" fn(c_int, *const Key) -> c_int,
    pub put: unsafe extern "C" fn(c_int, *const Key, u64, *const c_void, size_t) -> c_int,
    pub get: unsafe extern "C" fn(c_int, *const Key, u64, *mut c_void, size_t) -> c_int,
    pub fetch_add: unsafe extern "C" fn(c_int, *const Key, u64, u64, *mut u64) -> c_int,
    pub compare_swap: unsafe extern "C" fn(c_int, *const Key, u64, u64, u64, *mut u64) -> c_int,
    pub post_put: unsafe extern "C" fn(c_int, *const Key, u64, *const iovec, c_int, u64) -> c_int,
    pub post_get: unsafe extern "C" fn(c_int, *const Key, u64, *const iovec, c_int, u64) -> c_int,
    pub post_fetch_add: unsafe extern "C" fn(c_int, *const Key, u64, u64, u64) -> c_int,
    pub post_compare_swap: unsafe extern "C" fn(c_int, *const Key, u64, u64, u64, u64) -> c_int,
    pub post_send: unsafe extern "C" fn(c_int, *const iovec, c_int, u64) -> c_int,
    pub post_recv: unsafe extern "C" fn(c_int, *const iovec, c_int, u64) -> c_int,
    pub poll: unsafe extern "C" fn(c_int, *mut Completion, c_int) -> c_int,
    pub wait: unsafe extern "C" fn(c_int, *mut Completion, c_int, c_int) -> c_int,
}

const _: () = {
    assert!(size_of::<Key>() == 24 && size_of::<Completion>() == 32);
    assert!(size_of::<Calls>() == 8 + 16 * 8);
};
