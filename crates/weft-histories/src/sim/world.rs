//! Clients, their connections, and what happens to them.

use std::time::Duration;

use fastrand::Rng;

use super::disk::Disk;
use super::server::Server;
use crate::history::{ClientHistory, Clock, Span};
use crate::session::{Plan, Session};

const STEPS: usize = 1_200;
const CLIENTS: usize = 4;
/// Clients that go away for good, at most.
const GONE_MAX: usize = 2;
/// Steps within which everything ends when nothing breaks any more.
const LAST_STEPS_MAX: usize = 20_000;

/// A connection on its way.
#[derive(Debug, Default)]
struct Pipe {
    up: Vec<u8>,
    down: Vec<u8>,
}

#[derive(Debug)]
struct Client {
    session: Session,
    /// The number of its connection.
    link: Option<(usize, Pipe)>,
}

struct World {
    rng: Rng,
    clock: Clock,
    disk: Disk,
    server: Server,
    clients: Vec<Client>,
    /// Connections that clients have lost, with what the server may still receive.
    lost: Vec<(usize, Vec<u8>)>,
    histories: Vec<ClientHistory>,
    crashes: Vec<Span>,
    links: usize,
    numbers: u16,
    gone: usize,
}

/// What all clients saw, and when the server crashed.
pub(super) type Seen = (Vec<ClientHistory>, Vec<Span>);

/// Returns what all clients saw, or what no server may do.
pub(super) fn run(seed: u64) -> Result<Seen, String> {
    let disk = Disk::default();
    let server = Server::start(&disk, 0)?;
    let mut world = World {
        rng: Rng::with_seed(seed),
        clock: Clock::default(),
        disk,
        server,
        clients: Vec::new(),
        lost: Vec::new(),
        histories: Vec::new(),
        crashes: Vec::new(),
        links: 0,
        numbers: 0,
        gone: 0,
    };
    for _ in 0..CLIENTS {
        let client = world.client(seed);
        world.clients.push(client);
    }
    for _ in 0..STEPS {
        match world.rng.u8(..100) {
            0 => world.crash()?,
            1 => world.go_away(seed),
            2..5 => world.cut(),
            _ => world.step()?,
        }
    }
    world.end()
}

impl World {
    fn client(&mut self, seed: u64) -> Client {
        let plan = Plan {
            calls: self.rng.usize(10..60),
            depth: self.rng.usize(1..=3),
            wait_max: Duration::from_millis(30),
        };
        let session = Session::new(seed, self.numbers, plan);
        self.numbers += 1;
        Client { session, link: None }
    }

    fn any(&mut self) -> usize {
        self.rng.usize(..self.clients.len())
    }

    /// Something that happens when nothing breaks.
    fn step(&mut self) -> Result<(), String> {
        match self.rng.u8(..20) {
            0 => self.server.pass_time(self.rng.u64(1..6)),
            1 => self.connect(),
            2..7 => self.begin(),
            7..12 => self.deliver_up()?,
            12..15 => self.commit()?,
            15 => self.notice(),
            _ => self.deliver_down()?,
        }
        for key in self.server.closed() {
            let of = |client: &&mut Client| client.link.as_ref().is_some_and(|it| it.0 == key);
            if let Some(client) = self.clients.iter_mut().find(of) {
                client.link = None;
                self.lost.push((key, Vec::new()));
            }
        }
        Ok(())
    }

    fn connect(&mut self) {
        let at = self.any();
        let client = &mut self.clients[at];
        if client.link.is_none() {
            self.links += 1;
            let pipe = Pipe { up: client.session.connect(), down: Vec::new() };
            client.link = Some((self.links, pipe));
        }
    }

    fn begin(&mut self) {
        let at = self.any();
        let Client { session, link } = &mut self.clients[at];
        if let Some((_, pipe)) = link {
            pipe.up.extend(session.begin(&self.clock).unwrap_or_default());
        }
    }

    fn deliver_up(&mut self) -> Result<(), String> {
        let at = self.any();
        let Some((link, pipe)) = &mut self.clients[at].link else { return Ok(()) };
        let len = part(&mut self.rng, pipe.up.len());
        let bytes: Vec<u8> = pipe.up.drain(..len).collect();
        let is_right = bytes.is_empty() || self.server.receive(*link, &bytes);
        if is_right { Ok(()) } else { Err("the server does not understand a client".into()) }
    }

    fn commit(&mut self) -> Result<(), String> {
        for (key, bytes) in self.server.commit()? {
            let of = |client: &&mut Client| client.link.as_ref().is_some_and(|it| it.0 == key);
            if let Some(Client { link: Some((_, pipe)), .. }) = self.clients.iter_mut().find(of) {
                pipe.down.extend(bytes);
            }
        }
        Ok(())
    }

    fn deliver_down(&mut self) -> Result<(), String> {
        let at = self.any();
        let Client { session, link } = &mut self.clients[at];
        let Some((_, pipe)) = link else { return Ok(()) };
        let len = part(&mut self.rng, pipe.down.len());
        let bytes: Vec<u8> = pipe.down.drain(..len).collect();
        let output = session.receive(&self.clock, &bytes).map_err(|e| e.to_string())?;
        pipe.up.extend(output);
        Ok(())
    }

    fn cut(&mut self) {
        let at = self.any();
        if let Some((link, mut pipe)) = self.clients[at].link.take() {
            pipe.up.truncate(self.rng.usize(..=pipe.up.len()));
            self.lost.push((link, pipe.up));
        }
    }

    /// The server receives what is left of a lost connection, or notices its end.
    fn notice(&mut self) {
        if self.lost.is_empty() {
            return;
        }
        let at = self.rng.usize(..self.lost.len());
        let (link, up) = &mut self.lost[at];
        if up.is_empty() {
            self.server.close(*link);
            self.lost.swap_remove(at);
        } else {
            // A message that was cut makes no difference: the connection ends anyway.
            let bytes: Vec<u8> = up.drain(..part(&mut self.rng, up.len())).collect();
            self.server.receive(*link, &bytes);
        }
    }

    fn go_away(&mut self, seed: u64) {
        if self.gone == GONE_MAX {
            return;
        }
        self.gone += 1;
        let at = self.any();
        if let Some((link, pipe)) = self.clients[at].link.take() {
            self.lost.push((link, pipe.up));
        }
        let new = self.client(seed);
        let old = std::mem::replace(&mut self.clients[at], new);
        self.histories.push(old.session.history(true));
    }

    fn crash(&mut self) -> Result<(), String> {
        self.disk.crash();
        let now = self.clock.tick();
        self.crashes.push(Span { start: now, end: Some(now) });
        self.lost.clear();
        for client in &mut self.clients {
            client.link = None;
        }
        self.server = Server::start(&self.disk, self.server.ms())?;
        Ok(())
    }

    /// Lets everything end.
    fn end(mut self) -> Result<Seen, String> {
        for _ in 0..LAST_STEPS_MAX {
            if self.clients.iter().all(|client| client.session.is_over()) {
                let histories = self.clients.into_iter().map(|it| it.session.history(false));
                self.histories.extend(histories);
                return Ok((self.histories, self.crashes));
            }
            self.step()?;
        }
        let waiting = self.clients.iter().filter(|client| !client.session.is_over());
        Err(format!("clients wait for ever: {:?}", waiting.collect::<Vec<_>>()))
    }
}

/// How many of the bytes come now: mostly all.
fn part(rng: &mut Rng, len: usize) -> usize {
    if rng.u8(..4) == 0 { rng.usize(..=len) } else { len }
}
