//! Memory that peers access, and the keys with which they do.

use std::fmt;
use std::ops::{Range, RangeBounds};

use weft_engine::access::Access;

use crate::carrier::Registration;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::returned::Returned;

/// What peers may do with shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Whether they may read it.
    pub read: bool,
    /// Whether they may write to it.
    pub write: bool,
    /// Whether they may change it by [`fetch_add`](crate::Endpoint::fetch_add) and
    /// [`compare_swap`](crate::Endpoint::compare_swap).
    pub atomic: bool,
}

impl Rights {
    /// Peers may read.
    pub const READ: Self = Self { read: true, write: false, atomic: false };
    /// Peers may write.
    pub const WRITE: Self = Self { read: false, write: true, atomic: false };
    /// Peers may do everything.
    pub const ALL: Self = Self { read: true, write: true, atomic: true };

    fn access(self) -> Access {
        // Memory that peers write has to be writable here, too (ibv_reg_mr(3)).
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::REMOTE_READ, self.read);
        access.set(Access::REMOTE_WRITE, self.write);
        access.set(Access::REMOTE_ATOMIC, self.atomic);
        access
    }
}

/// What a peer needs to access shared memory: plain bytes, for a message or for the private data
/// of a connection. A key that is wrong, or that has ended, does nothing at the peer but end the
/// connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey {
    /// The address of the first byte at the peer.
    address: u64,
    /// The number of bytes.
    len: u64,
    key: u32,
}

impl RemoteKey {
    /// The bytes of a key: address, length and key, big-endian.
    pub const LEN: usize = 20;

    /// A key of another protocol, such as iSER's, which has addresses and keys of its own.
    #[must_use]
    pub fn from_raw(address: u64, len: u64, key: u32) -> Self {
        Self { address, len, key }
    }

    /// The key as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.address.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.key.to_be_bytes());
        bytes
    }

    /// The key of these bytes; `None` if they are not [`RemoteKey::LEN`] many. Whether the key is
    /// valid shows when it is used.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let (address, rest) = bytes.split_first_chunk()?;
        let (len, key) = rest.split_first_chunk()?;
        let key = key.first_chunk()?;
        Some(Self {
            address: u64::from_be_bytes(*address),
            len: u64::from_be_bytes(*len),
            key: u32::from_be_bytes(*key),
        })
    }

    /// The number of bytes that it gives access to.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // A number that came from the peer, not a container.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where to access `len` bytes at `offset`; `None` if they do not lie inside.
    pub(crate) fn target(&self, offset: u64, len: usize) -> Option<Target> {
        let end = offset.checked_add(len as u64)?;
        let address = self.address.checked_add(offset)?;
        (end <= self.len).then_some(Target { address, key: self.key })
    }
}

/// An address at the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) address: u64,
    pub(crate) key: u32,
}

/// A buffer that peers access. They may do so at any time, so its bytes are copied, never borrowed.
///
/// Dropping it, or [taking the buffer back](Self::end), ends the rights: it waits until accesses in
/// progress are over, and later ones are refused.
pub struct SharedBuffer {
    // Declared before the buffer, so that the rights end before the memory does.
    grant: Grant,
    buffer: Buffer,
    key: RemoteKey,
}

/// A registration for peers that ends with this value.
#[derive(Debug)]
struct Grant(Registration);

impl Drop for Grant {
    fn drop(&mut self) {
        // The engine never refuses this. A device that does keeps the pages, whatever becomes of
        // their mapping.
        let _ = self.0.end();
    }
}

impl Buffer {
    /// Lets peers access a range of the buffer.
    ///
    /// # Errors
    /// [`Error::Range`] if the range is not inside, and [`Error::System`] if no more memory can be
    /// registered; both return the buffer.
    pub fn share(
        mut self,
        rights: Rights,
        range: impl RangeBounds<usize>,
    ) -> std::result::Result<SharedBuffer, Returned> {
        let Some(range) = self.range(&range) else {
            return Err(Returned { error: Error::Range { len: self.len() }, buffer: self });
        };
        match self.register(&range, rights.access()) {
            Ok(registration) => {
                let address = self.address() + range.start as u64;
                let key =
                    RemoteKey { address, len: range.len() as u64, key: registration.remote_key() };
                Ok(SharedBuffer { grant: Grant(registration), buffer: self, key })
            }
            Err(error) => Err(Returned { error, buffer: self }),
        }
    }
}

impl SharedBuffer {
    /// The key to give to peers.
    #[must_use]
    pub fn key(&self) -> RemoteKey {
        self.key
    }

    /// Copies bytes at `offset` of the whole buffer. If a peer writes at the same time, the result
    /// may be a mixture of old and new bytes.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not inside.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        self.part(offset, bytes.len())?.fill(bytes);
        Ok(())
    }

    /// Copies bytes to `offset` of the whole buffer.
    ///
    /// # Errors
    /// [`Error::Range`] if they would not be inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.part(offset, bytes.len())?.copy_in(bytes);
        Ok(())
    }

    /// Changes eight bytes at `offset` of the whole buffer, a multiple of eight, in one step that
    /// peers' atomics do not split. Returns the old value, in the byte order of this host.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not inside, or `offset` is not a multiple of eight.
    pub fn update(&self, offset: usize, change: impl FnMut(u64) -> u64) -> Result<u64> {
        let word = self.part(offset, size_of::<u64>())?;
        word.update_u64(change).ok_or_else(|| Error::Range { len: self.buffer.region().len() })
    }

    /// Ends the peers' rights, and returns the buffer: another one with the same bytes if a peer
    /// may have mapped this one, since a hostile peer could keep the mapping.
    #[must_use]
    pub fn end(self) -> Buffer {
        let is_mappable = self.grant.0.is_mappable();
        match self.grant.0.end() {
            Ok(()) if is_mappable => self.buffer.copied(),
            Ok(()) => self.buffer,
            Err(_) => self.buffer.replaced(),
        }
    }

    fn part(&self, offset: usize, len: usize) -> Result<weft_sys::Region> {
        let region = self.buffer.region();
        region.part(offset, len).ok_or(Error::Range { len: region.len() })
    }
}

impl fmt::Debug for SharedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer").field("key", &self.key).finish_non_exhaustive()
    }
}

/// The range of an operation on a buffer.
pub(crate) type Part = Range<usize>;

#[cfg(test)]
mod tests {
    use super::*;

    /// The mappings of this process that are segments for peers, where a range of memory begins.
    fn segment_at(address: u64) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{address:x}-");
        maps.lines().any(|line| line.starts_with(&start) && line.contains("/memfd:"))
    }

    #[test]
    fn shared_memory_is_mappable_although_there_are_threads() {
        let fabric = crate::Fabric::open(crate::Options::default()).unwrap();
        std::thread::scope(|scope| {
            let (end, wait) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || wait.recv());
            let mut buffer = fabric.alloc(3 * 4_096).unwrap();
            buffer[0] = 7;
            // It is the same whether or not the buffer was used before.
            for _ in 0..2 {
                buffer.prepare(false).unwrap();
                let shared = buffer.share(Rights::WRITE, ..).unwrap();
                assert!(segment_at(shared.key().address));
                buffer = shared.end();
                assert_eq!(buffer[0], 7);
                // A peer that has kept its mapping does not reach what the program borrows.
                assert!(!segment_at(buffer.address()));
            }
            drop(end);
        });
    }

    #[test]
    fn keys_survive_being_bytes() {
        let key = RemoteKey::from_raw(0x0102_0304_0506_0708, 4_096, 0x0a0b_0c0d);
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()), Some(key));
        assert_eq!(RemoteKey::from_bytes(&key.to_bytes()[1..]), None);
    }

    #[test]
    fn targets_lie_inside_the_key() {
        let key = RemoteKey::from_raw(1_000, 16, 1);
        assert_eq!(key.target(8, 8).map(|target| target.address), Some(1_008));
        assert!(key.target(16, 0).is_some());
        for (offset, len) in [(9, 8), (17, 0), (u64::MAX, 1), (0, 17)] {
            assert!(key.target(offset, len).is_none(), "{offset} {len}");
        }
        assert!(RemoteKey::from_raw(u64::MAX, u64::MAX, 1).target(2, 1).is_none());
    }
}
