//! The data channels of each transport, for an acceptor.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use weft_rdma::Device;

use super::rdma;
use crate::end::{SinkChannel, SourceChannel};
use crate::transport::TransportError;
use crate::transport::memory::MemorySink;
use crate::transport::pipe::PipeControl;
use crate::transport::rdma::{Incoming, Landing};
use crate::transport::tcp::{Congestion, TcpSettings, TcpSink, TcpSource};

/// A data channel that can become either end.
pub(super) trait Lines: Send {
    /// Makes it the source's end.
    fn into_source(self: Box<Self>, settings: &SourceSettings) -> Option<SourceChannel>;
    /// Makes it the sink's end. `landing` is the memory to which sources write over RDMA.
    fn into_sink(self: Box<Self>, landing: Option<&Arc<Landing>>) -> Option<SinkChannel>;
}

/// Data channels with their numbers, and the round trip between their ends.
pub(super) type Connected = (Receiver<(u16, Box<dyn Lines>)>, Option<Duration>);

/// The settings of the source's ends of data channels.
#[derive(Debug)]
pub(super) struct SourceSettings {
    /// Whether the blocks are sealed.
    pub(super) is_sealed: bool,
    /// The length of the blocks.
    pub(super) block_len: usize,
    /// The congestion control over TCP.
    pub(super) congestion: Congestion,
}

/// A data channel over TCP.
#[derive(Debug)]
pub(super) struct TcpLine(pub(super) TcpStream, pub(super) TcpSettings);

impl Lines for TcpLine {
    fn into_source(self: Box<Self>, settings: &SourceSettings) -> Option<SourceChannel> {
        let tcp = TcpSettings { congestion: settings.congestion.clone(), ..self.1 };
        // The congestion control was checked before the session was opened.
        let source = TcpSource::new(self.0, &tcp, settings.is_sealed).ok()?;
        Some(Box::new(source))
    }

    fn into_sink(self: Box<Self>, _: Option<&Arc<Landing>>) -> Option<SinkChannel> {
        Some(Box::new(TcpSink::new(self.0, &self.1)))
    }
}

/// The data channel of a pipe.
#[derive(Debug)]
pub(super) struct PipeLine(pub(super) Arc<PipeControl>);

impl Lines for PipeLine {
    fn into_source(self: Box<Self>, _: &SourceSettings) -> Option<SourceChannel> {
        Some(Box::new(self.0.source()))
    }

    fn into_sink(self: Box<Self>, _: Option<&Arc<Landing>>) -> Option<SinkChannel> {
        Some(Box::new(self.0.sink()))
    }
}

/// A request for a data channel over RDMA.
pub(super) struct RdmaLine {
    pub(super) incoming: Incoming,
    pub(super) device: Arc<Device>,
    /// Logs a failure.
    pub(super) failed: Box<dyn Fn(&str) + Send>,
}

impl RdmaLine {
    /// Logs the failure of a channel. The initiator learns of it, because the connection is closed.
    fn logged<C>(
        accepted: Result<C, TransportError>,
        device: &Device,
        failed: &dyn Fn(&str),
    ) -> Option<C> {
        accepted.inspect_err(|error| failed(&rdma::reason(device, error))).ok()
    }
}

impl Lines for RdmaLine {
    fn into_source(self: Box<Self>, settings: &SourceSettings) -> Option<SourceChannel> {
        let source = self.incoming.into_source(&self.device, settings.block_len);
        let source = Self::logged(source, &self.device, &self.failed)?;
        Some(Box::new(source))
    }

    fn into_sink(self: Box<Self>, landing: Option<&Arc<Landing>>) -> Option<SinkChannel> {
        // Without memory to write to the connection is refused.
        let sink = self.incoming.into_sink(landing?);
        let sink = Self::logged(sink, &self.device, &self.failed)?;
        Some(Box::new(sink))
    }
}

/// The sink's end of a data channel within this process.
#[derive(Debug)]
pub(super) struct MemoryLine(pub(super) MemorySink);

impl Lines for MemoryLine {
    fn into_source(self: Box<Self>, _: &SourceSettings) -> Option<SourceChannel> {
        None
    }

    fn into_sink(self: Box<Self>, _: Option<&Arc<Landing>>) -> Option<SinkChannel> {
        Some(Box::new(self.0))
    }
}
