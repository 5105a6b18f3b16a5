//! `weft cp --clear`: the kernel sends the data from the page cache.

use std::fs::{self, File};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Folder, Program, Running, ensure_data, locate, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(120);
/// Time limit for what the lab itself does not limit. It detects a hang.
const LONG_TIMEOUT: Duration = Duration::from_secs(240);
/// The only large file of the tree, and its length.
const LARGE: (&str, usize) = ("large", 40_000_001);

/// A server of the folder `share`, the files in `from`, and a user's keys.
struct Place {
    folder: Folder,
    port: u16,
    server: Running,
}

impl Place {
    fn new() -> Result<Self> {
        let (folder, port) = (Folder::in_memory(0o700)?, ports::next());
        let path = |name: &str| folder.path().join(name);
        let weft = || anyhow::Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", path("config")));
        let key = weft()?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        fs::create_dir(path("share"))?;
        fs::create_dir_all(path("from/folder"))?;
        fs::write(path("from").join(LARGE.0), noise(LARGE.1))?;
        fs::write(path("from/folder/small"), noise(70_000))?;
        let mut sparse = File::create(path("from/folder/sparse"))?;
        for start in [0, 9_000_000, 30_000_000] {
            sparse.seek(SeekFrom::Start(start))?;
            sparse.write_all(&noise(1_234_567))?;
        }
        let server = weft()?.args(["serve", "--bind", "127.0.0.1", "--port", &port.to_string()]);
        let server = server.args(["--allow-clear", "--allow", key.trim()]).arg(path("share"));
        let server = server.start()?.listening(Port::Tcp(port))?;
        Ok(Self { folder, port, server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn at_server(&self, name: &str) -> String {
        format!("127.0.0.1:{}//share/{name}", self.port)
    }

    /// Returns `weft cp`, below a program with these arguments if there are any.
    fn copy(&self, below: &[&str]) -> Result<Program> {
        let program = match below {
            [] => Program::plain(weft()?),
            [first, others @ ..] => Program::plain(locate(first)?).args(others).arg(weft()?),
        };
        let program = program.env("XDG_CONFIG_HOME", self.path("config"));
        Ok(program.args(["cp", "-q", "--accept-new", "--data=tcp"]))
    }

    /// Copies the files to the server, and returns the bytes that `sendfile` has sent.
    fn sent_by_kernel(&self, to: &str, options: &[&str]) -> Result<usize> {
        let log = self.path("strace");
        let trace = ["strace", "-f", "-qq", "-e", "trace=sendfile", "-o"];
        let trace = [&trace[..], &[log.to_str().context("a name in UTF-8")?]].concat();
        let copy = self.copy(&trace)?.args(options).arg(self.path("from/")).arg(self.at_server(to));
        copy.run(TIMEOUT)?.success()?;
        assert_same(&self.path("from"), &self.path("share").join(to))?;
        let sent = |line: &str| line.rsplit_once("= ")?.1.parse::<usize>().ok();
        Ok(fs::read_to_string(log)?.lines().filter_map(sent).sum())
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let diff = Program::plain("diff").args(["-r", "--no-dereference"]).arg(one).arg(other);
    let diff = diff.run(TIMEOUT)?;
    ensure_data!(diff.status.success(), "{}", diff.error("the trees differ"));
    Ok(())
}

#[test]
fn clear_data_of_large_files_is_sent_from_the_page_cache() -> Result<()> {
    let place = Place::new()?;
    let by_kernel = place.sent_by_kernel("clear", &["--clear", "--compress=none"])?;
    ensure!(by_kernel > LARGE.1 / 10 * 9, "{by_kernel} bytes by sendfile");
    // A sample of blocks is read, to see whether compression pays.
    let by_kernel = place.sent_by_kernel("auto", &["--clear", "--compress=auto"])?;
    ensure!(by_kernel > LARGE.1 / 2, "{by_kernel} bytes by sendfile");
    for (to, options) in [
        ("sealed", &["--compress=none"][..]),
        ("verified", &["--clear", "--compress=none", "--verify"]),
    ] {
        let by_kernel = place.sent_by_kernel(to, options)?;
        ensure!(by_kernel == 0, "{to}: {by_kernel} bytes by sendfile");
    }
    // The other direction.
    let back = place.path("back");
    let copy = place.copy(&[])?.arg("--clear").arg(place.at_server("clear/")).arg(&back);
    copy.run(TIMEOUT)?.success()?;
    assert_same(&place.path("from"), &back)
}

#[test]
fn a_file_that_changes_before_all_of_it_has_arrived_is_copied_again() -> Result<()> {
    let mut place = Place::new()?;
    let from = place.path("from").join(LARGE.0);
    // So short a file that blocks have room for all of it before most of it is sent.
    let file = File::options().write(true).open(&from)?;
    file.set_len(7_000_000)?;
    // So slowly that the copy does not end before the server is stopped.
    let copy = place.copy(&[])?.args(["--clear", "--compress=none", "--limit", "1M"]);
    let mut copy = copy.arg(&from).arg(place.at_server("changing")).start()?;
    let start = Instant::now();
    while written(&place.path("share"))? < 512 << 10 {
        ensure!(copy.is_running()? && start.elapsed() < LONG_TIMEOUT, "nothing has arrived");
        thread::sleep(Duration::from_millis(5));
    }
    // While the server is stopped, the copy cannot come to its end.
    place.server.signal(Signal::STOP)?;
    thread::sleep(Duration::from_millis(300));
    file.write_all_at(b"other bytes", 6_900_000)?;
    place.server.signal(Signal::CONT)?;
    copy.wait(TIMEOUT)?.success()?;
    let [sent, arrived] = [from, place.path("share").join("changing")].map(fs::read);
    ensure_data!(sent? == arrived?, "what has arrived is not what was there at the end");
    Ok(())
}

/// Returns the bytes of memory that the files of a folder have.
fn written(folder: &Path) -> Result<u64> {
    let mut written = 0;
    for entry in fs::read_dir(folder)? {
        // A partial file gets another name at the end.
        written += entry?.metadata().map_or(0, |metadata| 512 * metadata.blocks());
    }
    Ok(written)
}
