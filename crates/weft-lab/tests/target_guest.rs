//! `weft target` serves Debian's kernel: open-iscsi in a virtual machine, and ext4 on a unit.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
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

    fn portal(&self) -> String {
        format!("{}:{}", self.guest.host.ipv4, self.port)
    }

    fn serve(&self, units: &[&str]) -> Result<Running> {
        let daemon = Program::plain(weft()?)
            .line(&format!("target serve --name {TARGET} --listen {}", self.portal()))
            .args(units)
            .within(Some(&self.guest.host));
        daemon.start()?.listening(Port::Tcp(self.port))
    }

    /// Runs a command that may wait for the disk.
    fn run(&self, command: &str) -> Result<String> {
        self.guest.start(command)?.success(TIMEOUT)
    }

    /// Starts the initiator's daemon, discovers the target, and logs in.
    fn log_in(&self) -> Result<Job<'_>> {
        let daemon = self.guest.start("/sbin/iscsid -f")?;
        let discover = format!("/sbin/iscsiadm -m discovery -t sendtargets -p {}", self.portal());
        let found = self.run(&discover)?;
        ensure!(found.contains(TARGET), "discovered {found}");
        self.run("/sbin/iscsiadm -m node --login")?;
        self.run(&format!("until [ -b {DISK} ]; do usleep 100000; done"))?;
        Ok(daemon)
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
    let target = initiator.serve(&["--cache", "4M", &disk.display().to_string()])?;
    let _daemon = initiator.log_in()?;
    initiator.run(&format!("/sbin/mkfs.ext4 -q {DISK} && mount {DISK} /mnt"))?;
    initiator.run("cp -r /usr /sbin /mnt && rm -r /mnt/sbin && cp -r /sbin /mnt/again")?;
    let before = initiator.run(SUMS)?;
    ensure!(before.lines().count() > 12, "few files: {before}");
    let check = format!("umount /mnt && /sbin/e2fsck -fn {DISK} && mount {DISK} /mnt");
    initiator.run(&check)?;
    initiator.run("echo 3 >/proc/sys/vm/drop_caches")?;
    let after = initiator.run(SUMS)?;
    ensure_data!(before == after, "the files differ: {before}\n{after}");
    initiator.run("umount /mnt && /sbin/iscsiadm -m node --logout")?;
    // The same disk without the target.
    target.kill()?;
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
        let sums: u32 = initiator.run("wc -l </tmp/sums")?.trim().parse()?;
        let more = sums + 3;
        initiator
            .run(&format!("until [ $(wc -l </tmp/sums) -ge {more} ]; do usleep 9000; done"))?;
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
