//! All unsafe code that accesses memory which programs have registered and peers may access, and
//! the system calls that the standard library lacks. Most crates above this one are safe Rust.
//!
//! # Layers
//!
//! A module uses modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! heap next_function passed_fds shared_lock
//! section
//! signal_lock
//! lock mapping open_slots remap waits
//! futex futex_word maps named presence process_memory ring text_file
//! alarm apart buffers process_vm shared slot slot_state socket thread udp yield_policy
//! atomic cpu_contention file_mapping forkable gate interfaces layout leftover memory_node region
//! bounded_queue host limits private_blocks spin time_stamp userfault wait
//! by_hand calls cancellation mutex
//! ```

mod alarm;
mod apart;
mod atomic;
mod bounded_queue;
mod buffers;
mod by_hand;
pub mod calls;
mod cancellation;
mod cpu_contention;
#[cfg(not(loom))]
mod file_mapping;
mod forkable;
mod futex;
mod futex_word;
#[cfg(target_arch = "x86_64")]
mod gate;
#[cfg(not(loom))]
mod heap;
mod host;
mod interfaces;
#[cfg(not(loom))]
mod layout;
mod leftover;
mod limits;
mod lock;
mod mapping;
mod maps;
mod memory_node;
mod mutex;
#[cfg(not(loom))]
mod named;
#[cfg(not(loom))]
mod next_function;
#[cfg(not(loom))]
mod open_slots;
mod passed_fds;
mod presence;
mod private_blocks;
mod process_memory;
mod process_vm;
mod region;
#[cfg(not(loom))]
mod remap;
mod ring;
#[cfg(not(loom))]
mod section;
#[cfg(not(loom))]
mod shared;
mod shared_lock;
#[cfg(not(loom))]
mod signal_lock;
mod slot;
mod slot_state;
mod socket;
mod spin;
mod text_file;
mod thread;
mod time_stamp;
mod udp;
mod userfault;
mod wait;
mod waits;
mod yield_policy;

pub use alarm::{Alarm, Stage, Tag};
pub use apart::{ApartFd, apart_within, is_apart};
pub use bounded_queue::{BoundedQueue, Popped};
pub use buffers::Buffers;
pub use by_hand::system_call;
#[cfg(target_arch = "x86_64")]
pub use by_hand::{raw_system_call, set_system_call_gate};
pub use cancellation::{Uncancelled, test_cancel, with_cleanup};
#[cfg(not(loom))]
pub use file_mapping::FileMapping;
pub use forkable::{Forkable, in_forked_child, neutralise};
pub use futex_word::FutexWord;
#[cfg(target_arch = "x86_64")]
pub use gate::{gate_of_the_c_library, use_gate_of_the_c_library};
#[cfg(not(loom))]
pub use heap::Heap;
pub use host::{HostCount, HostCounts, host_of};
pub use interfaces::{InterfaceAddress, interface_addresses};
#[cfg(not(loom))]
pub use layout::SharedLayout;
pub use leftover::{at_exit, remove_at_exit};
pub use lock::{Lock, LockGuard, NoteLock};
pub use mapping::Mapping;
pub use memory_node::bind_to_node;
pub use mutex::lock;
#[cfg(not(loom))]
pub use named::NamedMemory;
#[cfg(not(loom))]
pub use next_function::{NextFunction, c_name};
#[cfg(not(loom))]
pub use open_slots::OpenSlots;
pub use passed_fds::{PASSED_FDS_MAX, PacketWithFds, recv_with_fds, send_with_fds};
#[cfg(not(loom))]
pub use presence::{OwnPresence, PeerPresence, Sleeping};
pub use private_blocks::{PrivateBlock, private_blocks};
pub use process_memory::ProcessMemory;
pub use process_vm::{PIECES_MAX, Piece, Proof, peek_process, poke_process, read_proven};
pub use region::Region;
#[cfg(not(loom))]
pub use remap::{RemappedPages, Unused, View, is_alone, own_pages, remappable, views};
pub use ring::{Broken, Consumer, Producer, SLOT_BODY_LEN, SLOT_LEN, SlotBody, Slots};
#[cfg(not(loom))]
pub use ring::{SharedSlot, SharedSlots};
#[cfg(not(loom))]
pub use section::{
    Handled, Section, SectionGuard, SectionLock, SectionOnce, defer, never_defer, note_handled,
};
#[cfg(not(loom))]
pub use shared::SharedMemory;
pub use shared_lock::{
    Linux, SharedGuard, SharedLock, Threads, forget_thread, hide_threads, is_gone,
};
#[cfg(not(loom))]
pub use signal_lock::{FAULTS, SignalLock, SignalLockGuard};
pub use slot::Slot;
pub use slot_state::SlotState;
pub use socket::{network_namespace, peer_credentials, recv, send, tcp_maxseg};
pub use spin::{Spin, nanoseconds};
pub use text_file::read_text;
pub use thread::{spawn_quiet, thread_number};
pub use time_stamp::time_stamp;
pub use udp::{Arrival, Bounce, RecvBatch, Run, SEGMENTS_MAX, SEND_RUNS_MAX, UdpSocket};
pub use userfault::UserFault;
pub use wait::wait_readable;
pub use waits::{Sleeper, Waits};
pub use yield_policy::{TIMED_SLEEP, YieldKind, YieldPolicy};

use std::os::fd::OwnedFd;

/// The error of a system call: the kernel's `errno`.
pub use calls::io::Errno;

/// Creates an eventfd that counts: each [`notify`] makes one `read` of eight bytes succeed.
///
/// # Errors
/// An error of `eventfd(2)`, usually `EMFILE`.
pub fn counting_eventfd() -> Result<OwnedFd, Errno> {
    use crate::calls::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
}

/// Adds one to an eventfd, so that it becomes readable.
pub fn notify(eventfd: &OwnedFd) {
    // A blocking eventfd fails only if its counter is at 2^64 - 2, and then it is readable anyway.
    let _ = calls::write(eventfd, &1u64.to_ne_bytes());
}

/// Takes back what [`notify`] added: one from a counting eventfd, everything from another. If the
/// eventfd blocks, the caller must know that it is readable.
pub fn consume(eventfd: &OwnedFd) {
    // It fails only if there was nothing to take back.
    let _ = calls::read(eventfd, &mut [0; 8]);
}
