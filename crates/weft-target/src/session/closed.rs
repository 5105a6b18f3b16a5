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
    /// The same initiator has logged in again, or the target was reset.
    #[error("replaced by another session, or reset")]
    Replaced,
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
