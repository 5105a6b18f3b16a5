//! The transports of sessions: a control channel and data channels.
//!
//! A *control channel* carries short messages in order in both directions. A *data channel* carries
//! blocks from the source to the sink. The sink grants buffers; the source names one by a [`Place`]
//! and writes a header and a payload into it.
//!
//! Transports differ in whether the sink sees that a block has arrived ([`Arrivals`]). If it does
//! not, the source sends a notice over the control channel after each completed write.
//!
//! | transport | control channel | data channel | arrivals |
//! | --- | --- | --- | --- |
//! | [`tcp`] | a TCP connection, in TLS or in clear | TCP connections | seen |
//! | [`local`] | a Unix connection | the sink's pool, mapped by the source | not seen |
//! | [`memory`] | two queues | a queue | seen |
//! | [`rdma`] | that of [`tcp`] | reliable queue pairs | seen |
//! | [`fabric`] | that of [`tcp`] | endpoints of the fabric, by shared memory or iWARP | seen |
//! | [`pipe`] | frames in a stream of bytes | frames between them | seen |

pub mod channel;
pub mod fabric;
mod greeting;
mod incoming;
mod landed;
pub mod limited;
pub mod local;
pub mod memory;
pub mod pipe;
pub mod rate;
pub mod rdma;
pub mod stream;
#[cfg(test)]
mod table;
pub mod tcp;

pub use channel::{
    Arrival, Arrivals, Claim, Completion, Control, ControlEvent, DataSink, DataSource, Grants,
    Head, Payload, Place, Received, Refused, TransportError, Write,
};
pub use limited::{Limit, Limited};
pub use rate::{RateLimit, TokenBucket};
pub use stream::StreamControl;

pub use crate::wire::Token;
