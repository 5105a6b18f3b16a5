//! The control connection between the command and the two ends of a measurement. Each frame is a
//! JSON document after its length in four bytes, big endian.
//!
//! ```text
//! command                                   worker
//!    Hello        ──────────────────────▶      (read by `serve`, which starts the worker)
//!    Prepare      ──────────────────────▶   makes its queue pairs and sockets
//!                 ◀──────────────────────   Prepared
//!    Connect      ──────────────────────▶   connects them
//!                 ◀──────────────────────   Connected
//!    Start        ──────────────────────▶   plays its role
//!    Stop         ──────────────────────▶   (roles without an end of their own)
//!                 ◀──────────────────────   Done
//!    end of the stream                      ends
//! ```
//! Instead of any answer: `Failed`, which says why.

use std::io::{ErrorKind, Read, Write};

use anyhow::{Context as _, Result, bail, ensure};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::limits::FRAME_MAX;
use crate::plan::{Address, Job};

/// Changes with the messages, so that different versions refuse each other at once.
pub(crate) const VERSION: u32 = 2;

/// The engine's variables that the command may set for a worker.
pub(crate) const VARIABLES: [&str; 6] =
    ["WEFT_TRANSPORT", "WEFT_WAIT", "WEFT_CRC", "WEFT_MARKERS", "WEFT_CONGESTION", "WEFT_SOCKETS"];

/// A message from the command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Order {
    Hello { version: u32, environment: Vec<(String, String)> },
    Prepare(Job),
    Connect(Vec<Address>),
    Start,
    Stop,
}

/// A message from a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Answer {
    Prepared(Vec<Address>),
    Connected,
    Done(Box<Report>),
    Failed(String),
}

/// A worker's results. Times are in nanoseconds, sizes in bytes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Report {
    /// Transport that the connections use, as the engine or the socket names it.
    pub(crate) transport: String,
    /// TCP's congestion control, if the connections are TCP connections of this process.
    pub(crate) congestion: Option<String>,
    /// Time and processor time from `Start` to the end.
    pub(crate) elapsed_ns: u64,
    pub(crate) cpu_ns: u64,
    /// Private memory before the connections were made, and at the end.
    pub(crate) memory_before: u64,
    pub(crate) memory_after: u64,
    /// Messages that this side has started, and operations that were lost.
    pub(crate) started: u64,
    pub(crate) lost: u64,
    /// Messages, or one-sided operations, that have completed here: all, and those in the measured
    /// time.
    pub(crate) ended: u64,
    pub(crate) measured: u64,
    pub(crate) measured_bytes: u64,
    pub(crate) measured_ns: u64,
    /// Histogram of latencies; for `Register`, of the time to register.
    pub(crate) latencies: Vec<(u64, u64)>,
    /// Histogram of the time to deregister for `Register`; of the remaining time after the
    /// computation for `Compute`.
    pub(crate) after: Vec<(u64, u64)>,
    /// For `Overlap`, in microseconds: the operation's time alone, the longest computation that
    /// does not prolong it, and the operation's time with that computation.
    pub(crate) overlap_us: Option<[f64; 3]>,
    /// Stream sockets only: bytes that this side has put into buffers, and the buffers' length.
    pub(crate) buffers: Option<[u64; 2]>,
}

/// Sends one message.
///
/// # Errors
/// If the connection breaks or the message is too long.
pub(crate) fn send(mut to: impl Write, message: &impl Serialize) -> Result<()> {
    let text = serde_json::to_vec(message)?;
    ensure!(text.len() <= FRAME_MAX, "a frame of {} bytes is too long", text.len());
    let mut frame = u32::try_from(text.len())?.to_be_bytes().to_vec();
    frame.extend(text);
    to.write_all(&frame).context("the control connection broke")
}

/// Receives one message; `None` at the end of the stream.
///
/// # Errors
/// If the connection breaks, the peer is silent for too long, or the bytes are not a message.
pub(crate) fn receive<T: DeserializeOwned>(mut from: impl Read) -> Result<Option<T>> {
    let mut length = [0; 4];
    match from.read(&mut length[..1]) {
        Ok(0) => return Ok(None),
        Ok(_) => from.read_exact(&mut length[1..])?,
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            bail!("no answer in time")
        }
        Err(error) => return Err(error).context("the control connection broke"),
    }
    let length = u32::from_be_bytes(length) as usize;
    ensure!(length <= FRAME_MAX, "a frame of {length} bytes is too long");
    // The buffer grows with the bytes that come, not with the announced length.
    let mut text = Vec::new();
    from.take(length as u64).read_to_end(&mut text)?;
    ensure!(text.len() == length, "the control connection ended within a frame");
    serde_json::from_slice(&text).map(Some).context("the frame is not a message of `weft bench`")
}

/// Checks a connection's first message, and returns the variables that it sets.
///
/// # Errors
/// If the message is not a hello, has another version, or sets other variables than the engine's.
pub(crate) fn check_hello(order: Option<Order>) -> Result<Vec<(String, String)>> {
    let Some(Order::Hello { version, environment }) = order else {
        bail!("the first message is not a hello");
    };
    ensure!(version == VERSION, "the peer speaks version {version}, this is {VERSION}");
    for (name, value) in &environment {
        ensure!(VARIABLES.contains(&name.as_str()), "peers may not set the variable {name:?}");
        let plain = value.len() <= 32 && value.bytes().all(|byte| byte.is_ascii_alphanumeric());
        ensure!(plain, "{value:?} is not a valid value of {name}");
    }
    Ok(environment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(length: u32, text: &[u8]) -> Vec<u8> {
        [&length.to_be_bytes(), text].concat()
    }

    #[test]
    fn messages_survive_a_round_trip() {
        let mut wire = Vec::new();
        send(&mut wire, &Order::Start).expect("sent");
        send(&mut wire, &Order::Stop).expect("sent");
        let mut wire = &wire[..];
        assert!(matches!(receive(&mut wire), Ok(Some(Order::Start))));
        assert!(matches!(receive(&mut wire), Ok(Some(Order::Stop))));
        assert!(matches!(receive::<Order>(&mut wire), Ok(None)));
    }

    #[test]
    fn malformed_frames_are_refused() {
        let long = u32::try_from(FRAME_MAX).expect("fits") + 1;
        for bad in [
            frame(long, b""),
            frame(u32::MAX, b"{}"),
            frame(7, b"\"sta"),
            frame(2, b"{}"),
            frame(3, b"\xff\xff\xff"),
            vec![0, 0],
            frame(21, br#"{"prepare":{"lane":1}}"#),
        ] {
            assert!(receive::<Order>(&bad[..]).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn hello_sets_only_the_engines_variables() {
        let hello = |version, name: &str, value: &str| {
            let environment = vec![(name.to_owned(), value.to_owned())];
            check_hello(Some(Order::Hello { version, environment }))
        };
        assert_eq!(hello(VERSION, "WEFT_WAIT", "cpu").expect("sound").len(), 1);
        hello(VERSION + 1, "WEFT_WAIT", "cpu").expect_err("another version");
        hello(VERSION, "LD_PRELOAD", "x").expect_err("not the engine's");
        hello(VERSION, "WEFT_WAIT", "../x").expect_err("not plain");
        check_hello(Some(Order::Start)).expect_err("not a hello");
        check_hello(None).expect_err("no message");
    }
}
