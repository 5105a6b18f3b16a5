//! Complete copies: connects the ends, assigns their roles, and finds the files.

mod accept;
mod agree;
mod aside;
mod beside;
mod client;
mod extras;
mod fabric;
mod initiate;
mod lines;
mod local;
mod path;
mod places;
mod rdma;
mod relay;
mod request;
mod server;
mod settings;
mod shell;
mod strangers;
mod task;

#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod compression_tests;
#[cfg(test)]
mod fabric_tests;
#[cfg(test)]
mod tests;

pub use accept::{Share, Shares};
pub use beside::DataWay;
pub use client::{CopyDirection, DownloadTo, ServerAt};
pub use extras::{Extras, Keeps};
pub use places::{
    Destination, PlaceError, Target, local_destination, local_selection, local_source,
};
pub use rdma::{Over, RdmaListener};
pub use request::{Flags, Origin, Request, RequestError};
pub use server::{Log, Server};
pub use shell::serve_shell;
pub use task::CopyTask;
