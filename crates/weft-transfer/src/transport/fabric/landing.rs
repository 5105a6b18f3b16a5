//! The memory of a sink that its source writes to.

use std::fmt;
use std::io;
use std::sync::Arc;

use weft_fabric::{Error, Fabric, RemoteKey, Rights, SharedBuffer};

use crate::blocks::Block;
use crate::limits::POOL_BLOCKS;
use crate::session::RemoteBuffer;
use crate::transport::channel::TransportError;

impl From<Error> for TransportError {
    fn from(error: Error) -> Self {
        Self::System(io::Error::other(error))
    }
}

/// Returns the distance of buffers for blocks of this length: whole pages.
pub(super) fn stride(block_len: usize) -> usize {
    block_len.next_multiple_of(rustix::param::page_size())
}

/// The memory of a sink that its source writes to.
pub struct Landing {
    pub(super) memory: SharedBuffer,
    key: u32,
    address: u64,
    block_len: usize,
    count: u32,
}

impl fmt::Debug for Landing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Landing").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Landing {
    /// Shares buffers for the blocks of a pool.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(fabric: &Fabric, block_len: usize) -> Result<Arc<Self>, TransportError> {
        let count = POOL_BLOCKS;
        let buffer = fabric.alloc(count as usize * stride(block_len))?;
        let memory = buffer.share(Rights::WRITE, ..).map_err(Error::from)?;
        let (address, key) = parts(&memory.key());
        Ok(Arc::new(Self { memory, key, address, block_len, count }))
    }

    /// Returns what credits say of the buffers.
    #[must_use]
    pub fn buffers(&self) -> Vec<RemoteBuffer> {
        let address = |index| self.address + u64::from(index) * stride(self.block_len) as u64;
        (0..self.count).map(|it| RemoteBuffer { address: address(it), key: self.key }).collect()
    }

    /// Copies the payload that was written for a block into the block. Returns false if the landing
    /// zone has no such payload, or the block no private memory.
    pub(super) fn take(&self, block: &mut Block, len: usize) -> bool {
        let index = block.index();
        match block.bytes_mut().get_mut(..len) {
            Some(bytes) if index < self.count && len <= self.block_len => {
                self.memory.read(index as usize * stride(self.block_len), bytes).is_ok()
            }
            _ => false,
        }
    }
}

/// Returns the address and the key of a remote key.
pub(super) fn parts(key: &RemoteKey) -> (u64, u32) {
    let bytes = key.to_bytes();
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
    let (address, key) = (word(&bytes[..8]), word(&bytes[16..]));
    (address, u32::try_from(key).unwrap_or_default())
}
