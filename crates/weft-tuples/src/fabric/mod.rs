//! Connections by the fabric: through shared memory on one host, by iWARP between hosts.
//!
//! Either protocol is a stream of bytes. Here the stream goes in messages, whose boundaries have no
//! meaning. `docs/internals/tuples.md` says why.
//!
//! # Layers
//!
//! ```text
//! dial listener
//! stream
//! ```

mod dial;
mod listener;
mod stream;
#[cfg(test)]
mod tests;

use std::sync::Mutex;

use weft_fabric::{Error, Fabric, Options};
use weft_sys::lock;

pub(crate) use dial::connect;
pub use listener::FabricListener;
pub(crate) use stream::{Blocking, FabricStream};

use crate::limits::{FABRIC_MESSAGE_LEN_MAX, FABRIC_WINDOW};

/// What both ends say when they connect, so that another program at the same address is noticed.
const GREETING: &[u8] = b"weft tuples 1";

/// The settings of both ends.
fn options() -> Options {
    let (window, message_max) = (FABRIC_WINDOW, FABRIC_MESSAGE_LEN_MAX);
    Options { window, message_max, ..Options::default() }
}

/// The fabric of this process, which is opened when it is first needed.
fn open() -> Result<Fabric, Error> {
    static FABRIC: Mutex<Option<Fabric>> = Mutex::new(None);
    let mut fabric = lock(&FABRIC);
    match &*fabric {
        Some(fabric) => Ok(fabric.clone()),
        None => Ok(fabric.insert(Fabric::open(options())?).clone()),
    }
}
