//! `weft target` serves initiators that we did not write: libiscsi's test suite, QEMU's tools.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Finished, Folder, Program, Running, ensure_data, ports, source, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for what the lab itself does not limit. It detects a hang.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
const TARGET: &str = "iqn.2026-01.org.example:disk";

/// A running target.
struct Target {
    daemon: Running,
    port: u16,
}

impl Target {
    fn start(arguments: &[&str]) -> Result<Self> {
        let port = ports::next();
        let daemon = Program::plain(weft()?)
            .line(&format!("target serve --name {TARGET} --listen 127.0.0.1:{port}"))
            .args(arguments);
        let daemon = daemon.start()?.listening(Port::Tcp(port))?;
        Ok(Self { daemon, port })
    }

    fn url(&self, unit: u8) -> String {
        format!("iscsi://127.0.0.1:{}/{TARGET}/{unit}", self.port)
    }

    /// Ends the target. It must still have been there.
    fn stop(mut self) -> Result<()> {
        ensure!(self.daemon.is_running()?, self.daemon.account());
        self.daemon.kill().map(drop)
    }
}

/// Runs tests of libiscsi on a unit, with a second path to the same one.
fn suite(target: &Target, unit: u8, tests: &str) -> Result<Finished> {
    let url = target.url(unit);
    let suite = Program::plain("iscsi-test-cu")
        // libiscsi 1.19 reads uninitialized memory of a connection that it got from malloc. With
        // this value glibc returns zeroed memory, as libiscsi expects.
        .env("MALLOC_PERTURB_", "255")
        .args(["--dataloss", "--allow-sanitize", "--test", tests, &url, &url]);
    let mut ended = suite.run(TIMEOUT)?;
    // Its own thread may poll a connection that it has freed: a rare crash at the very end.
    for _ in 0..2 {
        if ended.status.signal() == Some(Signal::SEGV.as_raw()) {
            ended = suite.run(TIMEOUT)?;
        }
    }
    Ok(ended)
}

/// What a run of the suite has printed: the tests that ran, those that failed, and those that have
/// skipped at least a part of themselves.
#[derive(Debug, Default)]
struct Results {
    ran: usize,
    failed: Vec<String>,
    skipped: BTreeSet<String>,
}

impl Results {
    fn parse(output: &str) -> Self {
        let mut results = Self::default();
        let (mut suite, mut test) = ("", String::new());
        for line in output.lines() {
            if let Some(name) = line.strip_prefix("Suite: ") {
                suite = name;
            } else if let Some(rest) = line.strip_prefix("  Test: ") {
                let name = rest.split(" ...").next().unwrap_or_default();
                test = format!("{suite}.{name}");
                results.ran += 1;
            }
            if line.contains("[SKIPPED]") || line.contains("does not support 0-blocks") {
                results.skipped.insert(test.clone());
            }
            // The suite's own verdict stands alone, or directly behind the name.
            if line == "FAILED" || line.ends_with("...FAILED") {
                results.failed.push(test.clone());
            }
        }
        results
    }
}

#[test]
fn the_suite_of_libiscsi_passes() -> Result<()> {
    let target = Target::start(&["ram:100M,removable", "ram:100M,read-only"])?;
    let ended = suite(&target, 0, "ALL")?;
    let results = Results::parse(&ended.stdout);
    ensure!(results.failed.is_empty(), ended.error(format!("{:?}", results.failed)));
    let summary = ended.stdout.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], ["tests", "230", "230", "230", "0", "0"])
    });
    ensure!(results.ran == 230 && summary, ended.error("not all tests ran and passed"));

    let expected = fs::read_to_string(source("programs/target/skipped.txt"))?;
    let expected = expected.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let expected: BTreeSet<String> = expected.map(str::to_owned).collect();
    ensure!(results.skipped == expected, ended.error(format!("skipped: {:#?}", results.skipped)));

    let ended = suite(&target, 1, "SCSI.ReadOnly")?;
    let results = Results::parse(&ended.stdout);
    let passes = results.ran == 1 && results.failed.is_empty() && results.skipped.is_empty();
    ensure!(passes && ended.stdout.contains("passed"), ended.error("read-only unit"));
    target.stop()
}

/// The same suite on files, whose reads and writes may wait: the commands of a connection are under
/// way at once.
#[test]
#[ignore = "soak: two minutes, most of which the disk takes"]
fn the_suite_of_libiscsi_passes_on_files() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let units: Vec<String> = ["disk,removable", "disk-back,removable,write-back"]
        .map(|unit| format!("{}/{unit}", folder.path().display()))
        .to_vec();
    for name in ["disk", "disk-back"] {
        fs::File::create(folder.path().join(name))?.set_len(100 << 20)?;
    }
    let target = Target::start(&units.iter().map(String::as_str).collect::<Vec<_>>())?;
    for unit in 0..2 {
        let ended = suite(&target, unit, "ALL")?;
        let results = Results::parse(&ended.stdout);
        let passes = results.ran == 230 && results.failed.is_empty();
        ensure!(passes, ended.error(format!("{} ran, failed: {:?}", results.ran, results.failed)));
    }
    target.stop()
}

/// The same suite behind a cache that is much shorter than the unit.
#[test]
#[ignore = "soak: a minute, most of which the disk takes"]
fn the_suite_of_libiscsi_passes_behind_a_cache() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(100 << 20)?;
    let disk = format!("{},removable,write-back", disk.display());
    let target = Target::start(&["--cache", "4M", &disk])?;
    let ended = suite(&target, 0, "ALL")?;
    let results = Results::parse(&ended.stdout);
    let passes = results.ran == 230 && results.failed.is_empty();
    ensure!(passes, ended.error(format!("{} ran, failed: {:?}", results.ran, results.failed)));
    target.stop()
}

#[test]
fn qemu_img_copies_both_ways() -> Result<()> {
    const LEN: usize = 24 << 20;
    let folder = Folder::new(0o700)?;
    let path = |name: &str| folder.path().join(name);
    let content: Vec<u8> = (0..LEN).map(|at| (at / 3) as u8 ^ (at >> 13) as u8).collect();
    fs::write(path("from"), &content)?;
    // The cache is shorter than the disk.
    let ways = [
        ("", ""),
        (",write-back", ""),
        ("", "--cache=8M"),
        (",direct", ""),
        (",direct", "--cache=8M"),
    ];
    for (option, cache) in ways {
        let disk = fs::File::create(path("disk"))?;
        disk.set_len(LEN as u64)?;
        let unit = format!("{}{option}", path("disk").display());
        let arguments = [cache, &unit].into_iter().filter(|argument| !argument.is_empty());
        let target = Target::start(&arguments.collect::<Vec<_>>())?;
        let url = target.url(0);
        let qemu_img = |line: &str| Program::plain("qemu-img").line(line);
        let there = qemu_img("convert -n -f raw -O raw").arg(path("from")).arg(&url);
        there.run(TIMEOUT)?.success()?;
        let compare = qemu_img("compare -f raw -F raw").arg(path("from")).arg(&url);
        let compared = compare.run(TIMEOUT)?.success()?;
        let is_same = compared.stdout.contains("Images are identical");
        ensure_data!(is_same, "{}", compared.error("differ"));
        let back = qemu_img("convert -f raw -O raw").arg(&url).arg(path("to"));
        back.run(TIMEOUT)?.success()?;
        let came_back = fs::read(path("to"))?;
        let name = format!("{option}{cache}");
        ensure_data!(came_back == content, "{name}: another content came back");
        target.stop()?;
        let written = fs::read(path("disk"))?;
        ensure_data!(written == content, "{name}: the file has another content");
    }
    Ok(())
}

/// What the target has acknowledged is in the file after it is killed.
#[test]
fn acknowledged_writes_survive_a_kill() -> Result<()> {
    const BLOCK: usize = 64 << 10;
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    for round in 0..10_u64 {
        fs::File::create(&disk)?.set_len(64 << 20)?;
        let target = Target::start(&[&disk.display().to_string()])?;
        // Each block that is written is read back before it counts.
        let writer = Program::plain("python3").arg(source("programs/target/write.py"));
        let mut writer = writer.arg(target.url(0)).start()?;
        writer.printed(&format!("written {}\n", 3 + 17 * round), TIMEOUT)?;
        target.daemon.kill()?;
        // It would go on to connect. What it has printed is complete.
        let (stdout, _) = writer.output();
        drop(writer);
        let mut written = stdout.lines().filter_map(|line| line.strip_prefix("written "));
        let last: usize = written.next_back().context("nothing written")?.parse()?;
        let content = fs::read(&disk)?;
        for number in 0..=last {
            let block = &content[number * BLOCK..][..BLOCK];
            let is_right = block.iter().all(|&byte| usize::from(byte) == 1 + number % 255);
            ensure_data!(is_right, "round {round}: block {number} is lost, {last} was written");
        }
    }
    Ok(())
}

/// Two initiators write, one through and one back, while the target is killed again and again.
#[test]
fn acknowledged_writes_survive_kills_at_chosen_instants() -> Result<()> {
    survive_kills(40, 17)
}

/// Each run has new instants, unless `WEFT_LAB_SEED` repeats those of a run that has failed.
#[test]
#[ignore = "soak: 300 kills, and new instants in each run"]
fn acknowledged_writes_survive_three_hundred_kills() -> Result<()> {
    survive_kills(300, seed()?)
}

/// A seed of this run, which is printed.
fn seed() -> Result<u16> {
    let seed = std::env::var("WEFT_LAB_SEED").ok().map(|seed| seed.parse()).transpose()?;
    let seed = seed.unwrap_or_else(|| fastrand::u16(..));
    println!("WEFT_LAB_SEED={seed}");
    Ok(seed)
}

fn survive_kills(kills: u32, seed: u16) -> Result<()> {
    let folder = Folder::new(0o700)?;
    let [through, back] = ["through", "back"].map(|name| folder.path().join(name));
    let port = ports::next();
    let program = Program::plain("python3")
        .arg(source("programs/target/kills.py"))
        .arg(weft()?)
        .line(&format!("target serve --name {TARGET} --listen 127.0.0.1:{port}"))
        .arg(format!("{},direct", through.display()))
        .arg(format!("{},write-back", back.display()))
        .line(&format!("-- 127.0.0.1:{port} {TARGET}"))
        .arg(&through)
        .arg(&back)
        .line(&format!("{kills} {seed}"));
    let ended = program.run(TIMEOUT)?.success()?;
    ended.expect_output("unit 1: ")?;
    Ok(())
}

#[test]
fn sixty_four_initiators_use_a_unit_at_once() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(8 << 20)?;
    let target = Target::start(&["--logins-per-address", "64", &disk.display().to_string()])?;
    let crowd = Program::plain("python3")
        .arg(source("programs/target/crowd.py"))
        .line(&format!("127.0.0.1:{} {TARGET} 64 20", target.port));
    crowd.run(TIMEOUT)?.success()?.expect_output("64 initiators are done")?;
    target.stop()
}

/// Resets of a unit while each of several initiators has 128 commands outstanding.
#[test]
fn commands_are_as_their_status_says_while_the_unit_is_reset() -> Result<()> {
    survive_resets(3, 20, 1)
}

/// Each run has other instants, unless `WEFT_LAB_SEED` repeats those of a run that has failed.
#[test]
#[ignore = "soak: 1,000 resets, and new instants in each run"]
fn commands_are_as_their_status_says_in_a_thousand_resets() -> Result<()> {
    survive_resets(6, 1_000, seed()?)
}

fn survive_resets(initiators: u32, resets: u32, seed: u16) -> Result<()> {
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    for options in ["", ",write-back"] {
        let unit = format!("{}{options}", disk.display());
        fs::File::create(&disk)?.set_len(8 << 20)?;
        let target = Target::start(&["--cache", "1M", &unit])?;
        let program = Program::plain("python3").arg(source("programs/target/deep.py"));
        let program = program.line(&format!("127.0.0.1:{} {TARGET}", target.port));
        let ended = program.line(&format!("{initiators} {resets} {seed}")).run(TIMEOUT)?;
        ended.success()?.expect_output("commands aborted")?;
        target.stop()?;
    }
    Ok(())
}

/// Sessions come and go, some without a logout and some in the place of another one.
#[test]
fn a_thousand_logins_leave_nothing_behind() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let control = folder.path().join("control");
    let target = Target::start(&["--control", &control.display().to_string(), "ram:1M"])?;
    let program = Program::plain("python3").arg(source("programs/target/logins.py"));
    let program = program.line(&format!("127.0.0.1:{} {TARGET} 1000", target.port));
    program.run(TIMEOUT)?.success()?.expect_output("1000 logins are done")?;
    let descriptors = || -> Result<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", target.daemon.pid()))?.count())
    };
    // Those that were closed without a logout end a little later.
    let deadline = Instant::now() + LONG_TIMEOUT;
    while descriptors()? > 40 {
        ensure!(Instant::now() < deadline, "{} descriptors are open", descriptors()?);
        thread::sleep(Duration::from_millis(10));
    }
    let stats = Program::plain(weft()?).line("target stats --json --control").arg(&control);
    let stats = stats.run(TIMEOUT)?.success()?;
    ensure!(!stats.stdout.contains("isid"), stats.error("sessions are left"));
    target.stop()
}

/// A reservation by which one initiator keeps another out outlives the target, if it asks for that.
#[test]
fn reservations_outlive_a_killed_target() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let (disk, state) = (folder.path().join("disk"), folder.path().join("state"));
    fs::File::create(&disk)?.set_len(1 << 20)?;
    let [disk, state] = [disk, state].map(|path| path.display().to_string());
    let start = || Target::start(&["--state", &state, &disk]);
    let step = |target: &Target, step: &str| -> Result<()> {
        let program = Program::plain("python3").arg(source("programs/target/reserve.py"));
        let program = program.line(&format!("{step} 127.0.0.1:{} {TARGET}", target.port));
        program.run(TIMEOUT)?.success()?.expect_output(&format!("{step} is done")).map(drop)
    };
    let target = start()?;
    step(&target, "reserve")?;
    target.daemon.kill()?;
    for _ in 0..2 {
        let target = start()?;
        step(&target, "check")?;
        target.daemon.kill()?;
    }
    let target = start()?;
    step(&target, "clear")?;
    target.daemon.kill()?;
    let target = start()?;
    step(&target, "clear").expect_err("nobody is registered");
    ensure!(fs::read_dir(&state)?.next().is_none(), "a reservation is still kept");
    // A target that cannot read them does not serve without them.
    target.daemon.kill()?;
    let target = start()?;
    step(&target, "reserve")?;
    target.daemon.kill()?;
    for entry in fs::read_dir(&state)? {
        fs::write(entry?.path(), "{")?;
    }
    let serve = Program::plain(weft()?).line("target serve --state").arg(&state).arg(&disk);
    let ended = serve.line(&format!("--name {TARGET}")).run(TIMEOUT)?;
    ensure!(ended.status.code() == Some(1), ended.error("served without its reservations"));
    ended.expect_output("kept reservations")?;
    Ok(())
}

/// A file that only this user can read.
fn write_secrets(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o600))?)
}

const SECRETS: &str = "[[initiator]]\nuser = \"ann\"\nsecret = \"secret of ann\"\n\
    [target]\nuser = \"disk\"\nsecret = \"secret of the disk\"\n";

/// libiscsi proves itself and checks the target's proof; QEMU proves itself.
#[test]
fn initiators_log_in_by_chap() -> Result<()> {
    const REFUSED: &str = "Authentication failure";
    let folder = Folder::new(0o700)?;
    let [secrets, password] = ["secrets", "password"].map(|name| folder.path().join(name));
    write_secrets(&secrets, SECRETS)?;
    let target = Target::start(&["--chap", &secrets.display().to_string(), "ram:8M"])?;
    let portal = format!("127.0.0.1:{}", target.port);
    let libiscsi = |program: &str, place: &str| Program::plain(program).arg(place).run(TIMEOUT);
    let mutual = |secret| format!("?target_user=disk&target_password={secret}");
    for (user, query, expected) in [
        ("ann%secret of ann@", String::new(), Ok("Peripheral Device Type:DIRECT_ACCESS")),
        ("ann%secret of ann@", mutual("secret of the disk"), Ok("DIRECT_ACCESS")),
        ("ann%secret of ann@", mutual("secret of another"), Err("Invalid CHAP_R")),
        ("ann%secret of bob@", String::new(), Err(REFUSED)),
        ("bob%secret of ann@", String::new(), Err(REFUSED)),
        ("disk%secret of the disk@", String::new(), Err(REFUSED)),
        ("", String::new(), Err(REFUSED)),
    ] {
        let url = format!("iscsi://{user}{portal}/{TARGET}/0{query}");
        let ended = libiscsi("iscsi-inq", &url)?;
        match expected {
            Ok(text) => ended.success()?.expect_output(text)?,
            Err(text) if ended.status.success() => bail!("{url} logged in, without {text}"),
            Err(text) => ended.expect_output(text)?,
        };
    }
    let found = libiscsi("iscsi-ls", &format!("iscsi://ann%secret of ann@{portal}"))?;
    found.success()?.expect_output(TARGET)?;
    let hidden = libiscsi("iscsi-ls", &format!("iscsi://{portal}"))?;
    ensure!(!hidden.stdout.contains(TARGET), hidden.error("found without a secret"));
    hidden.expect_output(REFUSED)?;

    let qemu = Program::plain("qemu-img")
        .line("info --object")
        .arg(format!("secret,id=secret,file={}", password.display()))
        .arg("--image-opts")
        .arg(format!(
            "driver=iscsi,transport=tcp,portal={portal},target={TARGET},lun=0,user=ann,\
             password-secret=secret"
        ));
    fs::write(&password, "secret of ann")?;
    qemu.run(TIMEOUT)?.success()?.expect_output("virtual size: 8 MiB")?;
    fs::write(&password, "secret of bob")?;
    let ended = qemu.run(TIMEOUT)?;
    ensure!(!ended.status.success(), ended.error("QEMU logged in with a wrong secret"));
    ended.expect_output(REFUSED)?;
    let (_, complaints) = target.daemon.output();
    ensure!(complaints.contains("the initiator has not proven who it is (status 0x0201)"));
    target.stop()
}

/// A target that ends asks initiators to log out, and QEMU does.
#[test]
fn sigterm_ends_the_target_in_order() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(64 << 20)?;
    // QEMU logs out long before its time is over.
    let mut target = Target::start(&["--drain-time", "3600", &disk.display().to_string()])?;
    let writer = Program::plain("python3").arg(source("programs/target/write.py"));
    let mut writer = writer.arg(target.url(0)).start()?;
    writer.printed("written 3\n", TIMEOUT)?;
    target.daemon.signal(Signal::TERM)?;
    let ended = target.daemon.wait(TIMEOUT)?.success()?;
    ended.expect_output("logged out")?;
    Ok(())
}

/// Units come, go and grow by the control socket, while QEMU has a session.
#[test]
fn a_session_outlives_changes_of_units() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let path = |name: &str| folder.path().join(name);
    fs::File::create(path("disk"))?.set_len(1 << 20)?;
    write_secrets(&path("secrets"), SECRETS)?;
    let port = ports::next();
    let config = format!(
        "listen = [\"127.0.0.1:{port}\"]\ncontrol = \"control\"\n[discovery]\nchap = \"secrets\"\n\
         [[target]]\nname = \"{TARGET}\"\nfrom = [\"127.0.0.0/8\"]\n\
         [[target.unit]]\nstore = \"disk\"\n"
    );
    fs::write(path("config.toml"), config)?;
    let daemon = Program::plain(weft()?).line("target serve --config").arg(path("config.toml"));
    let target = Target { daemon: daemon.start()?.listening(Port::Tcp(port))?, port };
    let ask = |verb: &str, rest: &str| -> Result<Finished> {
        let verb = Program::plain(weft()?).line("target").arg(verb).line(rest);
        verb.arg("--control").arg(path("control")).run(TIMEOUT)
    };
    let holder = Program::plain("python3").arg(source("programs/target/hold.py"));
    let mut holder = holder.arg(target.url(0)).arg(path("go on")).start()?;
    holder.printed("wrote 65536", TIMEOUT)?;

    ask("add", "ram:1M,lun=9,read-only")?.success()?.expect_output(&format!("{TARGET}/9"))?;
    let found = Program::plain("iscsi-ls").arg("-s");
    let found = found.arg(format!("iscsi://ann%secret of ann@127.0.0.1:{port}")).run(TIMEOUT)?;
    found.success()?.expect_output("Lun:9")?;
    ask("resize", "0 64M")?.success()?.expect_output("64.00 MiB")?;
    ask("remove", "9")?.success()?;
    let ended = ask("remove", "9")?;
    ensure!(ended.status.code() == Some(1), ended.error("a unit was removed twice"));
    ended.expect_output("has no unit 9")?;
    let units = ask("list", "--json")?.success()?;
    ensure!(units.stdout.matches("\"lun\"").count() == 1, units.error("not one unit"));
    units.expect_output("\"size\": 67108864")?;

    fs::write(path("go on"), "")?;
    let ended = holder.wait(TIMEOUT)?.success()?;
    // QEMU shows the unit attentions, and has repeated the command that they refused.
    for attention in ["0x3f0e", "0x2a09"] {
        ensure!(ended.stdout.contains(attention), ended.error(attention));
    }
    // Later sessions find the new length, and can use all of it.
    let writer = Program::plain("qemu-io").line("-f raw -c").arg("write -P 8 48M 64k");
    writer.arg(target.url(0)).run(TIMEOUT)?.success()?.expect_output("wrote 65536")?;
    let stats = ask("stats", "")?.success()?;
    stats.expect_output("INITIATOR")?.expect_output("P99.9")?;
    let metrics = ask("stats", "--prometheus")?.success()?;
    let labels = format!("target=\"{TARGET}\",lun=\"0\",operation=\"write\"");
    let written = format!("weft_target_moved_bytes_total{{{labels}}} 131072\n");
    metrics.expect_output(&written)?;
    ask("drain", "")?.success()?;
    target.daemon.wait(TIMEOUT)?.success()?;
    ensure!(!path("control").exists(), "the control socket is still there");
    let disk = fs::read(path("disk"))?;
    let is_right = disk.len() == 64 << 20
        && disk[..64 << 10] == [7; 64 << 10]
        && disk[48 << 20..][..64 << 10] == [8; 64 << 10];
    ensure_data!(is_right, "the file has another content");
    Ok(())
}

/// The file of a target changes while libiscsi's initiators have sessions with it.
#[test]
fn sessions_outlive_reloads_of_the_file() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let program = Program::plain("python3").arg(source("programs/target/reload.py"));
    let portal = format!("127.0.0.1:{}", ports::next());
    let program = program.arg(weft()?).arg(folder.path()).arg(portal).arg(TARGET);
    program.run(TIMEOUT)?.success()?.expect_output("all reloads are done")?;
    Ok(())
}

#[test]
fn systemd_accepts_the_unit() -> Result<()> {
    check_unit("weft-target.service", &["target serve", "target reload"], "--control")
}

#[test]
fn systemd_accepts_the_unit_of_weft_serve() -> Result<()> {
    check_unit("weft-serve.service", &["serve"], "--config")
}

/// Checks a unit, and that its command lines are these commands with this option.
fn check_unit(name: &str, commands: &[&str], option: &str) -> Result<()> {
    let folder = Folder::new(0o700)?;
    let unit = fs::read_to_string(source(&format!("../../scripts/systemd/{name}.in")))?;
    let weft = weft()?;
    let bin = weft.parent().context("the command is in no directory")?;
    fs::write(folder.path().join(name), unit.replace("@BINDIR@", &bin.display().to_string()))?;
    let verify = Program::plain("systemd-analyze").line("verify --man=no");
    let ended = verify.arg(folder.path().join(name)).run(TIMEOUT)?.success()?;
    // What systemd does not know it ignores, with a message.
    ensure!(!ended.stderr.contains(name), ended.error("systemd has something to say"));
    // Each command line of the unit is one that the command understands.
    for command in commands {
        let mut lines = unit.lines().filter(|line| line.starts_with("Exec"));
        let split =
            |line: &'_ str| line.split_once(&format!("weft {command} ")).map(|it| it.1.to_owned());
        let arguments = lines.find_map(split).with_context(|| (*command).to_owned())?;
        let program = Program::plain(&weft).line(command).line(&arguments);
        program.arg("--help").run(TIMEOUT)?.success()?.expect_output(option)?;
    }
    Ok(())
}

/// The target reports that it serves when it listens, and that it ends.
#[test]
fn a_service_manager_learns_that_the_target_serves() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(LONG_TIMEOUT))?;
    let report = || -> Result<String> {
        let mut text = [0; 64];
        let len = manager.recv(&mut text)?;
        Ok(String::from_utf8(text[..len].to_vec())?)
    };
    let port = ports::next();
    let daemon = Program::plain(weft()?).line(&format!("target serve --listen 127.0.0.1:{port}"));
    let mut daemon = daemon.env("NOTIFY_SOCKET", &path).arg("ram:1M").start()?;
    ensure!(report()? == "READY=1");
    TcpStream::connect(("127.0.0.1", port)).context("it does not listen")?;
    daemon.signal(Signal::TERM)?;
    ensure!(report()? == "STOPPING=1");
    daemon.wait(TIMEOUT)?.success()?;
    Ok(())
}

/// A file on tmpfs is served as without the option, and the target says so.
#[test]
fn a_file_in_memory_has_no_direct_io() -> Result<()> {
    let path = Path::new("/dev/shm").join(format!("weft-direct-{}", ports::next()));
    fs::File::create(&path)?.set_len(1 << 20)?;
    let target = Target::start(&[&format!("{},direct", path.display())]);
    fs::remove_file(&path)?;
    let target = target?;
    let write = Program::plain("qemu-io").line("-f raw -c").arg("write -P 8 0 64k");
    write.arg(target.url(0)).run(TIMEOUT)?.success()?.expect_output("wrote 65536")?;
    let (_, complaints) = target.daemon.output();
    ensure!(complaints.contains("no direct I/O, but the page cache"), "{complaints}");
    target.stop()
}

#[test]
fn errors_say_what_is_wrong() -> Result<()> {
    let weft = |line: &str| -> Result<Finished> {
        Program::plain(weft()?).line("target serve").line(line).run(TIMEOUT)
    };
    let folder = Folder::new(0o700)?;
    let pipe = folder.path().join("pipe");
    Program::plain("mkfifo").arg(&pipe).run(TIMEOUT)?.success()?;
    let file = folder.path().join("disk");
    fs::write(&file, [0; 4_096])?;
    let file = file.display().to_string();
    // Nobody opens the other end of the pipe: the target must not wait for that.
    let pipe = format!("{},read-only", pipe.display());
    for (line, text) in [
        (pipe.as_str(), "neither a regular file nor a block device"),
        ("/nonexistent", "No such file"),
        ("/dev/null", "neither a regular file nor a block device"),
        ("ram:1M,block=513", "512, 1024, 2048 or 4096"),
        ("ram:1M,lun=1 ram:1M,lun=1", "two units have the number 1"),
        ("ram:1", "shorter than a block"),
        ("--listen 203.0.113.1:3260 ram:1M", "203.0.113.1:3260"),
        ("--chap /etc/passwd ram:1M", "others may read it"),
        ("--cache 1K ram:1M", "a cache of 1024 bytes"),
        ("--cache 100000T ram:1M", "this machine has a memory of"),
        ("--cache 1M {file} {file}", "another unit of the cache has the same blocks"),
        ("ram:1M,direct", "ram:1048576 is no file"),
        ("/nonexistent,direct", "No such file"),
        ("--config /nonexistent", "/nonexistent: No such file"),
        ("--config /etc/passwd", "line 1"),
    ] {
        let ended = weft(&line.replace("{file}", &file))?;
        ensure!(ended.status.code() == Some(1), ended.error(line));
        ended.expect_output(text)?;
    }
    Ok(())
}
