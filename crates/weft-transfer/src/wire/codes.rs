//! Codes for refusals and for cancellations.

/// Defines an enum of codes with their numbers and texts.
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

            /// The code's number.
            #[must_use]
            pub const fn number(self) -> u16 {
                match self {
                    $(Self::$code => $number,)*
                    Self::Other(number) => number,
                }
            }

            /// The code of a number.
            #[must_use]
            pub const fn of(number: u16) -> Self {
                match number {
                    $($number => Self::$code,)*
                    other => Self::Other(other),
                }
            }

            /// The code as text.
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
        /// The initiator lacks the permission.
        NotAllowed = 2, "not allowed";
        /// The block size would be too small or too large.
        BlockSize = 3, "no block size in common";
        /// There are too many connections or sessions.
        Busy = 4, "too busy";
        /// The acceptor does not understand the job.
        Job = 5, "the job is not understood";
        /// The file or directory of the job does not exist.
        NotFound = 6, "not found";
        /// The acceptor is shutting down.
        Ending = 7, "the server is about to end";
        /// A system call failed.
        System = 8, "refused by the system";
    }
}

codes! {
    /// Why an end cancels a session, or with session 0 the connection.
    Code {
        /// A user or program stopped it.
        Stopped = 1, "stopped";
        /// The peer broke the rules of the protocol.
        Protocol = 2, "the peer broke the protocol";
        /// Reading at the source failed.
        Source = 3, "the source cannot be read";
        /// Writing at the sink failed.
        Sink = 4, "the sink cannot be written";
        /// The sink's file system is full.
        Space = 5, "no space left at the sink";
        /// A block or file has wrong contents.
        Integrity = 6, "data is damaged";
        /// All data channels are lost.
        Channels = 7, "no data channel is left";
        /// The peer has been silent for too long.
        Silent = 8, "no sign of life";
        /// A limit is reached.
        Quota = 9, "a limit is reached";
        /// Another fault of this end.
        Internal = 10, "an internal error";
    }
}
