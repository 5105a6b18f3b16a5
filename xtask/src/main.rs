//! Build steps that cargo lacks. `cargo xtask help` lists them.
//!
//! # Layers
//!
//! Modules use modules of their own line and of the lines below. `cargo xtask tidy` checks this.
//!
//! ```text
//! deb exports tidy ways
//! supply
//! dist rfc
//! limits tools
//! ```

mod deb;
mod dist;
mod exports;
mod limits;
mod rfc;
mod supply;
mod tidy;
mod tools;
mod ways;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND
  deb       make Debian packages of dist/ in dist/deb/
  dist      link the libraries and lay out dist/
  exports   compare the exported symbols and versions of dist/lib/weft with the reviewed lists
  rfc       print which RFC sections the code covers, tests, or leaves out and why, and compare
            what it quotes with what was found in the RFCs; --texts DIRECTORY: with their texts
  supply    check the licences, sources and versions of the crates, and the compiler
  tidy      check the house rules that no compiler checks (layers, cycles, limits, line length);
            --layers: print each crate's layers
  ways      write WAYS.md from the table of the ways to a connection
";

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_else(|| "help".into());
    let rest: Vec<String> = args.collect();
    let result = match command.as_str() {
        "deb" => deb::run(&rest),
        "dist" => dist::run(&rest),
        "exports" => exports::run(&rest),
        "rfc" => rfc::run(&rest),
        "supply" => supply::run(&rest),
        "tidy" => tidy::run(&rest),
        "ways" => ways::run(&rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("no such command: {other}\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask {command}: {message}");
            ExitCode::FAILURE
        }
    }
}
