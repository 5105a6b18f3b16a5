//! The process: its start, fork, exec and end.
//!
//! # Safety
//! Functions registered with the C library live for ever, and call nothing that it forbids them.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::{c_int, c_long};
use rustix::net::{SocketType, sockopt};
use weft_stream::{Owner, Process, inheritance};
use weft_sys::calls::socket_cookie;

use crate::datagram::Datagram;
use crate::handover::Own;
use crate::hooks::files;
use crate::reason::Reason;
use crate::stream::{self, borrow};
use crate::table::{self, Kind};
use crate::zcopy::promised;
use crate::{by_hand, confine, epoll, errno, extended, hooks, remote, settings, unseen_fork, ways};

/// This process's number, as it was when it began to be one.
static PID: AtomicU32 = AtomicU32::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn begin() {
    PID.store(std::process::id(), Ordering::Relaxed);
    renew_proof();
    hooks::memory::prepare();
    settings::read();
    by_hand::read();
    if !settings::enabled() {
        return;
    }
    // SAFETY: the handlers live for ever; `before_fork` brings all locks into a known state.
    let _ = unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    unseen_fork::prepare(number());
    inherit();
}

extern "C" fn finish() {
    files::flush();
    if settings::is_confined() {
        return;
    }
    promised::reclaim_all();
    for fd in table::within(0, u32::MAX) {
        let Some(held) = table::remove(fd).filter(|held| held.descriptors() == 0) else { continue };
        match &*held {
            Kind::Stream(stream) => stream.closing(fd),
            Kind::Datagram(datagram) => datagram.closing(fd),
            Kind::Epoll(_) => {}
        }
    }
    remote::finish();
    settings::leave();
}

/// The process ends without [`finish`], perhaps out of a signal handler: nothing is freed.
pub(crate) fn end_at_once() {
    if is_borrowed() || settings::is_confined() {
        return;
    }
    promised::reclaim_all();
    for fd in table::within(0, u32::MAX) {
        let Some(held) = table::remove(fd).map(std::mem::ManuallyDrop::new) else { continue };
        match &**held {
            Kind::Stream(stream) if held.descriptors() == 0 => {
                stream.closing(fd);
                stream.let_go();
            }
            Kind::Datagram(datagram) if held.descriptors() == 0 => datagram.tell_at_last(fd),
            _ => {}
        }
    }
    remote::finish();
    settings::leave();
}

/// Children have process numbers that say nothing here: `unshare(2)` and `setns(2)`.
static CHILDREN_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// The process's children will be in another PID namespace. Threads there have numbers that mean
/// other threads here, or none, so that a holder of a lock could be taken for dead: connections
/// go back to TCP before a child is born. Returns whether it was so before.
pub(crate) fn begin_children_elsewhere() -> bool {
    CHILDREN_ELSEWHERE.swap(true, Ordering::Relaxed)
}

/// How many forks have begun.
static FORKS: AtomicU32 = AtomicU32::new(0);

pub(crate) extern "C" fn before_fork() {
    unseen_fork::before_seen();
    let fork = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        confine::leave_all(Reason::Processes);
    }
    remote::finish(); // A child would hold their sockets open.
    inheritance::before_fork(&Own, fork);
    for fd in table::within(0, u32::MAX) {
        if let Some(Kind::Datagram(datagram)) = table::find(fd).as_deref() {
            datagram.forking(fork);
        }
    }
    // An instance's lock is held where a connection goes back to TCP, which takes back promises.
    epoll::freeze();
    promised::freeze();
    settings::freeze();
    table::freeze();
    extended::memory::freeze();
    stream::freeze();
}

pub(crate) extern "C" fn in_parent() {
    // SAFETY: `before_fork` has frozen them.
    unsafe { stream::thaw() };
    // SAFETY: likewise.
    unsafe { extended::memory::thaw() };
    // SAFETY: likewise.
    unsafe { table::thaw() };
    // SAFETY: likewise.
    unsafe { settings::thaw() };
    // SAFETY: likewise.
    unsafe { promised::thaw() };
    // SAFETY: likewise.
    unsafe { epoll::thaw() };
    unseen_fork::after_seen();
}

/// A fork that runs no handlers, or has flags of `clone(2)`.
#[derive(Debug)]
pub(crate) struct Forking {
    /// The child alone is in another PID namespace.
    leaves: bool,
}

impl Forking {
    /// Before it.
    pub(crate) fn begin(flags: c_int) -> Self {
        if flags & libc::CLONE_FILES != 0 {
            ways::process::keep_on_tcp("a child shares the descriptors");
        }
        let leaves = flags & libc::CLONE_NEWPID != 0 && !begin_children_elsewhere();
        before_fork();
        Self { leaves }
    }

    /// After it, in the parent and in the child: what the call has returned.
    pub(crate) fn end(self, born: c_long) {
        if born == 0 {
            let before = errno::get();
            in_child();
            errno::set_raw(before);
        } else {
            self.end_in_parent(born);
        }
    }

    /// After it, in the parent.
    pub(crate) fn end_in_parent(self, born: c_long) {
        let before = errno::get();
        in_parent();
        if self.leaves {
            CHILDREN_ELSEWHERE.store(false, Ordering::Relaxed);
        }
        if born < 0 {
            fork_failed();
        }
        errno::set_raw(before);
    }
}

/// There is no child after all.
pub(crate) fn fork_failed() {
    inheritance::fork_failed(&Own, FORKS.load(Ordering::Relaxed));
}

pub(crate) extern "C" fn in_child() {
    // SAFETY: the thread that forks is in the middle of nothing else.
    unsafe { crate::HEAP.forked() };
    in_parent();
    begin_as_child();
}

fn begin_as_child() {
    let pid = std::process::id();
    let parent = PID.swap(pid, Ordering::Relaxed);
    unseen_fork::has_begun(pid);
    by_hand::in_child();
    hooks::descriptors::forked();
    renew_proof();
    weft_sys::forget_thread();
    settings::enter();
    inheritance::in_child(&Own, parent);
    remote::forked();
    epoll::forked();
    promised::forked();
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        // Bytes that have come into memory are still read from there.
        weft_sys::hide_threads();
        settings::disable();
    }
}

/// What tells this process's memory from that of another one with its number.
static PROOF: AtomicU64 = AtomicU64::new(0);

fn renew_proof() {
    let mut bytes = [0; 8];
    // Without randomness the number and the time have to do.
    let random = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    let number = u64::from(PID.load(Ordering::Relaxed)) << 32 ^ crate::wait::now();
    let proof = if random == Ok(8) { u64::from_ne_bytes(bytes) } else { number };
    PROOF.store(proof, Ordering::Relaxed);
}

/// Who has the memory of the calling thread.
pub(crate) fn owner() -> Owner {
    let proof = (PROOF.as_ptr() as u64, PROOF.load(Ordering::Relaxed));
    Owner { pid: std::process::id(), proof }
}

/// Whether this is a child that still shares the parent's memory (`vfork(2)`): what it does to
/// descriptors is not the parent's.
pub(crate) fn is_borrowed() -> bool {
    let pid = std::process::id();
    pid != number() && !unseen_fork::is_own(pid, begin_as_child)
}

/// This process's number.
pub(crate) fn number() -> u32 {
    PID.load(Ordering::Relaxed)
}

/// The file name by which the program was started.
///
/// Not that of the file which `/proc/self/exe` leads to: one file may be several programs, as
/// Debian's `redis-server` is a link to `redis-check-rdb`.
pub(crate) fn program() -> &'static [u8] {
    let path = rustix::param::linux_execfn().to_bytes();
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

/// Finds out what an offer needs, which takes long the first time.
pub(crate) fn prepare_to_offer() {
    let before = errno::get();
    let _ = (settings::registry(), program());
    errno::set_raw(before);
}

/// Who this end of a connection is.
pub(crate) fn me(fd: RawFd) -> Process {
    let cookie = socket_cookie(borrow(fd)).unwrap_or(0);
    let mut padded = [0; 16];
    let name = program();
    let len = name.len().min(padded.len());
    padded[..len].copy_from_slice(&name[..len]);
    Process { pid: PID.load(Ordering::Relaxed), fd: fd.cast_unsigned(), cookie, program: padded }
}

/// Whether calls that handled signals interrupt go on (`SA_RESTART`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Handlers {
    /// To be asked for.
    Unknown,
    /// All say so, or there are none.
    Restart,
    /// None says so.
    Interrupt,
    /// Some do, some do not.
    Differ,
}

/// What is known of the handlers, and above it how often one has been set: what was found before
/// another thread set one is not kept.
static HANDLERS: AtomicU32 = AtomicU32::new(Handlers::Unknown as u32);
/// The bits of [`Handlers`] in it.
const KNOWN: u32 = 0b11;

/// The program has set a handler.
pub(crate) fn handlers_changed() {
    let next = |it: u32| Some((it & !KNOWN).wrapping_add(KNOWN + 1) | Handlers::Unknown as u32);
    let _ = HANDLERS.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
}

/// Whether a call that a signal has interrupted goes on: each handler says so for its signal
/// (`SA_RESTART`), and which one it was is not known. Those that say neither do not count.
pub(crate) fn handlers_restart() -> bool {
    handlers() == Handlers::Restart as u32
}

/// Whether only the kernel can say whether a call goes on that a signal interrupts.
pub(crate) fn do_handlers_differ() -> bool {
    handlers() == Handlers::Differ as u32
}

fn handlers() -> u32 {
    let before = HANDLERS.load(Ordering::Acquire);
    if before & KNOWN != Handlers::Unknown as u32 {
        return before & KNOWN;
    }
    let (mut any, mut all) = (false, true);
    for signal in 1..32 {
        // SAFETY: a structure of integers and pointers, for which zero is valid.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only asks; the place for the answer is a local variable.
        let known = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) } == 0;
        let handler = action.sa_sigaction;
        if known && handler != libc::SIG_DFL && handler != libc::SIG_IGN {
            let restarts = action.sa_flags & libc::SA_RESTART != 0;
            (any, all) = (any | restarts, all & restarts);
        }
    }
    let found = match (any, all) {
        (_, true) => Handlers::Restart,
        (true, false) => Handlers::Differ,
        (false, false) => Handlers::Interrupt,
    };
    let now = before | found as u32;
    // A handler that was set meanwhile is asked for next time.
    let _ = HANDLERS.compare_exchange(before, now, Ordering::AcqRel, Ordering::Relaxed);
    found as u32
}

/// Finds the connections, and the inboxes, of the sockets that the program was started with.
fn inherit() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = entries.flatten().map(|entry| entry.file_name());
    let fds = names.filter_map(|name| name.to_str()?.parse::<RawFd>().ok());
    for fd in fds {
        ways::process::check_ring(fd);
        let Ok(kind) = sockopt::socket_type(borrow(fd)) else { continue };
        by_hand::begin();
        adopt(fd);
        if kind == SocketType::DGRAM
            && is_internet(fd)
            && let Some(datagram) = Datagram::inherited(fd)
        {
            table::install(fd, Kind::Datagram(datagram));
        }
    }
    files::replace_standard();
}

/// Goes on with the connection of a TCP socket that this process has got from another one or from
/// the program that it was before, if there is something of it in memory.
pub(crate) fn adopt(fd: RawFd) {
    inheritance::adopt(&Own, fd);
}

/// Whether a socket is of IPv4 or IPv6.
pub(crate) fn is_internet(fd: RawFd) -> bool {
    use rustix::net::AddressFamily;
    let domain = sockopt::socket_domain(borrow(fd));
    domain.is_ok_and(|domain| domain == AddressFamily::INET || domain == AddressFamily::INET6)
}
