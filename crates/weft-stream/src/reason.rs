//! Reasons why TCP carries a connection.

/// Why TCP carries a connection. The numbers are in shared memory, so the order is a part of the
/// layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// A rule says so.
    Rule,
    /// The peer is on another host.
    Remote,
    /// The peer has not agreed for so long that it will not.
    Peer,
    /// The connection has ended before the peer agreed.
    Ended,
    /// There is no registry.
    Registry,
    /// The registry has no free slot.
    Room,
    /// The socket is connected to itself.
    Itself,
    /// The socket was connected by a system call that no hook saw.
    Unseen,
    /// A call that waits for the connection to be made may have moved bytes that were not counted.
    Early,
    /// Urgent data (`MSG_OOB`), or data sent with the connection's start (`MSG_FASTOPEN`).
    Urgent,
    /// The program wants the kernel's zero-copy notifications (`MSG_ZEROCOPY`).
    Notices,
    /// A socket option that only the kernel implements.
    Option,
    /// Signal-driven I/O (`O_ASYNC`).
    Signals,
    /// Several epoll instances watch the socket, or one that is watched itself.
    Watched,
    /// The socket was passed to another process over a Unix socket.
    PassedOn,
    /// A child was forked before both ends had agreed.
    Forked,
    /// The program installs a seccomp filter that may forbid system calls that Weft needs.
    Seccomp,
    /// A program that Weft does not count was started with the socket.
    Started,
    /// A process shares descriptors, memory or process numbers in a way that Weft does not count.
    Processes,
    /// The C library reads or writes the socket by itself (a `FILE` has its descriptor).
    Stdio,
    /// The program uses a facility that reaches connections without passing the hooks.
    ByHand,
    /// The process has changed its user.
    User,
    /// A direction was shut down with bytes unread.
    Shut,
    /// A writer has waited long for room, and the peer reads nothing: TCP may have more room.
    Stalled,
    /// The last connections to the same address ended too early to gain by memory.
    Brief,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 25] = [
        Self::Rule,
        Self::Remote,
        Self::Peer,
        Self::Ended,
        Self::Registry,
        Self::Room,
        Self::Itself,
        Self::Unseen,
        Self::Early,
        Self::Urgent,
        Self::Notices,
        Self::Option,
        Self::Signals,
        Self::Watched,
        Self::PassedOn,
        Self::Forked,
        Self::Seccomp,
        Self::Started,
        Self::Processes,
        Self::Stdio,
        Self::ByHand,
        Self::User,
        Self::Shut,
        Self::Stalled,
        Self::Brief,
    ];

    /// The reason's name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rule => "rule",
            Self::Remote => "remote",
            Self::Peer => "peer",
            Self::Ended => "ended",
            Self::Registry => "registry",
            Self::Room => "room",
            Self::Itself => "itself",
            Self::Unseen => "unseen",
            Self::Early => "early",
            Self::Urgent => "urgent",
            Self::Notices => "notices",
            Self::Option => "option",
            Self::Signals => "signals",
            Self::Watched => "watched",
            Self::PassedOn => "passed-on",
            Self::Forked => "forked",
            Self::Seccomp => "seccomp",
            Self::Started => "started",
            Self::Processes => "processes",
            Self::Stdio => "stdio",
            Self::ByHand => "by-hand",
            Self::User => "user",
            Self::Shut => "shut",
            Self::Stalled => "stalled",
            Self::Brief => "brief",
        }
    }

    /// A description for a person.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Rule => "a rule selects TCP",
            Self::Remote => "the peer is on another host",
            Self::Peer => "the peer does not run on weft, or belongs to another user",
            Self::Ended => "the peer ended before it agreed to share memory",
            Self::Registry => "the registry in shared memory cannot be opened",
            Self::Room => "the registry is full",
            Self::Itself => "the socket is connected to itself",
            Self::Unseen => "it was connected by a call that weft does not intercept",
            Self::Early => "bytes may have moved while connect(2) was in progress",
            Self::Urgent => "urgent data (MSG_OOB), or data in the SYN (MSG_FASTOPEN)",
            Self::Notices => "notifications of MSG_ZEROCOPY",
            Self::Option => "a socket option that only the kernel implements",
            Self::Signals => "signal-driven I/O (O_ASYNC)",
            Self::Watched => "it is in several epoll instances, or in a nested one",
            Self::PassedOn => "it was passed to another process",
            Self::Forked => "the process forked before the peer was known",
            Self::Seccomp => "the program installs a seccomp filter",
            Self::Started => "a program that weft does not count inherited it",
            Self::Processes => "processes share descriptors in a way that weft does not count",
            Self::Stdio => "a FILE of the C library uses its descriptor",
            Self::ByHand => "the program uses it by calls that weft does not intercept",
            Self::User => "the process has changed its user",
            Self::Shut => "one direction was shut down with bytes unread",
            Self::Stalled => "the peer has read nothing for a second, and the ring is full",
            Self::Brief => "recent connections to that address were too short to gain",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_numbers_are_list_indices() {
        for (number, why) in Reason::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, number, "{why:?}");
        }
    }
}
