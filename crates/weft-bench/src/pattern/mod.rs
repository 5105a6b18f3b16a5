//! The message patterns, independent of the lane that carries them.

mod compute;
mod dial;
mod fill;
mod pingpong;
mod produce;
mod register;
mod stream;
mod tally;

pub(crate) use compute::{burn, compute, overlap};
pub(crate) use dial::{Listener, dial};
pub(crate) use fill::fill;
pub(crate) use pingpong::{answer, ask};
pub(crate) use produce::produce;
pub(crate) use register::register;
pub(crate) use stream::{Sizes, stream};
use tally::{Span, WARM_UP, pause};
pub(crate) use tally::{Tally, sleep_precisely};
