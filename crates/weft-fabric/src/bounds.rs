//! Ranges as programs write them.

use std::ops::{Bound, Range, RangeBounds};

/// Returns the range within a length, of no bytes too; `None` if it is not inside.
pub(crate) fn within(range: &impl RangeBounds<u64>, len: u64) -> Option<Range<u64>> {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    (start <= end && end <= len).then_some(start..end)
}
