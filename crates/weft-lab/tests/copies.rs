//! `weft cp` and `weft serve` between two network namespaces, onto a disk that is full, and with
//! more files than it may remember.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Folder, NamespacePair, Program, ensure_data, ports, skip_without_namespaces, weft};

const TIMEOUT: Duration = Duration::from_secs(120);

/// A folder with the keys of a user.
struct Place {
    folder: Folder,
}

impl Place {
    fn new() -> Result<Self> {
        Ok(Self { folder: Folder::new(0o700)? })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the `weft` command of a host. Each host has its own keys.
    fn weft(&self, host: &str) -> Result<Program> {
        Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", self.path(host)))
    }
}

/// Creates folders with this many files each, of up to 4 KiB.
fn make_files(root: &Path, folders: usize, files: usize) -> Result<()> {
    let content = vec![b'x'; 4096];
    for folder in 0..folders {
        let path = root.join(format!("folder-{folder}"));
        fs::create_dir_all(&path)?;
        for file in 0..files {
            fs::write(path.join(format!("file-{file}")), &content[..file * 37 % 4097])?;
        }
    }
    Ok(())
}

fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let diff = Program::plain("diff").args(["-r", "--no-dereference"]).arg(one).arg(other);
    let diff = diff.run(TIMEOUT)?;
    ensure_data!(diff.status.success(), "{}", diff.error("the trees differ"));
    Ok(())
}

/// Describes a machine with two NUMA nodes, each of which has all processors that the test may use,
/// and an interface whose device is on the second one.
fn make_sysfs(sysfs: &Path, interface: &str) -> Result<()> {
    let status = fs::read_to_string("/proc/self/status")?;
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let cpus = cpus.context("no processors")?.trim();
    let (nodes, device) =
        (sysfs.join("devices/system/node"), format!("class/net/{interface}/device"));
    for (node, distances) in [("node0", "10 20"), ("node1", "20 10")] {
        fs::create_dir_all(nodes.join(node))?;
        fs::write(nodes.join(node).join("cpulist"), cpus)?;
        fs::write(nodes.join(node).join("distance"), distances)?;
    }
    fs::create_dir_all(sysfs.join(&device))?;
    Ok(fs::write(sysfs.join(device).join("numa_node"), "1\n")?)
}

#[test]
fn trees_go_both_ways_between_two_hosts() -> Result<()> {
    skip_without_namespaces!();
    let (pair, place, port) = (NamespacePair::new()?, Place::new()?, ports::next());
    let (from, share) = (place.path("from"), place.path("share"));
    make_files(&from, 5, 100)?;
    fs::write(from.join("large"), vec![7; 50_000_000])?;
    fs::create_dir(&share)?;
    make_sysfs(&place.path("sysfs"), pair.right.interface())?;
    let key = place.weft("client")?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
    // On all addresses.
    let server = place.weft("server")?.args(["serve", "--port", &port.to_string()]);
    let server = server.args(["--allow", key.trim()]).arg(&share).within(Some(&pair.left));
    let _server = server.start()?.listening(Port::Tcp(port))?;
    for (name, address) in
        [("four", IpAddr::V4(pair.left.ipv4)), ("six", IpAddr::V6(pair.left.ipv6))]
    {
        let at = |path: &str| match address {
            IpAddr::V4(address) => format!("{address}:{port}//share/{path}"),
            IpAddr::V6(address) => format!("[{address}]:{port}//share/{path}"),
        };
        let copy = || {
            let copy = place.weft("client")?.args(["cp", "-q", "--accept-new", "--verify"]);
            anyhow::Ok(copy.within(Some(&pair.right)))
        };
        let up = copy()?.args(["--json", "--explain"]).arg("--sysfs").arg(place.path("sysfs"));
        let up = up.arg(from.join("")).arg(at(name));
        let said = up.run(TIMEOUT)?.success()?.stdout;
        ensure!(said.contains(r#""compression":"auto""#), "{said}");
        ensure!(said.contains(r#""nodes":[1]"#), "{said}");
        assert_same(&from, &share.join(name))?;
        let back = place.path(name);
        copy()?.arg(at(&format!("{name}/"))).arg(&back).run(TIMEOUT)?.success()?;
        assert_same(&from, &back)?;
    }
    Ok(())
}

/// Copies onto a file system of 8 MiB, which then grows. `$1` is the folder and `$2` is `weft`.
const FILL: &str = r#"
set -eu
cd "$1"
mount -t tmpfs -o size=8m tmpfs to
status=0
"$2" cp -q from/ to 2>errors || status=$?
echo "status $status"
cat errors
ls to
mount -o remount,size=64m tmpfs to
"$2" cp -q --resume from/ to
diff -r from to
ls -A to
"#;

#[test]
fn a_full_disk_costs_the_files_that_do_not_fit_and_the_copy_goes_on() -> Result<()> {
    skip_without_namespaces!();
    let place = Place::new()?;
    let from = place.path("from");
    make_files(&from, 1, 20)?;
    fs::write(from.join("large"), vec![7; 20_000_000])?;
    fs::create_dir(place.path("to"))?;
    let fill = Program::plain("unshare").args(["--mount", "sh", "-c", FILL, "sh"]);
    let fill = fill.arg(place.folder.path()).arg(weft()?);
    let fill = fill.env("XDG_CONFIG_HOME", place.path("client"));
    let stdout = fill.run(TIMEOUT)?.success()?.stdout;
    let lines: Vec<&str> = stdout.lines().collect();
    let (errors, rest): (Vec<&str>, Vec<&str>) =
        lines.iter().partition(|line| line.starts_with("weft: "));
    // Whether small files fit depends on whether they are copied before or after the large one.
    ensure!(errors.iter().any(|error| error.contains("large")), "{stdout}");
    ensure!(errors.iter().all(|error| error.contains("No space left")), "{stdout}");
    ensure!(rest == ["status 3", "folder-0", "folder-0", "large"], "{stdout}");
    Ok(())
}

/// Runs a command, and prints its peak memory in KiB.
const PEAK: &str = "
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
";

/// Two pools of 32 blocks of 1 MiB, and a fixed amount for everything else.
const PEAK_MAX_KIB: u64 = 112 << 10;

#[test]
fn memory_is_bounded_while_5_000_files_are_copied() -> Result<()> {
    memory_is_bounded(5)
}

#[test]
#[ignore = "soak: 100,000 files"]
fn memory_is_bounded_while_100_000_files_are_copied() -> Result<()> {
    memory_is_bounded(100)
}

/// Copies this many folders of 1,000 files.
fn memory_is_bounded(folders: usize) -> Result<()> {
    let place = Place::new()?;
    let [from, to] = ["from", "to"].map(|name| place.path(name));
    make_files(&from, folders, 1_000)?;
    let copy = Program::plain("python3").args(["-c", PEAK]).arg(weft()?);
    let copy = copy.args(["cp", "-q"]).arg(from.join("")).arg(&to);
    let stdout = copy.env("XDG_CONFIG_HOME", place.path("client")).run(TIMEOUT)?.success()?.stdout;
    let peak = stdout.trim().parse::<u64>().with_context(|| stdout.clone())?;
    ensure!(peak < PEAK_MAX_KIB, "{peak} KiB");
    assert_same(&from, &to)
}
