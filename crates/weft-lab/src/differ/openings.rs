//! How sockets are opened: each call that creates, binds, connects or accepts one.

use super::scene::{Kind, Scene};
use super::templates::exchange;
use super::traffic::{receive_all, send_some};

const WAYS: &[&str] = &["", "", "", " way=syscall", " way=asm"];

/// A connection that is opened call by call, each made in any way.
pub(super) fn by_calls(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let stream = scene.new_stream();
    let listener = scene.new_var(Kind::Listener, usize::MAX, 0, actor);
    let a = scene.new_var(Kind::Tcp, stream, 0, actor);
    let b = scene.new_var(Kind::Tcp, stream, 1, actor);
    let open = scene.pick(&["", "", " open=NONBLOCK", " open=CLOEXEC"]);
    let way = scene.pick(WAYS);
    scene.step(actor, format!("listen v{listener}{open}{way}"));
    if open.contains("NONBLOCK") {
        scene.step(actor, format!("accept v{listener} v{b}"));
    }
    let way = scene.pick(WAYS);
    scene.step(actor, format!("socket v{a}{open}{way}"));
    if scene.chance(3) {
        for text in ["send v# n=4", "poll v# events=in,out", "recv v# n=4 flags=DONTWAIT"] {
            scene.step(actor, text.replace('#', &a.to_string()));
        }
    }
    if scene.chance(3) {
        let way = scene.pick(WAYS);
        scene.step(actor, format!("bind v{a}{way}"));
        scene.step(actor, format!("bind v{a}{way}"));
    }
    let way = if scene.chance(6) { " way=old" } else { scene.pick(WAYS) };
    scene.step(actor, format!("connect v{listener} v{a} again=1{way}"));
    if scene.chance(3) {
        scene.step(actor, format!("call connect v{a} buf 16"));
    }
    let call = scene.pick(&["", " call=accept"]);
    let way = scene.pick(WAYS);
    let open = scene.pick(&["", "", " open=NONBLOCK", " open=CLOEXEC"]);
    scene.step(actor, format!("accept v{listener} v{b}{call}{open}{way}"));
    scene.vars[b].closes_on_exec = open.contains("CLOEXEC") && call.is_empty();
    scene.step(actor, format!("get v{b} what=flags"));
    scene.step(actor, format!("get v{a} what=error"));
    if scene.chance(2) {
        scene.step(actor, format!("close v{listener}"));
        scene.close(listener, actor);
    }
    for _ in 0..3 {
        exchange(scene, a, b)?;
    }
    Some(())
}

/// A connected socket is disconnected from its peer and connected to another.
pub(super) fn connected_again(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    let listener = scene.new_var(Kind::Listener, usize::MAX, 0, actor);
    scene.step(actor, format!("listen v{listener}"));
    if scene.chance(2) {
        scene.step(actor, format!("connect v{listener} v{a} again=1"));
    }
    if scene.chance(2) {
        send_some(scene, a, actor, 100);
    }
    if scene.chance(3) {
        send_some(scene, b, actor, 100);
    }
    let copy = scene.copy_of(a, actor);
    let copied = scene.chance(3);
    if copied {
        scene.step(actor, format!("dup v{a} v{copy}"));
    } else {
        scene.vars[copy].holders.clear();
    }
    let way = scene.pick(WAYS);
    scene.step(actor, format!("disconnect v{a}{way}"));
    for _ in 0..scene.rng.u32(1..4) {
        match scene.rng.u32(0..5) {
            0 => scene.step(actor, format!("send v{a} n=5 flags=NOSIGNAL")),
            1 => scene.step(actor, format!("poll v{a} v{b} events=in,out,rdhup")),
            2 => scene.step(actor, format!("recv v{b} n=10 flags=DONTWAIT")),
            3 => scene.step(actor, format!("send v{b} n=10 flags=NOSIGNAL")),
            _ => scene.step(actor, format!("get v{b} what=error")),
        }
    }
    scene.step(actor, format!("drain v{b}"));
    let stream = scene.new_stream();
    let taken = scene.new_var(Kind::Tcp, stream, 1, actor);
    let way = scene.pick(WAYS);
    scene.step(actor, format!("connect v{listener} v{a} again=1{way}"));
    scene.step(actor, format!("accept v{listener} v{taken}"));
    scene.vars[a].stream = stream;
    scene.vars[a].end = 0;
    scene.vars[copy].holders.clear();
    for _ in 0..4 {
        exchange(scene, a, taken)?;
    }
    Some(())
}

/// Connections to a listener that was closed, before or after the connection was made.
pub(super) fn refused(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let stream = scene.new_stream();
    let listener = scene.new_var(Kind::Listener, usize::MAX, 0, actor);
    let a = scene.new_var(Kind::Tcp, stream, 0, actor);
    scene.step(actor, format!("listen v{listener}"));
    let open = scene.pick(&["", " open=NONBLOCK"]);
    let early = scene.chance(2);
    if early {
        // The connection exists, but no process has accepted it.
        scene.step(actor, format!("connect v{listener} v{a}{open}"));
        send_some(scene, a, actor, 100);
    }
    scene.step(actor, format!("close v{listener}"));
    scene.close(listener, actor);
    if !early {
        let way = scene.pick(WAYS);
        scene.step(actor, format!("socket v{a}{open}"));
        scene.step(actor, format!("connect v{listener} v{a} again=1{way}"));
    }
    for _ in 0..scene.rng.u32(1..5) {
        match scene.rng.u32(0..5) {
            0 => scene.step(actor, format!("send v{a} n=5 flags=NOSIGNAL")),
            1 => scene.step(actor, format!("poll v{a} events=in,out,rdhup")),
            2 => scene.step(actor, format!("recv v{a} n=5 flags=DONTWAIT")),
            3 => scene.step(actor, format!("connect v{listener} v{a} again=1")),
            _ => scene.step(actor, format!("get v{a} what=error")),
        }
    }
    scene.step(actor, format!("close v{a}"));
    scene.close(a, actor);
    Some(())
}

/// Options are set and queried on sockets in use.
pub(super) fn options(scene: &mut Scene) -> Option<()> {
    const NAMES: &[&str] = &[
        "nodelay",
        "cork",
        "keepidle",
        "keepintvl",
        "keepcnt",
        "syncnt",
        "linger2",
        "deferaccept",
        "usertimeout",
        "congestion",
        "notsentlowat",
        "inq",
        "ulp",
        "keepalive",
        "oobinline",
        "lowat",
        "sndlowat",
        "peekoff",
        "busypoll",
        "reuseaddr",
        "reuseport",
        "broadcast",
        "dontroute",
        "priority",
        "timestamp",
        "passcred",
        "zerocopy",
        "rcvbuf",
        "sndbuf",
        "type",
        "protocol",
        "domain",
        "acceptconn",
        "error",
        "nofcs",
        "linger",
        "rcvtimeo",
        "sndtimeo",
        "tos",
        "ttl",
        "recverr",
        "pktinfo",
        "recvttl",
        "freebind",
        "v6only",
        "peercred",
    ];
    let kinds = [Kind::Tcp, Kind::Tcp, Kind::Tcp, Kind::Udp, Kind::Stranger, Kind::Listener];
    let (var, actor) = scene.any_var(&kinds)?;
    for _ in 0..scene.rng.u32(1..5) {
        let name = scene.pick(NAMES);
        let way = scene.pick(WAYS);
        let size = scene.pick(&["", "", "", "", " size=1", " size=0", " size=2", " size=8"]);
        // The kernel changes these by itself, so their values are not compared.
        let its_own = ["rcvbuf", "sndbuf", "congestion", "cork", "lowat"].contains(&name);
        if scene.chance(2) {
            let value = match name {
                "cork" => 0,
                "peekoff" => -1,
                "rcvbuf" | "sndbuf" => 200_000,
                "lowat" => 1,
                "rcvtimeo" | "sndtimeo" => 300,
                "linger" => -1,
                _ => scene.rng.i32(-1..8),
            };
            scene.step(actor, format!("option v{var} name={name} value={value}{size}{way}"));
        } else if !its_own {
            scene.step(actor, format!("getoption v{var} name={name}{size}{way}"));
        }
    }
    if scene.vars[var].kind == Kind::Tcp {
        let (peer, sender) = scene.peer(var)?;
        send_some(scene, peer, sender, 200);
        let actor = scene.holder(var)?;
        receive_all(scene, var, actor);
    }
    Some(())
}
