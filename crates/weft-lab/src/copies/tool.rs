//! The programs that copy, and their servers.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::{Result, bail};
use rustix::process::geteuid;

use super::load::Load;
use super::place::Place;
use crate::endpoint::Port;
use crate::{Program, Running, ports, ssh, weft};

/// The fastest cipher of OpenSSH where the processor has AES.
const CIPHER: &str = "aes128-gcm@openssh.com";
/// Connections of tools that have several.
const STREAMS: &str = "16";

/// The program that copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `weft cp` from folder to folder.
    Weft,
    /// `cp -a`, from folder to folder.
    Cp,
    /// `weft cp` to `weft serve` of one host, through shared memory.
    WeftByMemory,
    /// `weft cp` to `weft serve`, over TLS and TCP.
    WeftToServer,
    /// `weft cp` to `weft serve`, over TCP in clear.
    WeftInClear,
    /// `weft cp` from `weft serve`, in clear, to standard output, which is `/dev/null`.
    WeftToNull,
    /// `weft cp` from one `weft serve` to another one, straight.
    WeftDirect,
    /// The same, through the host of `weft cp`.
    WeftRelay,
    /// `rsync -a` to its daemon, in clear.
    RsyncToDaemon,
    /// `scp` to an OpenSSH server.
    Scp,
    /// `rsync -a` to an OpenSSH server.
    RsyncBySsh,
    /// `tar` at both ends of `ssh` to an OpenSSH server.
    TarBySsh,
    /// `globus-url-copy` with 16 connections to an anonymous server, in clear.
    GridFtp,
    /// `rclone copy` to an OpenSSH server by SFTP.
    Rclone,
    /// `iperf3`: copies no files, but measures the rate of one TCP connection.
    Iperf3,
    /// `iperf3` with CUBIC.
    Cubic,
    /// `nuttcp`: copies no files, but measures the rate of 16 TCP connections.
    Nuttcp,
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weft => "`weft cp`",
            Self::Cp => "`cp -a`",
            Self::WeftByMemory => "`weft cp` to `weft serve`, through shared memory",
            Self::WeftToServer => "`weft cp` to `weft serve`, encrypted",
            Self::WeftInClear => "`weft cp --clear` to `weft serve`",
            Self::WeftToNull => "`weft cp --clear` from `weft serve` to `/dev/null`",
            Self::WeftDirect => "`weft cp` from `weft serve` to `weft serve`, straight",
            Self::WeftRelay => "`weft cp` from `weft serve` to `weft serve`, through the client",
            Self::RsyncToDaemon => "`rsync -a` to its daemon, in clear",
            Self::Scp => "`scp -r`, AES-GCM",
            Self::RsyncBySsh => "`rsync -a` by ssh, AES-GCM",
            Self::TarBySsh => "`tar` by ssh, AES-GCM",
            Self::GridFtp => "`globus-url-copy -p 16 -fast`, in clear",
            Self::Rclone => "`rclone copy` by SFTP, AES-GCM",
            Self::Iperf3 => "`iperf3`, in clear, no files",
            Self::Cubic => "`iperf3 -C cubic`, in clear, no files",
            Self::Nuttcp => "`nuttcp -N 16`, in clear, no files",
        })
    }
}

impl Place {
    pub(super) fn server(&self, tool: Tool, port: u16) -> Result<Option<Running>> {
        let (address, port_text) = (self.address().to_string(), port.to_string());
        let server = match tool {
            Tool::Weft | Tool::Cp => return Ok(None),
            Tool::WeftByMemory
            | Tool::WeftToServer
            | Tool::WeftInClear
            | Tool::WeftToNull
            | Tool::WeftDirect
            | Tool::WeftRelay => self.weft_server(self.address(), port)?,
            Tool::RsyncToDaemon => {
                let config = self.path("rsyncd.conf");
                // Without chroot, so that a user other than root can run the daemon.
                let share = self.folder.path().display();
                // Started by root, the daemon would otherwise change to `nobody`.
                let user = if geteuid().is_root() { "uid = 0\ngid = 0\n" } else { "" };
                let options = "use chroot = no\nread only = no\n";
                fs::write(&config, format!("{options}{user}[share]\npath = {share}\n"))?;
                Program::plain("rsync")
                    .args(["--daemon", "--no-detach", "--address", &address])
                    .args(["--port", &port_text])
                    .arg(format!("--config={}", config.display()))
            }
            Tool::Scp | Tool::RsyncBySsh | Tool::TarBySsh | Tool::Rclone => {
                let (folder, at) = (self.folder.path(), SocketAddrV4::new(self.address(), port));
                let sshd = ssh::prepare_at(folder, at, &[("server", "")])?;
                Program::plain(sshd).args(["-D", "-e", "-f"]).arg(self.path("sshd_config"))
            }
            Tool::Iperf3 | Tool::Cubic => {
                Program::plain("iperf3").args(["-s", "-B", &address, "-p", &port_text])
            }
            Tool::GridFtp => {
                let options = "-aa -anonymous-user root -allow-root -disable-usage-stats";
                self.with_hosts(&format!(
                    "exec globus-gridftp-server {options} -control-interface {address} \
                     -data-interface {address} -p {port_text}"
                ))?
            }
            Tool::Nuttcp => Program::plain("nuttcp").args(["-S", "--nofork", "-P", &port_text]),
        };
        Ok(Some(server.within(self.left()).start()?.listening(Port::Tcp(port))?))
    }

    /// `weft serve` of all files.
    fn weft_server(&self, address: Ipv4Addr, port: u16) -> Result<Program> {
        let server = self.weft()?.args(["serve", "--bind", &address.to_string()]);
        let server = server.args(["--port", &port.to_string()]);
        let share = format!("share={}", self.folder.path().display());
        Ok(server.args(["--allow-clear", "--allow", &self.key]).arg(share))
    }

    /// The server of the source, on the host of the client.
    pub(super) fn source_server(&self, tool: Tool, port: u16) -> Result<Option<Running>> {
        let (Tool::WeftDirect | Tool::WeftRelay) = tool else { return Ok(None) };
        let network = format!("{}/32", self.address());
        // It has a key of its own, as another host would.
        let server = self.weft_server(self.client_address(), port)?;
        let server = server.env("XDG_CONFIG_HOME", self.path("config-of-source"));
        let server = server.args(["--third-party", &network]).within(self.right());
        Ok(Some(server.start()?.listening(Port::Tcp(port))?))
    }

    /// A shell that runs `script` with names for the hosts' addresses: GridFTP wants them, and in a
    /// namespace there is no other source of names.
    fn with_hosts(&self, script: &str) -> Result<Program> {
        let own = fs::read_to_string("/proc/sys/kernel/hostname")?;
        let mut hosts = format!("127.0.0.1 localhost {}\n", own.trim());
        for namespace in [self.left(), self.right()].into_iter().flatten() {
            hosts += &format!("{} {}\n", namespace.ipv4, namespace.name);
        }
        let path = self.path("hosts");
        fs::write(&path, hosts)?;
        let mount = format!("mount --bind {} /etc/hosts && {script}", path.display());
        Ok(Program::plain("unshare").args(["--mount", "sh", "-c", &mount]))
    }

    /// The command that reaches the OpenSSH server.
    fn ssh(&self) -> String {
        format!("ssh -c {CIPHER} -F {}", self.path("ssh_config").display())
    }

    /// The command that copies: to the server at the first port, or from the one at the second.
    pub(super) fn client(&self, load: Load, tool: Tool, ports: [u16; 2]) -> Result<Program> {
        let [port, source] = ports;
        let is_changed = matches!(load, Load::Changed(_));
        let (from, to) = (self.path(&load.folder()).join(""), self.path("to"));
        let address = self.address();
        Ok(match tool {
            Tool::Weft => self.weft()?.args(["cp", "-q"]).arg(from).arg(to),
            Tool::Cp => Program::plain("cp").arg("-a").arg(from.join(".")).arg(to),
            Tool::WeftByMemory | Tool::WeftToServer | Tool::WeftInClear => {
                let way: &[&str] = match tool {
                    Tool::WeftByMemory => &["--data=fabric"],
                    Tool::WeftInClear => &["--data=tcp", "--clear"],
                    _ => &["--data=tcp"],
                };
                let whole = if is_changed { "--no-whole-file" } else { "--whole-file" };
                let copy = self.weft()?.args(["cp", "-q", "--accept-new", whole]).args(way);
                let copy = copy.arg(from);
                copy.arg(format!("{address}:{port}//share/to"))
            }
            Tool::WeftDirect | Tool::WeftRelay => {
                let way = if tool == Tool::WeftDirect { "direct" } else { "relay" };
                let copy = self.weft()?.args(["cp", "-q", "--accept-new", "--between-servers"]);
                let from = format!("{}:{source}//share/{}/", self.client_address(), load.folder());
                copy.args([way, &from]).arg(format!("{address}:{port}//share/to"))
            }
            Tool::WeftToNull => {
                // The lab reads what programs print.
                let copy = "exec \"$0\" cp -q --accept-new --data=tcp --clear \"$1\" - >/dev/null";
                Program::plain("sh")
                    .env("XDG_CONFIG_HOME", self.path("config"))
                    .args(["-c", copy])
                    .arg(weft()?)
                    .arg(format!("{address}:{port}//share/{}/file", load.folder()))
            }
            Tool::RsyncToDaemon => {
                let whole = if is_changed { "--no-whole-file" } else { "--whole-file" };
                let copy = Program::plain("rsync").args(["-a", whole]).arg(from);
                copy.arg(format!("rsync://{address}:{port}/share/to/"))
            }
            Tool::Scp => {
                let config = self.path("ssh_config");
                let copy = Program::plain("scp").args(["-q", "-r", "-c", CIPHER, "-F"]).arg(config);
                copy.arg(from.join(".")).arg(format!("server:{}", to.display()))
            }
            Tool::RsyncBySsh => {
                let copy = Program::plain("rsync").args(["-a", "--whole-file", "-e", &self.ssh()]);
                copy.arg(from).arg(format!("server:{}/", to.display()))
            }
            Tool::TarBySsh => {
                // The folder's path has nothing that a shell would change.
                let (ssh, from, to) = (self.ssh(), from.display(), to.display());
                Program::plain("bash").arg("-c").arg(format!(
                    "set -o pipefail; tar -C {from} -cf - . | {ssh} server tar -C {to} -xf -"
                ))
            }
            Tool::Iperf3 | Tool::Cubic => {
                let Load::Large(len) = load else { bail!("iperf3 copies no files") };
                let congestion: &[&str] = if tool == Tool::Cubic { &["-C", "cubic"] } else { &[] };
                Program::plain("iperf3")
                    .args(["-c", &address.to_string(), "-p", &port.to_string()])
                    .args(["-n", &len.to_string()])
                    .args(congestion)
            }
            Tool::GridFtp => {
                let (from, to) = (from.join("file"), to.join("file"));
                self.with_hosts(&format!(
                    "exec globus-url-copy -p {STREAMS} -fast file://{} ftp://{address}:{port}{}",
                    from.display(),
                    to.display()
                ))?
            }
            Tool::Rclone => {
                // Its own SFTP client has as many requests under way as this.
                let remote = format!(
                    ":sftp,host={address},port={port},user=root,key_file={},concurrency=64,\
                     ciphers={CIPHER}:{}",
                    self.path("server.key").display(),
                    to.display()
                );
                Program::plain("rclone")
                    .args(["copy", "-q", "--config", "/dev/null"])
                    .arg(from)
                    .arg(remote)
            }
            Tool::Nuttcp => {
                let Load::Large(len) = load else { bail!("nuttcp copies no files") };
                // Blocks of 64 KiB; its own default of buffers would bound the rate.
                Program::plain("nuttcp")
                    .args(["-P", &port.to_string(), "-p", &ports::next().to_string()])
                    .args(["-N", STREAMS, "-w4m", "-l65536", &format!("-n{}", len >> 16)])
                    .arg(address.to_string())
            }
        })
    }
}
