//! `weft cp` and `weft serve`.

pub(crate) mod cp;
mod keys;
mod place;
pub(crate) mod serve;
mod shell;
mod show;
