//! Unix-domain paths as addresses: private data, who may connect, and what is at a path already.

mod common;

use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;
use std::sync::Barrier;
use std::thread::{scope, spawn};

use anyhow::{Result, anyhow, ensure};
use common::{Folder, pattern};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use weft_fabric::{Error, Fabric, Listener, Options, Stop};

fn opened() -> Result<Fabric> {
    Ok(common::open(Options::default())?)
}

/// Whether it failed with this error of the system.
fn is<T>(result: weft_fabric::Result<T>, errno: Errno) -> Result<()> {
    let error = result.err().ok_or_else(|| anyhow!("no error, but not {errno}"))?;
    let cause = match &error {
        Error::System { cause, .. } => Some(cause.raw_os_error()),
        _ => None,
    };
    ensure!(cause == Some(errno.raw_os_error()), "{error:?} and not {errno}");
    Ok(())
}

/// A connection by the path, and a message over it.
fn greets(fabric: &Fabric, listener: &Listener, path: &Path) -> Result<()> {
    let connecting = fabric.connect_path(path, b"hello")?;
    let incoming = listener.accept().wait()?;
    ensure!(incoming.private_data() == b"hello");
    let server = incoming.accept(b"welcome")?;
    let connected = connecting.wait()?;
    ensure!(connected.private_data == b"welcome");
    let sent = connected.endpoint.send(b"a message")?;
    ensure!(*server.receive().wait()? == *b"a message");
    Ok(sent.wait()?)
}

#[test]
fn path_is_there_as_long_as_its_listener() -> Result<()> {
    common::alone("path_is_there_as_long_as_its_listener", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let path = folder.0.join("listener");
        is(fabric.connect_path(&path, b""), Errno::NOENT)?;
        let listener = fabric.listen_path(&path)?;
        ensure!(listener.path() == Some(&*path));
        greets(&fabric, &listener, &path)?;
        drop(listener);
        ensure!(!path.exists(), "the path is left");
        is(fabric.connect_path(&path, b""), Errno::NOENT)
    })
}

#[test]
fn private_data_of_a_path_has_a_limit() -> Result<()> {
    common::alone("private_data_of_a_path_has_a_limit", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let path = folder.0.join("listener");
        let listener = fabric.listen_path(&path)?;
        let fits = common::private_data_max(&fabric) - 16;
        let connecting = fabric.connect_path(&path, &pattern(0, fits))?;
        let incoming = listener.accept().wait()?;
        ensure!(*incoming.private_data() == *pattern(0, fits));
        incoming.refuse(b"no")?;
        ensure!(matches!(connecting.wait().map(drop), Err(Error::Refused { .. })));
        let max = fabric.private_data_max() - 16;
        let too_long = fabric.connect_path(&path, &vec![0; max + 1]).map(drop);
        ensure!(too_long == Err(Error::TooLong { len: max + 1, max }));
        Ok(())
    })
}

#[test]
fn port_of_a_path_is_not_enough() -> Result<()> {
    common::alone("port_of_a_path_is_not_enough", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let listener = fabric.listen_path(folder.0.join("listener"))?;
        let stop = Stop::new();
        let refused = scope(|scope| {
            let accepting = scope.spawn(|| fabric.wait_until(listener.accept(), &stop).is_none());
            let refused = fabric.connect(listener.address(), &[0; 16])?.wait().map(drop);
            stop.stop();
            ensure!(accepting.join().map_err(|_| anyhow!("a panic"))?, "it was accepted");
            Ok(refused)
        })?;
        ensure!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
        Ok(())
    })
}

#[test]
fn paths_that_cannot_be_are_refused() -> Result<()> {
    common::alone("paths_that_cannot_be_are_refused", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let len = 109 - folder.0.as_os_str().len() - 1;
        let too_long = folder.0.join("x".repeat(len));
        is(fabric.listen_path(&too_long), Errno::NAMETOOLONG)?;
        is(fabric.connect_path(&too_long, b""), Errno::NAMETOOLONG)?;
        let longest = folder.0.join("x".repeat(len - 1));
        let listener = fabric.listen_path(&longest)?;
        greets(&fabric, &listener, &longest)?;
        is(fabric.listen_path(""), Errno::NOENT)?;
        is(fabric.connect_path("", b""), Errno::NOENT)?;
        is(fabric.listen_path(folder.0.join("none/listener")), Errno::NOENT)?;
        std::fs::write(folder.0.join("file"), "")?;
        is(fabric.listen_path(folder.0.join("file/listener")), Errno::NOTDIR)
    })
}

#[test]
fn dead_sockets_are_replaced() -> Result<()> {
    common::alone("dead_sockets_are_replaced", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let path = folder.0.join("listener");
        drop(UnixListener::bind(&path)?);
        is(fabric.connect_path(&path, b""), Errno::CONNREFUSED)?;
        greets(&fabric, &fabric.listen_path(&path)?, &path)?;
        // Not while another listener may be about to bind or to listen.
        drop(UnixListener::bind(&path)?);
        let directory = open(&folder.0, OFlags::RDONLY, Mode::empty())?;
        flock(&directory, FlockOperation::LockExclusive)?;
        let listening = scope(|scope| {
            let listening = scope.spawn(|| fabric.listen_path(&path));
            // It fails if the lock is not waited for: then the path is replaced at once.
            std::thread::sleep(std::time::Duration::from_millis(50));
            ensure!(!listening.is_finished(), "the lock is not waited for");
            drop(directory);
            listening.join().map_err(|_| anyhow!("a panic"))
        })?;
        greets(&fabric, &listening?, &path)
    })
}

#[test]
fn other_files_are_left_alone() -> Result<()> {
    common::alone("other_files_are_left_alone", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let path = folder.0.join("listener");
        let is_used = || {
            is(fabric.listen_path(&path), Errno::ADDRINUSE)?;
            ensure!(path.symlink_metadata().is_ok(), "it was removed");
            Ok(())
        };
        let listener = fabric.listen_path(&path)?;
        is_used()?;
        greets(&fabric, &listener, &path)?;
        // The path of another, put in place of the listener's, stays.
        std::fs::remove_file(&path)?;
        let other = UnixListener::bind(&path)?;
        drop(listener);
        is_used()?;
        let says = spawn(move || {
            // The listener that found it, then who connects.
            drop(other.accept()?);
            other.accept()?.0.write_all(&[7; 26])
        });
        is(fabric.connect_path(&path, b""), Errno::PROTO)?;
        says.join().map_err(|_| anyhow!("a panic"))??;
        std::fs::remove_file(&path)?;
        let datagrams = UnixDatagram::bind(&path)?;
        is(fabric.connect_path(&path, b""), Errno::PROTOTYPE)?;
        is_used()?;
        drop(datagrams);
        std::fs::remove_file(&path)?;
        std::fs::write(&path, "text")?;
        is_used()?;
        std::fs::remove_file(&path)?;
        // A link is not followed to a dead socket.
        let dead = folder.0.join("dead");
        drop(UnixListener::bind(&dead)?);
        symlink(&dead, &path)?;
        is_used()?;
        ensure!(dead.exists());
        Ok(())
    })
}

#[test]
fn one_of_many_listeners_gets_a_dead_path() -> Result<()> {
    common::alone("one_of_many_listeners_gets_a_dead_path", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        for round in 0..50 {
            let path = folder.0.join(format!("listener{round}"));
            drop(UnixListener::bind(&path)?);
            let start = Barrier::new(4);
            let listen = || {
                start.wait();
                fabric.listen_path(&path)
            };
            let results = scope(|scope| {
                let threads: [_; 4] = std::array::from_fn(|_| scope.spawn(listen));
                threads.map(|thread| thread.join().expect("no panic"))
            });
            let (won, lost): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
            ensure!(won.len() == 1, "{} have the path", won.len());
            lost.into_iter().try_for_each(|result| is(result, Errno::ADDRINUSE))?;
            let listener = won.into_iter().next().ok_or_else(|| anyhow!("none"))??;
            greets(&fabric, &listener, &path)?;
        }
        Ok(())
    })
}

#[test]
fn permissions_decide_who_connects() -> Result<()> {
    common::alone("permissions_decide_who_connects", || {
        let (fabric, folder) = (opened()?, Folder::new()?);
        let path = folder.0.join("listener");
        let listener = fabric.listen_path(&path)?;
        let allow = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        allow(0)?;
        // In a thread whose user does not ignore permissions.
        scope(|scope| {
            let powerless = scope.spawn(|| {
                let mut its = capabilities(None)?;
                its.effective = CapabilitySet::empty();
                set_capabilities(None, its)?;
                is(fabric.connect_path(&path, b""), Errno::ACCESS)?;
                allow(0o200)?;
                greets(&fabric, &listener, &path)
            });
            powerless.join().map_err(|_| anyhow!("a panic"))?
        })
    })
}
