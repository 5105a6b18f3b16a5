//! What each type of queue pair can do (ibv_post_send(3)).

use super::attr::QpType;
use crate::wr::Operation;

impl QpType {
    /// Whether the operation can be posted.
    pub(super) fn has(self, operation: &Operation) -> bool {
        let takes_answer = matches!(
            operation,
            Operation::Read { .. } | Operation::FetchAdd { .. } | Operation::CompareSwap { .. }
        );
        match self {
            Self::Rc => true,
            Self::Uc => !takes_answer,
        }
    }
}
