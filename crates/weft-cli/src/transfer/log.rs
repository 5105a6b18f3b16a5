//! The log of a server: who did what.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use indicatif::BinaryBytes;
use serde_json::{Value, json};
use weft_sys::lock;
use weft_transfer::job::{Action, Ended, Log};
use weft_transfer::secure::PublicKey;
use weft_transfer::wire::record::Time;

use super::ls::date;
use crate::output;

/// Logs copies, in a file if there is one, and failures on standard error.
pub(super) struct ServeLog {
    /// Where a client's key lets it in, for the user who runs the server.
    advice: String,
    file: Mutex<Option<File>>,
}

impl ServeLog {
    /// Creates a log, in this file if there is one.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn new(advice: String, path: Option<&Path>) -> Result<Self> {
        Ok(Self { advice, file: Mutex::new(path.map(open).transpose()?) })
    }

    /// Goes on in this file. A file that was renamed is begun anew.
    ///
    /// # Errors
    /// If it cannot be opened. The log goes on where it was then.
    pub(super) fn reopen(&self, path: Option<&Path>) -> Result<()> {
        let file = path.map(open).transpose()?;
        *lock(&self.file) = file;
        Ok(())
    }
}

fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    file.with_context(|| path.display().to_string())
}

impl Log for ServeLog {
    fn ended(&self, ended: &Ended<'_>) {
        let mut file = lock(&self.file);
        let Some(file) = file.as_mut() else { return output::complain(line(ended)) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let text = format!("{}\n", event(ended, Time { seconds, nanoseconds: 0 }));
        // Lines of one write do not mix with those of other processes.
        if let Err(error) = file.write_all(text.as_bytes()) {
            output::complain(format!("the log cannot be written: {error}"));
            output::complain(line(ended));
        }
    }

    fn refused(&self, peer: &str, key: &PublicKey) {
        let line = format!("{peer}: refused the key {key}; {}", self.advice);
        output::complain(output::printable(&line));
    }

    fn failed(&self, peer: &str, why: &str) {
        output::complain(output::printable(&format!("{peer}: {why}")));
    }
}

fn verb(action: Action) -> &'static str {
    match action {
        Action::Read => "read",
        Action::Move => "move",
        Action::List => "list",
        Action::Write => "write",
        Action::Compare => "compare",
    }
}

/// Returns a line about a copy.
fn line(ended: &Ended<'_>) -> String {
    let Ended { from, key, user, wish, moved, result } = ended;
    let mut text = from.to_string();
    if let Some(key) = key {
        text.push_str(&format!(" {key}"));
    }
    if let Some(user) = user {
        text.push_str(&format!(" ({user})"));
    }
    text.push_str(": ");
    if let Some(wish) = wish {
        let paths: Vec<String> = wish.paths.iter().map(|path| escaped(path)).collect();
        text.push_str(&format!("{} {:?}: ", verb(wish.action), paths.join(" ")));
    }
    let action = wish.map(|wish| wish.action);
    match result {
        Ok(finished) if action == Some(Action::Write) => {
            let outcome = finished.outcome;
            let bytes = BinaryBytes(outcome.bytes);
            text.push_str(&format!(
                "copied {} files, {bytes}, {} failed",
                outcome.copied, outcome.failed
            ));
        }
        Ok(_) => text.push_str(&format!("{} sent", BinaryBytes(*moved))),
        Err(error) => text.push_str(&escaped(error.to_string().as_bytes())),
    }
    text
}

/// Returns the line about a copy in a file.
fn event(ended: &Ended<'_>, now: Time) -> Value {
    let Ended { from, key, user, wish, moved, result } = ended;
    let paths = wish.map(|it| it.paths.iter().map(|path| escaped(path)).collect::<Vec<_>>());
    let mut event = json!({
        "time": date(now).replace(' ', "T") + "Z",
        "from": from.to_string(),
        "key": key.map(|key| key.to_string()),
        "user": user,
        "action": wish.map(|wish| verb(wish.action)),
        "paths": paths,
        "result": if result.is_ok() { "ended" } else { "failed" },
        "moved": moved,
    });
    let fields = match result {
        // What a client says that it has written is not logged.
        Ok(finished) if wish.is_some_and(|wish| wish.action == Action::Write) => {
            let it = finished.outcome;
            json!({"files": it.copied, "bytes": it.bytes, "unchanged": it.unchanged,
                "deleted": it.deleted, "failed": it.failed})
        }
        Ok(_) => json!({}),
        Err(error) => json!({"error": escaped(error.to_string().as_bytes())}),
    };
    if let (Some(event), Value::Object(fields)) = (event.as_object_mut(), fields) {
        event.extend(fields);
    }
    event
}

/// Returns the text of bytes that a client has chosen. Backslashes, what cannot be printed, and
/// what is no UTF-8 are escaped, so that a terminal shows it, and other bytes have another text.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '\'' | '"' => text.push(letter),
                letter => text.extend(letter.escape_debug()),
            }
        }
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_transfer::end::{EndError, Finished};
    use weft_transfer::job::Wish;

    #[test]
    fn hostile_names_are_escaped() {
        for (bytes, expected) in [
            (&b"a b/\xc3\xa4"[..], "a b/\u{e4}"),
            (b"x\n127.0.0.1: y", r"x\n127.0.0.1: y"),
            (b"\x1b[2J\\n\xff\"'", r#"\u{1b}[2J\\n\xff"'"#),
            ("\u{202e}gpj".as_bytes(), r"\u{202e}gpj"),
            ("\u{9b}2J".as_bytes(), r"\u{9b}2J"),
        ] {
            assert_eq!(escaped(bytes), expected);
        }
    }

    #[test]
    fn events_say_who_did_what() {
        let mut finished = Finished::default();
        (finished.outcome.copied, finished.outcome.bytes) = (3, 7);
        let key = "ed25519:".to_owned() + &"0a".repeat(32);
        let wish = Wish { action: Action::Write, paths: vec![b"x\n".to_vec(), b"\xff".to_vec()] };
        let mut ended = Ended {
            from: "192.0.2.1:7".parse().expect("an address"),
            key: key.parse().ok(),
            user: Some("ann"),
            wish: Some(&wish),
            moved: 9,
            result: Ok(&finished),
        };
        let now = Time { seconds: 0, nanoseconds: 0 };
        let text = event(&ended, now).to_string();
        let expected = format!(
            r#"{{"time":"1970-01-01T00:00:00Z","from":"192.0.2.1:7","key":"{key}","user":"ann",{}"#,
            r#""action":"write","paths":["x\\n","\\xff"],"result":"ended","moved":9,"files":3,"#
        );
        assert!(text.starts_with(&expected), "{text}");
        assert!(!line(&ended).contains('\n'));
        let error = EndError::Peer("bad\n\u{1b}".into());
        ended.result = Err(&error);
        let said = event(&ended, now);
        assert_eq!((&said["result"], &said["error"]), (&"failed".into(), &r"bad\n\u{1b}".into()));
        assert!(line(&ended).ends_with(r"bad\n\u{1b}"));
    }
}
