//! Descriptors: copies, `close_range`, and descriptors of other processes and descriptor tables.

use super::scene::{Kind, Scene};
use super::templates::exchange;
use super::traffic::{receive_all, send_some};

const WAYS: &[&str] = &["", "", "", " way=syscall", " way=asm"];

/// A range of descriptors is closed, at once or on exec.
pub(super) fn close_range(scene: &mut Scene) -> Option<()> {
    let parent = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let actor = if scene.chance(2) { scene.fork(parent, "fork")? } else { parent };
    let (a, b) = scene.pair(actor);
    let (c, d) = scene.pair(actor);
    if scene.chance(2) {
        send_some(scene, a, actor, 100);
    }
    let way = scene.pick(WAYS);
    let flags = scene.pick(&["", "", " flags=4", " flags=2", " flags=6"]);
    let closed = match scene.rng.u32(0..4) {
        0 => {
            scene.step(actor, format!("closerange v{c} call=closefrom"));
            vec![c, d]
        }
        1 => {
            scene.step(actor, format!("closerange v{b} v{b} to=end{flags}{way}"));
            vec![b, c, d]
        }
        2 => {
            scene.step(actor, format!("closerange v{a} v{c}{flags}{way}"));
            vec![a, b, c]
        }
        _ => {
            scene.step(actor, format!("closerange v{c} v{a}{flags}{way}"));
            vec![]
        }
    };
    for var in closed {
        if flags.contains('4') || flags.contains('6') {
            scene.vars[var].closes_on_exec = true;
        } else {
            scene.close(var, actor);
        }
    }
    for var in [a, b, c, d] {
        scene.step(actor, format!("get v{var} what=cloexec"));
    }
    for var in [a, b, c, d] {
        if scene.chance(2) {
            scene.step(actor, format!("drain v{var}"));
            scene.received(var, usize::MAX);
        }
    }
    let (e, f) = scene.pair(actor);
    exchange(scene, e, f)
}

/// A process takes the descriptor of another.
pub(super) fn of_another_process(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let owner = scene.holder(b)?;
    if !scene.has_room() {
        return None;
    }
    // A program without Weft, without address space or of another user cannot map the shared
    // memory.
    let apart = ["env=plain", "env=none", " user ", "what=as"];
    let are_apart = scene.steps.iter().any(|step| apart.iter().any(|it| step.contains(it)));
    // A child has a descriptor table of its own, and may take a descriptor that it already has.
    let taker = match scene.rng.u32(0..3) {
        0 if !are_apart => scene.any_actor()?,
        1 => scene.spawn(owner, "posix_spawn", "keep")?,
        _ => scene.fork(owner, "fork")?,
    };
    if scene.chance(2) {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, 200);
    }
    let taken = scene.copy_of(b, taker);
    let (open, way) = (scene.pick(&["", " open=syscall"]), scene.pick(WAYS));
    scene.step(taker, format!("getfd v{b} v{taken} from={owner}{open}{way}"));
    if scene.chance(2) {
        receive_all(scene, taken, taker);
    }
    if scene.chance(3) {
        scene.step(owner, format!("close v{b}"));
        scene.close(b, owner);
    }
    exchange(scene, a, taken)
}

/// A thread gets its own descriptor table. A descriptor that it closes there stays open in the
/// process's table.
pub(super) fn own_table(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let parent = scene.holder(b)?;
    let actor = scene.fork(parent, "fork")?;
    let thread = scene.thread_beside(actor)?;
    let way = scene.pick(WAYS);
    let how = scene.pick(&["files", "files", "filesystem", "hostname", "setns"]);
    scene.step(thread, format!("unshare how={how}{way}"));
    if how != "files" {
        return exchange(scene, a, b);
    }
    scene.step(thread, format!("close v{b}"));
    scene.step(thread, format!("get v{b} what=unread"));
    scene.step(actor, format!("get v{b} what=unread"));
    let sender = scene.holder(a)?;
    send_some(scene, a, sender, 100);
    let count = scene.unread(b);
    if scene.vars[b].holders.contains(&scene.actors[actor].process) && count > 0 {
        scene.step(actor, format!("recv v{b} n={count} flags=WAITALL"));
        scene.received(b, count);
    }
    scene.actors[thread].alive = false;
    scene.step(thread, "threadexit");
    exchange(scene, a, b)
}

/// Copies with a minimum number, and flags set with `fcntl` and `ioctl`.
pub(super) fn copies(scene: &mut Scene) -> Option<()> {
    let kinds = [Kind::Tcp, Kind::Tcp, Kind::Udp, Kind::Epoll, Kind::Stranger];
    let (var, actor) = scene.any_var(&kinds)?;
    if !scene.has_room() {
        return None;
    }
    let how = scene.pick(&["dupfd", "cloexec"]);
    let least = scene.pick(&["0", "5", "40", "959", "1000", "-1", "200000000"]);
    let way = scene.pick(WAYS);
    let copy = scene.copy_of(var, actor);
    scene.vars[copy].closes_on_exec = how == "cloexec";
    if least == "-1" || least == "200000000" {
        scene.vars[copy].holders.clear();
    }
    scene.step(actor, format!("dup v{var} v{copy} how={how} least={least}{way}"));
    let what = scene.pick(&["append", "nonblock", "signal", "owner"]);
    let on = u32::from(scene.chance(3));
    let how = scene.pick(&["fcntl", "ioctl"]);
    scene.step(actor, format!("set v{var} what={what} how={how} on={on}{way}"));
    scene.step(actor, format!("get v{copy} what=flags{way}"));
    if what == "nonblock" && on == 1 {
        scene.step(actor, format!("set v{var} what=nonblock on=0"));
    }
    if scene.vars[var].kind == Kind::Tcp && !scene.vars[copy].holders.is_empty() {
        let (peer, sender) = scene.peer(var)?;
        send_some(scene, peer, sender, 100);
        receive_all(scene, copy, actor);
    }
    Some(())
}
