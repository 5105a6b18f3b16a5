//! Words that a hostile peer may overwrite, and calls that its victim may make, for tests and fuzz
//! targets that play both.

use std::io::IoSliceMut;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use weft_sys::Buffers;
use weft_sys::calls::time::Timespec;

use crate::end::End;
use crate::layout::{Direction, Entry, Page, Side, SrcAvailEntry, entry_at, slot_at};
use crate::limits::SRC_AVAILS_MAX;
use crate::recv_options::RecvOptions;
use crate::src_avail::Owner;

/// Offsets of a connection's words in the registry's file, except the locks: a peer could hold
/// those for ever, as it can its own.
#[must_use]
pub fn peers_words(slot: usize) -> Vec<usize> {
    let page = slot_at(slot);
    let words = |start: usize, len: usize| (start..start + len).step_by(4);
    let sides = words(page + offset_of!(Page, sides), size_of::<[Side; 2]>());
    let directions = (0..2).flat_map(|index| {
        let at = page + offset_of!(Page, directions) + index * size_of::<Direction>();
        let locks = [offset_of!(Direction, lock), offset_of!(Direction, reader_lock)];
        words(at, size_of::<Direction>()).filter(move |word| !locks.contains(&(word - at)))
    });
    let sources =
        words(page + offset_of!(Page, sources), size_of::<[[SrcAvailEntry; SRC_AVAILS_MAX]; 2]>());
    let filled = words(entry_at(slot) + offset_of!(Entry, filled), 8);
    sides.chain(directions).chain(sources).chain(filled).collect()
}

/// Makes one of the calls on an end, except those that count holders, with `len` bytes where the
/// call takes any; then calls all the getters.
pub fn call(end: &End, socket: BorrowedFd<'_>, which: u8, len: usize) {
    const MSG_NOSIGNAL: i32 = 0x4000;
    let mut bytes = vec![0; len];
    let slices = &mut [IoSliceMut::new(&mut bytes)];
    let buffers = Buffers::of(slices);
    let options = RecvOptions {
        keep: which & 1 != 0,
        discard: which & 2 != 0,
        look: which & 4 != 0,
        has_part: which & 8 != 0,
    };
    match which / 8 % 16 {
        0 | 1 => drop(end.try_recv(socket, buffers, options)),
        2 | 3 => drop(end.try_send(socket, buffers, MSG_NOSIGNAL)),
        4 => drop(end.settle(socket, options.keep, u32::from(options.look))),
        5 => end.drain_wakeups(socket),
        6 => end.fall_back_to_tcp(socket),
        7 => end.acknowledge(socket),
        8 => end.want_room(),
        9 => drop(end.futex_wait(&Timespec { tv_sec: 0, tv_nsec: 1_000 })),
        10 => {
            end.begin_sleep();
            end.end_sleep();
        }
        11 => {
            let owner = Owner { pid: std::process::id(), proof: (0, 0) };
            if let Some(number) = end.post_source(socket, buffers, &owner) {
                let _ = end.source_progress(number);
                let _ = end.withdraw_source(socket, number, buffers);
            }
        }
        12 => {
            let _ = end.part();
        }
        13 => end.shut_read(),
        14 => end.hang_up(),
        _ => end.shut_write(),
    }
    let _ = (end.carrier_in(), end.carrier_out(), end.unread(), end.unsent(), end.room());
    let _ = (end.progress(), end.is_writable(), end.is_full(), end.can_be_woken(), end.bytes());
    let _ =
        (end.is_peer_gone(), end.is_peer_waiting(), end.wakeups_taken(), end.delays().is_some());
}
