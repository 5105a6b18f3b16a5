//! Files that are mapped and shared, over every carrier, and what becomes of them when somebody
//! cuts them off.

mod common;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use common::{Folder, Side, between, pattern, small, unconnected};
use weft_fabric::{Endpoint, Error, Fabric, Message, RemoteKey, Rights};

const PAGE: usize = 4_096;

/// A file with a pattern, open for reading and writing.
fn file(folder: &Folder, len: usize) -> Result<(PathBuf, File)> {
    let path = folder.0.join("file");
    std::fs::write(&path, pattern(0, len))?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    Ok((path, file))
}

fn key_of(message: &Message) -> Result<RemoteKey> {
    RemoteKey::from_bytes(message).context("no key")
}

#[test]
fn peers_access_what_is_in_the_file() -> Result<()> {
    const LEN: usize = 300_000;
    // Inside of a page, and a multiple of eight.
    const FROM: usize = 5_000;
    between(
        "peers_access_what_is_in_the_file",
        &small(),
        |Side { fabric, endpoint, .. }| {
            let folder = Folder::new()?;
            let (path, file) = file(&folder, LEN)?;
            let mapped = fabric.map_file(&file, FROM as u64..)?;
            let shared = mapped.share(Rights::ALL, ..)?;
            endpoint.send(&shared.key().to_bytes())?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"written");
            let mut expected = pattern(0, LEN);
            expected[FROM + 11..FROM + 200_011].copy_from_slice(&pattern(77, 200_000));
            expected[FROM + 250_000..][..8].copy_from_slice(&1_u64.to_ne_bytes());
            ensure!(std::fs::read(&path)? == expected, "the file");
            let mut bytes = vec![0; LEN - FROM];
            mapped.read_at(0, &mut bytes)?;
            ensure!(bytes == expected[FROM..], "the mapping");
            // What another process would do.
            file.write_all_at(b"by a call", (FROM + 8) as u64)?;
            mapped.write_at(100, b"by the mapping")?;
            ensure!(mapped.update(250_000, |old| old + 1)? == 1);
            endpoint.send(b"changed")?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"read");
            // A Read that comes later is refused.
            drop(shared);
            endpoint.send(b"ended")?.wait()?;
            ensure!(endpoint.receive().wait().is_err());
            mapped.read_at(0, &mut bytes[..1])?;
            Ok(())
        },
        |Side { fabric, endpoint, .. }| {
            let key = key_of(&endpoint.receive().wait()?)?;
            ensure!(key.len() == (LEN - FROM) as u64);
            let mut buffer = fabric.alloc(LEN)?;
            buffer[..200_000].copy_from_slice(&pattern(77, 200_000));
            let buffer = endpoint.write(buffer, ..200_000, &key, 11)?.wait()?;
            let old = pattern(FROM + 250_000, 8);
            let old = u64::from_ne_bytes(*old.first_chunk().context("eight bytes")?);
            ensure!(endpoint.compare_swap(&key, 250_000, old, 1)?.wait()? == old);
            endpoint.send(b"written")?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"changed");
            let buffer = endpoint.read(buffer, ..LEN - FROM, &key, 0)?.wait()?;
            ensure!(buffer[8..17] == *b"by a call" && buffer[100..114] == *b"by the mapping");
            ensure!(buffer[114..200_011] == pattern(77, 200_000)[103..], "what was written");
            ensure!(buffer[200_011..250_000] == pattern(FROM + 200_011, 49_989), "the file");
            ensure!(endpoint.fetch_add(&key, 250_000, 5)?.wait()? == 2);
            endpoint.send(b"read")?.wait()?;
            ensure!(*endpoint.receive().wait()? == *b"ended");
            let refused = endpoint.read(buffer, ..8, &key, 0)?.wait().map(drop);
            ensure!(matches!(refused, Err(Error::Denied { .. })), "{refused:?}");
            Ok(())
        },
    )
}

/// Accesses memory again and again until the peer refuses it, by operations of `len` bytes.
fn until_refused(fabric: &Fabric, endpoint: &Endpoint, key: &RemoteKey, len: usize) -> Result<()> {
    let steps = key.len() / len as u64;
    for round in 0..1_000_000_u64 {
        let (buffer, offset) = (fabric.alloc(len)?, round % steps * len as u64);
        let done = endpoint.write(buffer, .., key, offset).map_err(Error::from);
        let done = done.and_then(|operation| operation.wait());
        let done = done.and_then(|buffer| Ok(endpoint.read(buffer, .., key, offset)?));
        let done = done.and_then(|operation| operation.wait());
        if done.is_err() {
            return Ok(());
        }
    }
    bail!("the file has been cut off, but all is as before")
}

#[test]
fn a_file_that_is_cut_off_ends_its_sharing_and_no_process() -> Result<()> {
    const PAGES: usize = 64;
    // By value, by a copy and by as many pages as are pulled at once.
    const LENGTHS: [usize; 3] = [8, PAGE, 16 * PAGE];
    unconnected(
        "a_file_that_is_cut_off_ends_its_sharing_and_no_process",
        &small(),
        |fabric, address| {
            let listener = fabric.listen(address)?;
            common::announce(listener.address())?;
            for _ in LENGTHS {
                let folder = Folder::new()?;
                let (_, file) = file(&folder, PAGES * PAGE)?;
                let mapped = fabric.map_file(&file, ..)?;
                let other = fabric.map_file(&file, ..PAGE as u64)?;
                let [shared, of_other] = [&mapped, &other].map(|file| file.share(Rights::ALL, ..));
                let (shared, of_other) = (shared?, of_other?);
                let endpoint = listener.accept().wait()?.accept(&shared.key().to_bytes())?;
                ensure!(*endpoint.receive().wait()? == *b"under way");
                file.set_len(PAGE as u64)?;
                // The peer ends the connection, or its access does.
                ensure!(endpoint.receive().wait().is_err());
                ensure!(mapped.read_at(0, &mut [0; 8]) == Err(Error::Truncated));
                ensure!(mapped.write_at(0, b"x") == Err(Error::Truncated));
                ensure!(matches!(mapped.share(Rights::READ, ..), Err(Error::Truncated)));
                ensure!(file.metadata()?.len() == PAGE as u64, "the file has grown");
                let again = listener.accept().wait()?.accept(&of_other.key().to_bytes())?;
                ensure!(*again.receive().wait()? == *b"well");
                let mut bytes = [0; 4];
                other.read_at(PAGE - 4, &mut bytes)?;
                ensure!(bytes == *b"else", "{bytes:?}");
                again.send(b"well")?.wait()?;
                ensure!(again.receive().wait().is_err());
            }
            Ok(())
        },
        |fabric, address| {
            for len in LENGTHS {
                let connected = fabric.connect(address, b"")?.wait()?;
                let key = RemoteKey::from_bytes(&connected.private_data).context("no key")?;
                let endpoint = connected.endpoint;
                // So that the peer's memory is known, as it is under way.
                let mut buffer = fabric.alloc(PAGE)?;
                for page in 0..PAGES as u64 {
                    buffer = endpoint.read(buffer, .., &key, page * PAGE as u64)?.wait()?;
                }
                endpoint.send(b"under way")?.wait()?;
                until_refused(&fabric, &endpoint, &key, len)?;
                drop(endpoint);
                let connected = fabric.connect(address, b"")?.wait()?;
                let key = RemoteKey::from_bytes(&connected.private_data).context("no key")?;
                let endpoint = connected.endpoint;
                buffer[..4].copy_from_slice(b"else");
                endpoint.write(buffer, ..4, &key, PAGE as u64 - 4)?.wait()?;
                endpoint.send(b"well")?.wait()?;
                ensure!(*endpoint.receive().wait()? == *b"well");
            }
            Ok(())
        },
        |[server, client]| {
            ensure!(server.success() && client.success(), "server: {server}, client: {client}");
            Ok(())
        },
    )
}
