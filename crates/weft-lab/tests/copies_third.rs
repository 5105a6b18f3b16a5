//! `weft cp` on one host from `weft serve` on a second one to `weft serve` on a third one.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{
    Folder, Namespace, NamespaceStar, Program, Running, ensure_data, ports,
    skip_without_namespaces, weft,
};

const TIMEOUT: Duration = Duration::from_secs(300);
const LEN: usize = 32 << 20;

/// A server on a host of its own.
struct Server {
    folder: Folder,
    place: String,
    _running: Running,
}

impl Server {
    fn new(host: &Namespace, key: &str, options: &[&str]) -> Result<Self> {
        let (folder, port) = (Folder::new(0o700)?, ports::next());
        let share = folder.path().join("share");
        fs::create_dir(&share)?;
        let server = command(&folder)?.args(["serve", "--port", &port.to_string()]);
        let server = server.args(["--allow", key]).args(options).arg(share);
        let server = server.within(Some(host)).start()?.listening(Port::Tcp(port))?;
        let place = format!("{}:{port}//share/", host.ipv4);
        Ok(Self { folder, place, _running: server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("share").join(name)
    }
}

fn command(folder: &Folder) -> Result<Program> {
    Ok(Program::plain(weft()?).env("XDG_CONFIG_HOME", folder.path().join("config")))
}

/// Two servers and a client, on three hosts.
struct Place {
    star: NamespaceStar,
    source: Server,
    target: Server,
    client: Folder,
    noise: Vec<u8>,
}

impl Place {
    fn new(options: &[&str]) -> Result<Self> {
        let (star, client) = (NamespaceStar::new()?, Folder::new(0o700)?);
        let key = command(&client)?.args(["cp", "--show-key"]).run(TIMEOUT)?.success()?.stdout;
        let source = Server::new(&star.hosts[0], key.trim(), options)?;
        let target = Server::new(&star.hosts[1], key.trim(), &[])?;
        let mut noise = vec![0; LEN];
        fastrand::Rng::with_seed(1).fill(&mut noise);
        fs::create_dir(source.path("tree"))?;
        for file in 0..100 {
            let name = format!("tree/{file}");
            fs::write(source.path(&name), &noise[file * 4_097..][..file * 37])?;
        }
        fs::write(source.path("tree/large"), &noise)?;
        Ok(Self { star, source, target, client, noise })
    }

    /// Copies the tree to this name. Returns what the client says, and the bytes of its network.
    fn copy(&self, to: &str, options: &[&str]) -> Result<(String, u64)> {
        let host = &self.star.hosts[2];
        let copy = command(&self.client)?.args(["cp", "--accept-new", "--json"]).args(options);
        let places = [format!("{}tree/", self.source.place), format!("{}{to}", self.target.place)];
        let copy = copy.args(places).within(Some(host));
        let before = host.bytes()?;
        let said = copy.run(TIMEOUT)?.success()?.stdout;
        let bytes = host.bytes()? - before;
        for file in 0..100 {
            let copied = fs::read(self.target.path(&format!("{to}/{file}")))?;
            ensure_data!(copied == self.noise[file * 4_097..][..file * 37], "{file}");
        }
        let copied = fs::read(self.target.path(&format!("{to}/large")))?;
        ensure_data!(copied == self.noise, "the large file differs");
        Ok((said, bytes))
    }
}

#[test]
fn data_of_a_copy_between_two_servers_does_not_pass_through_the_client() -> Result<()> {
    skip_without_namespaces!();
    let place = Place::new(&["--third-party", "10.77.0.0/24"])?;
    let (said, bytes) = place.copy("direct", &["--compress=none"])?;
    ensure!(said.contains(r#""data":"direct""#), "{said}");
    ensure!(bytes < LEN as u64 / 100, "{bytes} bytes at the client");
    let (said, bytes) = place.copy("relay", &["--compress=none", "--between-servers", "relay"])?;
    ensure!(said.contains(r#""data":"relay""#), "{said}");
    ensure!(bytes > 2 * LEN as u64, "{bytes} bytes at the client");
    Ok(())
}

#[test]
fn data_passes_through_the_client_if_the_servers_do_not_reach_each_other() -> Result<()> {
    skip_without_namespaces!();
    let place = Place::new(&["--third-party", "all"])?;
    let [source, target, _] = &place.star.hosts;
    source.block(target)?;
    let (said, bytes) = place.copy("to", &["--compress=none"])?;
    ensure!(
        said.contains(r#""data":"relay""#) && said.contains("from the source's server"),
        "{said}"
    );
    ensure!(bytes > 2 * LEN as u64, "{bytes} bytes at the client");
    Ok(())
}
