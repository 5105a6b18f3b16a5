//! Sessions of initiators: login, and the exchange of commands and data (RFC 7143).
//!
//! A [`Connection`] takes received bytes and holds the bytes to be sent. It knows no sockets. What
//! may wait for a store is a [`Job`], which any thread carries out. The
//! time of commands is measured by a clock that the portal is given.

mod addresses;
mod authentication;
mod closed;
mod connection;
mod full;
mod group;
mod job;
mod jobs;
mod login;
mod member;
mod outcome;
mod output;
mod portal;
mod postponed;
mod settings;
mod stats;
mod task;
#[cfg(test)]
mod tests;
mod text_exchange;
mod turns;
mod wake;

pub use addresses::Addresses;
pub use closed::Closed;
pub use connection::Connection;
pub use job::{Done, Job};
pub use login::is_name;
pub use portal::{Announcement, Clock, Portal, Random, Target};
pub use stats::SessionStats;
pub use wake::Wake;
