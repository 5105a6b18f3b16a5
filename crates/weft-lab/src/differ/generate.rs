//! Generates a program from a seed: random steps, and templates that lead to rare states.

use super::scene::{Kind, Scene, Var};
use super::traffic::{length, receive_all, send_some, way};
use super::{datagrams, descriptors, odd, openings, programs, signalled, streams, templates};
use crate::limits::STEPS_MAX;

/// A function that adds steps to a program. It returns `None` if the program is not in a state in
/// which the move is possible.
pub(super) type Move = fn(&mut Scene) -> Option<()>;

/// All moves with their weights.
const MOVES: &[(u32, Move)] = &[
    (6, pair),
    (3, connection),
    (20, send),
    (16, receive),
    (6, drain),
    (8, exchange),
    (4, fork),
    (3, spawn),
    (3, exec),
    (2, exit),
    (4, copy),
    (5, close),
    (5, set),
    (6, get),
    (3, option),
    (3, shut_down),
    (5, poll),
    (3, stranger),
    (3, templates::blocked_receive),
    (3, templates::child_beside),
    (2, templates::child_then_slot_again),
    (3, templates::epoll),
    (3, templates::epoll_by_a_copy),
    (3, templates::epoll_change_while_waiting),
    (2, templates::epoll_two_waiters),
    (2, templates::epoll_order),
    (2, templates::epoll_by_ring),
    (2, templates::epoll_nested),
    (3, templates::number_again),
    (2, streams::standard_streams),
    (2, streams::numbers_of_streams),
    (1, streams::lines),
    (2, templates::other_user),
    (1, templates::other_namespace),
    (2, templates::splice_to_full),
    (2, templates::splice),
    (2, templates::close_in_handler),
    (2, templates::asynchronous),
    (2, templates::write_after_all_closed),
    (3, templates::oddities),
    (2, templates::pass),
    (2, datagrams::datagrams),
    (1, templates::race),
    (1, templates::writers),
    (1, templates::recycled),
    (1, templates::full),
    (1, templates::urgent),
    (1, templates::interrupted),
    (8, odd::calls),
    (3, openings::by_calls),
    (2, openings::connected_again),
    (2, openings::refused),
    (3, openings::options),
    (2, datagrams::connected),
    (2, descriptors::close_range),
    (2, descriptors::of_another_process),
    (1, descriptors::own_table),
    (2, descriptors::copies),
    (3, programs::executed),
    (2, programs::short_lived),
    (2, programs::session),
    (2, programs::given_up),
    (1, programs::thread),
    (2, signalled::masked),
    (2, signalled::handled),
    (1, signalled::sleeping),
    (3, signalled::beside),
];

/// Generates the program of a seed.
pub fn generate(seed: u64) -> Vec<String> {
    let mut scene = Scene::new(seed);
    // Each program uses about half of the moves. With all of them, sequences of related steps would
    // be rare.
    let weights: Vec<u32> = MOVES
        .iter()
        .map(|&(weight, _)| match scene.rng.u32(0..4) {
            0 => weight,
            1 => weight * 4,
            _ => 0,
        })
        .collect();
    if scene.chance(400) {
        templates::crowd(&mut scene);
        return scene.steps;
    }
    let length = scene.rng.usize(4..STEPS_MAX);
    if scene.chance(3) {
        pair(&mut scene);
    }
    let total: u32 = weights.iter().sum();
    for _ in 0..length {
        if scene.steps.len() >= length || total == 0 {
            break;
        }
        let mut at = scene.rng.u32(0..total);
        let chosen = weights.iter().position(|&weight| {
            let here = at < weight;
            at = at.saturating_sub(weight);
            here
        });
        if let Some(chosen) = chosen {
            MOVES[chosen].1(&mut scene);
        }
    }
    finish(&mut scene);
    scene.steps
}

/// Adds the last steps: receive all unread bytes, and print the contents of files.
fn finish(scene: &mut Scene) {
    for var in 0..scene.vars.len() {
        let kind = scene.vars[var].kind;
        if !matches!(kind, Kind::Tcp | Kind::File) {
            continue;
        }
        if let Some(actor) = scene.holder(var) {
            let step = if kind == Kind::File { "content" } else { "drain" };
            scene.step(actor, format!("{step} v{var} loose=1"));
        }
    }
}

fn pair(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if scene.has_room() {
        scene.pair(actor);
    }
    Some(())
}

/// A connection between a listening actor and another one.
fn connection(scene: &mut Scene) -> Option<()> {
    if !scene.has_room() {
        return None;
    }
    let server = scene.any_actor()?;
    let listener = scene.new_var(Kind::Listener, usize::MAX, 0, server);
    scene.step(server, format!("listen v{listener}"));
    let client = match scene.rng.u32(0..3) {
        0 => scene.fork(server, "fork")?,
        _ => scene.any_actor()?,
    };
    let stream = scene.new_stream();
    let a = scene.new_var(Kind::Tcp, stream, 0, client);
    let b = scene.new_var(Kind::Tcp, stream, 1, server);
    scene.step(client, format!("connect v{listener} v{a}"));
    let early = scene.chance(3);
    if early {
        send_some(scene, a, client, 40);
    }
    scene.step(server, format!("accept v{listener} v{b}"));
    if early {
        receive_all(scene, b, server);
    }
    for _ in 0..scene.rng.u32(0..4) {
        for (from, sender, to, receiver) in [(a, client, b, server), (b, server, a, client)] {
            send_some(scene, from, sender, 100);
            receive_all(scene, to, receiver);
        }
    }
    Some(())
}

/// A message in each direction.
fn exchange(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    templates::exchange(scene, a, b)
}

fn send(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp, Kind::Tcp, Kind::Stranger])?;
    let count = if scene.chance(20) { 0 } else { length(scene) };
    let (_, unread) = (0, scene.peer(var).map_or(0, |(peer, _)| scene.unread(peer)));
    if unread > 100_000 {
        return None;
    }
    let call = scene.pick(&[
        "send", "write", "writev", "sendto", "sendmsg", "sendmmsg", "pwritev2", "send", "write",
        "pwrite", "__write", "__send",
    ]);
    let way = if call.starts_with("__") { "" } else { way(scene) };
    let mut text = format!("send v{var} n={count} call={call}{way}");
    match scene.rng.u32(0..12) {
        0 => text += " flags=DONTWAIT",
        1 => text += " flags=NOSIGNAL",
        2 => text += " flags=EOR",
        3 => text += &format!(" pieces={}", scene.rng.u32(0..5)),
        4 => text += " control=1",
        _ => {}
    }
    scene.step(actor, text);
    if call != "pwrite" {
        scene.sent(var, count);
    }
    Some(())
}

fn receive(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp, Kind::Tcp, Kind::Stranger])?;
    let unread = scene.unread(var);
    let count = match scene.rng.u32(0..8) {
        0 => 0,
        1 => scene.rng.usize(1..=unread.max(1)),
        2 => unread + scene.rng.usize(0..50),
        _ => unread,
    };
    let call = scene.pick(&[
        "recv", "read", "readv", "recvfrom", "recvmsg", "recvmmsg", "preadv2", "recv", "read",
        "pread", "__read",
    ]);
    let way = if call.starts_with("__") { "" } else { way(scene) };
    let is_asynchronous = [" way=aio", " way=list", " way=submit"].contains(&way);
    let takes_flags = call.starts_with("recv") && !is_asynchronous;
    let mut flags = match scene.rng.u32(0..8) {
        0 => vec!["PEEK"],
        1 if unread >= count => vec!["WAITALL"],
        2 => vec!["TRUNC"],
        _ => vec![],
    };
    if unread == 0 || !takes_flags {
        if !takes_flags && unread == 0 {
            return None;
        }
        flags.push("DONTWAIT");
    }
    let mut text = format!("recv v{var} n={count} call={call}{way}");
    if takes_flags && !flags.is_empty() {
        text += &format!(" flags={}", flags.join(","));
    }
    if scene.chance(8) {
        text += &format!(" pieces={}", scene.rng.u32(0..5));
    }
    scene.step(actor, text);
    if !(takes_flags && flags.contains(&"PEEK")) && call != "pread" {
        scene.received(var, count);
    }
    Some(())
}

fn drain(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    scene.step(actor, format!("drain v{var}"));
    scene.received(var, usize::MAX);
    Some(())
}

fn fork(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    let how = scene.pick(&["fork", "fork", "syscall", "asm", "clone", "clone3", "_Fork"]);
    scene.fork(actor, how).map(|_| ())
}

fn spawn(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    let how = scene.pick(&["posix_spawn", "posix_spawnp", "vfork", "fork", "asm", "system"]);
    let environment = scene.pick(&["keep", "keep", "plain", "none"]);
    scene.spawn(actor, how, environment).map(|_| ())
}

fn exec(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    let environment = scene.pick(&["keep", "keep", "plain", "none"]);
    let way = scene.pick(&["", "", " way=syscall", " way=asm"]);
    // `exec` would end threads of this process that sleep in a step that other steps wait for.
    let process = scene.actors[actor].process;
    if scene.actors.iter().any(|other| other.process == process && other.busy) {
        return None;
    }
    scene.step(actor, format!("exec env={environment}{way}"));
    scene.execute(actor);
    Some(())
}

fn exit(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    let process = scene.actors[actor].process;
    if process == 0 && !scene.chance(10)
        || scene.actors.iter().any(|other| other.process == process && other.busy)
    {
        return None;
    }
    let how = scene.pick(&["_exit", "exit", "kill", "asm"]);
    scene.step(actor, format!("exit how={how}"));
    scene.end_process(process);
    Some(())
}

fn copy(scene: &mut Scene) -> Option<()> {
    let kinds = [Kind::Tcp, Kind::Epoll, Kind::Tcp];
    let (var, actor) = scene.any_var(&kinds)?;
    if !scene.has_room() {
        return None;
    }
    let how = scene.pick(&["dup", "dup", "dupfd", "cloexec", "__fcntl"]);
    let ways = &["", "", "", " way=syscall", " way=asm"];
    let way = if how == "__fcntl" { "" } else { scene.pick(ways) };
    let new = scene.copy_of(var, actor);
    scene.vars[new].closes_on_exec = how == "cloexec";
    scene.step(actor, format!("dup v{var} v{new} how={how}{way}"));
    Some(())
}

fn close(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp, Kind::Tcp, Kind::Epoll, Kind::Listener])?;
    let way = scene.pick(&[
        "",
        "",
        "",
        " call=range",
        " call=__close",
        " way=syscall",
        " way=asm",
        " way=uring",
    ]);
    scene.step(actor, format!("close v{var}{way}"));
    scene.close(var, actor);
    Some(())
}

fn set(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    let what = scene.pick(&["nonblock", "cloexec"]);
    let how = scene.pick(&["fcntl", "ioctl"]);
    let way = scene.pick(&["", "", "", " way=syscall", " way=asm"]);
    let on = u32::from(scene.chance(2));
    scene.step(actor, format!("set v{var} what={what} how={how} on={on}{way}"));
    if what == "cloexec" {
        scene.vars[var].closes_on_exec = on == 1;
    }
    Some(())
}

fn get(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    let what = scene.pick(&["flags", "cloexec", "unread", "unread", "error", "type", "name"]);
    let way = scene.pick(&["", "", "", " way=syscall", " way=asm"]);
    scene.step(actor, format!("get v{var} what={what}{way}"));
    Some(())
}

fn option(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    let name = scene.pick(&["nodelay", "keepalive", "lowat", "linger", "rcvtimeo", "quickack"]);
    let value = match name {
        "nodelay" | "quickack" | "keepalive" => 1,
        _ => scene.rng.u32(1..20),
    };
    scene.step(actor, format!("option v{var} name={name} value={value}"));
    Some(())
}

fn shut_down(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    let how = if scene.chance(10) { scene.rng.u32(0..5) } else { 1 };
    let way = scene.pick(&["", "", "", " way=syscall", " way=asm"]);
    scene.step(actor, format!("shutdown v{var} how={how}{way}"));
    Some(())
}

fn poll(scene: &mut Scene) -> Option<()> {
    let (var, actor) = scene.any_var(&[Kind::Tcp])?;
    let process = scene.actors[actor].process;
    let mut text = format!("poll v{var}");
    for other in 0..scene.vars.len() {
        let Var { kind, ref holders, .. } = scene.vars[other];
        if other != var && kind != Kind::File && holders.contains(&process) && scene.chance(3) {
            text += &format!(" v{other}");
        }
    }
    let events = scene.pick(&["in", "in,out", "out", "in,rdhup", "in,pri", "out,rdhup"]);
    let call = scene.pick(&["poll", "ppoll", "select", "pselect", "__poll"]);
    let ways = &["", "", "", " way=syscall", " way=asm", " way=submit"];
    let way = if call == "__poll" { "" } else { scene.pick(ways) };
    if way == " way=submit" {
        text = format!("poll v{var}"); // One operation polls one descriptor.
    }
    let timeout = if scene.chance(6) { 5 } else { 0 };
    let text: String = text.split_whitespace().take(12).collect::<Vec<_>>().join(" ");
    scene.step(actor, format!("{text} events={events} call={call} timeout={timeout}{way}"));
    Some(())
}

fn stranger(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let stream = scene.new_stream();
    let a = scene.new_var(Kind::Stranger, stream, 0, actor);
    let b = scene.new_var(Kind::Stranger, stream, 1, actor);
    scene.step(actor, format!("socketpair v{a} v{b}"));
    Some(())
}
