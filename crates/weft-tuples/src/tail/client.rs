//! The client's side: reading a tail.

use std::time::Duration;

use weft_fabric::{Buffer, Endpoint, Error, Fabric, Operation};

use super::slot::{Looks, SLOT_LEN, Seen};
use crate::limits::TAIL_LOOKS_MAX;
use crate::wire::TailPlace;

/// Why a tail was not read.
#[derive(Debug, thiserror::Error)]
pub enum TailError {
    /// The element was deleted, or the server has given its place to another one.
    #[error("the element was deleted, or its place was given to another one")]
    Ended,
    /// Each time the tail was being written.
    #[error("the tail was being written each time")]
    Busy,
    /// The server's host did not answer in the time.
    #[error("the server's host did not answer in the time")]
    Late,
    /// The connection is gone.
    #[error(transparent)]
    Fabric(#[from] Error),
}

/// The tail of an element: its last tuple and the number of its tuples, which are read from the
/// server's memory. On one host that works while the server is busy or stopped. It ends with the
/// connection of the client that has asked for it.
#[derive(Debug)]
pub struct Tail {
    fabric: Fabric,
    endpoint: Endpoint,
    place: TailPlace,
    /// `None` while it is in use.
    buffer: Option<Buffer>,
    /// A read that was late.
    late: Option<Operation<Buffer>>,
}

impl Tail {
    pub(crate) fn new(fabric: &Fabric, endpoint: &Endpoint, place: TailPlace) -> Self {
        let (fabric, endpoint) = (fabric.clone(), endpoint.clone());
        Self { fabric, endpoint, place, buffer: None, late: None }
    }

    /// Reads the tail as it is at an instant between the call and the return.
    ///
    /// # Errors
    ///
    /// If the element was deleted, the connection is gone, or there is no answer within `limit`.
    pub fn read(&mut self, limit: Duration) -> Result<Seen, TailError> {
        let mut looks = Looks::default();
        for _ in 0..TAIL_LOOKS_MAX {
            let buffer = self.fill(limit)?;
            let version = looks.look(&buffer);
            self.buffer = Some(buffer);
            match version {
                Some(version) if version.usage == self.place.usage => return Ok(version.seen),
                Some(_) => return Err(TailError::Ended),
                None => {}
            }
        }
        Err(TailError::Busy)
    }

    /// Reads the slot.
    fn fill(&mut self, limit: Duration) -> Result<Buffer, TailError> {
        if let Some(late) = self.late.take() {
            // What it has read is too old.
            self.buffer = Some(self.finish(late, limit)?);
        }
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            None => self.fabric.alloc(SLOT_LEN)?,
        };
        let TailPlace { key, offset, .. } = self.place;
        let reading = self.endpoint.read(buffer, .., &key, offset).map_err(Error::from)?;
        self.finish(reading, limit)
    }

    fn finish(
        &mut self,
        mut reading: Operation<Buffer>,
        limit: Duration,
    ) -> Result<Buffer, TailError> {
        match reading.wait_for(limit) {
            Some(read) => Ok(read?),
            None => {
                self.late = Some(reading);
                Err(TailError::Late)
            }
        }
    }
}
