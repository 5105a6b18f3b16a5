//! This user's key, the servers that are known, and the clients that are let in.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use weft_transfer::secure::Identity;

/// The directory of these files.
pub(super) fn folder() -> Result<PathBuf> {
    let from = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = from("XDG_CONFIG_HOME").or_else(|| from("HOME").map(|home| home.join(".config")));
    Ok(config.context("neither XDG_CONFIG_HOME nor HOME is set")?.join("weft"))
}

/// This user's key, which is made when it is asked for first.
pub(super) fn identity() -> Result<Identity> {
    let path = folder()?.join("transfer-key");
    Identity::load_or_create(&path).with_context(|| path.display().to_string())
}
