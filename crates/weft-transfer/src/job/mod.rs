//! Complete copies: connects the ends, assigns their roles, and finds the files.

mod accept;
mod client;
mod initiate;
mod lines;
mod local;
mod places;
mod request;
mod server;
mod settings;
mod shell;

#[cfg(test)]
mod tests;

pub use accept::{Share, Shares};
pub use client::{Way, copy_with};
pub use local::copy_local;
pub use places::{Destination, PlaceError, local_destination, local_start};
pub use request::{Flags, Request, RequestError};
pub use server::{Log, Server};
pub use shell::{copy_by_shell, serve_shell};
