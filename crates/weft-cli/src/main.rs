//! The `weft` command: starts programs on Weft's device and shows what they do with it.
//!
//! # Layers
//!
//! A module uses the modules of its own line and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! run
//! environment manual pipeline target transfer tuples
//! args info private_socket sockets values
//! debug
//! layout listening notify output percentile sharing signals
//! limits
//! ```

mod args;
mod debug;
mod environment;
mod info;
mod layout;
mod limits;
mod listening;
mod manual;
mod notify;
mod output;
mod percentile;
mod pipeline;
mod private_socket;
mod run;
mod sharing;
mod signals;
mod sockets;
mod target;
mod transfer;
mod tuples;
mod values;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Command, Weft};

fn main() -> ExitCode {
    // The tools run on Weft, too: then the kernel reports calls that are not the C library's.
    #[cfg(target_arch = "x86_64")]
    weft_sys::use_gate_of_the_c_library();
    let result = match Weft::parse().command {
        Command::Run(args) => return run::run(&args),
        Command::Env(args) => environment::print(&args),
        Command::Info(args) => info::print(args.json),
        Command::Ps(args) => debug::ps(args.json),
        Command::Dump(args) => debug::dump(args.pid, args.json),
        Command::Stat(args) => sockets::stat::stat(&args),
        #[cfg(feature = "tui")]
        Command::Top(args) => sockets::top::top(args.interval),
        Command::Bench(args) => {
            let sockets = || Ok(layout::Layout::find()?.sockets());
            weft_bench::run(&args, sockets).and_then(|text| output::print(&text))
        }
        Command::Cp(args) => match transfer::cp::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Ls(args) => match transfer::ls::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Serve(args) => transfer::serve::run(&args),
        Command::Target(args) => target::run(&args),
        Command::Tuples(args) => tuples::run(&args),
        Command::Pipeline(args) => pipeline::run(&args.command),
        Command::Completions(args) => manual::completions(args.shell),
        Command::Man(args) => manual::pages(&args.directory),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(output::described(&error));
            ExitCode::FAILURE
        }
    }
}
