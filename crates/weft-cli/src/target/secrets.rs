//! Files of secrets. Nothing of what they contain is ever shown.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use weft_target::security::{Account, Chap, Secret};

use crate::values;

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Secrets {
    #[serde(default)]
    initiator: Vec<Entry>,
    target: Option<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    user: String,
    secret: String,
    /// The iSCSI names of initiators that may use it.
    initiators: Option<Vec<String>>,
}

impl Entry {
    fn account(self) -> Result<Account> {
        let secret = Secret::new(self.secret.into_bytes());
        let secret = secret.with_context(|| format!("user {:?}", self.user))?;
        Ok(Account { name: self.user, secret, initiators: self.initiators })
    }
}

/// Reads accounts from a file that only its owner can read.
///
/// # Errors
///
/// If others can read it, or if it has something else.
pub(super) fn read(path: &Path) -> Result<Chap> {
    values::read_secrets(path)
        .and_then(|text| parse(&text))
        .with_context(|| path.display().to_string())
}

fn parse(text: &str) -> Result<Chap> {
    let format = "[[initiator]] and [target], each with user = \"...\" and secret = \"...\"";
    let secrets: Secrets = values::parse_secrets(text, format)?;
    let initiators = secrets.initiator.into_iter().map(Entry::account);
    let initiators = initiators.collect::<Result<Vec<_>>>()?;
    let target = secrets.target.map(Entry::account).transpose()?;
    Ok(Chap::new(initiators, target)?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const GOOD: &str = "[[initiator]]\nuser = \"ann\"\nsecret = \"secret of ann\"\n";

    #[test]
    fn files_that_others_can_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secrets");
        fs::write(&path, GOOD).unwrap();
        for (mode, is_right) in [(0o600, true), (0o400, true), (0o640, false), (0o602, false)] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path).is_ok(), is_right, "{mode:o}");
        }
        assert!(read(folder.path()).is_err());
    }

    #[test]
    fn errors_name_the_line_and_show_no_secret() {
        let target = "[target]\nuser = \"t\"\nsecret = \"hidden secret\"\n";
        assert!(parse(&format!("{GOOD}{target}")).unwrap().target().is_some());
        let again = "[[initiator]]\nuser = \"bob\"\nsecret = \"hidden secret\"\n";
        for (text, expected) in [
            ("", "no account of an initiator"),
            ("[[initiator]]\nuser = \"a\"\nsecret = \"hidden\"\n", "12 to 255 bytes"),
            ("[[initiator]]\nuser = \"a\"\nsecret = hidden\n", "line 3"),
            ("[[initiator]]\nuser = \"a\"\nsecret = 1234\n", "line 3"),
            ("[[initiator]]\nuser = \"a\"\nsecret = \"hidden\nsecret\"\n", "line "),
            ("[[initiator]]\nuser = \"a\"\n\nhidden = \"1234\"\n", "line 4"),
            (&format!("{target}{again}"), "the target and the initiator \"bob\" have the same"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hidden") && !error.contains("1234"), "{text}: {error}");
        }
    }
}
