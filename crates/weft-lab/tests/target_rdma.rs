//! `weft target` serves iSER on Weft's verbs: QEMU and libiscsi move data over it.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};
use rustix::process::Signal;
use weft_lab::endpoint::Port;
use weft_lab::{Folder, Program, ensure_data, ports, weft};

const TIMEOUT: Duration = Duration::from_secs(60);
const TARGET: &str = "iqn.2026-01.org.example:disk";
const LEN: usize = 8 << 20;

/// What is written: offset, length and byte. libiscsi 1.19 writes no more than 256 KiB at a time
/// over iSER, to any target.
const WRITES: [(usize, usize, u8); 5] = [
    (0, 512, 0x11),
    (4_096, 8_192, 0x22),
    (100 << 10, 256 << 10, 0x33),
    (1 << 20, 160 << 10, 0x44),
    (LEN - 512, 512, 0x55),
];

/// A program on Weft's verbs, with its sockets left to the kernel.
fn on_verbs(program: impl AsRef<std::ffi::OsStr>, transport: &str) -> Program {
    Program::weft(program).weft_option("--no-sockets").env("WEFT_TRANSPORT", transport)
}

fn move_data(transport: &str) -> Result<()> {
    let folder = Folder::new(0o700)?;
    let disk = folder.path().join("disk");
    fs::File::create(&disk)?.set_len(LEN as u64)?;
    let (port, rdma_port) = (ports::next(), ports::next());
    let target = on_verbs(weft()?, transport)
        .line(&format!("target serve --name {TARGET} --listen 127.0.0.1:{port}"))
        .line(&format!("--iser 127.0.0.1:{rdma_port}"))
        .arg(&disk);
    let mut target = target.start()?.listening(Port::Tcp(port))?;
    let url = format!("iser://127.0.0.1:{rdma_port}/{TARGET}/0");

    let capacity = on_verbs("iscsi-readcapacity16", transport).arg(&url);
    capacity.run(TIMEOUT)?.success()?.expect_output(&LEN.to_string())?;

    let qemu_io = |command: &str, count: usize| -> Result<()> {
        let program =
            WRITES.iter().fold(on_verbs("qemu-io", transport).line("-f raw"), |io, each| {
                let (offset, len, byte) = each;
                io.arg("-c").arg(format!("{command} -P {byte} {offset} {len}"))
            });
        let ended = program.args(["-c", "flush"]).arg(&url).run(TIMEOUT)?.success()?;
        let done = ended.stdout.matches("ops; ").count();
        let is_right = done == count && !ended.stdout.contains("fail");
        ensure!(is_right, ended.error(format!("{command}: {done} of {count}")));
        Ok(())
    };
    qemu_io("write", WRITES.len())?;
    let mut expected = vec![0; LEN];
    for (offset, len, byte) in WRITES {
        expected[offset..offset + len].fill(byte);
    }
    ensure_data!(fs::read(&disk)? == expected, "the file has another content");
    qemu_io("read", WRITES.len())?;
    // Reads are longer than writes may be.
    let copy = folder.path().join("copy");
    let convert = on_verbs("qemu-img", transport).line("convert -f raw -O raw").arg(&url);
    convert.arg(&copy).run(TIMEOUT)?.success()?;
    ensure_data!(fs::read(&copy)? == expected, "another content came back");

    // One portal group serves both: what came over RDMA is there over TCP.
    let over_tcp = format!("iscsi://127.0.0.1:{port}/{TARGET}/0");
    let compare = Program::plain("qemu-img").line("compare -f raw -F raw").arg(&copy);
    let compare = compare.arg(over_tcp).run(TIMEOUT)?.success()?;
    ensure_data!(compare.stdout.contains("Images are identical"), "{}", compare.error("differ"));
    target.signal(Signal::TERM)?;
    target.wait(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn initiators_move_data_through_shared_memory() -> Result<()> {
    move_data("shm")
}

#[test]
fn initiators_move_data_over_iwarp() -> Result<()> {
    move_data("tcp")
}

#[test]
fn without_a_device_the_error_says_what_to_do() -> Result<()> {
    let line = "target serve --listen 127.0.0.1:0 --iser 127.0.0.1:0 ram:1M";
    let ended = Program::plain(weft()?).line(line).run(TIMEOUT)?;
    ensure!(ended.status.code() == Some(1), ended.error("it serves"));
    ended.expect_output("weft run --no-sockets")?;
    Ok(())
}
