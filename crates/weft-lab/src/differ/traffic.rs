//! Steps that move bytes over a connection.

use super::scene::Scene;

pub(super) fn length(scene: &mut Scene) -> usize {
    match scene.rng.u32(0..10) {
        0 => 1,
        1..7 => scene.rng.usize(1..200),
        7..9 => scene.rng.usize(1..9_000),
        _ => scene.rng.usize(1..60_000),
    }
}

pub(super) fn way(scene: &mut Scene) -> &'static str {
    match scene.rng.u32(0..12) {
        0 => " way=syscall",
        1 => " way=asm",
        2 => " way=uring",
        3 => scene.pick(&[" way=aio", "", " way=list", " way=submit"]),
        _ => "",
    }
}

/// Adds a message of up to `most` bytes, mostly sent with `send`.
pub(super) fn send_some(scene: &mut Scene, var: usize, actor: usize, most: usize) {
    let count = scene.rng.usize(1..=most);
    let mut text = format!("send v{var} n={count}");
    if scene.chance(3) {
        let call = scene.pick(&[
            "write", "writev", "sendto", "sendmsg", "sendmmsg", "pwritev2", "__write", "__send",
        ]);
        let way = if call.starts_with("__") { "" } else { way(scene) };
        text += &format!(" call={call}{way}");
    }
    scene.step(actor, text);
    scene.sent(var, count);
}

/// Adds a step that receives all unread bytes, mostly with `recv`.
pub(super) fn receive_all(scene: &mut Scene, var: usize, actor: usize) {
    let count = scene.unread(var);
    if count == 0 {
        return;
    }
    let mut text = format!("recv v{var} n={count}");
    match scene.rng.u32(0..12) {
        0..3 => {
            let call = scene.pick(&["recvfrom", "recvmsg", "recvmmsg", "recv"]);
            let way = scene.pick(&["", " way=syscall", " way=asm", " way=uring"]);
            text += &format!(" flags=WAITALL call={call}{way}");
        }
        // Without `WAITALL`, the call may return before the bytes of the last send have arrived.
        3 => {
            let call = scene.pick(&["read", "readv", "preadv2", "__read"]);
            let way = if call.starts_with("__") { "" } else { way(scene) };
            text += &format!(" call={call}{way}");
        }
        _ => text += " flags=WAITALL",
    }
    scene.step(actor, text);
    scene.received(var, count);
}
