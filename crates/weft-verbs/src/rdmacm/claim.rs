//! Lets the preload library request TCP ports that listeners hold for foreign peers.
//!
//! # Safety
//! Only the preload library defines the symbol that is looked up, with the type declared here.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::mem::transmute;
use std::sync::Once;

use weft_engine::cm::claim;

type Release = extern "C" fn(port: u16) -> bool;
type RegisterFn = unsafe extern "C" fn(release: Release);

extern "C" fn release(port: u16) -> bool {
    claim::release(port)
}

/// Registers [`release`] with the preload library, if it is loaded; called before each listener
/// starts, and effective once.
pub(super) fn connect_to_preload() {
    static CONNECTED: Once = Once::new();
    CONNECTED.call_once(|| {
        let name = c"weft_preload_ask_for_ports";
        // SAFETY: the name is a valid C string.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: a NULL pointer is a valid `None`, and only the preload library defines the
        // symbol, with this type.
        if let Some(register) = unsafe { transmute::<*mut c_void, Option<RegisterFn>>(found) } {
            claim::announce();
            // SAFETY: `release` stays valid, because this library is never unloaded.
            unsafe { register(release) };
        }
    });
}
