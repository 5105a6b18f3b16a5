//! Why connections end.

use thiserror::Error;

use crate::iser::Broken;
use crate::wire::{FrameError, TextError, login_status};

/// Why a connection ends.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Closed {
    /// The initiator has logged out.
    #[error("logged out")]
    LoggedOut,
    /// The initiator could not log in; the status of the login response.
    #[error("login refused: {meaning} (status {0:#06x})", meaning = login_status::meaning(*.0))]
    Refused(u16),
    /// The target ends, and the initiator has not logged in.
    #[error("not logged in when the target ended")]
    Draining,
    /// The same initiator has logged in again, and the new session has the place of this one.
    #[error("the same initiator has logged in again")]
    Replaced,
    /// An initiator has asked for a cold reset of the target.
    #[error("an initiator has reset the target")]
    Reset,
    /// Another connection of the session has logged this one out, or has taken its place.
    #[error("another connection of the session has ended it")]
    Dismissed,
    /// Another connection has failed, which ends the session.
    #[error("another connection of the session has failed")]
    SessionFailed,
    /// The target ends without waiting any longer.
    #[error("the target has ended")]
    Stopped,
    /// The stream of bytes cannot be read.
    #[error("{0}")]
    Frame(#[from] FrameError),
    /// A text cannot be read.
    #[error("{0}")]
    Text(#[from] TextError),
    /// A digest of data is wrong. Recovery of a single PDU is not negotiated.
    #[error("the digest of data is wrong")]
    DataDigest,
    /// A message over RDMA is none of iSER, or a transfer is not possible.
    #[error("{0}")]
    Datamover(#[from] Broken),
    /// The RDMA connection has failed.
    #[error("RDMA: {0}")]
    Rdma(String),
    /// The initiator sent what it must not.
    #[error("{0}")]
    Protocol(&'static str),
}
