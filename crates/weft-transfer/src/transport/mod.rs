//! The transports of sessions: a control channel and data channels.
//!
//! A *control channel* carries short messages in order in both directions. A *data channel* carries
//! blocks from the source to the sink: a header that names a granted buffer, and a payload. Where
//! the source writes into the sink's memory by itself, the credits say where that is ([`Place`]).
//! On every transport the sink sees that a block has arrived.
//!
//! A write ends when the channel does not use the block's memory any more:
//!
//! | transport | control channel | data channel | a write ends when |
//! | --- | --- | --- | --- |
//! | [`tcp`] | a TCP connection, in TLS or in clear | TCP connections | the kernel has all bytes |
//! | [`memory`] | two queues | a queue | the sink has taken the block |
//! | [`rdma`] | that of [`tcp`] | reliable queue pairs | a registered copy is posted |
//! | [`fabric`] | that of [`tcp`] | endpoints of the fabric | a registered copy is posted |
//! | [`pipe`] | frames in a stream of bytes | frames between them | the kernel has all bytes |

pub mod channel;
pub mod fabric;
mod greeting;
mod incoming;
mod landed;
pub mod limited;
pub mod memory;
pub mod pipe;
pub mod rate;
pub mod rdma;
pub mod stream;
#[cfg(test)]
mod table;
pub mod tcp;

pub use channel::{
    Arrival, Claim, Control, ControlEvent, DataSink, DataSource, Grants, Head, Payload, Place,
    Received, Refused, TransportError, Write, Written,
};
pub use limited::{Limit, Limited};
pub use rate::{RateLimit, TokenBucket};
pub use stream::StreamControl;

pub use crate::wire::Token;
