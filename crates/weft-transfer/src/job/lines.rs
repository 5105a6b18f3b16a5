//! The data channels of each transport, for an acceptor.

use std::net::TcpStream;
use std::sync::Arc;

use super::accept::Lines;
use crate::end::{SinkChannel, SourceChannel};
use crate::transport::memory::MemorySink;
use crate::transport::pipe::PipeControl;
use crate::transport::tcp::{TcpSettings, TcpSink, TcpSource};

/// A data channel over TCP.
#[derive(Debug)]
pub(super) struct TcpLine(pub(super) TcpStream, pub(super) TcpSettings);

impl Lines for TcpLine {
    fn into_source(self: Box<Self>, is_sealed: bool) -> Option<SourceChannel> {
        Some(Box::new(TcpSource::new(self.0, &self.1, is_sealed)))
    }

    fn into_sink(self: Box<Self>) -> Option<SinkChannel> {
        Some(Box::new(TcpSink::new(self.0, &self.1)))
    }
}

/// The data channel of a pipe.
#[derive(Debug)]
pub(super) struct PipeLine(pub(super) Arc<PipeControl>);

impl Lines for PipeLine {
    fn into_source(self: Box<Self>, _is_sealed: bool) -> Option<SourceChannel> {
        Some(Box::new(self.0.source()))
    }

    fn into_sink(self: Box<Self>) -> Option<SinkChannel> {
        Some(Box::new(self.0.sink()))
    }
}

/// The sink's end of a data channel within this process.
#[derive(Debug)]
pub(super) struct MemoryLine(pub(super) MemorySink);

impl Lines for MemoryLine {
    fn into_source(self: Box<Self>, _is_sealed: bool) -> Option<SourceChannel> {
        None
    }

    fn into_sink(self: Box<Self>) -> Option<SinkChannel> {
        Some(Box::new(self.0))
    }
}
