//! Limits for each socket. `weft_socket.h` has the same numbers.

/// Buffers in a posted operation.
pub const WEFT_PIECES_MAX: usize = 16;
/// Posted operations of a socket whose completions have not been taken.
pub const WEFT_POSTED_MAX: usize = 1_024;
/// Registrations of a socket at a time.
pub const WEFT_KEYS_MAX: usize = 8;
