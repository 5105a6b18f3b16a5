//! Numbers that say why something does not happen.

/// Binds the codes of one field, their numbers and their texts.
macro_rules! codes {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$item:meta])* $code:ident = $number:literal, $text:literal;)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$item])* $code,)*
            /// A code that this version does not know.
            Other(u16),
        }

        impl $name {
            /// All codes that this version knows.
            pub const ALL: &[Self] = &[$(Self::$code),*];

            /// The number that stands for it.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$code => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// What a number stands for.
            #[must_use]
            pub const fn of(number: u16) -> Self {
                match number {
                    $($number => Self::$code,)*
                    other => Self::Other(other),
                }
            }

            /// The same in words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)*
                    Self::Other(_) => "a reason that this version does not know",
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    Self::Other(number) => write!(f, "code {number}"),
                    known => f.write_str(known.text()),
                }
            }
        }
    };
}

codes! {
    /// Why the acceptor refuses a connection or a session.
    Refusal {
        /// The two ends have no version in common.
        Version = 1, "no version in common";
        /// The initiator may not do this.
        NotAllowed = 2, "not allowed";
        /// Blocks would be too small or too large.
        BlockSize = 3, "no block size in common";
        /// There are too many connections or sessions.
        Busy = 4, "too busy";
        /// What the session is to do is not understood.
        Job = 5, "the job is not understood";
        /// What the session is to read or write does not exist.
        NotFound = 6, "not found";
        /// The acceptor is about to end.
        Ending = 7, "the server is about to end";
        /// The kernel refuses it.
        System = 8, "refused by the system";
    }
}

codes! {
    /// Why a session, or with session 0 the connection, ends before it is complete.
    Code {
        /// A user or program stopped it.
        Stopped = 1, "stopped";
        /// The peer broke the rules of the protocol.
        Protocol = 2, "the peer broke the protocol";
        /// Reading at the source failed.
        Source = 3, "the source cannot be read";
        /// Writing at the sink failed.
        Sink = 4, "the sink cannot be written";
        /// The sink has no space left.
        Space = 5, "no space left at the sink";
        /// A block or file is not what it should be.
        Integrity = 6, "data is damaged";
        /// No data channel is left.
        Channels = 7, "no data channel is left";
        /// Nothing has come for too long.
        Silent = 8, "no sign of life";
        /// A quota is used up.
        Quota = 9, "a limit is reached";
        /// Anything else that is this end's fault.
        Internal = 10, "an internal error";
    }
}
