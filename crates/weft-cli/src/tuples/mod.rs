//! `weft tuples`: a shared tuple space.
//!
//! `serve` serves one; the other commands ask a running server.

mod ask;
mod bench;
mod listen;
mod serve;
mod tail;
mod users;

use anyhow::Result;

use crate::args::{TuplesArgs, TuplesCommand};

/// Does what the command says.
pub(crate) fn run(args: &TuplesArgs) -> Result<()> {
    match &args.command {
        TuplesCommand::Serve(args) => serve::serve(args),
        TuplesCommand::Create(args) => ask::create(args),
        TuplesCommand::Put(args) => ask::put(args),
        TuplesCommand::Take(args) => ask::take(args),
        TuplesCommand::Watch(args) => ask::watch(args),
        TuplesCommand::List(args) => ask::list(args),
        TuplesCommand::Tail(args) => tail::tail(args),
        TuplesCommand::Delete(args) => ask::delete(args),
        TuplesCommand::Bench(args) => bench::bench(args),
    }
}
