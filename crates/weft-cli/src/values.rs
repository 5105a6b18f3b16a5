//! Values of files in TOML, and how such files are read.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::process::geteuid;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::args::bytes;
use crate::limits::{CONFIG_LEN_MAX, SECRETS_LEN_MAX};

/// A number within limits.
pub(crate) struct Number<const MIN: u32, const MAX: u32>(pub(crate) u32);

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        let checked = u32::try_from(number).ok().filter(|number| (MIN..=MAX).contains(number));
        let error = || D::Error::custom(format!("{number} is not from {MIN} to {MAX}"));
        checked.map(Self).ok_or_else(error)
    }
}

/// A text that stands for something else.
pub(crate) struct Text<T>(pub(crate) T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(D::Error::custom)
    }
}

/// A length such as `4G`.
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        bytes(text).map(Self)
    }
}

/// Reads a file, and what it says by `parse`, which gets the text and the directory of the file.
///
/// # Errors
///
/// If it cannot be read or is too long, and those of `parse`.
pub(crate) fn read_by<T>(path: &Path, parse: impl FnOnce(&str, &Path) -> Result<T>) -> Result<T> {
    let text = read(path)?;
    let directory = path.parent().unwrap_or_else(|| Path::new(""));
    parse(&text, directory).with_context(|| path.display().to_string())
}

/// Reads a file whole.
///
/// # Errors
///
/// If it cannot be read, or is too long.
pub(crate) fn read(path: &Path) -> Result<String> {
    let context = || path.display().to_string();
    let mut text = String::new();
    let file = File::open(path).with_context(context)?;
    let len = file.take(CONFIG_LEN_MAX).read_to_string(&mut text).with_context(context)?;
    ensure!((len as u64) < CONFIG_LEN_MAX, "{}: longer than {CONFIG_LEN_MAX} bytes", context());
    Ok(text)
}

/// Reads a file of secrets whole, which only its owner can read: this user, or root.
///
/// # Errors
///
/// If the file is not as described, or is too long.
pub(crate) fn read_secrets(path: &Path) -> Result<String> {
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

/// Parses TOML that has secrets. `format` says what it has to be.
///
/// # Errors
///
/// If it is something else: the line and `format`, because the message of the parser may quote a
/// secret.
pub(crate) fn parse_secrets<T: DeserializeOwned>(text: &str, format: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes()[..at.min(text.len())].iter().filter(|&&byte| byte == b'\n');
        anyhow!("line {}: not {format}", 1 + line.count())
    })
}
