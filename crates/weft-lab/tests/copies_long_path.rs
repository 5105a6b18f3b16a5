//! `weft cp` and `weft serve` over a path that delays packets and loses some.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use weft_lab::endpoint::Port;
use weft_lab::{
    Folder, NamespacePair, PathSettings, Program, Running, ensure_data, ports,
    skip_without_namespaces, weft,
};

const TIMEOUT: Duration = Duration::from_secs(300);

/// A server at one end of a path, and a user at the other one.
struct Place {
    pair: NamespacePair,
    folder: Folder,
    port: u16,
    _server: Running,
}

impl Place {
    fn new(settings: &PathSettings) -> Result<Self> {
        // Reno takes each lost packet for a full queue.
        let pair = NamespacePair::over_long_path(settings, "reno")?;
        let (folder, port) = (Folder::new(0o700)?, ports::next());
        fs::create_dir(folder.path().join("share"))?;
        let key = command(&folder)?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        let server = command(&folder)?.args(["serve", "--port", &port.to_string()]);
        let server = server.args(["--allow", key.trim()]).arg(folder.path().join("share"));
        let server = server.within(Some(&pair.left)).start()?.listening(Port::Tcp(port))?;
        Ok(Self { pair, folder, port, _server: server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The name of a path on the server.
    fn remote(&self, name: &str) -> String {
        format!("{}:{}//share/{name}", self.pair.left.ipv4, self.port)
    }

    /// Copies, and returns the event of how that was decided.
    fn copy(&self, from: &str, to: &str) -> Result<Value> {
        let copy = command(&self.folder)?.args(["cp", "--accept-new", "--json", "--explain"]);
        let copy = copy.args([from, to]).within(Some(&self.pair.right));
        let said = copy.run(TIMEOUT)?.success()?.stdout;
        let decisions = said.lines().find(|line| line.contains(r#""event":"decisions""#));
        Ok(serde_json::from_str(decisions.with_context(|| said.clone())?)?)
    }
}

fn command(folder: &Folder) -> Result<Program> {
    Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", folder.path().join("config")))
}

fn assert_same(one: &Path, other: &Path) -> Result<()> {
    let diff = Program::plain("diff").args(["-r", "--no-dereference"]).arg(one).arg(other);
    let diff = diff.run(TIMEOUT)?;
    ensure_data!(diff.status.success(), "{}", diff.error("the trees differ"));
    Ok(())
}

/// Creates a large file and some small ones.
fn make_tree(root: &Path) -> Result<()> {
    let mut noise = vec![0; 20_000_000];
    fastrand::Rng::with_seed(1).fill(&mut noise);
    fs::create_dir_all(root.join("small"))?;
    for file in 0..200 {
        let len = file * 37 % 4_097;
        fs::write(root.join("small").join(file.to_string()), &noise[file * 4_097..][..len])?;
    }
    Ok(fs::write(root.join("large"), noise)?)
}

fn number(decisions: &Value, name: &str) -> Result<u64> {
    decisions[name].as_u64().with_context(|| format!("{name}: {decisions}"))
}

#[test]
fn trees_are_the_same_after_a_path_that_delays_and_loses_packets() -> Result<()> {
    skip_without_namespaces!();
    let settings = PathSettings { round_trip: Duration::from_millis(50), loss: 0.01, seed: 1 };
    let place = Place::new(&settings)?;
    let from = place.path("from");
    make_tree(&from)?;
    let up = place.copy(&format!("{}/", from.display()), &place.remote("tree"))?;
    assert_same(&from, &place.path("share/tree"))?;
    let back = place.path("back");
    let down = place.copy(&place.remote("tree/"), &back.display().to_string())?;
    assert_same(&from, &back)?;
    for decisions in [up, down] {
        ensure!(number(&decisions, "round_trip_us")? >= 50_000, "{decisions}");
        ensure!(number(&decisions, "channels")? == 16, "{decisions}");
        ensure!(number(&decisions, "blocks")? > 150, "{decisions}");
    }
    ensure!(place.pair.packets_lost() > 0, "no packet was lost");
    Ok(())
}

#[test]
fn connections_and_blocks_grow_with_the_round_trip() -> Result<()> {
    skip_without_namespaces!();
    for (milliseconds, channels, blocks) in [(5, 4, 43), (20, 13, 79), (200, 16, 256)] {
        let round_trip = Duration::from_millis(milliseconds);
        let place = Place::new(&PathSettings { round_trip, ..PathSettings::default() })?;
        fs::write(place.path("file"), "text")?;
        let file = place.path("file").display().to_string();
        let decisions = place.copy(&file, &place.remote("file"))?;
        ensure_data!(fs::read_to_string(place.path("share/file"))? == "text", "another text");
        let now = (number(&decisions, "channels")?, number(&decisions, "blocks")?);
        // A busy machine makes the round trip longer, which never means fewer of them.
        ensure!(now.0 >= channels && now.1 >= blocks, "{decisions}");
    }
    Ok(())
}
