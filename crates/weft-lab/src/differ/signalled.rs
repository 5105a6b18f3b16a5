//! Signals, and descriptors other than sockets that programs wait for together with sockets.

use super::scene::{Kind, Scene};
use super::templates::{exchange, other_holder};
use super::traffic::{receive_all, send_some};

const WAYS: &[&str] = &["", "", "", " way=syscall", " way=asm"];

/// Signals that are blocked and unblocked.
pub(super) fn masked(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let receiver = scene.holder(b)?;
    let how = scene.pick(&["sigprocmask", "pthread_sigmask", "sighold"]);
    let signal = scene.pick(&["USR1", "USR2"]);
    let way = if how == "sigprocmask" { scene.pick(WAYS) } else { "" };
    scene.step(receiver, format!("mask how={how} signal={signal} on=1{way}"));
    scene.steps.push(format!("- signal {receiver} {signal}"));
    scene.step(receiver, "signals");
    let sender = scene.holder(a)?;
    send_some(scene, a, sender, 100);
    receive_all(scene, b, receiver);
    scene.step(receiver, format!("mask how={how} signal={signal} on=0{way}"));
    scene.step(receiver, "signals");
    exchange(scene, a, b)
}

/// Handlers that are installed by each function, and the calls that they interrupt.
pub(super) fn handled(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let receiver = scene.holder(b)?;
    let signal = scene.pick(&["USR1", "USR2"]);
    for _ in 0..scene.rng.u32(1..4) {
        let how = scene.pick(&["sigaction", "signal", "sysv_signal"]);
        let restart = u32::from(scene.chance(2));
        let stack = u32::from(scene.chance(3));
        if stack == 1 {
            scene.step(receiver, "sigstack");
        }
        let what = scene.pick(&["handler", "handler", "ignore"]);
        let text = format!(
            "handler how={how} signal={signal} what={what} restart={restart} stack={stack}"
        );
        scene.step(receiver, text);
    }
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    scene.step(receiver, format!("set v{b} what=nonblock on=0"));
    let sender = other_holder(scene, a, receiver)?;
    let way = scene.pick(WAYS);
    match scene.rng.u32(0..5) {
        0 => scene.step(receiver, format!("poll v{b} timeout=-1{way}")),
        1 => scene.step(receiver, format!("recv v{b} n=50 call=read{way}")),
        2 => {
            let how = scene.pick(&["nanosleep", "clock_nanosleep", "thrd_sleep"]);
            scene.step(receiver, format!("sleep how={how} timeout=100000"));
        }
        3 => scene.step(receiver, "sleep how=pause timeout=100000"),
        _ => scene.step(receiver, format!("recv v{b} n=50 flags=WAITALL{way}")),
    }
    scene.actors[receiver].busy = true;
    scene.steps.push(format!("- signal {receiver} {signal}"));
    send_some(scene, a, sender, 100);
    scene.steps.push(format!("- signal {receiver} USR1"));
    scene.actors[receiver].busy = false;
    scene.step(receiver, "signals");
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    Some(())
}

/// A process with a connection sleeps for a time or until a signal.
pub(super) fn sleeping(scene: &mut Scene) -> Option<()> {
    let (_, b) = scene.some_pair()?;
    let sleeper = scene.holder(b)?;
    let how = scene.pick(&[
        "nanosleep",
        "usleep",
        "clock_nanosleep",
        "thrd_sleep",
        "sigtimedwait",
        "sigsuspend",
    ]);
    let way = if how == "nanosleep" || how == "sigsuspend" { scene.pick(WAYS) } else { "" };
    if how == "sigsuspend" {
        scene.step(sleeper, format!("sleep how={how} timeout=100000{way}"));
        scene.steps.push(format!("- signal {sleeper} USR2"));
    } else {
        scene.step(sleeper, format!("sleep how={how} timeout=5{way}"));
    }
    scene.step(sleeper, "signals");
    Some(())
}

/// Event, timer, signal, inotify and process descriptors in one epoll instance with a connection.
pub(super) fn beside(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    if !scene.has_room() {
        return None;
    }
    let epoll = scene.new_var(Kind::Epoll, usize::MAX, 0, actor);
    let way = scene.pick(&["", "", " call=create", " way=syscall", " way=asm"]);
    scene.step(actor, format!("epoll v{epoll}{way}"));
    let process = scene.actors[actor].process;
    let mut others = Vec::new();
    for _ in 0..scene.rng.u32(1..4) {
        let how = scene.pick(&["event", "timer", "signal", "inotify", "process"]);
        let other = scene.new_var(Kind::Other, usize::MAX, 0, actor);
        scene.step(actor, format!("other v{other} how={how} from={actor}"));
        // Each signal is an edge of a signalfd, also those by which Weft reports system calls that
        // bypass the C library.
        let events = if how == "signal" { "in" } else { scene.pick(&["in", "in,et", "in,once"]) };
        scene.step(actor, format!("ctl v{epoll} v{other} events={events} data={other}"));
        others.push((other, how));
    }
    let events = scene.pick(&["in", "in,et"]);
    scene.step(actor, format!("ctl v{epoll} v{b} events={events} data={b}"));
    for _ in 0..scene.rng.u32(2..6) {
        let (other, how) = others[scene.rng.usize(0..others.len())];
        let exciter = if scene.actors[actor].process == process { actor } else { return None };
        if how != "process" && scene.chance(2) {
            scene.step(exciter, format!("excite v{other} how={how}"));
        } else {
            let sender = scene.holder(a)?;
            send_some(scene, a, sender, 100);
        }
        let way = scene.pick(WAYS);
        let call = scene.pick(&["wait", "pwait", "pwait2"]);
        // The signals by which Weft reports system calls that bypass the C library change the order
        // in which a signalfd is reported.
        let max = if others.iter().any(|&(_, how)| how == "signal") { 16 } else { 1 };
        scene.step(actor, format!("wait v{epoll} call={call} max={max}{way}"));
        scene.step(actor, format!("poll v{b} v{other} v{epoll} events=in"));
        if scene.chance(2) && how != "process" {
            scene.step(actor, format!("calm v{other}"));
        }
        if scene.chance(2) {
            receive_all(scene, b, actor);
        }
    }
    Some(())
}
