//! The interface through which the datagram code uses queue pairs.

use std::net::IpAddr;
use std::sync::Arc;

use weft_sys::Arrival;
use weft_wire::datagram::Header;

use crate::attr::QpState;
use crate::link::host::{Effects, Memory};
use crate::queue::recv::{Fit, RecvWork};
use crate::registered::MrCache;

/// The queue pair of a [`Datagram`](super::Datagram).
pub(crate) trait Owner: Memory<Keys = MrCache> + Effects {
    /// The queue pair's number.
    fn number(&self) -> u32;

    /// The current state, which an error may have changed.
    fn state(&self) -> QpState;

    /// The queue pair's Q_Key.
    fn qkey(&self) -> u32;

    /// Whether receives come from a shared queue.
    fn shares_receives(&self) -> bool;

    /// Takes the oldest receive if it has room for `length` bytes.
    fn take_receive_for(&self, length: u64, work: &mut RecvWork) -> Fit;

    /// Moves the queue pair to the error state.
    fn fail(&self);

    /// Continues in the next pass.
    fn requeue(&self);

    /// The queue pair as a receiver of datagrams and of notifications of room.
    fn datagram_target(&self) -> Arc<dyn DatagramTarget>;
}

/// A receiver of datagrams.
pub(crate) trait DatagramTarget: Send + Sync + std::fmt::Debug {
    /// The queue pair's number.
    fn number(&self) -> u32;

    /// Whether this queue pair has sent the datagram from this number and address.
    fn is_sender(&self, number: u32, address: IpAddr) -> bool;

    /// Handles a datagram. Returns false if the queue pair is not of type UD.
    fn receive(&self, header: &Header, arrival: &Arrival, payload: &[u8]) -> bool;

    /// Called when the socket has room again.
    fn has_room(&self);
}

/// Finds the receivers of a port's datagrams.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routes {
    /// Finds a receiver by its queue pair number.
    pub(crate) find: fn(u32) -> Option<Arc<dyn DatagramTarget>>,
    /// Delivers a datagram to the members of a group. Returns whether there were any.
    pub(crate) deliver_to_group: fn(&Header, &Arrival, &[u8]) -> bool,
}
