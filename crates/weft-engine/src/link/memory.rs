//! The memory regions of the process, as the protocol of a connection uses them.

use weft_sys::Region;

use super::host::{Held, Keys, Pinned};
use super::payload::Payload;
use crate::access::Access;
use crate::mr::{self, AccessContext, AccessError, Pin};
use crate::registered::MrCache;

impl Keys for MrCache {
    type Context<'a> = AccessContext<'a>;
    type Pin<'a> = Pin<'a>;
    type Held<'a> = mr::Held<'a>;

    #[inline]
    fn access(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        addr: u64,
        len: u64,
        needs: Access,
    ) -> Result<Pin<'_>, AccessError> {
        MrCache::access(self, context, key, addr, len, needs)
    }

    #[inline]
    fn hold(
        &mut self,
        context: AccessContext<'_>,
        key: u32,
        needs: Access,
    ) -> Result<mr::Held<'_>, AccessError> {
        MrCache::hold(self, context, key, needs)
    }
}

impl Pinned for Pin<'_> {
    #[inline]
    fn places(&self) -> impl Iterator<Item = Region> {
        Pin::places(self)
    }

    #[inline]
    fn read(&self, out: &mut Vec<u8>) {
        self.places().for_each(|place| place.copy_out(out));
    }

    #[inline]
    fn write(&self, payload: &Payload<'_>, offset: usize) -> crate::Result<usize> {
        let mut done = 0;
        for place in self.places() {
            payload.copy_to(offset + done, &place)?;
            done += place.len();
        }
        Ok(done)
    }

    #[inline]
    fn update(&self, change: impl FnMut(u64) -> u64) -> Option<u64> {
        self.place()?.update_u64(change)
    }

    #[inline]
    fn notify_observer(&self) {
        Pin::notify_observer(self);
    }
}

impl Held for mr::Held<'_> {
    #[inline]
    fn is_of(&self, key: u32) -> bool {
        mr::Held::is_of(self, key)
    }

    #[inline]
    fn part(&self, addr: u64, len: u64) -> Option<Region> {
        mr::Held::part(self, addr, len)
    }
}
