//! Why a connection is the kernel's.

/// Why TCP carries a connection. As a number it is in shared memory, so that the order is part of
/// the layout.
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
    /// The registry is full.
    Room,
    /// One socket is both ends.
    Itself,
    /// The socket was connected by a system call that no hook has seen.
    Unseen,
    /// A call that waits for the connection to be made may have moved bytes that nobody counted.
    Early,
    /// Urgent data (`MSG_OOB`), or data with the connection's start (`MSG_FASTOPEN`).
    Urgent,
    /// The kernel's notices of zero copy (`MSG_ZEROCOPY`).
    Notices,
    /// A socket option that only the kernel has.
    Option,
    /// Signals for input and output (`O_ASYNC`).
    Signals,
    /// Several instances of epoll watch it, or one that is watched itself.
    Watched,
    /// It went to another process over a Unix socket.
    PassedOn,
    /// A child was born before both ends had agreed.
    Forked,
    /// The program gives up system calls that it does not make itself.
    Seccomp,
    /// A program that Weft does not count has been started with it.
    Started,
    /// A process shares descriptors, memory or process numbers in a way that is not counted.
    Processes,
    /// The C library reads or writes it by ways of its own (a `FILE` has its number).
    Stdio,
    /// The program uses something that reaches connections unseen.
    ByHand,
    /// The process has become another user.
    User,
    /// It was shut down with bytes on their way.
    Shut,
    /// A writer has waited long for room, and the peer reads nothing: TCP may have more.
    Stalled,
    /// The last ones to the same address have ended before they gained by memory.
    Brief,
}

impl Reason {
    /// All, in the order of their numbers.
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

    /// A word for it.
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

    /// The same for a reader.
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
