//! `weft target` serves Debian's kernel: open-iscsi in a virtual machine, ext4 and XFS on a unit,
//! and a unit by two paths.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::guest::{self, Guest, Job, Offload};
use weft_lab::{Folder, Program, Running, ensure_data, note_skip, ports, weft};

/// Time limit for what the guest's disk does. It has no hardware virtualization.
const TIMEOUT: Duration = Duration::from_secs(240);
const TARGET: &str = "iqn.2026-01.org.example:disk";
/// The first disk of the guest.
const DISK: &str = "/dev/sda";

/// A machine with the kernel's initiator, and a target on this side.
struct Initiator {
    guest: Guest,
    port: u16,
}

impl Initiator {
    /// Boots a machine, or returns `None` with a note if no machine with an initiator can run here.
    fn boot(test: &str) -> Result<Option<Self>> {
        let skip = |why: &str| note_skip(&format!("target_guest::{test}"), why);
        // The same machine as that of tests with siw, which may run at the same time.
        if let Some(why) = guest::unavailable(&["iwarp_peer"])? {
            skip(&why);
            return Ok(None);
        }
        let guest = Guest::boot(Offload::On)?;
        if guest.run("ls /sbin/iscsid").is_err() {
            skip("this machine lacks libraries of open-iscsi, or mkfs.ext4");
            return Ok(None);
        }
        // Some of the modules are there already.
        guest.run("while read -r m; do insmod $m || true; done </etc/modules.disk")?;
        guest.run("mkdir -p /run/lock/iscsi /var/lock/iscsi /etc/iscsi/nodes /mnt")?;
        guest.run(
            "echo InitiatorName=iqn.2026-01.org.example:guest >/etc/iscsi/initiatorname.iscsi",
        )?;
        Ok(Some(Self { guest, port: ports::next() }))
    }

    fn portal(&self, port: u16) -> String {
        format!("{}:{port}", self.guest.host.ipv4)
    }

    fn serve(&self, units: &[&str]) -> Result<Running> {
        self.serve_at(self.port, units)
    }

    fn serve_at(&self, port: u16, units: &[&str]) -> Result<Running> {
        let daemon = Program::plain(weft()?)
            .line(&format!("target serve --name {TARGET} --listen {}", self.portal(port)))
            .args(units)
            .within(Some(&self.guest.host));
        daemon.start()?.listening(Port::Tcp(port))
    }

    /// Runs a command that may wait for the disk.
    fn run(&self, command: &str) -> Result<String> {
        self.guest.start(command)?.success(TIMEOUT)
    }

    /// Starts the initiator's daemon, discovers the target, and logs in.
    fn log_in(&self) -> Result<Job<'_>> {
        let daemon = self.guest.start("/sbin/iscsid -f")?;
        self.discover(self.port)?;
        self.run("/sbin/iscsiadm -m node --login")?;
        self.run(&format!("until [ -b {DISK} ]; do usleep 100000; done"))?;
        Ok(daemon)
    }

    fn discover(&self, port: u16) -> Result<()> {
        let portal = self.portal(port);
        let found = self.run(&format!("/sbin/iscsiadm -m discovery -t sendtargets -p {portal}"))?;
        ensure!(found.contains(TARGET), "discovered {found}");
        Ok(())
    }

    /// Logs in by two paths, whose commands fail two seconds after their connection, and makes one
    /// disk of both. multipathd would do the same, but needs udev.
    fn log_in_twice(&self, ports: [u16; 2]) -> Result<Job<'_>> {
        let daemon = self.guest.start("/sbin/iscsid -f")?;
        for (port, disk) in ports.into_iter().zip(["/dev/sda", "/dev/sdb"]) {
            self.discover(port)?;
            let node = format!("/sbin/iscsiadm -m node -p {}", self.portal(port));
            self.run(&format!("{node} -o update -n node.session.timeo.replacement_timeout -v 2"))?;
            self.run(&format!("{node} --login"))?;
            self.run(&format!("until [ -b {disk} ]; do usleep 100000; done"))?;
        }
        let paths = "service-time 0 1 1 8:0 1 service-time 0 1 1 8:16 1";
        let sectors = self.run("cat /sys/block/sda/size")?;
        let table = format!("0 {} multipath 1 queue_if_no_path 0 2 1 {paths}", sectors.trim());
        self.run(&format!("/sbin/dmsetup create disk --table '{table}'"))?;
        Ok(daemon)
    }

    /// Waits until a loop that writes has made a few files more safe.
    fn wait_for_files(&self) -> Result<()> {
        let sums: u32 = self.run("wc -l </tmp/sums")?.trim().parse()?;
        let more = sums + 3;
        self.run(&format!("until [ $(wc -l </tmp/sums) -ge {more} ]; do usleep 9000; done"))?;
        Ok(())
    }
}

/// What a tree contains, file by file.
const SUMS: &str = "cd /mnt && find . -type f | sort | xargs md5sum";

/// A file system is made, filled and checked, and has the same files when it is mounted again.
#[test]
fn a_guest_makes_and_checks_a_file_system() -> Result<()> {
    let Some(initiator) = Initiator::boot("a_guest_makes_and_checks_a_file_system")? else {
        return Ok(());
    };
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(64 << 20)?;
    let unit = disk.display().to_string();
    let control = folder.path().join("control").display().to_string();
    let options = ["--cache", "4M", "--drain-time", "3600", "--announce", "--control", &control];
    let mut target = initiator.serve(&[&options[..], &[&unit]].concat())?;
    let daemon = initiator.log_in()?;
    initiator.run(&format!("/sbin/mkfs.ext4 -q {DISK} && mount {DISK} /mnt"))?;
    initiator.run("cp -r /usr /sbin /mnt && rm -r /mnt/sbin && cp -r /sbin /mnt/again")?;
    let before = initiator.run(SUMS)?;
    ensure!(before.lines().count() > 12, "few files: {before}");
    let check = format!("umount /mnt && /sbin/e2fsck -fn {DISK} && mount {DISK} /mnt");
    initiator.run(&check)?;
    initiator.run("echo 3 >/proc/sys/vm/drop_caches")?;
    let after = initiator.run(SUMS)?;
    ensure_data!(before == after, "the files differ: {before}\n{after}");
    // An asynchronous message says that there is another unit, and the guest looks for it.
    let add = Program::plain(weft()?).line("target add ram:16M --control").arg(&control);
    add.run(TIMEOUT)?.success()?;
    initiator.run("until [ -b /dev/sdb ]; do usleep 100000; done")?;
    initiator.run("umount /mnt && /sbin/iscsiadm -m node --logout")?;
    initiator.run("/sbin/iscsiadm -m node --login")?;
    // An asynchronous message asks the guest to log out, which it does.
    target.signal(Signal::TERM)?;
    target.wait(TIMEOUT)?.success()?.expect_output("logged out")?;
    let messages = daemon.output()?;
    ensure!(messages.contains("Target requests logout within 3600 seconds"), "iscsid: {messages}");
    // The same disk without the target.
    let check = Program::plain("e2fsck").args(["-fn"]).arg(&disk);
    check.run(TIMEOUT)?.success()?;
    Ok(())
}

/// A loop that writes files of random bytes, each made safe, until /tmp/stop is there. The sums of
/// those that are safe are in /tmp/sums.
const WRITER: &str = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); \
    dd if=/dev/urandom of=/mnt/$i bs=3000 count=9 conv=fsync 2>/dev/null || exit 1; \
    md5sum /mnt/$i >>/tmp/sums; done";

/// The target is killed and started again while the guest writes. The guest goes on, and has what
/// it has made safe.
#[test]
#[ignore = "soak: a minute, in which a guest waits for its target again and again"]
fn a_file_system_outlives_kills_of_the_target() -> Result<()> {
    let Some(initiator) = Initiator::boot("a_file_system_outlives_kills_of_the_target")? else {
        return Ok(());
    };
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(64 << 20)?;
    let unit = format!("{},write-back", disk.display());
    let mut target = initiator.serve(&[&unit])?;
    let _daemon = initiator.log_in()?;
    initiator.run(&format!("/sbin/mkfs.ext4 -q {DISK} && mount {DISK} /mnt && touch /tmp/sums"))?;
    let writer = initiator.guest.start(WRITER)?;
    for _ in 0..6 {
        initiator.wait_for_files()?;
        target.kill()?;
        target = initiator.serve(&[&unit])?;
    }
    initiator.run("touch /tmp/stop")?;
    writer.success(TIMEOUT)?;
    initiator.run(&format!("umount /mnt && /sbin/e2fsck -fn {DISK} && mount {DISK} /mnt"))?;
    let (status, sums) = initiator.guest.start("md5sum -c /tmp/sums")?.wait(TIMEOUT)?;
    ensure_data!(status == 0 && sums.lines().count() >= 18, "files are lost: {sums}");
    initiator.run("umount /mnt")?;
    target.kill()?;
    Ok(())
}

/// A file system on a disk with two paths, each to a target process of its own. They are killed in
/// turn while files are written, and started again.
fn a_file_system_outlives_its_paths(test: &str, kills: usize) -> Result<()> {
    // The kernel makes this name, and udev would make others.
    const FILE_SYSTEM: &str = "/dev/dm-0";
    let Some(initiator) = Initiator::boot(test)? else { return Ok(()) };
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    // XFS needs 300 MB and more.
    fs::File::create(&disk)?.set_len(400 << 20)?;
    let unit = disk.display().to_string();
    let paths = [initiator.port, ports::next()];
    let mut targets =
        [initiator.serve_at(paths[0], &[&unit])?, initiator.serve_at(paths[1], &[&unit])?];
    let _daemon = initiator.log_in_twice(paths)?;
    initiator.run(&format!("/sbin/mkfs.xfs -q {FILE_SYSTEM} && mount {FILE_SYSTEM} /mnt"))?;
    initiator.run("touch /tmp/sums")?;
    let writer = initiator.guest.start(WRITER)?;
    for kill in 0..kills {
        let (at, numbers) = (kill % 2, ["8:0", "8:16"][kill % 2]);
        initiator.wait_for_files()?;
        let [one, other] = targets;
        let (killed, left) = if at == 0 { (one, other) } else { (other, one) };
        killed.kill()?;
        // The path that was in use fails, and the writer goes on by the other one.
        let failed = format!("until /sbin/dmsetup status disk | grep -q '{numbers} F'");
        initiator.run(&format!("{failed}; do usleep 100000; done"))?;
        initiator.wait_for_files()?;
        let again = initiator.serve_at(paths[at], &[&unit])?;
        targets = if at == 0 { [again, left] } else { [left, again] };
        // Both sessions are there again, and their disks.
        let states = "/sys/class/iscsi_session/session*/state /sys/block/sd?/device/state";
        let ready = format!("[ $(cat {states} | grep -c -e LOGGED_IN -e running) = 4 ]");
        initiator.run(&format!("until {ready}; do usleep 100000; done"))?;
        initiator.run(&format!("/sbin/dmsetup message disk 0 reinstate_path {numbers}"))?;
    }
    initiator.run("touch /tmp/stop")?;
    writer.success(TIMEOUT)?;
    let check =
        format!("umount /mnt && /sbin/xfs_repair -n {FILE_SYSTEM} && mount {FILE_SYSTEM} /mnt");
    initiator.run(&check)?;
    let (status, sums) = initiator.guest.start("md5sum -c /tmp/sums")?.wait(TIMEOUT)?;
    ensure_data!(status == 0 && sums.lines().count() >= 6 * kills, "files are lost: {sums}");
    initiator.run("umount /mnt && /sbin/dmsetup remove disk")?;
    targets.into_iter().try_for_each(|target| target.kill().map(drop))
}

#[test]
fn xfs_outlives_each_of_two_paths() -> Result<()> {
    a_file_system_outlives_its_paths("xfs_outlives_each_of_two_paths", 2)
}

#[test]
#[ignore = "soak: minutes, in which a guest waits for one of its paths again and again"]
fn xfs_outlives_many_kills_of_its_paths() -> Result<()> {
    a_file_system_outlives_its_paths("xfs_outlives_many_kills_of_its_paths", 12)
}
