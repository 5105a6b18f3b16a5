//! This user's key, and the files of known servers and authorised clients.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use weft_transfer::secure::Identity;

/// Returns the directory of these files.
pub(super) fn folder() -> Result<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = from("XDG_CONFIG_HOME").or_else(|| from("HOME").map(|home| home.join(".config")));
    Ok(config.context("neither XDG_CONFIG_HOME nor HOME is set")?.join("weft"))
}

/// Returns this user's key, which is created on first use.
pub(super) fn identity() -> Result<Identity> {
    let path = folder()?.join("transfer-key");
    Identity::load_or_create(&path).with_context(|| path.display().to_string())
}
