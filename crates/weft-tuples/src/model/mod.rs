//! The tuple space as a state machine.
//!
//! # Layers
//!
//! ```text
//! clients
//! edit restore
//! space
//! element
//! effect followed waiting watched
//! operation
//! criteria tuple
//! ```

mod clients;
mod criteria;
mod edit;
mod effect;
mod element;
mod followed;
mod operation;
mod restore;
mod space;
#[cfg(test)]
mod tests;
mod tuple;
mod waiting;
mod watched;

pub use clients::{Request, Service};
pub use criteria::{Count, Criteria, ElementEnd, Order, Sync};
pub use edit::Look;
pub use effect::{ClientId, Effect, Impossible};
pub use operation::{Description, Name, Now, Operation, Outcome, Refusal, Selection, Wait};
pub use space::{Called, Space};
pub use tuple::{Fields, Item, Rank, Stamp, Tuple};
pub use waiting::Ticket;
