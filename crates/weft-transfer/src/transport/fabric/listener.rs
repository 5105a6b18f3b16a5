//! The acceptor's listener for the data channels of one copy.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use weft_fabric::limits::VALUE_MAX;
use weft_fabric::{Endpoint, Fabric, Incoming, Listener, Stop};
use weft_sys::lock;

use super::{Carried, FabricEnd, Landing, MEMORY, NETWORK, REFUSED, open, role};
use crate::limits::{CHANNELS_EACH_MAX, FABRIC_MESSAGE_MAX};
use crate::secure::PipeKeys;
use crate::transport::channel::TransportError;
use crate::wire::{Kind, Mode, Preface, Role};

/// A data channel that has connected: its number, its end here, and what carries it.
pub type Channel = (u16, FabricEnd, Carried);

/// Listens for the data channels of one copy, until it is closed or dropped.
#[derive(Debug)]
pub struct FabricListener {
    address: SocketAddr,
    shared: Arc<Accepting>,
    channels: Receiver<Channel>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Accepting {
    fabric: Fabric,
    keys: PipeKeys,
    block_len: usize,
    time: Duration,
    /// Ends the thread that accepts channels.
    stop: Stop,
    /// The numbers of channels that have not been used.
    numbers: Mutex<BTreeSet<u16>>,
    /// The memory of this end, if it is the sink.
    landing: Mutex<Option<Arc<Landing>>>,
}

impl FabricListener {
    /// Listens at a port that the system chooses. An initiator may take `time` to name its role.
    ///
    /// # Errors
    /// If the fabric cannot be opened, the address is not one of this host, or there is no thread.
    pub fn open(
        address: IpAddr,
        keys: PipeKeys,
        block_len: usize,
        time: Duration,
    ) -> Result<Self, TransportError> {
        let fabric = open()?;
        let listener = fabric.listen((address, 0).into())?;
        let address = listener.address();
        let shared = Arc::new(Accepting {
            fabric,
            keys,
            block_len,
            time,
            stop: Stop::new(),
            numbers: Mutex::new((0..CHANNELS_EACH_MAX).collect()),
            landing: Mutex::default(),
        });
        let (to, channels) = channel();
        let accepting = Arc::clone(&shared);
        let thread = thread::Builder::new().name("fabric".into());
        let thread = Some(thread.spawn(move || accepting.run(&listener, &to))?);
        Ok(Self { address, shared, channels, thread })
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Stops listening. Returns the channels that have connected, and the memory that their credits
    /// name if this end is the sink.
    #[must_use]
    pub fn close(&mut self) -> (Vec<Channel>, Option<Arc<Landing>>) {
        self.shared.stop.stop();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
        (self.channels.try_iter().collect(), lock(&self.shared.landing).take())
    }
}

impl Drop for FabricListener {
    fn drop(&mut self) {
        drop(self.close());
    }
}

impl Accepting {
    fn run(&self, listener: &Listener, to: &Sender<Channel>) {
        while let Some(Ok(incoming)) = self.fabric.wait_until(listener.accept(), &self.stop) {
            // A stranger is refused, and learns nothing.
            if let Some(channel) = self.expected(&incoming) {
                // A channel that fails is closed.
                let _ = self.meet(incoming, channel, to);
            }
        }
    }

    /// Returns the number of a channel whose initiator has the secret, once.
    fn expected(&self, incoming: &Incoming) -> Option<u16> {
        let preface = Preface::parse(incoming.private_data().first_chunk()?);
        let Ok(Preface { kind: Kind::Data { token, channel }, mode: Mode::Clear, .. }) = preface
        else {
            return None;
        };
        let is_expected =
            self.keys.is_token(channel, &token) && lock(&self.numbers).remove(&channel);
        is_expected.then_some(channel)
    }

    fn meet(
        &self,
        incoming: Incoming,
        channel: u16,
        to: &Sender<Channel>,
    ) -> Result<(), TransportError> {
        let endpoint = incoming.accept(&self.keys.answer(channel)?)?;
        let said = endpoint.receive().wait_for(self.time);
        let said = said.ok_or(TransportError::Stalled(self.time))??;
        let role = role(&said)?;
        drop(said);
        let carried = Carried::of(&endpoint);
        let answering = endpoint.clone();
        let (end, answer) = match self.end(endpoint, role) {
            Ok(end) => (Ok(end), vec![if carried == Carried::Memory { MEMORY } else { NETWORK }]),
            Err(error) => {
                let mut text = error.to_string();
                text.truncate(text.floor_char_boundary(FABRIC_MESSAGE_MAX.min(VALUE_MAX) - 1));
                (Err(error), [&[REFUSED], text.as_bytes()].concat())
            }
        };
        let answered = answering.send(&answer)?;
        if end.is_err() {
            // The initiator gets the reason before the connection ends.
            let in_time = Stop::new().at(Instant::now() + self.time);
            drop(self.fabric.wait_until(answering.close(), &in_time));
        }
        drop(answered);
        let _ = to.send((channel, end?, carried));
        Ok(())
    }

    /// Makes this end of a channel, with the memory that it needs.
    fn end(&self, endpoint: Endpoint, initiator: Role) -> Result<FabricEnd, TransportError> {
        let mut landing = lock(&self.landing);
        if initiator == Role::Source && landing.is_none() {
            *landing = Some(Landing::new(&self.fabric, self.block_len)?);
        }
        let of_sink = landing.as_ref().filter(|_| initiator == Role::Source);
        FabricEnd::new(&self.fabric, endpoint, self.block_len, of_sink)
    }
}
