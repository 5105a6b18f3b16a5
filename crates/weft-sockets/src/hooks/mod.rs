//! The hooked functions of the C library, by what they are for.

mod data;
mod descriptors;
mod message;
mod options;
#[cfg(target_arch = "x86_64")]
mod print;
mod ready;
mod setup;
mod transfer;
