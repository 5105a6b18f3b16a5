//! A table of granted blocks, for tests of transports.

use std::sync::Mutex;

use super::channel::{Claim, Grants, Head, Payload, Refused, Write};
use crate::blocks::{Block, Pool};

/// Length of a header: the granted block (4), the length (4), the sequence number (8).
pub(super) const HEAD_LEN: usize = 16;

/// The block number in the header of an obsolete block.
pub(super) const OVER: u32 = u32::MAX;

/// The sink's granted blocks, by number.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Vec<Option<Block>>>);

impl Table {
    /// Creates a table in which all blocks of a pool are granted.
    pub(super) fn of(pool: &Pool) -> Self {
        let table = Self::default();
        while let Some(block) = pool.try_take() {
            table.grant(block);
        }
        table
    }

    pub(super) fn grant(&self, block: Block) {
        let mut blocks = self.0.lock().expect("no panic");
        let index = block.index() as usize;
        if blocks.len() <= index {
            blocks.resize_with(index + 1, || None);
        }
        assert!(blocks[index].replace(block).is_none(), "granted once");
    }

    pub(super) fn granted(&self) -> usize {
        self.0.lock().expect("no panic").iter().flatten().count()
    }
}

impl Grants for Table {
    fn head_len(&self) -> usize {
        HEAD_LEN
    }

    fn claim(&self, head: &[u8]) -> Result<Claim, Refused> {
        let (index, len, _) = parts(head);
        if index == OVER {
            return Ok(Claim::Drop(len as usize));
        }
        let mut blocks = self.0.lock().expect("no panic");
        let granted = blocks.get_mut(index as usize).ok_or(Refused("no such block"))?;
        if granted.as_ref().is_some_and(|block| block.len() < len as usize) {
            return Err(Refused("too long"));
        }
        let block = granted.take().ok_or(Refused("not granted"))?;
        Ok(Claim::Into { block, len: len as usize })
    }

    fn give_back(&self, _head: &[u8], block: Block) {
        self.grant(block);
    }
}

pub(super) fn head(index: u32, len: usize, sequence: u64) -> Head {
    let len = u32::try_from(len).expect("short");
    let mut bytes = [0; HEAD_LEN];
    bytes[..4].copy_from_slice(&index.to_be_bytes());
    bytes[4..8].copy_from_slice(&len.to_be_bytes());
    bytes[8..].copy_from_slice(&sequence.to_be_bytes());
    Head::new(&bytes)
}

/// Returns the granted block, the length and the sequence number of a header.
pub(super) fn parts(head: &[u8]) -> (u32, u32, u64) {
    let field = |at: usize| -> [u8; 4] { head[at..at + 4].try_into().expect("four") };
    let sequence = head[8..16].try_into().expect("eight");
    (u32::from_be_bytes(field(0)), u32::from_be_bytes(field(4)), u64::from_be_bytes(sequence))
}

/// Returns a write of a whole block.
pub(super) fn write(block: Block, len: usize, to: u32, sequence: u64) -> Write {
    Write { place: None, head: head(to, len, sequence), payload: Payload::Block { block, len } }
}
