//! Network namespaces. Two of them, joined by a veth pair or by a long path, act as two hosts, and
//! three of them at a switch as three.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{self, Command};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::folder::remove_registries;
use crate::long_path::{LongPath, PathSettings};
use crate::packages::locate;

/// Where iproute2 keeps named namespaces.
const DIRECTORY: &str = "/run/netns";
/// Prefix of a namespace's name. The pid of the lab, a serial number and the side follow.
const NAME_PREFIX: &str = "weft-lab-";
/// The interface of each side besides loopback.
const INTERFACE: &str = "weft0";
/// Time limit and polling interval while the kernel brings a link up.
const LINK_TIMEOUT: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Congestion controls in order of preference. BBR is not among them: its pacing throttles a path
/// without propagation delay.
const CONGESTION_CONTROLS: [&str; 2] = ["cubic", "reno"];
const CONGESTION_CONTROL: &str = "net/ipv4/tcp_congestion_control";
/// Packets that wait at an end of a long path, enough for all that TCP sends at once.
const PACKETS_QUEUED: &str = "10000";

/// A network namespace: one side of a link.
#[derive(Debug)]
pub struct Namespace {
    /// Name for `ip netns exec`.
    pub name: String,
    /// Address on the pair's link.
    pub ipv4: Ipv4Addr,
    /// Address on the pair's link.
    pub ipv6: Ipv6Addr,
}

impl Namespace {
    /// Makes a namespace whose interface is a TAP device, for a virtual machine on the other side.
    ///
    /// # Errors
    ///
    /// As [`NamespacePair::new`].
    pub fn with_tap() -> Result<Self> {
        sweep();
        let namespace = add(serial(), "host", 1)?;
        let name = &namespace.name;
        ip(&["-n", name, "tuntap", "add", INTERFACE, "mode", "tap", "vnet_hdr"])?;
        namespace.configure()?;
        Ok(namespace)
    }

    /// Makes a namespace that has only loopback.
    ///
    /// # Errors
    ///
    /// As [`NamespacePair::new`].
    pub fn alone() -> Result<Self> {
        sweep();
        let namespace = add(serial(), "alone", 1)?;
        ip(&["-n", &namespace.name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// The name of the interface that leads to the other side.
    pub fn interface(&self) -> &'static str {
        INTERFACE
    }

    /// Removes the interface's addresses but for the one that IPv6 gives each link, and waits until
    /// the kernel has made sure that no other host has that one.
    ///
    /// # Errors
    ///
    /// If `ip address` fails, or if the kernel takes too long.
    pub fn remove_addresses(&self) -> Result<()> {
        let ipv6 = format!("{}/64", self.ipv6);
        ip(&["-n", &self.name, "-4", "address", "flush", "dev", INTERFACE])?;
        ip(&["-n", &self.name, "address", "delete", &ipv6, "dev", INTERFACE])?;
        let deadline = Instant::now() + LINK_TIMEOUT;
        let show = ["-n", &self.name, "-6", "address", "show", "dev", INTERFACE, "tentative"];
        while !ip(&show)?.trim().is_empty() {
            if Instant::now() >= deadline {
                bail!("{}: the address of {INTERFACE} is still tentative", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the bytes that have come and gone by the interface.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn bytes(&self) -> Result<u64> {
        let path = format!("/sys/class/net/{INTERFACE}/statistics");
        let files = ["rx_bytes", "tx_bytes"].map(|name| format!("{path}/{name}"));
        let read = [&["netns", "exec", &self.name, "cat"][..], &[&files[0], &files[1]]].concat();
        let text = ip(&read)?;
        let counts = text.split_whitespace().map(|count| count.parse::<u64>());
        Ok(counts.sum::<Result<u64, _>>()?)
    }

    /// Lets no packet of this namespace leave for another one.
    ///
    /// # Errors
    ///
    /// If `ip route` fails.
    pub fn block(&self, other: &Self) -> Result<()> {
        let address = other.ipv4.to_string();
        ip(&["-n", &self.name, "route", "add", "unreachable", &address]).map(drop)
    }

    /// Takes the link up or down.
    ///
    /// # Errors
    ///
    /// If `ip link` fails.
    pub fn set_link(&self, up: bool) -> Result<()> {
        let state = if up { "up" } else { "down" };
        ip(&["-n", &self.name, "link", "set", INTERFACE, state]).map(drop)
    }

    /// Adds the addresses and brings the link up. `keep_addr_on_down` keeps the IPv6 address while
    /// the link is down.
    fn configure(&self) -> Result<()> {
        let (ipv4, ipv6) = (format!("{}/24", self.ipv4), format!("{}/64", self.ipv6));
        ip(&["-n", &self.name, "link", "set", "lo", "up"])?;
        self.sysctl("net/ipv6/conf/weft0/keep_addr_on_down", "1")?;
        ip(&["-n", &self.name, "address", "add", &ipv4, "dev", INTERFACE])?;
        ip(&["-n", &self.name, "address", "add", &ipv6, "dev", INTERFACE, "nodad"])?;
        self.set_link(true)
    }

    /// Waits until the kernel reports the link as up. That may take a second, in which Weft has no
    /// device but loopback there.
    fn await_link(&self) -> Result<()> {
        let deadline = Instant::now() + LINK_TIMEOUT;
        while !ip(&["-n", &self.name, "link", "show", INTERFACE])?.contains("state UP") {
            if Instant::now() >= deadline {
                bail!("{}: {INTERFACE} is not up after {LINK_TIMEOUT:?}", self.name);
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let write = format!("echo {value} >/proc/sys/{key}");
        ip(&["netns", "exec", &self.name, "sh", "-c", &write]).map(drop)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let number = fs::metadata(Path::new(DIRECTORY).join(&self.name)).map(|file| file.ino());
        // If this fails, a later lab deletes the namespace.
        let _ = ip(&["netns", "delete", &self.name]);
        if let Ok(number) = number {
            remove_registries(number);
        }
    }
}

/// Two namespaces and the link between them, removed when dropped.
#[derive(Debug)]
pub struct NamespacePair {
    /// The side that servers run on.
    pub left: Namespace,
    /// The side that clients run on.
    pub right: Namespace,
    /// TCP congestion control of both sides.
    pub congestion_control: &'static str,
    path: Option<LongPath>,
}

impl NamespacePair {
    /// Makes a pair with the MTU of Ethernet.
    ///
    /// # Errors
    ///
    /// If a namespace or the link cannot be made, for example without rights; see
    /// [`namespaces_denied`].
    pub fn new() -> Result<Self> {
        Self::with_mtu(1500)
    }

    /// Makes a pair whose link has the given MTU, in bytes.
    ///
    /// # Errors
    ///
    /// As [`NamespacePair::new`].
    pub fn with_mtu(mtu: u32) -> Result<Self> {
        sweep();
        let serial = serial();
        let left = add(serial, "left", 1)?;
        let right = add(serial, "right", 2)?;
        let mtu = mtu.to_string();
        let near = ["link", "add", INTERFACE, "mtu", &mtu, "netns", &left.name, "type", "veth"];
        let remote = ["peer", "name", INTERFACE, "mtu", &mtu, "netns", &right.name];
        ip(&[&near[..], &remote].concat())?;
        left.configure()?;
        right.configure()?;
        let congestion_control = set_congestion_control(&[&left, &right])?;
        let pair = Self { left, right, congestion_control, path: None };
        pair.await_link()?;
        Ok(pair)
    }

    /// Makes a pair with the MTU of Ethernet and a path that delays and loses packets.
    ///
    /// # Errors
    ///
    /// As [`NamespacePair::new`], or if the kernel has no TUN devices or not this congestion
    /// control.
    pub fn over_long_path(
        settings: &PathSettings,
        congestion_control: &'static str,
    ) -> Result<Self> {
        sweep();
        let serial = serial();
        let left = add(serial, "left", 1)?;
        let right = add(serial, "right", 2)?;
        let mounted = [&left, &right].map(|side| Path::new(DIRECTORY).join(&side.name));
        let path = LongPath::new([&mounted[0], &mounted[1]], INTERFACE, settings)?;
        for side in [&left, &right] {
            ip(&["-n", &side.name, "link", "set", INTERFACE, "txqueuelen", PACKETS_QUEUED])?;
            side.configure()?;
            side.sysctl(CONGESTION_CONTROL, congestion_control)?;
        }
        Ok(Self { left, right, congestion_control, path: Some(path) })
    }

    /// Returns how many packets the long path has lost, in both directions.
    pub fn packets_lost(&self) -> u64 {
        self.path.as_ref().map_or(0, LongPath::lost)
    }

    /// Takes the link down at the left side.
    ///
    /// # Errors
    ///
    /// If `ip link` fails.
    pub fn link_down(&self) -> Result<()> {
        self.left.set_link(false)
    }

    /// Brings the link up again, and waits until it is.
    ///
    /// # Errors
    ///
    /// If `ip link` fails, or the link does not come up.
    pub fn link_up(&self) -> Result<()> {
        self.left.set_link(true)?;
        self.await_link()
    }

    fn await_link(&self) -> Result<()> {
        self.left.await_link()?;
        self.right.await_link()
    }
}

/// Three namespaces that reach each other by a switch, removed when dropped.
#[derive(Debug)]
pub struct NamespaceStar {
    /// The namespaces.
    pub hosts: [Namespace; 3],
    /// Where the switch is.
    _switch: Namespace,
}

impl NamespaceStar {
    /// Makes them with the MTU of Ethernet.
    ///
    /// # Errors
    ///
    /// As [`NamespacePair::new`].
    pub fn new() -> Result<Self> {
        sweep();
        let serial = serial();
        let switch = add(serial, "switch", 254)?;
        ip(&["-n", &switch.name, "link", "add", "name", "bridge0", "type", "bridge"])?;
        ip(&["-n", &switch.name, "link", "set", "bridge0", "up"])?;
        let join = |host: u8| {
            let (side, port) = (format!("host{host}"), format!("port{host}"));
            let namespace = add(serial, &side, host)?;
            let near = ["link", "add", INTERFACE, "netns", &namespace.name, "type", "veth"];
            let remote = ["peer", "name", &port, "netns", &switch.name];
            ip(&[&near[..], &remote].concat())?;
            ip(&["-n", &switch.name, "link", "set", &port, "master", "bridge0", "up"])?;
            namespace.configure()?;
            Ok::<_, anyhow::Error>(namespace)
        };
        let hosts = [join(1)?, join(2)?, join(3)?];
        set_congestion_control(&hosts.each_ref())?;
        for host in &hosts {
            host.await_link()?;
        }
        Ok(Self { hosts, _switch: switch })
    }
}

/// Returns why this process may not make network namespaces, or `None` if it may. Tries it once.
pub fn namespaces_denied() -> Option<&'static str> {
    static DENIED: OnceLock<Option<String>> = OnceLock::new();
    let denied = DENIED.get_or_init(|| match add(u32::MAX, "probe", 1) {
        Ok(_probe) => None,
        Err(error) => Some(format!("no right to make network namespaces (root has it): {error:#}")),
    });
    denied.as_deref()
}

fn serial() -> u32 {
    static SERIAL: AtomicU32 = AtomicU32::new(0);
    SERIAL.fetch_add(1, Ordering::Relaxed)
}

fn add(serial: u32, side: &str, host: u8) -> Result<Namespace> {
    let name = format!("{NAME_PREFIX}{}-{serial}-{side}", process::id());
    ip(&["netns", "add", &name])?;
    let ipv6 = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into());
    Ok(Namespace { name, ipv4: Ipv4Addr::new(10, 77, 0, host), ipv6 })
}

/// Sets the same congestion control on all sides: the most preferred one that the kernel offers.
fn set_congestion_control(sides: &[&Namespace]) -> Result<&'static str> {
    let offered =
        |name: &&&str| sides.iter().all(|side| side.sysctl(CONGESTION_CONTROL, name).is_ok());
    match CONGESTION_CONTROLS.iter().find(offered) {
        Some(name) => Ok(name),
        None => bail!("the kernel offers none of {CONGESTION_CONTROLS:?} as congestion control"),
    }
}

/// Removes the namespaces of labs that were killed.
fn sweep() {
    let Ok(entries) = fs::read_dir(DIRECTORY) else { return };
    for name in entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix(NAME_PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Another lab may have swept it first.
            let _ = ip(&["netns", "delete", &name]);
        }
    }
}

/// Runs `ip` and returns what it printed.
fn ip(arguments: &[&str]) -> Result<String> {
    let output = Command::new(locate("ip")?).args(arguments).output().context("cannot run ip")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("ip {}: {}", arguments.join(" "), why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
