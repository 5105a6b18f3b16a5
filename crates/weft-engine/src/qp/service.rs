//! The operations of each queue pair type (ibv_post_send(3)).

use crate::attr::QpType;
use crate::wr::Operation;

impl QpType {
    /// The type's usual name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Ud => "UD",
            Self::XrcSend => "XRC_SEND",
            Self::XrcRecv => "XRC_RECV",
        }
    }

    /// Whether the type supports an operation.
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
            // The number of the receive queue is sent in the field of the key to invalidate.
            Self::XrcSend => {
                !is_datagram && !matches!(operation, Operation::Send { invalidate: Some(_), .. })
            }
            Self::XrcRecv => false,
        }
    }

    /// Whether the type has a receive queue.
    pub(crate) fn receives(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }
}
