//! Options of a receiving call, and the kernel's flags for them.

/// Flags of `recvmsg(2)` and `sendmsg(2)`.
const PEEK: i32 = 0x02;
const TRUNC: i32 = 0x20;
pub(crate) const DONTWAIT: i32 = 0x40;

/// Options of a receiving call.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvOptions {
    /// Leave the bytes in the queue (`MSG_PEEK`).
    pub keep: bool,
    /// Drop the bytes and only count them (`MSG_TRUNC`).
    pub discard: bool,
    /// If the rings are empty, ask the kernel whether the stream has ended. This costs a system
    /// call.
    pub look: bool,
    /// The call has received bytes before. It ends before urgent data, which the kernel skips in a
    /// call without a part.
    pub has_part: bool,
}

impl RecvOptions {
    /// Counts the bytes that are there. While a stream goes over TCP and the end of that phase is
    /// not known, a call takes exactly the bytes that have been counted: not more, because later
    /// bytes may belong to another phase; and not fewer, because programs expect a message that
    /// arrived whole to be received whole.
    pub(crate) const COUNT: Self = Self { keep: true, discard: true, look: false, has_part: false };

    /// The flags of a kernel call that does the same and does not block.
    pub(crate) fn flags(self) -> i32 {
        let peek = if self.keep { PEEK } else { 0 };
        let trunc = if self.discard { TRUNC } else { 0 };
        DONTWAIT | peek | trunc
    }
}
