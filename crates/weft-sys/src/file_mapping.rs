//! Mappings of files, whose accesses survive that somebody shortens the file.
//!
//! Anybody who may write to a file can shorten it at any time. An access to a mapped page that is
//! then missing raises `SIGBUS`, which ends the process. The same happens if the device of the file
//! fails, or has no room for a page of a hole. The handler that this module sets puts a page of
//! zeros in the place of the missing one, notes that the mapping is *torn*, and lets the access go
//! on: a read gets zeros, and a write is lost, as if the file had been shortened right after it.
//! The owner of the mapping then ends its use.
//!
//! All other signals go to the handler that was set before. A program that sets one of its own
//! later has to call this one for what it does not know.
//!
//! # Safety
//! A [`FileMapping`] owns its addresses from their mapping to their unmapping, and meanwhile no
//! reference to its bytes exists, only a [`Region`], which copies. The handler replaces pages of
//! such addresses only, and what it finds of them is right for the mapping that has been accessed,
//! since that one does not change meanwhile. It reads atomics and makes system calls, all of which
//! a handler may do (signal-safety(7)).
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, siginfo_t};

use crate::calls::call;
use crate::calls::event::{EventfdFlags, eventfd};
use crate::calls::io::Errno;
use crate::calls::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use crate::calls::read;
use crate::limits::FILE_MAPPINGS_MAX;
use crate::region::Region;

const PAGE: usize = 4_096;

/// Where the handler finds a mapping.
#[derive(Debug)]
struct Guard {
    is_taken: AtomicBool,
    start: AtomicUsize,
    /// Bytes of whole pages; 0 while there is no mapping.
    len: AtomicUsize,
    is_torn: AtomicBool,
    /// An eventfd that becomes readable when the mapping is torn.
    event: AtomicI32,
}

static GUARDS: [Guard; FILE_MAPPINGS_MAX] = [const { Guard::new() }; FILE_MAPPINGS_MAX];

impl Guard {
    const fn new() -> Self {
        Self {
            is_taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            is_torn: AtomicBool::new(false),
            event: AtomicI32::new(-1),
        }
    }

    /// Takes a free one.
    fn take() -> Option<&'static Self> {
        GUARDS.iter().find(|guard| !guard.is_taken.swap(true, Ordering::Acquire))
    }

    /// Begins to guard a mapping, which nobody accesses yet.
    fn begin(&self, start: usize, len: usize, event: BorrowedFd<'_>) {
        self.is_torn.store(false, Ordering::Relaxed);
        self.event.store(event.as_raw_fd(), Ordering::Relaxed);
        self.start.store(start, Ordering::Release);
        self.len.store(len, Ordering::Release);
    }

    /// Ends it. Nobody accesses the mapping any more.
    fn end(&self) {
        self.len.store(0, Ordering::SeqCst);
        self.is_taken.store(false, Ordering::Release);
    }

    fn covers(&self, address: usize) -> bool {
        // The length is 0 while the start changes.
        let len = self.len.load(Ordering::Acquire);
        let offset = address.checked_sub(self.start.load(Ordering::Acquire));
        offset.is_some_and(|offset| offset < len) && self.len.load(Ordering::Acquire) == len
    }

    /// Puts zeros in the place of the page at an address, if that is in the mapping.
    fn repair(&self, address: usize) -> bool {
        if !self.covers(address) {
            return false;
        }
        // Before anybody can see the zeros.
        self.is_torn.store(true, Ordering::SeqCst);
        let page = (address - address % PAGE) as *mut c_void;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: the page belongs to a `FileMapping`, of whose bytes there are no references.
        let replaced = unsafe { mmap_anonymous(page, PAGE, access, flags) }.is_ok();
        let (one, event) = (1_u64.to_ne_bytes(), self.event.load(Ordering::Relaxed));
        let arguments = [event as usize, one.as_ptr() as usize, one.len(), 0, 0, 0];
        // SAFETY: the bytes live during the call; the descriptor is open as long as the mapping.
        // It fails only if the eventfd is readable already.
        let _ = unsafe { call(libc::SYS_write, arguments) };
        replaced
    }
}

/// What was set for the signal before this module's handler.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Sets the handler, if it is not set.
fn set_handler() -> Result<(), Errno> {
    static SET: OnceLock<Result<(), i32>> = OnceLock::new();
    let set = SET.get_or_init(|| {
        let before = exchange(None)?;
        // The handler needs it from its first call on.
        let _ = BEFORE.set(before);
        let mut action = default_action();
        let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = handle;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        exchange(Some(&action)).map(drop)
    });
    set.map_err(Errno::from_raw_os_error)
}

fn default_action() -> libc::sigaction {
    // SAFETY: `sigaction` consists of integers and pointers, for which zero is a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = libc::SIG_DFL;
    action
}

/// Sets what happens at the signal, if `action` says so, and returns what was set before.
fn exchange(action: Option<&libc::sigaction>) -> Result<libc::sigaction, i32> {
    let mut before = default_action();
    let action = action.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both live during the call. A handler that is set here is `handle`, which lives for
    // ever, or the default one.
    match unsafe { libc::sigaction(libc::SIGBUS, action, &raw mut before) } {
        0 => Ok(before),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
    }
}

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the handler is set with `SA_SIGINFO`, so `info` is valid.
    let info_ref = unsafe { &*info };
    // Otherwise a process has sent it, and there is no address.
    let is_fault = info_ref.si_code > 0;
    // SAFETY: a fault has an address.
    let address = || unsafe { info_ref.si_addr() } as usize;
    if is_fault && GUARDS.iter().any(|guard| guard.repair(address())) {
        return;
    }
    let before = BEFORE.get().copied().unwrap_or_else(default_action);
    match before.sa_sigaction {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The instruction that has raised it does so again.
            let _ = exchange(Some(&default_action()));
            if !is_fault {
                // SAFETY: the function has no conditions.
                let _ = unsafe { libc::raise(signal) };
            }
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: a handler that is set with `SA_SIGINFO` is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            type Handler = extern "C" fn(c_int);
            // SAFETY: a handler that is set without `SA_SIGINFO` is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal);
        }
    }
}

/// A mapping of a part of a file, through which the file is read and written. It ends when it is
/// dropped.
#[derive(Debug)]
pub struct FileMapping {
    /// Where the mapping begins: at a page.
    start: usize,
    /// Bytes of whole pages.
    mapped: usize,
    region: Region,
    guard: &'static Guard,
    event: OwnedFd,
}

impl FileMapping {
    /// Maps `len` bytes at `offset` of a file, for writing, too, if `is_writable`.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `ENFILE` if the process has too many mappings of files.
    pub fn new(file: impl AsFd, offset: u64, len: usize, is_writable: bool) -> Result<Self, Errno> {
        set_handler()?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // The part before the range in its first page, less than a page.
        let lead = (offset % PAGE as u64) as usize;
        let mapped = len.checked_add(lead).and_then(|len| len.checked_next_multiple_of(PAGE));
        let mapped = mapped.ok_or(Errno::NOMEM)?;
        let mut access = ProtFlags::READ;
        access.set(ProtFlags::WRITE, is_writable);
        let guard = Guard::take().ok_or(Errno::NFILE)?;
        let (place, at) = (std::ptr::null_mut(), offset - lead as u64);
        // SAFETY: the kernel chooses the address of the new mapping, which replaces none.
        let start = unsafe { mmap(place, mapped, access, MapFlags::SHARED, file, at) };
        let start = start.inspect_err(|_| guard.end())? as usize;
        guard.begin(start, mapped, event.as_fd());
        // SAFETY: `region` passes on what this needs. The kernel's mappings do not wrap around.
        let region = unsafe { Region::new(start + lead, len) }.ok_or(Errno::NOMEM);
        // Unreachable with an error; then the mapping stays.
        Ok(Self { start, mapped, region: region?, guard, event })
    }

    /// The bytes.
    ///
    /// # Safety
    /// No method of the region, or of a copy of it, is called after this value has been dropped;
    /// none that writes, if the mapping is not writable.
    #[must_use]
    pub unsafe fn region(&self) -> Region {
        self.region
    }

    /// Whether a page was missing. From then on the mapping does not show the file any more.
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.guard.is_torn.load(Ordering::SeqCst)
    }

    /// Makes the descriptor unreadable until the next page is missing.
    pub fn take_event(&self) {
        // It fails if there was none.
        let _ = read(&self.event, &mut [0; size_of::<u64>()]);
    }
}

impl AsFd for FileMapping {
    /// Readable when a page was missing.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // Before the addresses can be those of something else.
        self.guard.end();
        // SAFETY: this value owns the mapping, and nobody uses it any more.
        let _ = unsafe { munmap(self.start as *mut c_void, self.mapped) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, ExitStatus};

    use super::*;
    use crate::calls::event::PollFlags;
    use crate::calls::fs::{MemfdFlags, ftruncate, memfd_create};
    use crate::calls::{is_ready, read_at};

    /// A file of three pages and a half, which counts its pages.
    fn file() -> OwnedFd {
        let file = memfd_create(c"file", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, (3 * PAGE + PAGE / 2) as u64).expect("memory");
        let whole = FileMapping::new(&file, 0, 3 * PAGE + PAGE / 2, true).expect("memory");
        for page in 0..4 {
            let len = if page == 3 { PAGE / 2 } else { PAGE };
            let region = region(&whole).part(page * PAGE, len).expect("inside");
            region.copy_in(&vec![page as u8 + 1; len]);
        }
        assert!(!whole.is_torn());
        file
    }

    fn region(mapping: &FileMapping) -> Region {
        // SAFETY: the tests keep the mapping while they use the region, and write to writable ones.
        unsafe { mapping.region() }
    }

    #[test]
    fn mapping_and_file_have_the_same_bytes() {
        let file = file();
        let part = FileMapping::new(&file, 4_090, 20, true).expect("a mapping");
        let mut bytes = [0; 20];
        region(&part).fill(&mut bytes);
        assert_eq!(bytes, [[1; 6].as_slice(), &[2; 14]].concat()[..]);
        region(&part).part(4, 4).expect("inside").copy_in(b"abcd");
        let mut found = [0; 6];
        assert_eq!(read_at(&file, &mut found, 4_093), Ok(6));
        assert_eq!(found, *b"\x01abcd\x02");
        assert!(!part.is_torn() && !is_ready(&part, PollFlags::IN));
        let read_only = FileMapping::new(&file, 0, 10, false).expect("a mapping");
        region(&read_only).fill(&mut bytes);
        assert_eq!(bytes[..10], [1; 10]);
        assert_eq!(FileMapping::new(&file, 0, 0, true).map(drop), Err(Errno::INVAL));
    }

    #[test]
    fn missing_pages_are_zeros_and_tear_only_their_mapping() {
        let file = file();
        let len = 3 * PAGE;
        let [torn, whole] = [len, PAGE].map(|len| FileMapping::new(&file, 0, len, true));
        let (torn, whole) = (torn.expect("a mapping"), whole.expect("a mapping"));
        ftruncate(&file, PAGE as u64).expect("a file");
        let mut bytes = vec![9; len];
        region(&torn).fill(&mut bytes);
        assert!(bytes[..PAGE].iter().all(|&byte| byte == 1));
        assert!(bytes[PAGE..].iter().all(|&byte| byte == 0));
        assert!(torn.is_torn() && is_ready(&torn, PollFlags::IN));
        torn.take_event();
        assert!(torn.is_torn() && !is_ready(&torn, PollFlags::IN));
        region(&whole).fill(&mut bytes);
        assert!(!whole.is_torn() && !is_ready(&whole, PollFlags::IN));
        // The same places are used again.
        drop((torn, whole));
        let again = FileMapping::new(&file, 0, len, true).expect("a mapping");
        assert!(!again.is_torn());
        region(&again).part(PAGE, 4).expect("inside").copy_in(b"lost");
        let word = region(&again).part(2 * PAGE, 8).expect("inside");
        assert_eq!(word.update_u64(|old| old + 1), Some(0));
        assert!(again.is_torn());
        let mut found = [0; 1];
        assert_eq!(read_at(&file, &mut found, PAGE as u64), Ok(0), "the file stays as it is");
    }

    /// Runs a test of this name in a process of its own, which `role` tells what to do.
    fn run_apart(test: &str, role: &str) -> ExitStatus {
        let mut command = Command::new(std::env::current_exe().expect("a name"));
        command.args(["--exact", &format!("file_mapping::tests::{test}")]).env(ROLE, role);
        command.output().expect("a process").status
    }

    const ROLE: &str = "WEFT_SYS_TEST_FILE_MAPPING";

    #[test]
    fn mappings_are_bounded() {
        if std::env::var(ROLE).is_err() {
            // Other tests need some.
            assert!(run_apart("mappings_are_bounded", "alone").success());
            return;
        }
        let file = file();
        let mut all = Vec::new();
        let refused = loop {
            match FileMapping::new(&file, 0, 1, false) {
                Ok(mapping) => all.push(mapping),
                Err(errno) => break errno,
            }
        };
        // The process may have fewer descriptors.
        assert!(matches!(refused, Errno::NFILE | Errno::MFILE), "{refused}");
        drop(all);
        FileMapping::new(&file, 0, 1, false).expect("a mapping");
    }

    #[test]
    fn other_faults_end_the_process() {
        let Ok(role) = std::env::var(ROLE) else {
            for role in ["sent", "raised"] {
                let status = run_apart("other_faults_end_the_process", role);
                assert_eq!(status.signal(), Some(libc::SIGBUS), "{role}");
            }
            return;
        };
        let file = file();
        let guarded = FileMapping::new(&file, 0, PAGE, true).expect("a mapping");
        if role == "sent" {
            // SAFETY: the function has no conditions.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        let (place, access) = (std::ptr::null_mut(), ProtFlags::READ);
        // SAFETY: the kernel chooses the address of the new mapping, which replaces none.
        let other = unsafe { mmap(place, PAGE, access, MapFlags::SHARED, &file, PAGE as u64) };
        let other = other.expect("a mapping").cast::<u8>();
        ftruncate(&file, 0).expect("a file");
        region(&guarded).fill(&mut vec![0; PAGE]);
        // SAFETY: the address is mapped, and the page is missing: the process is to end here.
        let byte = unsafe { other.read_volatile() };
        panic!("the process reads {byte}");
    }
}
