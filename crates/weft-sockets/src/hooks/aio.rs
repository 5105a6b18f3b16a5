//! The C library's asynchronous input and output (aio(7)). Its threads read and write unseen, so
//! the connection falls back to TCP first. Unread bytes that are in memory by then complete a read
//! at once.
//!
//! # Safety
//! Each function has the signature of the C library function that it interposes. The program
//! guarantees that control blocks are valid; their fields have the C library's offsets (`struct
//! aiocb` of x86-64 and all other 64-bit targets).
#![allow(unsafe_code)]

use libc::{aiocb, c_int, c_void, iovec, sigevent};
use smallvec::SmallVec;
use weft_sys::calls;

use super::data::receive;
use crate::arguments::is_nowhere;
use crate::limits::AIO_LIST_MAX;
use crate::next::next;
use crate::reason::Reason;
use crate::ways::fallback;
use crate::{errno, sockets};

/// The fields that are public, and those behind them.
#[repr(C)]
struct Block {
    fd: c_int,
    operation: c_int,
    priority: c_int,
    place: *mut c_void,
    len: usize,
    notice: sigevent,
    next: *mut Self,
    absolute: c_int,
    policy: c_int,
    /// What `aio_error` returns.
    error: c_int,
    /// What `aio_return` returns.
    result: isize,
}

const _: () = assert!(size_of::<Block>() <= size_of::<aiocb>());

/// Completes a read at once if memory has bytes for it. Returns whether it has.
///
/// # Safety
/// `block` is the program's control block.
unsafe fn read_at_once(block: *mut Block) -> bool {
    if is_nowhere(block) {
        return false;
    }
    // SAFETY: not NULL, so the caller guarantees a valid control block.
    let block = unsafe { &mut *block };
    if !fallback::one(block.fd, Reason::ByHand) || block.len == 0 {
        return false;
    }
    let list = iovec { iov_base: block.place, iov_len: block.len };
    let before = errno::get();
    // SAFETY: the control block names a buffer of the program's that is valid until the operation
    // completes.
    let received = unsafe { receive(block.fd, &raw const list, 1, libc::MSG_DONTWAIT) };
    errno::set_raw(before);
    match received {
        Some(received) if received > 0 => block.result = received,
        _ => return false,
    }
    block.error = 0;
    true
}

type Function = extern "C" fn(libc::sigval);

/// Notifies the program that an operation has completed, in the way that it has asked for.
fn notify(notice: &sigevent) {
    match notice.sigev_notify {
        libc::SIGEV_SIGNAL => send_signal(notice.sigev_signo, notice.sigev_value),
        libc::SIGEV_THREAD => {
            // SAFETY: with SIGEV_THREAD the union holds the function at this offset.
            let place =
                unsafe { (&raw const notice.sigev_notify_thread_id).cast::<usize>().read() };
            // SAFETY: NULL is `None`, and the program's function has this signature.
            let function = unsafe { std::mem::transmute::<usize, Option<Function>>(place) };
            let value = notice.sigev_value.sival_ptr as usize;
            if let Some(function) = function {
                let run = move || function(libc::sigval { sival_ptr: value as *mut c_void });
                // If no thread can be made the program gets no notification, as with the C library.
                drop(std::thread::Builder::new().spawn(run));
            }
        }
        _ => {}
    }
}

/// The head of `siginfo_t` in the kernel's layout, for a queued signal.
#[repr(C)]
struct SignalInfo {
    signal: c_int,
    error: c_int,
    code: c_int,
    padding: c_int,
    pid: c_int,
    user: u32,
    value: usize,
    rest: [u64; 12],
}

fn send_signal(signal: c_int, value: libc::sigval) {
    const SI_ASYNCIO: c_int = -4;
    let info = SignalInfo {
        signal,
        error: 0,
        code: SI_ASYNCIO,
        padding: 0,
        pid: std::process::id().cast_signed(),
        user: calls::process::getuid().as_raw(),
        value: value.sival_ptr as usize,
        rest: [0; 12],
    };
    let (pid, place) = (std::process::id() as usize, (&raw const info) as usize);
    let arguments = [pid, signal as usize, place, 0, 0, 0];
    // SAFETY: the kernel copies the description, which has the size of `siginfo_t`.
    let _ = unsafe { weft_sys::system_call(libc::SYS_rt_sigqueueinfo, arguments) };
}

macro_rules! read {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(block: *mut Block) -> c_int {
            // SAFETY: the program's own control block.
            if unsafe { read_at_once(block) } {
                // SAFETY: the program's own control block.
                notify(unsafe { &(*block).notice });
                return 0;
            }
            next!($name(block: *mut Block) -> c_int)
        }
    };
}
read!(aio_read);
read!(aio_read64);

macro_rules! write {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(block: *mut Block) -> c_int {
            if !is_nowhere(block) {
                // SAFETY: the program's own control block.
                fallback::one(unsafe { (*block).fd }, Reason::ByHand);
            }
            next!($name(block: *mut Block) -> c_int)
        }
    };
}
write!(aio_write);
write!(aio_write64);

/// Handles the operations of a list on known sockets, and returns the list for the C library: NULL
/// stands for an operation that is complete. `None`: the list is to be passed on as it is.
///
/// # Safety
/// The list is the program's.
unsafe fn begin_list(list: *const *mut Block, count: usize) -> Option<SmallVec<[*mut Block; 16]>> {
    if is_nowhere(list) || count > AIO_LIST_MAX {
        return None;
    }
    // SAFETY: the caller guarantees `count` readable entries.
    let given = unsafe { std::slice::from_raw_parts(list, count) };
    let is_ours = |block: &*mut Block| {
        // SAFETY: the program's own control block.
        !is_nowhere(*block) && sockets::knows(unsafe { (**block).fd })
    };
    if !given.iter().any(is_ours) {
        return None;
    }
    let mut left: SmallVec<[*mut Block; 16]> = given.into();
    for block in left.iter_mut().filter(|block| is_ours(block)) {
        // SAFETY: the program's own control block.
        let operation = unsafe { (**block).operation };
        if operation == libc::LIO_READ {
            // SAFETY: the program's own control block.
            if unsafe { read_at_once(*block) } {
                // SAFETY: the program's own control block.
                notify(unsafe { &(**block).notice });
                *block = std::ptr::null_mut();
            }
        } else {
            // SAFETY: the program's own control block.
            fallback::one(unsafe { (**block).fd }, Reason::ByHand);
        }
    }
    Some(left)
}

macro_rules! list {
    ($name:ident) => {
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            mode: c_int,
            list: *const *mut Block,
            count: c_int,
            notice: *mut sigevent,
        ) -> c_int {
            let len = usize::try_from(count).unwrap_or(0);
            // SAFETY: the program's own list.
            let left = unsafe { begin_list(list, len) };
            let list = left.as_ref().map_or(list, |left| left.as_ptr());
            next!($name(
                mode: c_int, list: *const *mut Block, count: c_int, notice: *mut sigevent
            ) -> c_int)
        }
    };
}
list!(lio_listio);
list!(lio_listio64);
