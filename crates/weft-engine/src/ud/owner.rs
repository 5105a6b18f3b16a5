//! What datagrams need of the queue pairs that send and receive them.

use std::net::IpAddr;
use std::sync::Arc;

use weft_sys::Arrival;
use weft_wire::datagram::Header;

use crate::attr::QpState;
use crate::link::host::{Effects, Memory};
use crate::queue::recv::{Fit, RecvWork};
use crate::registered::MrCache;

/// The queue pair that a half for datagrams belongs to.
pub(crate) trait Owner: Memory<Keys = MrCache> + Effects {
    /// Its number.
    fn number(&self) -> u32;

    /// The state, which an error may have changed.
    fn state(&self) -> QpState;

    /// The Q_Key.
    fn qkey(&self) -> u32;

    /// Whether receives come from a shared queue.
    fn shares_receives(&self) -> bool;

    /// Takes the oldest receive if it has room for `length` bytes.
    fn take_receive_for(&self, length: u64, work: &mut RecvWork) -> Fit;

    /// The queue pair is in the error state.
    fn fail(&self);

    /// Lets it go on at the next pass.
    fn requeue(&self);

    /// The same value, to be notified of datagrams and of room.
    fn addressee(&self) -> Arc<dyn Addressee>;
}

/// To whom datagrams go.
pub(crate) trait Addressee: Send + Sync + std::fmt::Debug {
    /// The queue pair's number.
    fn number(&self) -> u32;

    /// Whether it has sent a datagram that comes from this address.
    fn is_sender(&self, number: u32, address: IpAddr) -> bool;

    /// A datagram has come. Returns whether the queue pair is of the kind that takes any.
    fn receive(&self, header: &Header, arrival: &Arrival, payload: &[u8]) -> bool;

    /// The socket has room again.
    fn has_room(&self);
}

/// Where the datagrams of a port lead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routes {
    /// Finds an addressee by its number.
    pub(crate) find: fn(u32) -> Option<Arc<dyn Addressee>>,
    /// Gives a datagram to the members of a group. Returns whether there were any.
    pub(crate) deliver_to_group: fn(&Header, &Arrival, &[u8]) -> bool,
}
