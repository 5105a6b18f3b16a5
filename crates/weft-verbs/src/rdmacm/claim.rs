//! Lets the preload ask for TCP ports that listeners hold for foreign peers.
//!
//! # Safety
//! The symbol that is looked up has the type that the preload gives it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::Once;

use weft_engine::cm::claim;

type Release = extern "C" fn(port: u16) -> bool;
type Ask = unsafe extern "C" fn(release: Release);

extern "C" fn release(port: u16) -> bool {
    claim::release(port)
}

/// Once, before the first listener: finds the preload, if it is there.
pub(super) fn arrange() {
    static ARRANGED: Once = Once::new();
    ARRANGED.call_once(|| {
        let name = c"weft_preload_ask_for_ports";
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: NULL is `None`, and only the preload defines the name, with this type.
        if let Some(ask) = unsafe { transmute::<*mut c_void, Option<Ask>>(found) } {
            claim::announce();
            // SAFETY: a function that this library, which is never unloaded, has.
            unsafe { ask(release) };
        }
    });
}
