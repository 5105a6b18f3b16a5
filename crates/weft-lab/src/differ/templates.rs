//! Short sequences of steps that lead to states which random steps rarely reach.

use super::datagrams::datagram_pair;
use super::scene::{Kind, Scene};
use super::traffic::{length, receive_all, send_some};

/// Maximum length of a message in these sequences.
const MESSAGE: usize = 300;

/// A message in each direction, between actors that have the ends.
pub(super) fn exchange(scene: &mut Scene, a: usize, b: usize) -> Option<()> {
    for (from, to) in [(a, b), (b, a)] {
        let sender = scene.holder(from)?;
        send_some(scene, from, sender, MESSAGE);
        let receiver = scene.holder(to)?;
        receive_all(scene, to, receiver);
    }
    Some(())
}

/// Returns another process or thread that has `var`, to use it while `actor` sleeps.
pub(super) fn other_holder(scene: &mut Scene, var: usize, actor: usize) -> Option<usize> {
    for _ in 0..4 {
        let other = scene.holder(var)?;
        if other != actor {
            return Some(other);
        }
    }
    let beside = scene.holder(var)?;
    if scene.chance(2) { scene.thread_beside(beside) } else { scene.fork(beside, "fork") }
}

/// Adds steps of other actors while one sleeps.
fn something_else(scene: &mut Scene) {
    match scene.rng.u32(0..5) {
        0 => {
            child_beside(scene);
        }
        1 => {
            if let Some((var, actor)) = scene.any_var(&[Kind::Tcp]) {
                scene.step(actor, format!("get v{var} what=unread"));
            }
        }
        2 => {
            if let Some(actor) = scene.any_actor() {
                scene.fork(actor, "fork");
            }
        }
        _ => {}
    }
}

/// A call sleeps until another actor sends, shuts down or closes.
pub(super) fn blocked_receive(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let receiver = scene.holder(b)?;
    let drained = scene.unread(b);
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, drained);
    let sender = other_holder(scene, a, receiver)?;
    scene.step(receiver, format!("set v{b} what=nonblock on=0"));
    let count = length(scene).min(9_000);
    let text = match scene.rng.u32(0..7) {
        0 => format!("recv v{b} n={count} flags=WAITALL"),
        1 => format!("poll v{b} events=in timeout=-1"),
        2 => format!("poll v{b} events=in,rdhup call=select timeout=-1"),
        3 => format!("recv v{b} n={count} call=read way=asm"),
        4 => format!("recv v{b} n={count} way=uring"),
        5 => format!("recv v{b} n={count} call=read"),
        _ => format!("recv v{b} n={count} call=recvmsg"),
    };
    let polls = text.starts_with("poll");
    scene.step(receiver, text);
    scene.actors[receiver].busy = true;
    something_else(scene);
    match scene.rng.u32(0..6) {
        0 => scene.step(sender, format!("shutdown v{a}")),
        1 => scene.step(sender, format!("send v{a} n={count} way=uring")),
        2 => scene.step(sender, format!("send v{a} n={count} call=write way=asm")),
        _ => scene.step(sender, format!("send v{a} n={count}")),
    }
    scene.actors[receiver].busy = false;
    if polls {
        scene.step(receiver, format!("drain v{b}"));
    }
    Some(())
}

/// A child inherits a connection and ends, and the connection is used again.
pub(super) fn child_beside(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(a)?;
    child(scene, actor, a, b);
    exchange(scene, a, b)
}

fn child(scene: &mut Scene, actor: usize, a: usize, b: usize) {
    let how = scene.pick(&[
        "system",
        "popen",
        "posix_spawn",
        "posix_spawnp",
        "vfork",
        "exec",
        "fork",
        "syscall",
        "asm",
        "clone",
        "clone3",
        "_Fork",
    ]);
    let environment = scene.pick(&["keep", "keep", "plain", "none"]);
    let (var, what) = match scene.rng.u32(0..8) {
        0 | 1 => (a, "close"),
        2 => (a, "write"),
        3 if scene.unread(a) > 0 => (a, "read"),
        4 if scene.unread(b) > 0 => (b, "read"),
        _ => (a, "nothing"),
    };
    let count = if what == "read" { scene.unread(var).min(4_000) } else { 50 };
    scene.step(actor, format!("child v{var} how={how} what={what} n={count} env={environment}"));
    match what {
        "write" => scene.sent(var, count),
        "read" => scene.received(var, count),
        _ => {}
    }
}

/// A child inherits a connection and ends; then another connection is opened, and both are used.
pub(super) fn child_then_slot_again(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    child(scene, actor, a, b);
    let other = scene.any_actor()?;
    let (c, d) = scene.pair(other);
    for _ in 0..2 {
        exchange(scene, a, b)?;
        exchange(scene, c, d)?;
    }
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    let receiver = scene.holder(d)?;
    scene.step(receiver, format!("drain v{d}"));
    Some(())
}

fn events(scene: &mut Scene) -> String {
    let mut text = scene.pick(&["in", "in", "in,out", "in,rdhup", "out"]).to_owned();
    match scene.rng.u32(0..6) {
        0 | 1 => text += ",et",
        2 => text += ",once",
        3 => text += ",et,once",
        _ => {}
    }
    text
}

/// Creates an epoll instance in a process that has `var`. Returns it and the creating actor.
fn instance(scene: &mut Scene, var: usize) -> Option<(usize, usize)> {
    let actor = scene.holder(var)?;
    if !scene.has_room() {
        return None;
    }
    let epoll = scene.new_var(Kind::Epoll, usize::MAX, 0, actor);
    scene.step(actor, format!("epoll v{epoll}"));
    Some((epoll, actor))
}

fn data(scene: &mut Scene) -> u64 {
    scene.rng.u64(1..1 << 60)
}

/// Changes of an epoll instance, traffic and waits in turn.
pub(super) fn epoll(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, actor) = instance(scene, b)?;
    let (events, number) = (events(scene), data(scene));
    scene.step(actor, format!("ctl v{epoll} v{b} events={events} data={number}"));
    for _ in 0..scene.rng.u32(1..8) {
        let actor = scene.holder(epoll)?;
        match scene.rng.u32(0..8) {
            0 => {
                let (events, number) = (self::events(scene), data(scene));
                let op = scene.pick(&["mod", "mod", "del", "add"]);
                let text = format!("ctl v{epoll} v{b} op={op} events={events} data={number}");
                scene.step(actor, text);
            }
            1 => {
                let receiver = scene.holder(b)?;
                receive_all(scene, b, receiver);
            }
            2 => {
                let sender = scene.holder(a)?;
                scene.step(sender, format!("shutdown v{a}"));
            }
            3 | 4 => {
                let sender = scene.holder(a)?;
                send_some(scene, a, sender, MESSAGE);
            }
            5 => something_else(scene),
            _ => {}
        }
        let call = scene.pick(&["wait", "wait", "pwait", "pwait2"]);
        let way = scene.pick(&["", "", "", " way=syscall", " way=asm"]);
        let actor = scene.holder(epoll)?;
        scene.step(actor, format!("wait v{epoll} call={call}{way}"));
    }
    Some(())
}

/// An epoll instance is changed through one descriptor and waited for through its copy.
pub(super) fn epoll_by_a_copy(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, actor) = instance(scene, b)?;
    let copy = scene.copy_of(epoll, actor);
    let how = scene.pick(&["dup", "cloexec", "dupfd"]);
    scene.step(actor, format!("dup v{epoll} v{copy} how={how}"));
    let ways = [(epoll, copy), (copy, epoll)];
    let (changed, waited) = ways[scene.rng.usize(0..2)];
    let (events, number) = (events(scene), data(scene));
    scene.step(actor, format!("ctl v{changed} v{b} events={events} data={number}"));
    for _ in 0..3 {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, MESSAGE);
        let actor = scene.holder(waited)?;
        scene.step(actor, format!("wait v{waited}"));
        let receiver = scene.holder(b)?;
        receive_all(scene, b, receiver);
        scene.step(actor, format!("wait v{waited} timeout=2"));
    }
    if scene.chance(2) {
        scene.step(actor, format!("close v{changed}"));
        scene.close(changed, actor);
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, MESSAGE);
        let actor = scene.holder(waited)?;
        scene.step(actor, format!("wait v{waited}"));
    }
    Some(())
}

/// One thread waits while another changes the instance's interest list and then sends.
pub(super) fn epoll_change_while_waiting(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, changer) = instance(scene, b)?;
    let waiter = if scene.chance(3) {
        scene.fork(changer, "fork")?
    } else {
        scene.thread_beside(changer)?
    };
    let sender = scene.holder(a)?;
    if sender == waiter {
        return None;
    }
    // Bytes that are already unread are reported once the descriptor is watched.
    if scene.chance(2) {
        send_some(scene, a, sender, MESSAGE);
    }
    let number = data(scene);
    let add = format!("ctl v{epoll} v{b} op=add events=in,et data={number}");
    let kind = scene.rng.u32(0..4);
    match kind {
        0 => {
            scene.step(changer, format!("ctl v{epoll} v{b} events=in,once data={number}"));
            scene.step(waiter, format!("wait v{epoll}"));
        }
        1 => {
            scene.step(changer, &add);
            scene.step(changer, format!("wait v{epoll}"));
            scene.step(changer, format!("ctl v{epoll} v{b} op=del"));
        }
        2 => scene.step(changer, format!("ctl v{epoll} v{b} events=pri data={number}")),
        _ => {}
    }
    scene.step(waiter, format!("wait v{epoll} timeout=-1"));
    scene.actors[waiter].busy = true;
    if scene.chance(3) {
        something_else(scene);
    }
    match kind {
        0 => scene.step(changer, format!("ctl v{epoll} v{b} op=mod events=in,once data=7")),
        2 => scene.step(changer, format!("ctl v{epoll} v{b} op=mod events=in data=8")),
        _ => scene.step(changer, &add),
    }
    send_some(scene, a, sender, MESSAGE);
    scene.actors[waiter].busy = false;
    scene.step(waiter, format!("wait v{epoll}"));
    let receiver = scene.holder(b)?;
    receive_all(scene, b, receiver);
    Some(())
}

/// Two threads wait for two connections in one instance, and each event wakes one of them.
pub(super) fn epoll_two_waiters(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, actor) = instance(scene, b)?;
    let (c, d) = scene.pair(actor);
    let process = scene.actors[actor].process;
    let (first, second) = (scene.new_actor(process)?, scene.new_actor(process)?);
    for thread in [first, second] {
        scene.step(actor, format!("thread {thread}"));
        scene.actors[thread].busy = true;
    }
    let events = scene.pick(&["in,once", "in,et", "in,et,once", "in,et"]);
    for (var, number) in [(b, 21), (d, 22)] {
        scene.step(actor, format!("ctl v{epoll} v{var} events={events} data={number}"));
    }
    for var in [b, d] {
        let receiver = scene.holder(var)?;
        scene.step(receiver, format!("drain v{var}"));
        scene.received(var, usize::MAX);
    }
    scene.step(actor, format!("wait v{epoll}"));
    for round in 0..scene.rng.u32(1..4) {
        if events.contains("once") {
            for (var, number) in [(b, 21 + round * 2), (d, 22 + round * 2)] {
                let text = format!("ctl v{epoll} v{var} op=mod events={events} data={number}");
                scene.step(actor, text);
            }
        }
        for _ in 0..2 {
            scene.steps.push(format!("{first}|{second} wait v{epoll} max=1 timeout=-1"));
        }
        for (from, to) in [(a, b), (c, d)] {
            let sender = scene.holder(from)?;
            send_some(scene, from, sender, MESSAGE);
            let receiver = scene.holder(to)?;
            receive_all(scene, to, receiver);
        }
    }
    scene.actors[first].busy = false;
    scene.actors[second].busy = false;
    Some(())
}

/// Several connections become readable in random order, and waits report them.
pub(super) fn epoll_order(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, actor) = instance(scene, b)?;
    let mut ends = vec![(a, b)];
    for _ in 0..scene.rng.u32(1..5) {
        if scene.has_room() {
            let pair = scene.pair(actor);
            ends.push(pair);
        }
    }
    scene.rng.shuffle(&mut ends);
    let events = scene.pick(&["in", "in,et"]);
    for &(_, to) in &ends {
        let receiver = scene.holder(to)?;
        scene.step(receiver, format!("drain v{to}"));
        scene.received(to, usize::MAX);
        scene.step(actor, format!("ctl v{epoll} v{to} events={events} data={}", 100 + to));
    }
    for _ in 0..scene.rng.u32(1..4) {
        scene.step(actor, format!("wait v{epoll}"));
        scene.rng.shuffle(&mut ends);
        for &(from, _) in &ends {
            let sender = scene.holder(from)?;
            send_some(scene, from, sender, MESSAGE);
        }
        let max = if scene.chance(2) { 16 } else { 2 };
        scene.step(actor, format!("wait v{epoll} max={max}"));
        scene.step(actor, format!("wait v{epoll} max={max}"));
        for &(_, to) in &ends {
            let receiver = scene.holder(to)?;
            receive_all(scene, to, receiver);
        }
    }
    Some(())
}

/// A socket is added to an epoll instance through io_uring.
pub(super) fn epoll_by_ring(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (epoll, actor) = instance(scene, b)?;
    let number = data(scene);
    scene.step(actor, format!("ctl v{epoll} v{b} events=in data={number} way=uring"));
    for _ in 0..3 {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, MESSAGE);
        let actor = scene.holder(epoll)?;
        scene.step(actor, format!("wait v{epoll}"));
        let receiver = scene.holder(b)?;
        receive_all(scene, b, receiver);
    }
    Some(())
}

/// An epoll instance is watched by another instance or with `poll`.
pub(super) fn epoll_nested(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (inner, actor) = instance(scene, b)?;
    let outer = scene.new_var(Kind::Epoll, usize::MAX, 0, actor);
    scene.step(actor, format!("epoll v{outer}"));
    let events = events(scene);
    scene.step(actor, format!("ctl v{inner} v{b} events={events} data=31"));
    scene.step(actor, format!("ctl v{outer} v{inner} events=in data=32"));
    for _ in 0..3 {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, MESSAGE);
        let actor = scene.holder(outer)?;
        match scene.rng.u32(0..3) {
            0 => scene.step(actor, format!("poll v{inner} events=in")),
            _ => scene.step(actor, format!("wait v{outer}")),
        }
        scene.step(actor, format!("wait v{inner}"));
        let receiver = scene.holder(b)?;
        receive_all(scene, b, receiver);
    }
    Some(())
}

/// A connection's descriptor number is reused by a file or another connection.
pub(super) fn number_again(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    let way = scene.pick(&[" way=syscall", " way=asm", " way=uring", "", " call=range"]);
    let by_copy = scene.chance(3);
    let file = scene.new_var(Kind::File, usize::MAX, 0, actor);
    if by_copy {
        scene.step(actor, format!("file v{file}"));
        let how = scene.pick(&["dup2", "dup3", "__dup2"]);
        scene.step(actor, format!("dup v{file} v{a} how={how}{way}"));
        scene.vars[a].kind = Kind::File;
        scene.vars[a].stream = usize::MAX;
    } else {
        scene.step(actor, format!("close v{a}{way}"));
        scene.close(a, actor);
        if scene.chance(2) {
            // The first file gets the lower number that `pair` used for its listener.
            let spare = scene.new_var(Kind::File, usize::MAX, 0, actor);
            scene.vars[spare].holders.clear();
            scene.step(actor, format!("file v{spare}"));
            scene.step(actor, format!("file v{file}"));
        } else {
            scene.close(file, actor);
            let (c, d) = scene.pair(actor);
            return exchange(scene, c, d);
        }
    }
    let to = if by_copy { a } else { file };
    for _ in 0..2 {
        let call = scene.pick(&["write", "writev", "write"]);
        let count = scene.rng.u32(1..400);
        scene.step(actor, format!("send v{to} n={count} call={call}"));
    }
    if by_copy {
        scene.vars[a].holders.clear();
    }
    scene.step(actor, format!("content v{file}"));
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    Some(())
}

/// The process changes its user, and then uses the connection or executes itself.
pub(super) fn other_user(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    let child = if scene.chance(3) { scene.fork(actor, "fork")? } else { actor };
    let sender = scene.holder(a)?;
    if scene.chance(2) {
        send_some(scene, a, sender, MESSAGE);
    }
    let how = scene.pick(&["setuid", "seteuid", "setresuid", "setreuid"]);
    scene.step(child, "mapped");
    let way = scene.pick(&["", "", " way=syscall", " way=asm"]);
    scene.step(child, format!("user how={how}{way}"));
    if how == "seteuid" && scene.chance(2) {
        scene.step(child, "user how=seteuid id=0");
        scene.step(child, "user how=seteuid");
        scene.step(child, "user how=seteuid id=0");
    }
    scene.step(child, "mapped");
    if scene.chance(2) && !scene.actors.iter().any(|actor| actor.busy) {
        let environment = scene.pick(&["keep", "plain", "none"]);
        scene.step(child, format!("exec env={environment}"));
        scene.execute(child);
    }
    let count = scene.unread(b);
    if count > 0 && scene.vars[b].holders.contains(&scene.actors[child].process) {
        scene.step(child, format!("recv v{b} n={count} flags=WAITALL"));
        scene.received(b, count);
    }
    exchange(scene, a, b)
}

/// A child in another PID namespace.
pub(super) fn other_namespace(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    // A process can create a PID namespace for its children once.
    let parent = scene.fork(actor, "fork")?;
    let child = scene.fork(parent, "namespace")?;
    let sender = scene.holder(a)?;
    for _ in 0..2 {
        send_some(scene, a, sender, MESSAGE);
        let count = scene.unread(b);
        let by = if scene.chance(3) { parent } else { child };
        scene.step(by, format!("recv v{b} n={count} flags=WAITALL"));
        scene.received(b, count);
        scene.step(child, format!("send v{b} n=70"));
        scene.sent(b, 70);
        receive_all(scene, a, sender);
    }
    if scene.chance(2) {
        write_at_once(scene, [parent, child], b, a, sender);
    }
    Some(())
}

/// Two actors write records to one end at once, while a third reads them.
fn write_at_once(scene: &mut Scene, writers: [usize; 2], from: usize, to: usize, reader: usize) {
    let size = scene.rng.u32(16..8_000);
    // Less than the buffers hold: while a sender waits for room, another may write between the
    // parts of its record.
    let count = (400_000 / size).min(600);
    scene.step(reader, format!("drain v{to}"));
    scene.received(to, usize::MAX);
    for var in [from, to] {
        let actor = if var == to { reader } else { writers[0] };
        scene.step(actor, format!("set v{var} what=nonblock on=0"));
    }
    for writer in writers {
        scene.steps.push(format!("+{writer} pour v{from} count={count} size={size}"));
    }
    scene.step(reader, format!("collect v{to} count={} size={size}", 2 * count));
}

/// Two threads or processes write to one end at once.
pub(super) fn writers(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let first = scene.holder(a)?;
    let second =
        if scene.chance(2) { scene.fork(first, "fork")? } else { scene.thread_beside(first)? };
    let reader = match scene.rng.u32(0..2) {
        0 => scene.fork(first, "fork")?,
        _ => scene.holder(b)?,
    };
    if reader == first
        || reader == second
        || !scene.vars[b].holders.contains(&scene.actors[reader].process)
    {
        return None;
    }
    write_at_once(scene, [first, second], a, b, reader);
    Some(())
}

/// One thread duplicates a connection and closes the copies, while another makes calls on the
/// copies' number.
pub(super) fn recycled(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(a)?;
    let other = scene.thread_beside(actor)?;
    let count = scene.rng.u32(100..3_000);
    scene.steps.push(format!("+{actor} recycle v{a} n={count}"));
    scene.step(other, format!("poke n={count}"));
    exchange(scene, a, b)
}

/// Nonblocking splices into a connection without room.
pub(super) fn splice_to_full(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    let stream = scene.new_stream();
    let reading = scene.new_var(Kind::Pipe, stream, 0, actor);
    let writing = scene.new_var(Kind::Pipe, stream, 1, actor);
    scene.step(actor, format!("pipe v{reading} v{writing}"));
    scene.step(actor, format!("set v{a} what=nonblock on=1"));
    scene.step(actor, format!("fill v{a}"));
    scene.step(actor, format!("supply v{writing} v{a} n=5000"));
    if scene.chance(2) {
        let count = scene.rng.u32(1..60_000);
        scene.step(actor, format!("drain v{b} n={count}"));
    }
    scene.step(actor, format!("move v{reading} v{a} how=splice n=5000 flags=2 loose=1"));
    scene.step(actor, format!("drain v{b} loose=1"));
    scene.step(actor, format!("move v{reading} v{a} how=splice n=5000 flags=2 loose=1"));
    scene.step(actor, format!("drain v{b} loose=1"));
    Some(())
}

/// `splice` and `sendfile` from a pipe or a file to a connection, and `splice` from it to a pipe.
pub(super) fn splice(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let sender = scene.holder(a)?;
    if !scene.has_room() {
        return None;
    }
    let count = scene.rng.usize(1..6_000);
    let way = scene.pick(&["", "", " way=syscall", " way=asm"]);
    if scene.chance(2) {
        let file = scene.new_var(Kind::File, usize::MAX, 0, sender);
        scene.vars[file].holders.clear();
        scene.step(sender, format!("file v{file}"));
        scene.step(sender, format!("supply v{file} v{a} n={count}"));
        scene.step(sender, format!("move v{file} v{a} how=sendfile n={count}{way}"));
    } else {
        let stream = scene.new_stream();
        let reading = scene.new_var(Kind::Pipe, stream, 0, sender);
        let writing = scene.new_var(Kind::Pipe, stream, 1, sender);
        scene.step(sender, format!("pipe v{reading} v{writing}"));
        scene.step(sender, format!("supply v{writing} v{a} n={count}"));
        scene.step(sender, format!("move v{reading} v{a} how=splice n={count}{way}"));
    }
    scene.sent(a, count);
    let receiver = scene.holder(b)?;
    if scene.chance(2) {
        receive_all(scene, b, receiver);
    } else if scene.unread(b) < 60_000 {
        let stream = scene.new_stream();
        let reading = scene.new_var(Kind::Pipe, stream, 0, receiver);
        let writing = scene.new_var(Kind::Pipe, stream, 1, receiver);
        let count = scene.rng.usize(1..=scene.unread(b).max(1));
        scene.step(receiver, format!("pipe v{reading} v{writing}"));
        scene.step(receiver, format!("move v{b} v{writing} how=splice n={count} flags=2{way}"));
        scene.step(receiver, format!("consume v{reading} v{b} n={count}"));
        scene.step(receiver, format!("drain v{b}"));
        scene.received(b, usize::MAX);
    }
    Some(())
}

/// A signal handler interrupts a call, and closes the descriptor that the call waits for or the
/// peer's.
pub(super) fn close_in_handler(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    scene.step(receiver, format!("set v{b} what=nonblock on=0"));
    let other = scene.thread_beside(receiver)?;
    let closed = if scene.chance(2) { a } else { b };
    let spare = scene.copy_of(closed, receiver);
    if scene.chance(2) {
        scene.step(receiver, format!("dup v{closed} v{spare}"));
    } else {
        scene.vars[spare].holders.clear();
    }
    scene.step(receiver, format!("onsignal v{closed}"));
    match scene.rng.u32(0..3) {
        0 => scene.step(receiver, format!("recv v{b} n=100")),
        1 => scene.step(receiver, format!("recv v{b} n=100 call=read")),
        _ => scene.step(receiver, format!("poll v{b} timeout=-1")),
    }
    scene.close(closed, receiver);
    scene.steps.push(format!("- signal {receiver} USR1"));
    scene.step(other, format!("get v{b} what=unread"));
    scene.step(receiver, format!("get v{b} what=error"));
    Some(())
}

/// Arriving bytes raise signals (`O_ASYNC`).
pub(super) fn asynchronous(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let how = scene.pick(&["fcntl", "ioctl"]);
    let (a, b) = if scene.chance(2) { datagram_pair(scene, actor) } else { scene.pair(actor) };
    scene.step(actor, format!("set v{b} what=owner"));
    scene.step(actor, format!("set v{b} what=async how={how} on=1"));
    scene.step(actor, "signals");
    for _ in 0..3 {
        if scene.vars[a].kind == Kind::Udp {
            scene.step(actor, format!("sendto v{a} v{b} n=40"));
        } else {
            scene.step(actor, format!("send v{a} n=40"));
        }
        scene.step(actor, "signals");
        scene.step(actor, format!("recv v{b} n=40"));
        scene.step(actor, "signals");
    }
    scene.step(actor, format!("set v{b} what=async how={how} on=0"));
    Some(())
}

/// All holders of one end close it or end, and the other end is then used.
pub(super) fn write_after_all_closed(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let (a, b) = scene.pair(actor);
    if scene.chance(2) {
        for var in [a, b] {
            scene.step(actor, format!("set v{var} what=cloexec on=1"));
            scene.vars[var].closes_on_exec = true;
        }
    }
    let how = scene.pick(&["posix_spawn", "vfork", "fork", "system"]);
    let environment = scene.pick(&["keep", "plain", "none"]);
    let other = if scene.chance(3) {
        scene.fork(actor, "fork")?
    } else {
        scene.spawn(actor, how, environment)?
    };
    for &process in &scene.vars[b].holders.clone() {
        let closer = if process == scene.actors[other].process { other } else { actor };
        if closer == actor || scene.chance(2) {
            scene.step(closer, format!("close v{b}"));
            scene.close(b, closer);
        } else {
            let how = scene.pick(&["_exit", "exit", "kill"]);
            scene.step(closer, format!("exit how={how}"));
            scene.end_process(process);
        }
    }
    let writer = scene.holder(a)?;
    scene.step(writer, format!("recv v{a} n=10 flags=DONTWAIT"));
    let flags = scene.pick(&["", " flags=NOSIGNAL"]);
    for _ in 0..3 {
        scene.step(writer, format!("send v{a} n=10{flags}"));
    }
    scene.step(writer, format!("poll v{a} events=in,out,rdhup"));
    Some(())
}

/// Calls with invalid or empty arguments.
pub(super) fn oddities(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let actor = scene.holder(b)?;
    if scene.chance(2) {
        let sender = scene.holder(a)?;
        send_some(scene, a, sender, 40);
    }
    let text = match scene.rng.u32(0..16) {
        0 => format!("recv v{b} n=0 call=readv"),
        1 => format!("recv v{b} n=0 call=readv pieces=0"),
        2 => format!("recv v{b} n=9 call=recvfrom size=-1"),
        3 => format!("dup v{a} v{b} how=dup3 flags=12345"),
        4 => format!("dup v{b} v{b} how=dup3"),
        5 => format!("dup v{b} v{b} how=dup2"),
        6 => format!("send v{b} n=5 flags=BAD"),
        7 => format!("recv v{b} n=0 call=read"),
        8 => format!("recv v{b} n=5 flags=ERRQUEUE"),
        9 => format!("recv v{b} n=5 flags=OOB"),
        10 => format!("recv v{b} n=0 call=recvmsg flags=DONTWAIT"),
        11 => format!("send v{b} n=0 call=writev pieces=0"),
        12 => format!("send v{b} n=20 call=sendmsg control=1"),
        13 => format!("send v{b} n=20 call=pwritev2"),
        14 => format!("recv v{b} n=5 flags=PEEK,DONTWAIT,TRUNC"),
        _ => format!("shutdown v{b} how=7"),
    };
    let sends = text.starts_with("send v") && text.contains("n=20");
    scene.step(actor, text);
    if sends {
        scene.sent(b, 20);
    }
    let sender = scene.holder(a)?;
    scene.step(sender, format!("drain v{a}"));
    scene.received(a, usize::MAX);
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    exchange(scene, a, b)
}

/// A connection is passed to another process through a Unix socket.
pub(super) fn pass(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    if !scene.has_room() {
        return None;
    }
    let stream = scene.new_stream();
    let first = scene.new_var(Kind::Stranger, stream, 0, actor);
    let second = scene.new_var(Kind::Stranger, stream, 1, actor);
    scene.step(actor, format!("socketpair v{first} v{second}"));
    let how = scene.pick(&["fork", "syscall", "_Fork"]);
    let other = if scene.chance(2) {
        let environment = scene.pick(&["keep", "plain", "none"]);
        scene.spawn(actor, "posix_spawn", environment)?
    } else {
        scene.fork(actor, how)?
    };
    let (a, b) = scene.pair(actor);
    if scene.chance(2) {
        send_some(scene, a, actor, MESSAGE);
    }
    let way = scene.pick(&["", "", " way=syscall", " way=asm"]);
    scene.step(actor, format!("pass v{b} v{first}{way}"));
    if scene.chance(2) {
        scene.step(actor, format!("close v{b}"));
        scene.close(b, actor);
    }
    let taken = scene.copy_of(b, other);
    scene.step(other, format!("take v{taken} v{second}{way}"));
    receive_all(scene, taken, other);
    exchange(scene, a, taken)
}

/// Two processes or threads open, use and close connections at the same time.
pub(super) fn race(scene: &mut Scene) -> Option<()> {
    let actor = scene.any_actor()?;
    let other =
        if scene.chance(2) { scene.fork(actor, "fork")? } else { scene.thread_beside(actor)? };
    let count = scene.rng.u32(2..12);
    scene.steps.push(format!("+{actor} churn n={count} rounds=4"));
    scene.step(other, format!("churn n={count} rounds=4"));
    Some(())
}

/// Killed processes leave the registry full, and two other processes sweep it at the same time.
pub(super) fn crowd(scene: &mut Scene) {
    let Some(other) = scene.fork(0, "fork") else { return };
    scene.step(0, "listeners n=3000");
    for _ in 0..2 {
        scene.step(0, "crowd n=4096");
        // A process sweeps the registry at most once a second. One actor begins just before the
        // second, the other just after it.
        let before = scene.rng.u32(1..20);
        scene.steps.push(format!("+0 churn n=60 rounds=8 offset=-{before}"));
        scene.step(other, "churn n=60 rounds=8 offset=1");
    }
}

/// A nonblocking sender fills the connection, and the receiver reads all bytes.
pub(super) fn full(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let sender = scene.holder(a)?;
    scene.step(sender, format!("fill v{a}"));
    scene.step(sender, format!("poll v{a} events=out"));
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    let sender = scene.holder(a)?;
    scene.step(sender, format!("poll v{a} events=out"));
    exchange(scene, a, b)
}

pub(super) fn urgent(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let (sender, receiver) = (scene.holder(a)?, scene.holder(b)?);
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    scene.step(sender, format!("send v{a} flags=OOB"));
    scene.step(receiver, format!("poll v{b} events=in,pri"));
    scene.step(receiver, format!("recv v{b} n=1 flags=OOB"));
    exchange(scene, a, b)
}

/// A signal interrupts a sleeping call, which fails with `EINTR` or is restarted.
pub(super) fn interrupted(scene: &mut Scene) -> Option<()> {
    let (a, b) = scene.some_pair()?;
    let receiver = scene.holder(b)?;
    scene.step(receiver, format!("drain v{b}"));
    scene.received(b, usize::MAX);
    scene.step(receiver, format!("set v{b} what=nonblock on=0"));
    let sender = other_holder(scene, a, receiver)?;
    match scene.rng.u32(0..4) {
        0 => scene.step(receiver, format!("poll v{b} timeout=-1")),
        1 => scene.step(receiver, format!("recv v{b} n=50 call=read")),
        _ => scene.step(receiver, format!("recv v{b} n=50 flags=WAITALL")),
    }
    if scene.chance(2) {
        scene.step(sender, format!("send v{a} n=20"));
    }
    let signal = scene.pick(&["USR1", "USR2"]);
    scene.steps.push(format!("- signal {receiver} {signal}"));
    scene.step(sender, format!("send v{a} n=50"));
    scene.step(receiver, format!("drain v{b}"));
    Some(())
}
