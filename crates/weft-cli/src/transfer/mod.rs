//! `weft cp` and `weft serve`.

mod again;
mod between;
mod config;
pub(crate) mod cp;
mod keys;
mod log;
pub(crate) mod ls;
mod place;
mod retry;
mod rights;
mod selection;
pub(crate) mod serve;
mod server;
pub(crate) mod shell;
mod show;
mod stages;
mod standard;
