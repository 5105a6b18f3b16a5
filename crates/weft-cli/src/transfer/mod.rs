//! `weft cp` and `weft serve`.

mod again;
mod between;
pub(crate) mod cp;
mod keys;
pub(crate) mod ls;
mod place;
mod retry;
mod selection;
pub(crate) mod serve;
mod server;
pub(crate) mod shell;
mod show;
mod standard;
