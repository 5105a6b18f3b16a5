//! Copies whose connections are lost, and that go on by themselves.

mod common;

use std::fs;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use common::hosts::{Hosts, serve, wait_until};
use common::{assert_same, fail, make_tree, noise, succeed, weft, written};
use fastrand::Rng;

/// A relay to a server. It counts the bytes of both directions, holds them back from a limit on
/// until it is released, and can cut all connections.
struct Relay {
    port: u16,
    server: AtomicU16,
    passed: AtomicU64,
    is_released: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Relay {
    fn new(server: u16) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let relay = Arc::new(Self {
            port: listener.local_addr().expect("it is bound").port(),
            server: AtomicU16::new(server),
            passed: AtomicU64::new(0),
            is_released: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let it = Arc::clone(&relay);
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.expect("a client");
                // Without a server, the client's connection ends at once.
                let Ok(server) = TcpStream::connect(("127.0.0.1", it.server.load(SeqCst))) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let [from, to] = [from, to].map(|end| end.try_clone().expect("a descriptor"));
                    let it = Arc::clone(&it);
                    thread::spawn(move || it.pass(from, to));
                }
                it.open.lock().expect("no panic").extend([client, server]);
            }
        });
        relay
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream) {
        use std::io::{Read as _, Write as _};
        let mut bytes = vec![0; 64 << 10];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            self.passed.fetch_add(len as u64, SeqCst);
            while self.passed.load(SeqCst) > PART && !self.is_released.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }

    /// Cuts all connections.
    fn cut(&self) {
        for connection in self.open.lock().expect("no panic").drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.release();
    }

    /// Passes on what it has held back, and all that comes.
    fn release(&self) {
        self.is_released.store(true, SeqCst);
    }
}

/// Begins a copy in either direction through a relay, and waits until a part of it has passed. The
/// copy cannot end before the relay is released.
fn begin(hosts: &Hosts, relay: &Relay, is_up: bool, options: &[&str]) -> Child {
    let remote = format!("127.0.0.1:{}//share/{}", relay.port, if is_up { "to" } else { "from/" });
    let local = hosts.path(if is_up { "from/" } else { "to" });
    let mut copy = hosts.client();
    // The relay sees what goes by TCP only.
    copy.args(["-q", "--data=tcp"]).args(options);
    if is_up {
        copy.arg(local).arg(remote)
    } else {
        copy.arg(remote).arg(local)
    };
    let copy = copy.stderr(Stdio::piped()).spawn().expect("weft starts");
    wait_until("a part has passed", || relay.passed.load(SeqCst) > PART);
    copy
}

const LEN: usize = 128 << 20;
const PART: u64 = 80 << 20;

/// Makes the source of a copy in either direction.
fn make(folder: &Path) {
    make_tree(folder, 3);
    fs::write(folder.join("large"), noise(LEN, &mut Rng::with_seed(2))).expect("room");
}

#[test]
fn copy_goes_on_after_its_connections_were_cut() {
    for is_up in [true, false] {
        let hosts = Hosts::new(&[]);
        let relay = Relay::new(hosts.port);
        let [from, to] = match is_up {
            true => [hosts.path("from"), hosts.path("share/to")],
            false => [hosts.path("share/from"), hosts.path("to")],
        };
        make(&from);
        let copy = begin(&hosts, &relay, is_up, &["--resume"]);
        relay.cut();
        let output = copy.wait_with_output().expect("our own");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("the connection was lost").count(), 1, "{text}");
        assert_same(&from, &to);
        // Only what was on its way at the loss goes twice: at most a pool of blocks.
        let (passed, data) = (relay.passed.load(SeqCst), written(&from));
        assert!(passed < data + (36 << 20), "{passed} bytes for {data}");
    }
}

#[test]
fn copy_waits_for_a_server_that_is_started_again() {
    let mut hosts = Hosts::new(&[]);
    let relay = Relay::new(hosts.port);
    make(&hosts.path("from"));
    let copy = begin(&hosts, &relay, true, &["--resume", "--json"]);
    hosts.kill_server();
    relay.release();
    hosts.restart();
    relay.server.store(hosts.port, SeqCst);
    let output = copy.wait_with_output().expect("our own");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert_same(&hosts.path("from"), &hosts.path("share/to"));
}

#[test]
fn copy_fails_if_the_server_does_not_come_back_or_need_not() {
    for options in [&["--resume", "--retry-for", "1"][..], &["--resume", "--retry-for=0"], &[]] {
        let mut hosts = Hosts::new(&[]);
        let relay = Relay::new(hosts.port);
        make(&hosts.path("from"));
        let copy = begin(&hosts, &relay, true, options);
        hosts.kill_server();
        relay.release();
        let output = copy.wait_with_output().expect("our own");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let waits = options.last() == Some(&"1");
        assert_eq!(text.contains("connecting again for 1 s"), waits, "{text}");
        assert!(!hosts.path("share/to/large").exists());
    }
}

#[test]
fn server_that_was_never_reached_is_not_waited_for() {
    let hosts = Hosts::new(&[]);
    make_tree(&hosts.path("from"), 3);
    let mut copy = hosts.client();
    copy.args(["--resume", "--retry-for", "86400"]).arg(hosts.path("from"));
    let text = fail(copy.arg("127.0.0.1:1//share/to"), 1);
    assert!(!text.contains("connecting again"), "{text}");
}

#[test]
fn server_whose_key_has_changed_after_a_loss_is_refused() {
    let hosts = Hosts::new(&[]);
    let relay = Relay::new(hosts.port);
    make(&hosts.path("from"));
    let copy = begin(&hosts, &relay, true, &["--resume"]);
    let key = succeed(weft(&hosts.path("client")).args(["cp", "--show-key"]));
    let other = tempfile::tempdir().expect("a folder");
    fs::create_dir(other.path().join("share")).expect("room");
    let options = ["--allow".to_owned(), key.trim().to_owned()];
    let (mut server, port) = serve(other.path(), &options);
    relay.server.store(port, SeqCst);
    relay.cut();
    let output = copy.wait_with_output().expect("our own");
    server.kill().expect("our own");
    server.wait().expect("our own");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("has another key than before"), "{text}");
    assert_eq!(fs::read_dir(other.path().join("share")).expect("a folder").count(), 0);
}
