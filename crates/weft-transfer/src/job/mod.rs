//! Complete copies: connects the ends, assigns their roles, and finds the files.

mod accept;
mod admission;
mod agree;
mod aside;
mod beside;
mod client;
mod connecting;
mod extras;
mod fabric;
mod grants;
mod initiate;
mod lines;
mod local;
mod networks;
mod path;
mod places;
mod rdma;
mod relay;
mod request;
mod rights;
mod server;
mod settings;
mod shell;
mod strangers;
mod task;
mod third;

#[cfg(test)]
mod beside_tests;
#[cfg(test)]
mod compression_tests;
#[cfg(test)]
mod fabric_tests;
#[cfg(test)]
mod rights_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod third_tests;

pub use accept::Shares;
pub use admission::{Action, Caller, Rights, Wish};
pub use beside::DataWay;
pub use client::{CopyDirection, DownloadTo, ServerAt};
pub use extras::{Extras, Keeps, ServerExtras};
pub use networks::{Network, NetworkError};
pub use places::{
    Destination, PlaceError, Target, is_within, local_destination, local_selection, local_source,
};
pub use rdma::{Over, RdmaListener};
pub use relay::Between;
pub use request::{Flags, Origin, Request, RequestError};
pub use rights::{Access, Bounds, Limits, Share};
pub use server::{Ended, Log, Server};
pub use shell::serve_shell;
pub use task::CopyTask;
