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
            Self::Rule => "a rule says so",
            Self::Remote => "the peer is on another host",
            Self::Peer => "the peer is not on weft, or another user's",
            Self::Ended => "the peer had not agreed to more when it ended",
            Self::Registry => "there is no registry to be had",
            Self::Room => "the registry has no room",
            Self::Itself => "it is connected to itself",
            Self::Unseen => "it was connected by a way that is not seen",
            Self::Early => "it was used before it was connected",
            Self::Urgent => "urgent data, or data with the connection's start",
            Self::Notices => "MSG_ZEROCOPY",
            Self::Option => "an option that only the kernel has",
            Self::Signals => "signals for input and output",
            Self::Watched => "several instances of epoll, or one in another",
            Self::PassedOn => "it was passed to another process",
            Self::Forked => "a child was born before the peer was known",
            Self::Seccomp => "the program gives up system calls",
            Self::Started => "a program was started with it",
            Self::Processes => "processes share it in a way that is not counted",
            Self::Stdio => "a stream of the C library has its number",
            Self::ByHand => "the program reaches it by ways that are not seen",
            Self::User => "the process has become another user",
            Self::Shut => "one direction was shut with bytes unread",
            Self::Stalled => "the peer has read nothing for a second, and no room was left",
            Self::Brief => "the last ones to that address were too brief to gain by memory",
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
