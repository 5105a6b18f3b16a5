//! Memory that peers read and write, and its registrations.
//!
//! # Safety
//! [`Memory`] owns the pages and all their registrations. Registrations leave it only as keys, and
//! all of them have been deregistered, which the engine waits for, before the pages are unmapped.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;
use weft_engine::access::Access;
use weft_engine::mr::Mr;
use weft_engine::pd::Pd;
use weft_sys::Region;

use crate::cache::Cache;
use crate::limits::SLOTS_MAX;
use crate::plan::Registration;

/// Equal buffers in separate pages, registered as [`Registration`] says.
#[derive(Debug)]
pub(crate) struct Memory {
    start: NonNull<u8>,
    len: usize,
    stride: usize,
    pd: Arc<Pd>,
    /// The registration of all pages, if they are registered in advance.
    whole: Option<Arc<Mr>>,
    parts: Cache<Arc<Mr>>,
}

// SAFETY: the pointer is to pages that this value alone owns, and nothing in it is bound to a
// thread.
unsafe impl Send for Memory {}

impl Memory {
    /// Allocates `slots` buffers of `size` bytes.
    ///
    /// # Errors
    /// If they are too large, or cannot be mapped or registered.
    pub(crate) fn new(
        pd: &Arc<Pd>,
        slots: usize,
        size: usize,
        registration: Registration,
    ) -> Result<Self> {
        let stride = size.next_multiple_of(page_size());
        let len = stride.checked_mul(slots).filter(|&len| len != 0);
        let len = len.with_context(|| format!("{slots} buffers of {size} bytes"))?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the kernel chooses the address of the new mapping, which replaces none.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) };
        let start = start.with_context(|| format!("no memory for {len} bytes"))?;
        let start = NonNull::new(start.cast()).context("a mapping at address 0")?;
        let capacity = if registration == Registration::Cached { SLOTS_MAX } else { 0 };
        let (pd, parts) = (Arc::clone(pd), Cache::new(capacity));
        let mut memory = Self { start, len, stride, pd, whole: None, parts };
        if registration == Registration::Before {
            memory.whole = Some(memory.register(0, len)?);
        }
        Ok(memory)
    }

    /// Returns the address of a buffer.
    pub(crate) fn address(&self, slot: usize) -> u64 {
        (self.start.as_ptr() as usize + slot * self.stride) as u64
    }

    /// Returns the key of all pages; `None` unless they are registered in advance.
    pub(crate) fn key(&self) -> Option<u32> {
        self.whole.as_ref().map(|mr| mr.key())
    }

    /// Returns a key with which `len` bytes of a buffer can be used until [`Memory::release`].
    ///
    /// # Errors
    /// If the buffer is shorter, or registering fails.
    pub(crate) fn acquire(&mut self, slot: usize, len: usize) -> Result<u32> {
        if let Some(whole) = &self.whole {
            return Ok(whole.key());
        }
        let start = slot * self.stride;
        if let Some(mr) = self.parts.acquire(start, len) {
            return Ok(mr.key());
        }
        let mr = self.register(start, len)?;
        let key = mr.key();
        if let Some(old) = self.parts.insert(start, len, mr) {
            old.deregister()?;
        }
        Ok(key)
    }

    /// Ends the use of a buffer.
    ///
    /// # Errors
    /// The error of deregistering.
    pub(crate) fn release(&mut self, slot: usize) -> Result<()> {
        if self.whole.is_none()
            && let Some(old) = self.parts.release(slot * self.stride)
        {
            old.deregister()?;
        }
        Ok(())
    }

    fn register(&self, offset: usize, len: usize) -> Result<Arc<Mr>> {
        ensure!(offset.checked_add(len).is_some_and(|end| end <= self.len), "no such buffer");
        let first = self.start.as_ptr() as usize + offset;
        // SAFETY: the range is inside the pages (checked above), which stay mapped for reading and
        // writing until `drop` has ended every registration. No Rust object is in it.
        let region =
            unsafe { Region::new(first, len) }.context("memory at the end of the address space")?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Mr::register(&self.pd, region, first as u64, access).context("cannot register memory")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let all = self.whole.take().into_iter().chain(self.parts.drain());
        // All of them, even if one fails.
        let failed = all.filter(|mr| mr.deregister().is_err()).count();
        if failed == 0 {
            // SAFETY: this value owns the pages, and no registration or other reference to them is
            // left.
            let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
        }
    }
}
