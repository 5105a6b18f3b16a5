//! The library's start and end in a process.
//!
//! # Safety
//! Functions that are registered with the C library stay loaded, and call only what it allows
//! there.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

use weft_sys::calls::net::{SocketType, sockopt};

use crate::by_hand::{self, Callbacks};
use crate::datagram::Datagram;
use crate::descriptor::{Descriptor, is_internet};
use crate::handover::take_over;
use crate::hooks::{self, files};
use crate::sockets::{self, Kind};
use crate::ways::dispatch;
use crate::ways::rings::check_ring;
use crate::zcopy::deferred;
use crate::{
    identity, mode, open, process, remote, seccomp_fallback, settings, shared_files, unseen_fork,
};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = finish;

extern "C" fn begin() {
    identity::begin();
    hooks::memory::prepare();
    #[cfg(target_arch = "x86_64")]
    hooks::clocks::prepare();
    weft_sys::calls::time::find_clock();
    if settings::read() {
        mode::enable();
    }
    by_hand::read(Callbacks {
        call: dispatch::call,
        is_fork: dispatch::is_fork,
        keep_on_tcp: seccomp_fallback::keep_on_tcp,
    });
    if !mode::enabled() {
        return;
    }
    // SAFETY: this library is never unloaded, and `before_fork` brings all locks into a known
    // state.
    let _ = unsafe {
        libc::pthread_atfork(
            Some(process::before_fork),
            Some(process::in_parent),
            Some(process::in_child),
        )
    };
    unseen_fork::prepare(identity::number(), process::begin_as_child);
    inherit();
    #[cfg(target_arch = "x86_64")]
    hooks::modules::begin();
}

extern "C" fn finish() {
    files::flush();
    if mode::is_in_fallback() {
        return;
    }
    deferred::reclaim_all();
    for fd in sockets::all() {
        let Some(held) = sockets::remove(fd).filter(|held| held.descriptors() == 0) else {
            continue;
        };
        match &*held {
            Kind::Stream(stream) => stream.closing(fd),
            Kind::Datagram(datagram) => datagram.closing(fd),
        }
    }
    remote::finish();
    shared_files::leave();
}

/// Finds the connections and inboxes of sockets that the program was started with.
fn inherit() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return };
    let names = entries.flatten().map(|entry| entry.file_name());
    let fds = names.filter_map(|name| name.to_str()?.parse::<RawFd>().ok());
    for fd in fds {
        check_ring(fd);
        let Ok(kind) = sockopt::socket_type(Descriptor::of(fd)) else { continue };
        by_hand::begin();
        take_over(fd);
        if kind == SocketType::DGRAM
            && is_internet(fd)
            && let Some(datagram) = Datagram::inherited(fd)
        {
            open::install(fd, Kind::Datagram(datagram));
        }
    }
    files::replace_standard();
}
