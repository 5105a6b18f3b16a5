//! Memory that peers access, and the keys with which they do.

use std::fmt;
use std::ops::{Range, RangeBounds};

use weft_engine::access::Access;
use weft_sys::Region;

use crate::carrier::Registration;
use crate::error::{Error, Result};
use crate::limits::APART_MAX;
use crate::memory::Buffer;
use crate::returned::Returned;

/// Bytes that an atomic changes.
const WORD: usize = size_of::<u64>();

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

    pub(crate) fn access(self) -> Access {
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
    // Declared before the memory, so that the rights end before it does.
    grant: Grant,
    buffer: Buffer,
    apart: Option<Apart>,
    key: RemoteKey,
}

/// A shared range that is in pages of its own while it is shared, so that peers of this host can
/// map them. Its bytes in the buffer are out of date.
#[derive(Debug)]
struct Apart {
    memory: Buffer,
    /// Where it belongs in the buffer.
    range: Part,
}

impl Apart {
    /// Moves a range of a buffer, if that makes it mappable. It begins and ends at a word, so that
    /// no word is in both.
    fn new(buffer: &Buffer, range: &Part) -> Result<Option<Self>> {
        let has_words = [range.start, range.len()].iter().all(|at| at.is_multiple_of(WORD));
        let is_short = !range.is_empty() && range.len() <= APART_MAX;
        if !is_short || !has_words || !buffer.needs_other_pages(range) {
            return Ok(None);
        }
        let mut memory = buffer.another(range.len())?;
        memory.copy_from_slice(&buffer[range.clone()]);
        Ok(Some(Self { memory, range: range.clone() }))
    }

    /// Moves the range back, when nobody has rights any more.
    fn end(self, buffer: &mut Buffer) {
        self.memory.region().fill(&mut buffer[self.range]);
    }
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
        let len = range.len() as u64;
        let shared = Apart::new(&self, &range).and_then(|mut apart| {
            let (memory, part) = match &mut apart {
                Some(apart) => (&mut apart.memory, 0..range.len()),
                None => (&mut self, range),
            };
            let registration = memory.register(&part, rights.access())?;
            let address = memory.address() + part.start as u64;
            Ok((apart, RemoteKey { address, len, key: registration.remote_key() }, registration))
        });
        match shared {
            Ok((apart, key, registration)) => {
                Ok(SharedBuffer { grant: Grant(registration), buffer: self, apart, key })
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
        for (region, range) in self.pieces(offset, bytes.len())? {
            region.fill(&mut bytes[range]);
        }
        Ok(())
    }

    /// Copies bytes to `offset` of the whole buffer.
    ///
    /// # Errors
    /// [`Error::Range`] if they would not be inside.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        for (region, range) in self.pieces(offset, bytes.len())? {
            region.copy_in(&bytes[range]);
        }
        Ok(())
    }

    /// Changes eight bytes at `offset` of the whole buffer, a multiple of eight, in one step that
    /// peers' atomics do not split. Returns the old value, in the byte order of this host.
    ///
    /// # Errors
    /// [`Error::Range`] if they are not inside, or `offset` is not a multiple of eight.
    pub fn update(&self, offset: usize, change: impl FnMut(u64) -> u64) -> Result<u64> {
        let word = self.pieces(offset, WORD)?.next();
        let changed = word.and_then(|(word, _)| word.update_u64(change));
        changed.ok_or_else(|| Error::Range { len: self.buffer.region().len() })
    }

    /// Ends the peers' rights, and returns the buffer: another one with the same bytes if a peer
    /// may have mapped this one, since a hostile peer could keep the mapping.
    #[must_use]
    pub fn end(mut self) -> Buffer {
        let is_mappable = self.grant.0.is_mappable();
        let ended = self.grant.0.end();
        match (self.apart, ended) {
            // The engine, which alone makes these, ends every registration.
            (Some(apart), _) => {
                apart.end(&mut self.buffer);
                self.buffer
            }
            (None, Ok(())) if is_mappable => self.buffer.copied(),
            (None, Ok(())) => self.buffer,
            (None, Err(_)) => self.buffer.replaced(),
        }
    }

    /// The memory of a range of the buffer: its pieces in order, and where each is in the range.
    fn pieces(
        &self,
        offset: usize,
        len: usize,
    ) -> Result<impl Iterator<Item = (Region, Range<usize>)> + use<>> {
        let whole = self.buffer.region();
        let end = offset.checked_add(len).filter(|&end| end <= whole.len());
        let end = end.ok_or(Error::Range { len: whole.len() })?;
        let (apart, moved) = match &self.apart {
            Some(apart) => (apart.memory.region(), apart.range.clone()),
            None => (whole, end..end),
        };
        let [from, to] = [moved.start, moved.end].map(|at| at.clamp(offset, end));
        let pieces =
            [(whole, 0, offset..from), (apart, moved.start, from..to), (whole, 0, to..end)];
        Ok(pieces.into_iter().filter_map(move |(region, start, range)| {
            let region = region.part(range.start.checked_sub(start)?, range.len())?;
            let piece = (region, range.start - offset..range.end - offset);
            (!range.is_empty()).then_some(piece)
        }))
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
    fn a_range_inside_of_a_page_is_mappable_and_belongs_to_the_buffer() {
        let fabric = crate::Fabric::open(crate::Options::default()).unwrap();
        let mut buffer = fabric.alloc(10_000).unwrap();
        buffer.fill(1);
        let shared = buffer.share(Rights::ALL, 4_088..4_120).unwrap();
        assert!(segment_at(shared.key().address));
        // All three pieces.
        shared.write(4_080, &[2; 48]).unwrap();
        assert_eq!(shared.update(4_088, |word| word + 1).unwrap(), 0x0202_0202_0202_0202);
        assert_eq!(shared.update(4_120, |word| word).unwrap(), 0x0202_0202_0202_0202);
        let mut bytes = [0; 64];
        shared.read(4_072, &mut bytes).unwrap();
        let mut expected = [2; 64];
        expected[..8].fill(1);
        expected[56..].fill(1);
        expected[16] = 3;
        assert_eq!(bytes, expected);
        for (offset, len) in [(10_000, 1), (9_999, 2), (usize::MAX, 2)] {
            assert!(shared.write(offset, &bytes[..len]).is_err(), "{offset}");
        }
        assert!(shared.update(4_092, |word| word).is_err());
        let buffer = shared.end();
        assert_eq!(buffer[4_072..4_136], expected);
        assert!(buffer[..4_072].iter().chain(&buffer[4_136..]).all(|&byte| byte == 1));
        assert!(!segment_at(buffer.address()));
        // What has no whole words, or is long, stays where it is.
        for range in [4_088..4_100, 4_087..4_095] {
            let shared = fabric.alloc(10_000).unwrap().share(Rights::ALL, range.clone()).unwrap();
            assert!(!segment_at(shared.key().address), "{range:?}");
        }
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
