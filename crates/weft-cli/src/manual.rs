//! Generates manual pages and shell completions from the definition of the command line.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Weft;
use crate::output;

/// Prints the completion script of `shell`.
///
/// # Errors
///
/// If standard output cannot be written.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Weft::command(), "weft", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Prints the short help of a subcommand.
///
/// # Errors
///
/// If standard output cannot be written.
pub(crate) fn short_help(subcommand: &str) -> Result<()> {
    let mut weft = Weft::command();
    weft.build();
    let command = weft.find_subcommand_mut(subcommand).context("no such command")?;
    command.print_help().context("standard output")
}

/// Writes `weft.1` and one page for each subcommand into `directory`.
///
/// # Errors
///
/// If the directory cannot be created or written.
pub(crate) fn pages(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Weft::command(), directory))
        .with_context(|| format!("cannot write manual pages to {}", directory.display()))
}
