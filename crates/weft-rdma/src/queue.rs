//! Completion queues.
//!
//! # Safety
//! A [`Queue`] owns its completion queue and that one's channel. It is dropped after the queue pair
//! that uses it, as a [`Connection`](crate::Connection) guarantees, and before its device.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use weft_abi::{
    IBV_WC_LOC_LEN_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, ibv_comp_channel, ibv_cq, ibv_wc,
};

use crate::device::Device;
use crate::id::unblock;

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was given.
    pub id: u64,
    /// The length of a received message.
    pub len: u32,
}

/// A completion queue with a channel that tells of completions.
#[derive(Debug)]
pub(crate) struct Queue {
    cq: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: the queue and its channel belong to the process, not to a thread, and `Queue` owns them.
unsafe impl Send for Queue {}
// SAFETY: all functions that take the queue or its channel may be called by several threads at
// once.
unsafe impl Sync for Queue {}

impl Queue {
    /// Creates a queue with room for this many completions.
    pub(crate) fn new(device: &Arc<Device>, depth: u32) -> io::Result<Self> {
        let functions = device.functions();
        // SAFETY: `device` keeps its context open.
        let channel = unsafe { (functions.ibv_create_comp_channel)(device.context()) };
        let channel = NonNull::new(channel).ok_or_else(io::Error::last_os_error)?;
        let depth = c_int::try_from(depth).unwrap_or(c_int::MAX);
        // SAFETY: `device` keeps its context open, and the channel was created above. The vector is
        // the first one, which each device has.
        let cq = unsafe {
            (functions.ibv_create_cq)(device.context(), depth, ptr::null_mut(), channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let error = io::Error::last_os_error();
            // SAFETY: the channel was created above, and no queue uses it.
            unsafe { (functions.ibv_destroy_comp_channel)(channel.as_ptr()) };
            return Err(error);
        };
        let queue = Self { cq, channel, device: Arc::clone(device) };
        unblock(queue.fd())?;
        Ok(queue)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_cq {
        self.cq.as_ptr()
    }

    /// Readable when a completion has come after [`Queue::arm`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live until `self` is dropped, and its field never changes.
        let fd = unsafe { self.channel.as_ref() }.fd;
        // SAFETY: the descriptor is open as long as the channel, which `self` owns.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Returns the next completion.
    ///
    /// # Errors
    /// If the request has failed; `ConnectionReset` if the connection has ended before.
    pub(crate) fn poll(&self) -> io::Result<Option<Completion>> {
        let mut entry = MaybeUninit::uninit();
        // SAFETY: `self` owns the queue until it is dropped, and `entry` has room for one
        // completion.
        let count =
            unsafe { (self.device.operations().poll_cq)(self.cq.as_ptr(), 1, entry.as_mut_ptr()) };
        match count {
            0 => return Ok(None),
            1 => {}
            _ => return Err(io::Error::other("the RDMA device's completion queue failed")),
        }
        // SAFETY: the library has filled as many entries as it returned: one.
        let entry = unsafe { entry.assume_init() };
        let text = match entry.status {
            IBV_WC_SUCCESS => {
                return Ok(Some(Completion { id: entry.wr_id, len: entry.byte_len }));
            }
            IBV_WC_WR_FLUSH_ERR => return Err(io::ErrorKind::ConnectionReset.into()),
            IBV_WC_REM_ACCESS_ERR => "the peer does not permit the access to its memory",
            IBV_WC_RETRY_EXC_ERR => "the peer does not answer",
            IBV_WC_RNR_RETRY_EXC_ERR => "the peer takes no messages",
            IBV_WC_LOC_LEN_ERR => "the peer has sent a message that is too long",
            status => return Err(io::Error::other(format!("RDMA completion status {status}"))),
        };
        Err(io::Error::other(text))
    }

    /// Moves completions, whether or not their requests have failed, to the start of `entries`,
    /// and returns them.
    pub(crate) fn take<'a>(
        &self,
        entries: &'a mut [MaybeUninit<ibv_wc>],
    ) -> io::Result<&'a [ibv_wc]> {
        let room = c_int::try_from(entries.len()).unwrap_or(c_int::MAX);
        let first = entries.as_mut_ptr().cast();
        // SAFETY: `self` owns the queue until it is dropped, and `entries` has room for so many.
        let count = unsafe { (self.device.operations().poll_cq)(self.cq.as_ptr(), room, first) };
        let failed = || io::Error::other("the RDMA device's completion queue failed");
        let count = usize::try_from(count).map_err(|_| failed())?;
        let entries = entries.get(..count).ok_or_else(failed)?;
        // SAFETY: the library has filled as many entries as it returned.
        Ok(unsafe { entries.assume_init_ref() })
    }

    /// Makes [`Queue::fd`] readable at the next completion.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: `self` owns the queue until it is dropped.
        let armed = unsafe { (self.device.operations().req_notify_cq)(self.cq.as_ptr(), 0) };
        if armed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(armed.abs())) }
    }

    /// Takes the event that has made [`Queue::fd`] readable. Returns whether there was one.
    pub(crate) fn take_event(&self) -> io::Result<bool> {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let functions = self.device.functions();
        // SAFETY: `self` owns the channel until it is dropped, and both pointers are to local
        // variables for the results.
        let got = unsafe {
            (functions.ibv_get_cq_event)(self.channel.as_ptr(), &raw mut cq, &raw mut context)
        };
        if got != 0 {
            let error = io::Error::last_os_error();
            let is_none =
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
            return if is_none { Ok(false) } else { Err(error) };
        }
        // SAFETY: the channel has only this queue, which has given one event.
        unsafe { (functions.ibv_ack_cq_events)(self.cq.as_ptr(), 1) };
        Ok(true)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let functions = self.device.functions();
        // SAFETY: `self` owns the queue. All of its events are acknowledged, and no queue pair uses
        // it any more.
        unsafe { (functions.ibv_destroy_cq)(self.cq.as_ptr()) };
        // SAFETY: `self` owns the channel, whose only queue has just been destroyed.
        unsafe { (functions.ibv_destroy_comp_channel)(self.channel.as_ptr()) };
    }
}
