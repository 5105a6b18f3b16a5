//! Fake memory without regions, protection domains or a process: two keys for the same bytes.

use std::cell::RefCell;
use std::rc::Rc;

use weft_sys::Region;

use crate::access::Access;
use crate::link::host::{Keys, Pinned, PinnedRegion};
use crate::link::payload::Payload;
use crate::mr::AccessError;
use crate::wr::Sge;
use crate::{Errno, Result};

/// Address of the first byte.
const START: u64 = 0x7000_0000;
const READ_ONLY: Access = Access::REMOTE_READ;
const ALL: Access =
    READ_ONLY.union(Access::LOCAL_WRITE).union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);

/// A piece of the memory: offset and length.
pub(super) type Piece = (usize, usize);

/// The memory of a host.
#[derive(Debug)]
pub(super) struct FakeMemory {
    bytes: Rc<RefCell<Vec<u8>>>,
    key: u32,
}

impl FakeMemory {
    pub(super) const LEN: usize = 64 << 10;

    /// Creates the memory of host `number`, which has keys of its own.
    pub(super) fn new(number: u32) -> Self {
        Self { bytes: Rc::new(RefCell::new(vec![0xa5; Self::LEN])), key: number << 8 }
    }

    /// The key that grants all rights.
    pub(super) fn key(&self) -> u32 {
        self.key
    }

    /// The key that lets peers only read.
    pub(super) fn readonly_key(&self) -> u32 {
        self.key + 1
    }

    pub(super) fn addr(&self, offset: usize) -> u64 {
        START + offset as u64
    }

    pub(super) fn sge(&self, (offset, len): Piece) -> Sge {
        let length = u32::try_from(len).expect("it is small");
        Sge { addr: self.addr(offset), length, lkey: self.key }
    }

    /// The current contents of a piece.
    pub(super) fn read(&self, (offset, len): Piece) -> Vec<u8> {
        self.bytes.borrow()[offset..offset + len].to_vec()
    }

    /// Writes to the memory as the program does.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn rights(&self, key: u32) -> Option<Access> {
        match key {
            _ if key == self.key => Some(ALL),
            _ if key == self.key + 1 => Some(READ_ONLY),
            _ => None,
        }
    }
}

/// Finds fake memory; caches nothing.
#[derive(Debug, Default)]
pub(super) struct FakeKeys;

/// A piece of a host's memory.
#[derive(Debug)]
pub(super) struct FakePin {
    bytes: Rc<RefCell<Vec<u8>>>,
    offset: usize,
    len: usize,
}

/// A pinned region, which only rings need and fake memory does not have.
#[derive(Debug)]
pub(super) enum NeverPinned {}

impl Keys for FakeKeys {
    type Context<'a> = &'a FakeMemory;
    type Pin<'a> = FakePin;
    type PinnedRegion<'a> = NeverPinned;

    fn access(
        &mut self,
        memory: &FakeMemory,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> std::result::Result<FakePin, AccessError> {
        let rights = memory.rights(key).ok_or(AccessError::Key)?;
        if !rights.contains(needs) {
            return Err(AccessError::Rights);
        }
        let offset = addr.checked_sub(START).ok_or(AccessError::Bounds)?;
        if offset + len > FakeMemory::LEN as u64 {
            return Err(AccessError::Bounds);
        }
        Ok(FakePin { bytes: Rc::clone(&memory.bytes), offset: offset as usize, len: len as usize })
    }

    fn pin_region(
        &mut self,
        _memory: &FakeMemory,
        _key: u32,
        _needs: Access,
    ) -> std::result::Result<NeverPinned, AccessError> {
        Err(AccessError::Key)
    }
}

impl Pinned for FakePin {
    fn extents(&self) -> impl Iterator<Item = Region> {
        std::iter::empty()
    }

    fn read(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes.borrow()[self.offset..self.offset + self.len]);
    }

    fn write(&self, payload: &Payload<'_>, offset: usize) -> Result<usize> {
        let Payload::Bytes(bytes) = payload else { return Err(Errno::FAULT) };
        let target = &mut self.bytes.borrow_mut()[self.offset..self.offset + self.len];
        target.copy_from_slice(&bytes[offset..offset + self.len]);
        Ok(self.len)
    }

    fn update(&self, mut change: impl FnMut(u64) -> u64) -> Option<u64> {
        if !self.offset.is_multiple_of(8) {
            return None;
        }
        let target = &mut self.bytes.borrow_mut()[self.offset..self.offset + 8];
        let old = u64::from_ne_bytes(target.try_into().expect("eight bytes"));
        target.copy_from_slice(&change(old).to_ne_bytes());
        Some(old)
    }

    fn notify_observer(&self) {}
}

impl PinnedRegion for NeverPinned {
    fn is_of(&self, _key: u32) -> bool {
        match *self {}
    }

    fn part(&self, _addr: u64, _len: u64) -> Option<Region> {
        match *self {}
    }
}
