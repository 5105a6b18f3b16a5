//! Plans the blocks of a large file.

use crate::limits::DELTA_PART_LEN_MAX;
use crate::tree::delta::BYTES_HEAD_LEN;
use crate::tree::job::Plan;
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::large::{Large, Piece};
use crate::wire::record::{DATA_LEN, END_LEN, GRAIN, HOLE_LEN, Record, VERSION_PART_LEN};

/// Parts of files are multiples of this length if there is room.
pub(crate) const PART_LEN: usize = 64 << 10;

/// A large file that is being planned.
#[derive(Debug)]
pub(crate) struct LargeInWork {
    pub(crate) large: Large,
    /// The file's entry, until it has been sent before the first part.
    pub(crate) entry: Option<Record>,
    /// The pieces that the sink gets again, until it knows.
    pub(crate) differs: Vec<Record>,
}

impl LargeInWork {
    /// Adds as much of it to a block as fits. Returns the rest.
    pub(crate) fn add_to(mut self, plan: &mut Plan, copies: Option<&KernelCopies>) -> Option<Self> {
        let is_copied = copies.is_some_and(|copies| !copies.is_refused());
        if let Some(entry) = self.entry.take()
            && ((is_copied && !plan.begin_copied_file()) || !plan.add(&entry))
        {
            self.entry = Some(entry);
            return Some(self);
        }
        while let Some(differs) = self.differs.pop_if(|differs| plan.add(differs)) {
            drop(differs);
        }
        if !self.differs.is_empty() {
            return Some(self);
        }
        let mut has_part = false;
        loop {
            let left = plan.left();
            let version = self.large.reading().version.is_some();
            let head = if version { VERSION_PART_LEN + BYTES_HEAD_LEN } else { DATA_LEN };
            let room = left.saturating_sub(END_LEN + head.max(HOLE_LEN));
            // Parts are not shortened just because the block is almost full.
            let most = if room >= PART_LEN {
                room - room % PART_LEN
            } else if has_part || !plan.is_empty() {
                0
            } else {
                room - room % GRAIN as usize
            };
            let most = match is_copied {
                true => plan.copies_left() & !(PART_LEN as u64 - 1),
                false if version => most.min(DELTA_PART_LEN_MAX as usize) as u64,
                false => most as u64,
            };
            let is_last = match self.large.next(most) {
                Piece::Full => false,
                Piece::Data { offset, len } if is_copied => {
                    plan.add_copy(self.large.reading().number, offset, len);
                    has_part = true;
                    continue;
                }
                Piece::Data { offset, len } => {
                    plan.add_part(self.large.reading(), offset, len as usize);
                    has_part = true;
                    continue;
                }
                Piece::Hole { offset, len } => {
                    let file = self.large.reading().number;
                    let fits = plan.add(&Record::Hole { file, offset, len });
                    assert!(fits, "a hole that does not fit was planned");
                    has_part = true;
                    continue;
                }
                Piece::End => true,
            };
            if is_last && left < END_LEN {
                return Some(self);
            }
            if (has_part || is_last) && !self.large.reading().is_sent_by_extents {
                plan.add_end_of_parts(self.large.reading(), is_last);
            }
            return if is_last { None } else { Some(self) };
        }
    }
}
