//! Log lines for people, on standard error, as far as `WEFT_LOG` asks for them: `error`, `warn`,
//! `info`, `debug` (off by default). Connections, faults and decisions are logged, messages never.
//!
//! There is no logging library here: this code runs inside somebody else's process, which may have
//! its own, and a subscriber of ours must not become its global one.

use std::fmt::Arguments;
use std::sync::OnceLock;

/// How much somebody wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Something that the program will notice.
    Error,
    /// Something unexpected that was dealt with.
    Warn,
    /// Connections: what they use, and why.
    Info,
    /// Steps on the way there.
    Debug,
}

/// Whether lines of this level are wanted.
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

/// Writes one line if it is wanted. Lower case, no full stop; queue pair numbers in hex.
pub fn write(level: Level, message: Arguments<'_>) {
    if enabled(level) {
        let name = format!("{level:?}").to_lowercase();
        let line = format!("weft[{}] {name}: {message}\n", std::process::id());
        // One write, so that lines of several processes do not mix. Nobody to tell if it fails.
        let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_known_by_name() {
        assert_eq!(parse("info"), Some(Level::Info));
        assert_eq!(parse(""), None);
        assert_eq!(parse("loud"), None);
        assert!(Level::Error < Level::Debug);
    }
}
