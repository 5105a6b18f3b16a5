//! Writing to the terminal: all at once, and safe from what a stranger put into a name.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use comfy_table::{ContentArrangement, Table, presets};

/// Prints `text`. A reader that has gone (`weft ps | head`) is not an error.
///
/// # Errors
///
/// Any other failure to write to standard output.
pub(crate) fn print(text: &str) -> Result<()> {
    match write(text) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write to standard output"),
    }
}

/// Writes `text` to standard output, for a caller that has more to write and must know that
/// nobody reads.
///
/// # Errors
///
/// What the system says.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints one line on standard error, the way every command of Weft reports a failure.
pub(crate) fn complain(message: impl std::fmt::Display) {
    // A closed standard error leaves nobody to tell.
    let _ = writeln!(io::stderr(), "weft: {message:#}");
}

/// An empty table with the house's looks: no frame, columns apart, as wide as the terminal.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

/// `text` without the control characters that would reach the terminal as commands.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
