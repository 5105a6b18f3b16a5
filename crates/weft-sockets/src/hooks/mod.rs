//! The interposed functions of the C library, by purpose.

mod actions;
#[cfg(target_pointer_width = "64")]
mod aio;
#[cfg(target_arch = "x86_64")]
mod by_number;
#[cfg(target_arch = "x86_64")]
pub(crate) mod clocks;
mod close;
mod closing;
mod data;
mod descriptors;
pub(crate) mod exec;
#[cfg(target_arch = "x86_64")]
mod exec_list;
mod extended;
mod extended_switch;
pub(crate) mod files;
mod flags;
mod leaving;
mod limits;
pub(crate) mod memory;
mod message;
#[cfg(target_arch = "x86_64")]
pub(crate) mod modules;
#[cfg(target_arch = "x86_64")]
mod names;
mod options;
#[cfg(target_arch = "x86_64")]
mod print;
mod ready;
mod rights;
mod rings;
mod sessions;
mod setup;
mod signals;
mod sleeping;
pub(crate) mod spawn;
mod threads;
mod transfer;
pub(crate) mod users;
#[cfg(target_arch = "x86_64")]
mod variadic;
mod verbs;
mod ways;
