//! The hooked functions of the C library, by what they are for.

mod data;
mod descriptors;
mod message;
mod options;
mod ready;
mod setup;
mod transfer;
