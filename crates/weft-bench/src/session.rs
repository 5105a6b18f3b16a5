//! Executes one measurement from its plan: starts the workers, exchanges their addresses, and
//! collects their reports.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::control::{self, Answer, Order, Report};
use crate::limits::{REPLY_TIMEOUT, WORKERS_MAX};
use crate::plan::{Address, Job};

/// The jobs of both ends of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// The engine's variables for the workers.
    pub(crate) environment: Vec<(String, String)>,
    pub(crate) server: Option<Job>,
    /// The clients. Each is connected to the server's next connections.
    pub(crate) clients: Vec<Job>,
    /// Jobs next to the server, on its core.
    pub(crate) beside: Vec<Job>,
}

impl Plan {
    /// Returns the length of the longest message in bytes.
    pub(crate) fn message_max(&self) -> usize {
        let lanes = self.server.iter().chain(&self.clients).filter_map(|job| job.lane.as_ref());
        lanes.map(|lane| lane.send_size.max(lane.receive_size)).max().unwrap_or(0)
    }
}

/// The workers' reports.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) server: Option<Report>,
    pub(crate) clients: Vec<Report>,
}

/// Where the workers run.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The `weft bench serve` that runs the server's end; `None` for this host.
    pub(crate) connect: Option<SocketAddr>,
    /// The server's core, then those that the clients share; empty to let the kernel choose.
    pub(crate) cores: Vec<usize>,
}

impl Place {
    fn server_core(&self) -> Option<usize> {
        self.cores.first().copied()
    }

    fn client_core(&self, index: usize) -> Option<usize> {
        let clients = self.cores.get(1..).filter(|rest| !rest.is_empty()).unwrap_or(&self.cores);
        (!clients.is_empty()).then(|| clients[index % clients.len()])
    }
}

/// Runs a plan.
///
/// # Errors
/// The error of a worker, or a worker that does not answer in time.
pub(crate) fn run(plan: &Plan, place: &Place) -> Result<Outcome> {
    let count = plan.clients.len() + plan.beside.len();
    ensure!(count < WORKERS_MAX, "{count} processes beside the server are too many");
    let mut all = Vec::new();
    let mut client_address = IpAddr::V4(Ipv4Addr::LOCALHOST);
    for job in plan.server.iter().chain(&plan.beside) {
        let (worker, address) = match place.connect {
            None => (Worker::start(&plan.environment)?, client_address),
            Some(at) => {
                let (worker, ours) = Worker::remote(at, &plan.environment)?;
                client_address = ours;
                (worker, at.ip())
            }
        };
        all.push((worker, placed(job, address, place.server_core())));
    }
    for (index, job) in plan.clients.iter().enumerate() {
        let worker = Worker::start(&plan.environment)?;
        all.push((worker, placed(job, client_address, place.client_core(index))));
    }
    let reports = conduct(&all, plan)?;
    let mut reports = reports.into_iter();
    let server = if plan.server.is_some() { reports.next() } else { None };
    Ok(Outcome { server, clients: reports.skip(plan.beside.len()).collect() })
}

fn placed(job: &Job, address: IpAddr, core: Option<usize>) -> Job {
    let mut job = job.clone();
    job.core = core;
    if let Some(lane) = &mut job.lane {
        lane.address = address;
    }
    job
}

/// Takes the workers, of which the server is the first, through all steps.
fn conduct(all: &[(Worker, Job)], plan: &Plan) -> Result<Vec<Report>> {
    for (worker, job) in all {
        worker.order(&Order::Prepare(job.clone()))?;
    }
    let mut addresses = Vec::new();
    for (worker, _) in all {
        match worker.answer()? {
            Answer::Prepared(own) => addresses.push(own),
            _ => bail!("a worker sent an unexpected answer"),
        }
    }
    for ((worker, _), peers) in all.iter().zip(introduce(&addresses, plan)?) {
        worker.order(&Order::Connect(peers))?;
    }
    for (worker, _) in all {
        ensure!(
            matches!(worker.answer()?, Answer::Connected),
            "a worker sent an unexpected answer"
        );
    }
    for (worker, _) in all {
        worker.order(&Order::Start)?;
    }
    finish(all)
}

/// Returns the addresses for each worker: a client gets the server's in turn, the server gets all
/// clients'.
fn introduce(addresses: &[Vec<Address>], plan: &Plan) -> Result<Vec<Vec<Address>>> {
    let first_client = usize::from(plan.server.is_some()) + plan.beside.len();
    let clients = &addresses[first_client..];
    let server = if plan.server.is_some() { &addresses[0][..] } else { &[] };
    let total: usize = clients.iter().map(Vec::len).sum();
    ensure!(total == server.len(), "{total} ends of clients, {} of the server", server.len());
    let mut peers = vec![Vec::new(); addresses.len()];
    let mut rest = server;
    for (client, own) in clients.iter().enumerate() {
        let (next, others) = rest.split_at(own.len());
        peers[first_client + client] = next.to_vec();
        rest = others;
    }
    if plan.server.is_some() {
        peers[0] = clients.concat();
    }
    Ok(peers)
}

/// Waits for the workers whose jobs end, and then stops the others.
fn finish(all: &[(Worker, Job)]) -> Result<Vec<Report>> {
    let longest = all.iter().map(|(_, job)| job.duration()).max().unwrap_or_default();
    let deadline = Instant::now() + longest + REPLY_TIMEOUT;
    let mut reports: Vec<Option<Report>> = vec![None; all.len()];
    let mut is_stopped = false;
    while reports.iter().any(Option::is_none) {
        let active = |index: usize| !all[index].1.is_passive();
        let pending = |index: usize| reports[index].is_none();
        if !is_stopped && !(0..all.len()).any(|index| active(index) && pending(index)) {
            let mut passive = all.iter().filter(|(_, job)| job.is_passive());
            passive.try_for_each(|(worker, _)| worker.order(&Order::Stop))?;
            is_stopped = true;
        }
        let waiting: Vec<usize> = (0..all.len()).filter(|&index| pending(index)).collect();
        for index in readable(waiting, all, deadline)? {
            match all[index].0.answer()? {
                Answer::Done(report) => reports[index] = Some(*report),
                _ => bail!("a worker sent an unexpected answer"),
            }
        }
    }
    Ok(reports.into_iter().flatten().collect())
}

fn readable(mut of: Vec<usize>, all: &[(Worker, Job)], deadline: Instant) -> Result<Vec<usize>> {
    let fds = of.iter().map(|&index| PollFd::from_borrowed_fd(all[index].0.fd(), PollFlags::IN));
    let mut fds: Vec<_> = fds.collect();
    let left = deadline.saturating_duration_since(Instant::now());
    ensure!(poll(&mut fds, Some(&timespec(left)))? != 0, "a worker does not finish in time");
    let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
    of.retain(|_| ready.next().unwrap_or(false));
    Ok(of)
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}

/// A worker's control connection, and its process if it runs on this host. Dropping the value ends
/// the process.
struct Worker {
    control: Control,
    child: Option<Child>,
}

enum Control {
    Here(UnixStream),
    There(TcpStream),
}

impl Worker {
    /// Starts a worker on this host.
    fn start(environment: &[(String, String)]) -> Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let child = spawn(theirs.into(), environment)?;
        ours.set_read_timeout(Some(REPLY_TIMEOUT))?;
        Ok(Self { control: Control::Here(ours), child: Some(child) })
    }

    /// Requests a worker from a `weft bench serve`. Also returns the local address that leads
    /// there.
    fn remote(at: SocketAddr, environment: &[(String, String)]) -> Result<(Self, IpAddr)> {
        let stream = TcpStream::connect_timeout(&at, REPLY_TIMEOUT)
            .with_context(|| format!("cannot reach `weft bench serve` at {at}"))?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        stream.set_nodelay(true)?;
        let ours = stream.local_addr()?.ip();
        let worker = Self { control: Control::There(stream), child: None };
        let environment = environment.to_vec();
        worker.order(&Order::Hello { version: control::VERSION, environment })?;
        Ok((worker, ours))
    }

    fn order(&self, order: &Order) -> Result<()> {
        match &self.control {
            Control::Here(stream) => control::send(stream, order),
            Control::There(stream) => control::send(stream, order),
        }
    }

    fn answer(&self) -> Result<Answer> {
        let answer = match &self.control {
            Control::Here(stream) => control::receive(stream),
            Control::There(stream) => control::receive(stream),
        };
        match answer?.context("a worker has ended unexpectedly")? {
            Answer::Failed(why) => Err(anyhow!(why)),
            answer => Ok(answer),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match &self.control {
            Control::Here(stream) => stream.as_fd(),
            Control::There(stream) => stream.as_fd(),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // The worker has sent everything, or has failed.
            let _ = child.kill().and_then(|()| child.wait());
        }
    }
}

/// Starts a worker process whose standard input is the control connection.
///
/// # Errors
/// If this program cannot start itself.
pub(crate) fn spawn(control: OwnedFd, environment: &[(String, String)]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["bench", "peer"]).stdin(control).stdout(Stdio::null());
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.spawn().context("cannot start a worker")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_gets_the_first_core_and_clients_share_the_others() {
        let place = |cores: &[usize]| Place { connect: None, cores: cores.to_vec() };
        assert_eq!(place(&[4, 5, 6]).server_core(), Some(4));
        assert_eq!(
            [0, 1, 2].map(|client| place(&[4, 5, 6]).client_core(client)),
            [Some(5), Some(6), Some(5)]
        );
        assert_eq!(place(&[4]).client_core(3), Some(4));
        assert_eq!(place(&[]).client_core(0), None);
    }

    #[test]
    fn each_client_gets_its_part_of_the_servers_addresses() {
        let qp = |number| Address::Qp { number, gid: [0; 16], memory: 0, key: 0 };
        let numbers = |peers: &[Address]| -> Vec<u32> {
            let number = |peer: &Address| match peer {
                Address::Qp { number, .. } => *number,
                _ => 0,
            };
            peers.iter().map(number).collect()
        };
        let job = |role| Job { lane: None, lanes: 1, role, duration_ms: 0, core: None };
        let plan = Plan {
            environment: Vec::new(),
            server: Some(job(crate::plan::Role::Answer)),
            clients: Vec::new(),
            beside: vec![job(crate::plan::Role::Burn)],
        };
        let addresses = [vec![qp(1), qp(2), qp(3)], vec![], vec![qp(11)], vec![qp(12), qp(13)]];
        let peers = introduce(&addresses, &plan).expect("as many");
        let peers: Vec<_> = peers.iter().map(|peers| numbers(peers)).collect();
        assert_eq!(peers, [vec![11, 12, 13], vec![], vec![1], vec![2, 3]]);
        introduce(&addresses[..3], &plan).expect_err("the server has more");
    }
}
