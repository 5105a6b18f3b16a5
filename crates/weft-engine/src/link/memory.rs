//! Implements the protocol's view of memory with the process's registered memory.

use weft_sys::Region;

use super::host::{Keys, Pinned, PinnedRegion};
use super::payload::Payload;
use crate::access::Access;
use crate::mr::{self, AccessContext, AccessError, Pin};
use crate::registered::MrCache;

impl Keys for MrCache {
    type Context<'a> = AccessContext<'a>;
    type Pin<'a> = Pin<'a>;
    type PinnedRegion<'a> = mr::PinnedRegion<'a>;

    #[inline]
    fn access(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Pin<'_>, AccessError> {
        Self::access(self, context, key, addr, len, needs)
    }

    #[inline]
    fn pin_region(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        needs: Access,
    ) -> Result<mr::PinnedRegion<'_>, AccessError> {
        Self::pin_region(self, context, key, needs)
    }
}

impl Pinned for Pin<'_> {
    #[inline]
    fn extents(&self) -> impl Iterator<Item = Region> {
        Pin::extents(self)
    }

    #[inline]
    fn read(&self, out: &mut Vec<u8>) {
        self.extents().for_each(|extent| extent.copy_out(out));
    }

    #[inline]
    fn write(&self, payload: &Payload<'_>, offset: usize) -> crate::Result<usize> {
        let mut done = 0;
        for extent in self.extents() {
            payload.copy_to(offset + done, &extent)?;
            done += extent.len();
        }
        Ok(done)
    }

    #[inline]
    fn update(&self, change: impl FnMut(u64) -> u64) -> Option<u64> {
        self.contiguous()?.update_u64(change)
    }

    #[inline]
    fn notify_observer(&self) {
        Pin::notify_observer(self);
    }
}

impl PinnedRegion for mr::PinnedRegion<'_> {
    #[inline]
    fn is_of(&self, key: u32) -> bool {
        mr::PinnedRegion::is_of(self, key)
    }

    #[inline]
    fn part(&self, addr: u64, len: u64) -> Option<Region> {
        mr::PinnedRegion::part(self, addr, len)
    }
}
