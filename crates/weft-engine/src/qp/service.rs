//! What each type of queue pair can do (ibv_post_send(3)).

use crate::attr::QpType;
use crate::wr::Operation;

impl QpType {
    /// The name, as it is known.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// Whether the operation can be posted.
    pub(super) fn has(self, operation: &Operation) -> bool {
        let takes_answer = matches!(
            operation,
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        let is_datagram = matches!(operation, Operation::Datagram { .. });
        match self {
            Self::Rc => !is_datagram,
            Self::Uc => !is_datagram && !takes_answer,
            Self::Ud => is_datagram,
            // The place of the key to invalidate is taken by the number of the queue.
            Self::XrcSend => {
                !is_datagram && !matches!(operation, Operation::Send { invalidate: Some(_), .. })
            }
            Self::XrcRecv => false,
        }
    }

    /// Whether there is a receive queue.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }
}
