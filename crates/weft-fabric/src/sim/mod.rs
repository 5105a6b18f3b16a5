//! A simulated fabric, for tests of tools: without threads and clocks, and the same for the same
//! seed.
//!
//! A [`Simulation`] has [`Host`]s, whose [`Fabric`]s behave like others, and tasks, which are
//! futures. What happens next is drawn from the seed: which task runs, which connection goes on,
//! when a completion shows, when an end learns that the connection is made or lost. A connection
//! keeps its order, and nothing else does. A test can lose a connection at any step
//! ([`Simulation::cut_at`]), and kill a host ([`Host::kill`]).
//!
//! Blocking calls work, too: they have the network go on until they are done, but no tasks. There
//! is no time: limits of waits are over when nothing more can happen. Descriptors are never
//! readable.
//!
//! ```
//! use weft_fabric::sim::Simulation;
//! use weft_fabric::{Options, Result};
//!
//! # fn main() -> Result<()> {
//! let simulation = Simulation::new(7)?;
//! let [server, client] = [simulation.host(), simulation.host()];
//! let listener = server.open(Options::default())?.listen(([0, 0, 0, 0], 18_515).into())?;
//! let address = listener.address();
//! let fabric = client.open(Options::default())?;
//! server.spawn(async move {
//!     let endpoint = listener.accept().await.unwrap().accept(b"").unwrap();
//!     assert_eq!(*endpoint.receive().await.unwrap(), *b"hello");
//! });
//! client.spawn(async move {
//!     let endpoint = fabric.connect(address, b"").unwrap().await.unwrap().endpoint;
//!     endpoint.send(b"hello").unwrap().await.unwrap();
//! });
//! assert_eq!(simulation.run(), 0, "a task waits for what never comes");
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use weft_sys::Lock;

use crate::carrier::Domain;
use crate::carrier::simulated::{self, Network};
use crate::error::{Error, Result};
use crate::fabric::Fabric;
use crate::options::Options;

#[cfg(test)]
mod tests;

/// A network of hosts, and the tasks on them. Clones are handles of the same one.
#[derive(Clone, Debug)]
pub struct Simulation {
    network: Arc<Network>,
    tasks: Arc<Lock<Vec<Task>>>,
}

/// A host of a [`Simulation`].
#[derive(Clone, Debug)]
pub struct Host {
    simulation: Simulation,
    domain: simulated::Domain,
}

struct Task {
    address: IpAddr,
    future: Pin<Box<dyn Future<Output = ()> + Send>>,
    woken: Arc<Woken>,
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Whether a task is to be polled.
#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Simulation {
    /// A network without hosts, in which everything is drawn from `seed`.
    ///
    /// # Errors
    /// [`Error::System`] if the process has no descriptors left.
    pub fn new(seed: u64) -> Result<Self> {
        let network = Network::new(seed).map_err(|errno| Error::system("simulate", errno))?;
        Ok(Self { network, tasks: Arc::new(Lock::new(Vec::new())) })
    }

    /// Adds a host.
    #[must_use]
    pub fn host(&self) -> Host {
        Host { simulation: self.clone(), domain: self.network.host() }
    }

    /// Has a connection be lost at this step, as [`Simulation::steps`] counts them: which one is
    /// drawn. A Write that is on the way then may take place in part.
    pub fn cut_at(&self, step: u64) {
        self.network.cut_at(step);
    }

    /// How many steps the network has made.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.network.steps()
    }

    /// A number below `end`, from the seed, for the test's own choices; 0 if `end` is 0.
    #[must_use]
    pub fn draw(&self, end: usize) -> usize {
        self.network.draw(end)
    }

    /// Runs until nothing can happen any more. Returns the number of tasks that have not ended, and
    /// never will.
    pub fn run(&self) -> usize {
        while self.turn() {}
        self.tasks.lock().len()
    }

    /// Polls a task, or has the network make a step. Returns whether there was anything to do.
    pub fn turn(&self) -> bool {
        match self.take_task() {
            Some(mut task) => {
                let waker = Waker::from(Arc::clone(&task.woken));
                // Without the lock, since a task may spawn others, and its end may drop much.
                if task.future.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Pending {
                    self.tasks.lock().push(task);
                }
                true
            }
            None => self.network.step(),
        }
    }

    /// Takes one of the tasks that are to be polled.
    fn take_task(&self) -> Option<Task> {
        let mut tasks = self.tasks.lock();
        let ready = |(at, task): (usize, &Task)| task.woken.0.load(Ordering::Acquire).then_some(at);
        let all: Vec<usize> = tasks.iter().enumerate().filter_map(ready).collect();
        let at = *all.get(self.network.draw(all.len()))?;
        let task = tasks.remove(at);
        task.woken.0.store(false, Ordering::Release);
        Some(task)
    }
}

impl Host {
    /// The address, at which the host's listeners can be reached.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.domain.address()
    }

    /// Opens the fabric of this host. The options' interface and carrier have no effect.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn open(&self, options: Options) -> Result<Fabric> {
        Fabric::simulated(options, &Domain::Simulated(self.domain.clone()))
    }

    /// Adds a task. It runs when the simulation does.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let (address, woken) = (self.address(), Arc::new(Woken(AtomicBool::new(true))));
        self.simulation.tasks.lock().push(Task { address, future: Box::pin(task), woken });
    }

    /// Kills the processes of this host: its tasks end where they are, its memory and its listeners
    /// are gone, and its peers learn at some time that their connections are lost.
    pub fn kill(&self) {
        self.domain.kill();
        let address = self.address();
        let killed = {
            let mut tasks = self.simulation.tasks.lock();
            let (killed, left) =
                std::mem::take(&mut *tasks).into_iter().partition(|task| task.address == address);
            *tasks = left;
            killed
        };
        drop::<Vec<Task>>(killed);
    }
}
