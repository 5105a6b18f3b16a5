//! Determines whether TCP connections within this host can use shared memory, and what prevents it.

use std::env;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use weft_stream::limits::CONNECTIONS_MAX;
use weft_stream::rules::{self, Rules};
use weft_stream::{Registry, directory};

use crate::layout::Layout;
use crate::output::printable;

/// The conditions for a program that is started here and now.
#[derive(Debug)]
pub(crate) struct Readiness {
    /// The registry of connections, or why there is none.
    registry: Result<Room>,
    /// The file of rules, if there is one.
    rules: Option<String>,
}

#[derive(Debug)]
struct Room {
    path: PathBuf,
    connections: usize,
}

impl Readiness {
    pub(crate) fn find() -> Self {
        let rules = env::var_os(rules::VARIABLE).filter(|file| !file.is_empty());
        Self { registry: room(), rules: rules.map(|file| file.to_string_lossy().into_owned()) }
    }

    pub(crate) fn to_json(&self) -> Value {
        let room = self.registry.as_ref().ok();
        json!({
            "ready": self.registry.is_ok(),
            "why_not": self.registry.as_ref().err().map(|error| format!("{error:#}")),
            "registry": room.map(|room| &room.path),
            "connections": room.map(|room| room.connections),
            "connections_max": CONNECTIONS_MAX,
            "rules": self.rules,
        })
    }

    pub(crate) fn describe(&self) -> String {
        let rules = self.rules.as_deref().unwrap_or("not set: all connections");
        let (ready, room) = match &self.registry {
            Ok(room) => (
                "yes: weft run puts them into shared memory".to_owned(),
                format!(
                    "{}: {} of {CONNECTIONS_MAX} connections",
                    room.path.display(),
                    room.connections
                ),
            ),
            Err(error) => (format!("no: {error:#}"), "-".to_owned()),
        };
        let rows = [("ready", ready), ("registry", room), ("rules", rules.to_owned())];
        rows.iter().map(|(name, value)| format!("  {name:<16} {}\n", printable(value))).collect()
    }
}

/// Opens the registry, as the library does when a program starts.
fn room() -> Result<Room> {
    if env::var_os("WEFT_SOCKETS").is_some_and(|value| value == "off") {
        bail!("WEFT_SOCKETS is off");
    }
    Layout::find()?;
    Rules::from_environment()?;
    if env::var_os("WEFT_SOCKETS_BY_HAND").is_none_or(|value| value != "trust") {
        // The library looks for threads that could make system calls by hand.
        fs::read_dir("/proc/self/task").context("/proc is not mounted")?;
    }
    let registry = Registry::open(&directory())?;
    // Slots of killed processes count as free: the next connections get them.
    let connections = registry.connections().count();
    let room = Room { path: registry.path().to_owned(), connections };
    registry.leave();
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_says_what_prevents_sharing() {
        let wrong = Readiness { registry: Err(anyhow::anyhow!("full\u{7}")), rules: None };
        assert!(wrong.describe().contains("no: full\u{fffd}"));
        assert_eq!(wrong.to_json()["why_not"], "full\u{7}");
        let room = Room { path: "/dev/shm/x".into(), connections: 3 };
        let ready = Readiness { registry: Ok(room), rules: Some("/etc/r".into()) };
        assert!(ready.describe().contains("/dev/shm/x: 3 of"));
        assert_eq!(ready.to_json()["ready"], true);
        assert_eq!(ready.to_json()["rules"], "/etc/r");
    }
}
