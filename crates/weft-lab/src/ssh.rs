//! Keys and configurations of an OpenSSH server on loopback and of its clients.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::geteuid;

use crate::packages::locate;
use crate::program::{Finished, Program};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The empty directory to which root's sshd changes the root of its unprivileged process. Debian's
/// service creates it.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";

/// Writes `sshd_config` and `ssh_config` to a folder, for a server on this port of loopback, and
/// makes the keys that the folder does not have yet. `hosts` are the names by which `ssh_config`
/// knows the server. Each has its own key, with these options in the server's `authorized_keys`.
/// Returns the path of sshd, which must be started by it: sshd executes itself again for each
/// connection.
///
/// # Errors
///
/// If OpenSSH is missing, or a file cannot be written.
pub fn prepare(folder: &Path, port: u16, hosts: &[(&str, &str)]) -> Result<PathBuf> {
    prepare_at(folder, SocketAddrV4::new(Ipv4Addr::LOCALHOST, port), hosts)
}

/// As [`prepare`], with a server at this address.
///
/// # Errors
///
/// As [`prepare`].
pub fn prepare_at(folder: &Path, at: SocketAddrV4, hosts: &[(&str, &str)]) -> Result<PathBuf> {
    let (address, port) = (at.ip(), at.port());
    let path = |name: &str| folder.join(name).display().to_string();
    let key = |name: &str| -> Result<String> {
        if !folder.join(name).exists() {
            let keygen = Program::plain("ssh-keygen").line("-q -t ed25519 -N").arg("");
            keygen.arg("-f").arg(path(name)).run(TIMEOUT).and_then(Finished::success)?;
        }
        let public = path(&format!("{name}.pub"));
        fs::read_to_string(&public).with_context(|| public.clone())
    };
    if geteuid().is_root() {
        fs::create_dir_all(PRIVILEGE_SEPARATION).context(PRIVILEGE_SEPARATION)?;
    }
    let (mut authorized, mut clients) = (String::new(), String::new());
    for (host, options) in hosts {
        let name = format!("{host}.key");
        authorized += &format!("{options} {}", key(&name)?);
        clients += &format!(
            "Host {host}\nHostName {address}\nPort {port}\nBatchMode yes\nIdentityFile {}\n\
             IdentitiesOnly yes\nUserKnownHostsFile {}\nGlobalKnownHostsFile none\n\
             StrictHostKeyChecking yes\n",
            path(&name),
            path("known_hosts"),
        );
    }
    let server = format!(
        "Port {port}\nListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\n\
         UsePAM no\nStrictModes no\nPasswordAuthentication no\nPermitRootLogin yes\n\
         Subsystem sftp internal-sftp\n",
        path("host.key"),
        path("authorized_keys"),
    );
    fs::write(path("known_hosts"), format!("[{address}]:{port} {}", key("host.key")?))?;
    fs::write(path("authorized_keys"), authorized)?;
    fs::write(path("ssh_config"), clients)?;
    fs::write(path("sshd_config"), server)?;
    locate("sshd")
}
