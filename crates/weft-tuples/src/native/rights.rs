//! What the users of a server may do by Weft's own protocol.

use crate::access::{Need, User};
use crate::model::{Name, Operation, Outcome};

/// Whether a user may do an operation.
pub(super) fn allow(user: &User, operation: &Operation) -> bool {
    match operation {
        Operation::Create { element, .. }
        | Operation::Put { element, .. }
        | Operation::Delete { element } => user.may(Need::Write, element),
        Operation::Take { elements, .. } => {
            elements.iter().all(|element: &Name| user.may(Need::Both, element))
        }
        Operation::Observe { elements, .. } => {
            elements.iter().all(|(element, _)| user.may(Need::Read, element))
        }
        Operation::Transfer { from: (from, _), to: (to, _) } => {
            user.may(Need::Both, from) && user.may(Need::Write, to)
        }
        Operation::Read { element, .. } => user.may(Need::Read, element),
        Operation::Describe { element } => user.may(Need::Know, element),
        // Only what the user may know of is shown.
        Operation::List => true,
    }
}

/// What a user may see of an outcome.
pub(super) fn shown(user: &User, mut outcome: Outcome) -> Outcome {
    if let Outcome::Listed(elements) = &mut outcome {
        elements.retain(|element| user.may(Need::Know, &element.name));
    }
    outcome
}
