//! The expected state of a program while it is generated: its processes, threads and descriptors.
//! This is an approximation, so that most steps can succeed. Steps that fail are compared as well.

use fastrand::Rng;

use crate::limits::{ACTORS_MAX, VARS_MAX};

/// The kind of a variable's descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    Listener,
    Udp,
    Stranger,
    Pipe,
    Epoll,
    File,
    Other,
}

/// A variable of the program.
#[derive(Debug, Clone)]
pub(super) struct Var {
    pub(super) kind: Kind,
    /// The stream of which this is an end, and which end: 0 or 1.
    pub(super) stream: usize,
    pub(super) end: usize,
    /// The processes that have the descriptor open.
    pub(super) holders: Vec<usize>,
    pub(super) closes_on_exec: bool,
}

/// A thread.
#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) process: usize,
    pub(super) alive: bool,
    /// Whether the thread sleeps in a step that another thread must end.
    pub(super) busy: bool,
}

/// A program that is being generated.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) rng: Rng,
    pub(super) steps: Vec<String>,
    pub(super) vars: Vec<Var>,
    pub(super) actors: Vec<Actor>,
    pub(super) processes: usize,
    /// Bytes that each end of each stream has not received yet.
    pub(super) unread: Vec<[usize; 2]>,
}

impl Scene {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            steps: Vec::new(),
            vars: Vec::new(),
            actors: vec![Actor { process: 0, alive: true, busy: false }],
            processes: 1,
            unread: Vec::new(),
        }
    }

    pub(super) fn step(&mut self, actor: usize, text: impl AsRef<str>) {
        self.steps.push(format!("{actor} {}", text.as_ref()));
    }

    pub(super) fn chance(&mut self, of: u32) -> bool {
        self.rng.u32(0..of) == 0
    }

    pub(super) fn pick<'choice>(&mut self, from: &[&'choice str]) -> &'choice str {
        from[self.rng.usize(0..from.len())]
    }

    pub(super) fn has_room(&self) -> bool {
        self.vars.len() < VARS_MAX - 10
    }

    /// Returns a random free thread.
    pub(super) fn any_actor(&mut self) -> Option<usize> {
        let free: Vec<usize> =
            (0..self.actors.len()).filter(|&actor| self.is_free(actor)).collect();
        self.rng.choice(free)
    }

    pub(super) fn is_free(&self, actor: usize) -> bool {
        self.actors[actor].alive && !self.actors[actor].busy
    }

    /// Returns a random free thread whose process has a descriptor.
    pub(super) fn holder(&mut self, var: usize) -> Option<usize> {
        let free: Vec<usize> = (0..self.actors.len())
            .filter(|&actor| {
                self.is_free(actor) && self.vars[var].holders.contains(&self.actors[actor].process)
            })
            .collect();
        self.rng.choice(free)
    }

    /// Returns a random descriptor of one of `kinds`, and a free thread that has it.
    pub(super) fn any_var(&mut self, kinds: &[Kind]) -> Option<(usize, usize)> {
        let vars: Vec<usize> =
            (0..self.vars.len()).filter(|&var| kinds.contains(&self.vars[var].kind)).collect();
        for _ in 0..4 {
            let var = self.rng.choice(vars.iter().copied())?;
            if let Some(actor) = self.holder(var) {
                return Some((var, actor));
            }
        }
        None
    }

    /// Returns an open descriptor of the other end of `var`'s stream, and a free thread that has
    /// it.
    pub(super) fn peer(&mut self, var: usize) -> Option<(usize, usize)> {
        let Var { stream, end, .. } = self.vars[var];
        let peers: Vec<usize> = (0..self.vars.len())
            .filter(|&peer| {
                let peer = &self.vars[peer];
                peer.stream == stream && peer.end != end && !peer.holders.is_empty()
            })
            .collect();
        let peer = self.rng.choice(peers)?;
        Some((peer, self.holder(peer)?))
    }

    pub(super) fn new_var(&mut self, kind: Kind, stream: usize, end: usize, actor: usize) -> usize {
        let holders = vec![self.actors[actor].process];
        self.vars.push(Var { kind, stream, end, holders, closes_on_exec: false });
        self.vars.len() - 1
    }

    pub(super) fn new_stream(&mut self) -> usize {
        self.unread.push([0, 0]);
        self.unread.len() - 1
    }

    pub(super) fn copy_of(&mut self, var: usize, actor: usize) -> usize {
        let Var { kind, stream, end, .. } = self.vars[var];
        self.new_var(kind, stream, end, actor)
    }

    /// Adds a thread and returns its number, or `None` if the program has the maximum.
    pub(super) fn new_actor(&mut self, process: usize) -> Option<usize> {
        if self.actors.len() >= ACTORS_MAX {
            return None;
        }
        self.actors.push(Actor { process, alive: true, busy: false });
        Some(self.actors.len() - 1)
    }

    /// Returns another free thread of `actor`'s process, and creates one if there is none.
    pub(super) fn thread_beside(&mut self, actor: usize) -> Option<usize> {
        let process = self.actors[actor].process;
        let beside: Vec<usize> = (0..self.actors.len())
            .filter(|&other| {
                other != actor && self.is_free(other) && self.actors[other].process == process
            })
            .collect();
        match self.rng.choice(beside) {
            Some(other) => Some(other),
            None => {
                let other = self.new_actor(process)?;
                self.step(actor, format!("thread {other}"));
                Some(other)
            }
        }
    }

    /// Adds a child that has all descriptors of its parent.
    pub(super) fn fork(&mut self, actor: usize, how: &str) -> Option<usize> {
        self.child(actor, &format!("fork {{}} how={how}"), false)
    }

    /// Adds a child that executes a program, and has the descriptors that are not closed on exec.
    pub(super) fn spawn(&mut self, actor: usize, how: &str, environment: &str) -> Option<usize> {
        self.child(actor, &format!("spawn {{}} how={how} env={environment}"), true)
    }

    fn child(&mut self, actor: usize, text: &str, executes: bool) -> Option<usize> {
        let parent = self.actors[actor].process;
        let process = self.processes;
        let child = self.new_actor(process)?;
        self.processes += 1;
        for var in &mut self.vars {
            if var.holders.contains(&parent) && !(executes && var.closes_on_exec) {
                var.holders.push(process);
            }
        }
        self.step(actor, text.replace("{}", &child.to_string()));
        Some(child)
    }

    /// Records that a process has ended.
    pub(super) fn end_process(&mut self, process: usize) {
        for actor in &mut self.actors {
            if actor.process == process {
                actor.alive = false;
            }
        }
        for var in &mut self.vars {
            var.holders.retain(|&holder| holder != process);
        }
    }

    /// Records that a process has executed a program: its other threads end, and its descriptors
    /// with close-on-exec are closed.
    pub(super) fn execute(&mut self, actor: usize) {
        let process = self.actors[actor].process;
        for (number, other) in self.actors.iter_mut().enumerate() {
            if other.process == process && number != actor {
                other.alive = false;
            }
        }
        for var in &mut self.vars {
            if var.closes_on_exec {
                var.holders.retain(|&holder| holder != process);
            }
        }
    }

    pub(super) fn close(&mut self, var: usize, actor: usize) {
        let process = self.actors[actor].process;
        self.vars[var].holders.retain(|&holder| holder != process);
    }

    /// Adds a connection whose ends are both in `actor`'s process. Mostly it has exchanged enough
    /// messages to have moved to memory.
    pub(super) fn pair(&mut self, actor: usize) -> (usize, usize) {
        let stream = self.new_stream();
        let a = self.new_var(Kind::Tcp, stream, 0, actor);
        let b = self.new_var(Kind::Tcp, stream, 1, actor);
        let mut text = format!("pair v{a} v{b}");
        if self.chance(6) {
            text += " family=6";
        }
        match self.rng.u32(0..10) {
            0 => text += " open=NONBLOCK",
            1 => {
                text += " open=CLOEXEC";
                self.vars[a].closes_on_exec = true;
                self.vars[b].closes_on_exec = true;
            }
            _ => {}
        }
        self.step(actor, text);
        if !self.chance(12) {
            let rounds = if self.chance(6) { self.rng.u32(1..3) } else { 4 };
            self.step(actor, format!("warm v{a} v{b} rounds={rounds}"));
        }
        (a, b)
    }

    /// Returns both ends of a connection: of an existing one, or of a new one.
    pub(super) fn some_pair(&mut self) -> Option<(usize, usize)> {
        if !self.chance(4)
            && let Some((var, _)) = self.any_var(&[Kind::Tcp])
            && let Some((peer, _)) = self.peer(var)
        {
            return Some((var, peer));
        }
        if !self.has_room() {
            return None;
        }
        let actor = self.any_actor()?;
        Some(self.pair(actor))
    }

    /// Records that `count` bytes were sent from this end.
    pub(super) fn sent(&mut self, var: usize, count: usize) {
        let Var { stream, end, .. } = self.vars[var];
        if let Some(unread) = self.unread.get_mut(stream) {
            unread[1 - end] += count;
        }
    }

    pub(super) fn received(&mut self, var: usize, count: usize) {
        let Var { stream, end, .. } = self.vars[var];
        if let Some(unread) = self.unread.get_mut(stream) {
            unread[end] = unread[end].saturating_sub(count);
        }
    }

    pub(super) fn unread(&self, var: usize) -> usize {
        let Var { stream, end, .. } = self.vars[var];
        self.unread.get(stream).map_or(0, |unread| unread[end])
    }
}
