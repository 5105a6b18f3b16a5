//! Datagrams: connected and unconnected sockets, and each call that sends or receives.

use super::scene::{Kind, Scene};

const WAYS: &[&str] = &["", "", "", " way=syscall", " way=asm"];

/// Opens two sockets that exchange some datagrams.
pub(super) fn datagram_pair(scene: &mut Scene, actor: usize) -> (usize, usize) {
    let a = scene.new_var(Kind::Udp, usize::MAX, 0, actor);
    let b = scene.new_var(Kind::Udp, usize::MAX, 0, actor);
    let way = scene.pick(WAYS);
    for var in [a, b] {
        scene.step(actor, format!("udp v{var}{way}"));
    }
    for _ in 0..4 {
        scene.step(actor, format!("sendto v{a} v{b} n=20"));
        scene.step(actor, format!("recv v{b} n=20"));
        scene.step(actor, format!("sendto v{b} v{a} n=20"));
        scene.step(actor, format!("recv v{a} n=20"));
    }
    (a, b)
}

/// Returns an actor that has the sockets of `actor`: a child, another thread, or `actor` itself.
fn beside(scene: &mut Scene, actor: usize) -> Option<usize> {
    match scene.rng.u32(0..3) {
        0 => scene.fork(actor, "fork"),
        1 => scene.thread_beside(actor),
        _ => Some(actor),
    }
}

/// Datagrams that are sent and received with each call, possibly by two actors.
pub(super) fn datagrams(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = datagram_pair(scene, actor);
    let other = beside(scene, actor)?;
    for _ in 0..scene.rng.u32(2..8) {
        let way = scene.pick(WAYS);
        let count = scene.rng.u32(0..1_500);
        match scene.rng.u32(0..8) {
            0..3 => {
                let call = scene.pick(&["", " call=sendmsg"]);
                scene.step(actor, format!("sendto v{a} v{b} n={count}{call}{way}"));
            }
            3 => scene.step(other, format!("poll v{b} events=in,out")),
            4 => scene.step(other, format!("recv v{b} n=100 flags=PEEK,DONTWAIT{way}")),
            5 => {
                let many = scene.rng.u32(0..5);
                scene.step(actor, format!("sendmany v{a} v{b} n={count} count={many}{way}"));
            }
            6 => {
                let flags = scene.pick(&["DONTWAIT", "DONTWAIT,TRUNC", "DONTWAIT,PEEK"]);
                let text = format!("recvmany v{b} n={count} count=3 flags={flags}{way}");
                scene.step(other, text);
            }
            _ => {
                let call =
                    scene.pick(&["recv", "recvmsg", "recvmmsg", "recvfrom", "read", "readv"]);
                let flags = scene.pick(&["DONTWAIT", "DONTWAIT", "DONTWAIT,TRUNC"]);
                if call.starts_with("recv") {
                    let text = format!("recv v{b} n={count} call={call} flags={flags}{way}");
                    scene.step(other, text);
                } else {
                    // Without `DONTWAIT`, the call would wait if the queue were empty.
                    scene.step(actor, format!("sendto v{a} v{b} n={count}"));
                    scene.step(other, format!("recv v{b} n=1500 call={call}{way}"));
                }
            }
        }
    }
    scene.step(other, format!("drain v{b}"));
    Some(())
}

/// Two sockets, one or both connected to the other, and a third that sends to them, until one of
/// the connected sockets is closed.
pub(super) fn connected(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = datagram_pair(scene, actor);
    let third = scene.new_var(Kind::Udp, usize::MAX, 0, actor);
    scene.step(actor, format!("udp v{third}"));
    let way = scene.pick(WAYS);
    scene.step(actor, format!("udpconnect v{a} v{b}{way}"));
    let both = scene.chance(2);
    if both {
        scene.step(actor, format!("udpconnect v{b} v{a}{way}"));
    }
    let other = beside(scene, actor)?;
    for _ in 0..scene.rng.u32(2..7) {
        let way = scene.pick(WAYS);
        let count = scene.rng.u32(0..1_400);
        let call = scene.pick(&["send", "write", "writev", "sendmsg", "sendmmsg", "sendto"]);
        match scene.rng.u32(0..8) {
            0..3 => scene.step(actor, format!("send v{a} n={count} call={call}{way}")),
            3 => scene.step(actor, format!("sendmany v{a} n=30 count=3{way}")),
            4 if both => scene.step(other, format!("send v{b} n={count} call={call}{way}")),
            // A connected socket discards datagrams of other senders.
            5 if both => scene.step(actor, format!("sendto v{third} v{b} n=9 lost=1{way}")),
            5 => scene.step(actor, format!("sendto v{third} v{b} n=9{way}")),
            6 => scene.step(actor, format!("call getpeername v{b} buf size{way}")),
            _ => {}
        }
        if scene.chance(2) {
            scene.step(other, format!("recv v{b} n=1500 flags=DONTWAIT{way}"));
        }
    }
    scene.step(other, format!("drain v{b}"));
    scene.step(actor, format!("drain v{a}"));
    match scene.rng.u32(0..4) {
        0 => {
            let way = scene.pick(WAYS);
            scene.step(actor, format!("disconnect v{a}{way}"));
            scene.step(actor, format!("send v{a} n=5"));
            scene.step(actor, format!("sendto v{a} v{b} n=5 lost=1"));
        }
        1 => {
            let how = scene.rng.u32(0..3);
            scene.step(actor, format!("shutdown v{a} how={how}"));
            scene.step(actor, format!("send v{a} n=5 lost=1"));
            scene.step(actor, format!("poll v{a} events=in,out,rdhup"));
            scene.step(actor, format!("recv v{a} n=5 flags=DONTWAIT"));
        }
        _ => {}
    }
    // A send to a closed port is reported by the sender's next call (`ECONNREFUSED`).
    for &process in &scene.vars[b].holders.clone() {
        let closer = if process == scene.actors[other].process { other } else { actor };
        scene.step(closer, format!("close v{b}"));
        scene.close(b, closer);
    }
    for _ in 0..scene.rng.u32(1..4) {
        let flags = scene.pick(&["", " flags=NOSIGNAL"]);
        match scene.rng.u32(0..4) {
            0 => scene.step(actor, format!("poll v{a} events=in,out")),
            1 => scene.step(actor, format!("recv v{a} n=5 flags=DONTWAIT")),
            2 => scene.step(actor, format!("get v{a} what=error")),
            _ => scene.step(actor, format!("send v{a} n=5 lost=1{flags}")),
        }
    }
    Some(())
}
