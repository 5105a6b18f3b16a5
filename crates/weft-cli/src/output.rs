//! Terminal output: written at once, and free of control characters from untrusted names.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use comfy_table::{ContentArrangement, Table, presets};

/// A standard stream for texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Output,
    /// For a command whose output is data.
    Error,
}

impl Stream {
    /// Writes `text`.
    ///
    /// # Errors
    ///
    /// The error of the system call.
    pub(crate) fn write(self, text: &str) -> io::Result<()> {
        match self {
            Self::Output => write(text),
            Self::Error => io::stderr().lock().write_all(text.as_bytes()),
        }
    }
}

/// Prints `text`. A closed pipe (`weft ps | head`) is not an error.
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

/// Writes `text` to standard output, for a caller that has more to write and must know when the
/// reader has gone.
///
/// # Errors
///
/// The error of the system call.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints an error message on standard error in the format of all of Weft's commands.
pub(crate) fn complain(message: impl std::fmt::Display) {
    // If standard error is closed the message cannot be reported.
    let _ = writeln!(io::stderr(), "weft: {message:#}");
}

/// Returns an empty table in the common style: no frame, spaced columns, as wide as the terminal.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    table
}

/// Replaces the control characters of `text`, which the terminal would interpret.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
