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

/// Returns an error with its causes. A cause that an error repeats in its own text is left out.
pub(crate) fn described(error: &anyhow::Error) -> String {
    let mut whole = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if whole.is_empty() {
            whole = text;
        } else if !whole.ends_with(&text) {
            whole.push_str(": ");
            whole.push_str(&text);
        }
    }
    whole
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that repeats its source in its text, as many do.
    #[derive(Debug)]
    struct Repeating(io::Error);

    impl std::fmt::Display for Repeating {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "TLS: {}", self.0)
        }
    }

    impl std::error::Error for Repeating {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn each_cause_is_said_once() {
        let refused = || io::Error::from_raw_os_error(111);
        let text = "Connection refused (os error 111)";
        let error = anyhow::Error::new(refused()).context("host");
        assert_eq!(described(&error), format!("host: {text}"));
        let error = anyhow::Error::new(Repeating(refused())).context("host");
        assert_eq!(described(&error), format!("host: TLS: {text}"));
    }
}
