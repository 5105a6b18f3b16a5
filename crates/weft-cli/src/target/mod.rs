//! `weft target`: block storage over iSCSI.
//!
//! `serve` serves; the other commands ask a running target by its control socket.

mod ask;
mod config;
mod control;
mod kept;
mod metrics;
mod plan;
mod rates;
mod reload;
mod request;
mod secrets;
mod serve;
mod top;
mod unit;

use anyhow::Result;

use crate::args::{TargetArgs, TargetCommand};

/// Does what the command says.
pub(crate) fn run(args: &TargetArgs) -> Result<()> {
    match &args.command {
        TargetCommand::Serve(args) => serve::serve(args),
        TargetCommand::Add(args) => ask::add(args),
        TargetCommand::List(args) => ask::list(args),
        TargetCommand::Remove(args) => ask::remove(args),
        TargetCommand::Resize(args) => ask::resize(args),
        TargetCommand::Reload(args) => ask::reload(args),
        TargetCommand::Stats(args) => ask::stats(args),
        TargetCommand::Top(args) => top::top(args),
        TargetCommand::Drain(args) => ask::drain(args),
    }
}
