//! Log lines on standard error at the level of `WEFT_LOG`: `error`, `warn`, `info`, `debug` (off by
//! default). Connections, faults and decisions are logged, messages never.
//!
//! The engine uses no logging library, because it runs inside another program: that may have its
//! own logger, and we must not install a global subscriber.

use std::fmt::Arguments;
use std::sync::OnceLock;

use weft_sys::calls;

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The program will notice it.
    Error,
    /// Something unexpected that was handled.
    Warn,
    /// Connections: what they use, and why.
    Info,
    /// Single steps of setting up connections.
    Debug,
}

/// Whether lines of this level are written.
#[must_use]
pub fn enabled(level: Level) -> bool {
    static WANTED: OnceLock<Option<Level>> = OnceLock::new();
    let wanted = WANTED.get_or_init(|| parse(&std::env::var("WEFT_LOG").unwrap_or_default()));
    wanted.is_some_and(|wanted| level <= wanted)
}

fn parse(text: &str) -> Option<Level> {
    match text {
        "error" => Some(Level::Error),
        "warn" => Some(Level::Warn),
        "info" => Some(Level::Info),
        "debug" | "trace" => Some(Level::Debug),
        _ => None,
    }
}

/// Writes one line if its level is enabled. Lines are in lower case, without a full stop, with
/// queue pair numbers in hex.
pub fn write(level: Level, message: Arguments<'_>) {
    if enabled(level) {
        let name = format!("{level:?}").to_lowercase();
        let line = format!("weft[{}] {name}: {message}\n", std::process::id());
        // A single write keeps lines of several processes apart. There is nowhere to report a
        // failure.
        let _ = calls::io::write(calls::io::stderr(), line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_is_parsed_by_name() {
        assert_eq!(parse("info"), Some(Level::Info));
        assert_eq!(parse(""), None);
        assert_eq!(parse("loud"), None);
        assert!(Level::Error < Level::Debug);
    }
}
