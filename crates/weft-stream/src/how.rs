//! What a call that receives asks for, and the kernel's flags for it.

/// Flags of `recvmsg(2)` and `sendmsg(2)`.
const PEEK: i32 = 0x02;
const TRUNC: i32 = 0x20;
pub(crate) const DONTWAIT: i32 = 0x40;

/// How to receive.
#[derive(Clone, Copy, Debug, Default)]
pub struct How {
    /// The bytes stay where they are (`MSG_PEEK`).
    pub keep: bool,
    /// The bytes are dropped and only counted (`MSG_TRUNC`).
    pub discard: bool,
    /// Where the rings are empty, ask the kernel whether the stream has ended. It takes a system
    /// call.
    pub look: bool,
}

impl How {
    /// Counts what is there. While a stream goes over TCP, and no end of that is known, no more is
    /// taken than has been counted, for what comes later may belong to another phase; and no less,
    /// for programs expect a message that came whole to be received whole.
    pub(crate) const COUNT: Self = Self { keep: true, discard: true, look: false };

    /// The same, as flags of a call to the kernel that does not block.
    pub(crate) fn flags(self) -> i32 {
        let peek = if self.keep { PEEK } else { 0 };
        let trunc = if self.discard { TRUNC } else { 0 };
        DONTWAIT | peek | trunc
    }
}
