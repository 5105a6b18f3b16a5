//! The hooked functions of the C library, by what they are for.

#[cfg(target_pointer_width = "64")]
mod aio;
#[cfg(target_arch = "x86_64")]
mod by_number;
mod data;
mod descriptors;
mod exec;
pub(crate) mod files;
mod leaving;
mod limits;
pub(crate) mod memory;
mod message;
mod options;
#[cfg(target_arch = "x86_64")]
mod print;
mod ready;
mod rights;
mod rings;
mod sessions;
mod setup;
mod transfer;
mod ways;

pub(crate) use data::is_nowhere;
