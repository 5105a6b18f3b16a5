//! Messages between the process that runs a pipeline and the workers, one JSON value a line.

use std::io::{self, BufRead, Read as _, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::counters::Counts;
use crate::description::{Action, Split};
use crate::failure::Failure;
use crate::limits::MESSAGE_LEN_MAX;
use crate::parameters::Parameters;
use crate::schedule::Policy;
use crate::wire::Token;

/// Which copy of which filter a worker is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) filter: String,
    pub(crate) copy: usize,
    pub(crate) copies: usize,
    pub(crate) action: Action,
    pub(crate) split: Split,
    pub(crate) parameters: Parameters,
    pub(crate) units: Vec<Parameters>,
    /// For each producer the names of its copies.
    pub(crate) inputs: Vec<Vec<String>>,
    pub(crate) buffer_len: usize,
    pub(crate) window: u32,
    pub(crate) policy: Policy,
    pub(crate) token: Token,
    /// Whether a producer is on another host.
    pub(crate) listens_to_hosts: bool,
    /// Whether output goes to standard output.
    pub(crate) prints: bool,
}

/// A message to a worker. The end of the messages cancels the worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ToWorker {
    Setup(Box<Setup>),
    /// The consumers of its output.
    Connect(Vec<Consumer>),
}

/// A filter that reads the output of another.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Consumer {
    /// The number of the stream among the inputs of the consumer.
    pub(crate) input: u16,
    pub(crate) copies: Vec<Place>,
}

/// Where a copy listens.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) name: String,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// A message of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromWorker {
    Listening { port: u16 },
    Counts(Counts),
    Done { counts: Counts, note: Option<String> },
    Failed(Failure),
}

/// Writes a message.
pub(crate) fn send(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads the next message. `None`: there are no more.
pub(crate) fn receive<T: DeserializeOwned>(from: &mut impl BufRead) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    from.take(MESSAGE_LEN_MAX).read_until(b'\n', &mut line)?;
    if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_slice(&line)?)) }
}
