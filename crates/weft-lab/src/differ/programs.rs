//! Processes: each call that executes a program, creates a child, or gives up descriptors, rights
//! or system calls.

use super::scene::{Kind, Scene};
use super::templates::exchange;
use super::traffic::send_some;

/// A program is executed by each call that does so, with or without the variables of `weft run`.
pub(super) fn executed(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let parent = scene.holder(b)?;
    if scene.chance(2) {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, 200);
    }
    let call = scene.pick(&[
        "execv", "execvp", "execvpe", "execl", "execlp", "execle", "execveat", "fexecve", "execve",
    ]);
    let way = match call {
        "execve" | "execveat" => scene.pick(&["", " way=syscall", " way=asm"]),
        _ => "",
    };
    let environment = scene.pick(&["keep", "keep", "plain", "none"]);
    let child = if scene.chance(2) {
        let child = scene.fork(parent, "fork")?;
        scene.step(child, format!("exec call={call} env={environment}{way}"));
        scene.execute(child);
        child
    } else {
        let how = scene.pick(&["fork", "vforkasm", "vfork"]);
        scene.spawn(parent, &format!("{how} call={call}"), environment)?
    };
    if scene.vars[b].holders.contains(&scene.actors[child].process) {
        let count = scene.unread(b);
        if count > 0 {
            scene.step(child, format!("recv v{b} n={count} flags=WAITALL"));
            scene.received(b, count);
        }
    }
    exchange(scene, a, b)
}

/// A child that was created by a rare call does one thing and ends.
pub(super) fn short_lived(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(a)?;
    if scene.chance(2) {
        let sender = scene.holder(b)?;
        send_some(scene, b, sender, 100);
    }
    let how = scene.pick(&["clonefunction", "clonefiles", "wordexp", "vforkasm", "clonefunction"]);
    let what = if how == "clonefiles" { "nothing" } else { scene.pick(&["nothing", "write"]) };
    scene.step(actor, format!("child v{a} how={how} what={what} n=50"));
    if what == "write" {
        scene.sent(a, 50);
    }
    exchange(scene, a, b)
}

/// A child in its own session uses the connection.
pub(super) fn session(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    let how = scene.pick(&["forkpty", "login_tty", "daemon"]);
    let child = scene.fork(actor, how)?;
    let sender = scene.holder(a)?;
    send_some(scene, a, sender, 200);
    let count = scene.unread(b);
    scene.step(child, format!("recv v{b} n={count} flags=WAITALL"));
    scene.received(b, count);
    exchange(scene, a, b)?;
    let end = scene.pick(&["_Exit", "quick_exit", "syscall", "exit"]);
    scene.step(child, format!("exit how={end}"));
    scene.end_process(scene.actors[child].process);
    exchange(scene, a, b)
}

/// A child gives up descriptors, rights or system calls.
pub(super) fn given_up(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let parent = scene.holder(b)?;
    let child = scene.fork(parent, "fork")?;
    if scene.chance(2) {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, 200);
    }
    let way = scene.pick(&["", "", " way=syscall", " way=asm"]);
    match scene.rng.u32(0..5) {
        0 | 1 => {
            let how = scene.pick(&["setrlimit", "setrlimit64", "prlimit", "prlimit64"]);
            let way = if how.ends_with("64") { "" } else { way };
            let value = scene.rng.u32(1..24);
            scene.step(child, format!("limit what=nofile value={value} how={how}{way}"));
            if scene.has_room() {
                let copy = scene.copy_of(b, child);
                scene.step(child, format!("dup v{b} v{copy} least=0 how=dupfd"));
                let spare = scene.new_var(Kind::Listener, usize::MAX, 0, child);
                scene.step(child, format!("listen v{spare}"));
            }
        }
        2 => {
            let how = scene.pick(&["setrlimit", "prlimit"]);
            scene.step(child, format!("limit what=as value=200000000000 how={how}{way}"));
        }
        3 => scene.step(child, format!("restrict how=dumpable{way}")),
        _ => {
            let how = scene.pick(&["filter", "seccomp"]);
            scene.step(child, format!("restrict how=privileges{way}"));
            scene.step(child, format!("restrict how={how}{way}"));
        }
    }
    let count = scene.unread(b);
    if count > 0 {
        scene.step(child, format!("recv v{b} n={count} flags=WAITALL"));
        scene.received(b, count);
    }
    exchange(scene, a, b)?;
    if scene.has_room() && scene.chance(2) {
        let (c, d) = scene.pair(child);
        exchange(scene, c, d)?;
    }
    exchange(scene, a, b)
}

/// A thread is created with C11's function, receives and ends.
pub(super) fn thread(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    let process = scene.actors[actor].process;
    let thread = scene.new_actor(process)?;
    scene.step(actor, format!("thread {thread} how=c11"));
    let sender = scene.holder(a)?;
    send_some(scene, a, sender, 200);
    let count = scene.unread(b);
    scene.step(thread, format!("recv v{b} n={count} flags=WAITALL"));
    scene.received(b, count);
    scene.step(thread, "threadexit");
    scene.actors[thread].alive = false;
    exchange(scene, a, b)
}
