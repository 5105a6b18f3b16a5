//! Lets the preload library request TCP ports that listeners hold for foreign peers.
//!
//! # Safety
//! Only the preload library defines the symbol that is looked up, with the type declared here.
#![allow(unsafe_code)]

use std::sync::Once;

use weft_engine::cm::claim;

use crate::preloads;

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
        // SAFETY: only the preload library defines the symbol, with this type.
        if let Some(register) = unsafe { preloads::function::<RegisterFn>(name) } {
            claim::announce();
            // SAFETY: `release` stays valid, because this library is never unloaded.
            unsafe { register(release) };
        }
    });
}
