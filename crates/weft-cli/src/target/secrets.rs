//! Files of secrets. Nothing of what they contain is ever shown.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::geteuid;
use serde::Deserialize;
use weft_target::security::{Account, Chap, Secret};

use crate::limits::SECRETS_LEN_MAX;

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
    read_protected(path).and_then(|text| parse(&text)).with_context(|| path.display().to_string())
}

fn read_protected(path: &Path) -> Result<String> {
    let file = File::open(path)?;
    let about = file.metadata()?;
    ensure!(about.is_file(), "it is no regular file");
    let is_owner = [geteuid().as_raw(), 0].contains(&about.uid());
    ensure!(is_owner, "it belongs to another user");
    if about.mode() & 0o077 != 0 {
        bail!("others may read it (mode {:03o}): chmod 600", about.mode() & 0o777);
    }
    let mut text = String::new();
    let len = file.take(SECRETS_LEN_MAX).read_to_string(&mut text)?;
    ensure!((len as u64) < SECRETS_LEN_MAX, "it is longer than {SECRETS_LEN_MAX} bytes");
    Ok(text)
}

fn parse(text: &str) -> Result<Chap> {
    let secrets: Secrets = toml::from_str(text).map_err(|error| {
        // The message of the parser may quote a secret.
        let at = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n');
        let format = "[[initiator]] and [target], each with user = \"...\" and secret = \"...\"";
        anyhow::anyhow!("line {}: not {format}", 1 + line.count())
    })?;
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
