//! Files by which servers and clients know one another.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;

use crate::folder::Folder;
use crate::program::Program;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A file in a folder that only its owner may read.
///
/// # Errors
///
/// If it cannot be written.
pub fn secret(folder: &Folder, name: &str, text: &str) -> Result<PathBuf> {
    let path = folder.path().join(name);
    fs::write(&path, text)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    Ok(path)
}

/// Files with a certificate that a server has issued to itself for this host, and its key.
///
/// # Errors
///
/// If OpenSSL is not installed, or makes none.
pub fn certificate(folder: &Folder) -> Result<[PathBuf; 2]> {
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let make = Program::plain("openssl").line("req -x509 -newkey ed25519 -nodes -days 30");
    let make = make.line("-subj /CN=lab -addext subjectAltName=IP:127.0.0.1,DNS:localhost");
    make.arg("-keyout").arg(&key).arg("-out").arg(&certificate).run(TIMEOUT)?.success()?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    Ok([certificate, key])
}
