//! The C library's `FILE` streams on a connection.

use super::scene::{Kind, Scene};
use super::traffic::{receive_all, send_some};

/// Messages that streams write and read.
pub(super) fn standard_streams(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    for _ in 0..scene.rng.u32(1..4) {
        let (writer, reader) = (scene.holder(a)?, scene.holder(b)?);
        let how = scene.pick(&["dup2", "fdopen"]);
        let count = scene.rng.usize(1..3_000);
        if scene.chance(2) {
            let call = scene.pick(&["fprintf", "fputs", "fwrite", "putc", "dprintf", "vdprintf"]);
            scene.step(writer, format!("print v{a} n={count} how={how} call={call}"));
            scene.sent(a, count);
            receive_all(scene, b, reader);
        } else {
            send_some(scene, a, writer, 300);
            let count = scene.unread(b);
            let call = scene.pick(&["fread", "fread", "fgets", "getc", "fscanf"]);
            scene.step(reader, format!("scan v{b} n={count} how={how} call={call}"));
            scene.received(b, count);
        }
    }
    Some(())
}

/// A stream that has or gets a connection's descriptor number is closed or reopened.
pub(super) fn numbers_of_streams(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    if scene.chance(2) {
        send_some(scene, b, actor, 100);
    }
    let how = scene.pick(&["fclose", "freopen", "freopen64", "fopen", "tmpfile"]);
    scene.step(actor, format!("stream v{a} how={how}"));
    if how == "fopen" || how == "tmpfile" {
        scene.step(actor, format!("close v{a}"));
        scene.step(actor, format!("stream v{b} how={how}"));
    }
    scene.close(a, actor);
    let process = scene.actors[actor].process;
    if !scene.vars[b].holders.contains(&process) {
        return None;
    }
    scene.step(actor, format!("recv v{b} n=10 flags=DONTWAIT"));
    scene.step(actor, format!("send v{b} n=10 flags=NOSIGNAL"));
    scene.step(actor, format!("poll v{b} events=in,out,rdhup"));
    let spare = scene.new_var(Kind::Listener, usize::MAX, 0, actor);
    scene.step(actor, format!("listen v{spare}"));
    Some(())
}

/// Bytes up to a delimiter, read with `getdelim`.
pub(super) fn lines(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (writer, reader) = (scene.holder(a)?, scene.holder(b)?);
    scene.step(reader, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    // The delimiter occurs about once in 64 bytes.
    scene.step(writer, format!("send v{a} n=2000"));
    scene.sent(a, 2000);
    for _ in 0..3 {
        let how = scene.pick(&["dup2", "fdopen"]);
        scene.step(reader, format!("scan v{b} how={how} call=getdelim"));
    }
    scene.step(reader, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    Some(())
}
