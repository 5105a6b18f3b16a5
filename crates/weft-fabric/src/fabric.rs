//! The fabric of a process: where buffers, listeners and connections come from.

use std::fs::File;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::path::Path;
use std::sync::Arc;

use crate::blocking;
use crate::carrier::Domain;
use crate::common::Common;
use crate::connect::{Connecting, private_data_max};
use crate::error::Result;
use crate::listen::Listener;
use crate::mapped_file::MappedFile;
use crate::memory::Buffer;
use crate::options::{Carrier, Options};
use crate::placement::Placement;
use crate::stop::Stop;

/// Access to the fabric. Clones are handles of the same one, whose buffers fit the endpoints of
/// all.
///
/// An idle fabric uses no processor time. A thread of its own sleeps on behalf of futures, once
/// there is one that sleeps.
#[derive(Clone, Debug)]
pub struct Fabric {
    common: Arc<Common>,
}

impl Fabric {
    /// Opens the fabric.
    ///
    /// # Errors
    /// [`Error::NoDevice`](crate::Error::NoDevice), [`Error::NoCard`](crate::Error::NoCard),
    /// [`Error::Option`](crate::Error::Option); [`Error::System`](crate::Error::System) if the
    /// network interfaces cannot be listed.
    pub fn open(options: Options) -> Result<Self> {
        options.check()?;
        // If the program runs on Weft's sockets, the kernel reports calls that are not the C
        // library's.
        #[cfg(target_arch = "x86_64")]
        weft_sys::use_gate_of_the_c_library();
        let domain = Domain::open(&options)?;
        Ok(Self { common: Arc::new(Common::new(options, domain)) })
    }

    /// Opens the fabric of a host of a simulation.
    pub(crate) fn simulated(options: Options, host: &Domain) -> Result<Self> {
        options.check()?;
        Ok(Self { common: Arc::new(Common::new(options, host.clone())) })
    }

    /// What carries the connections: the engine or the system's libraries.
    #[must_use]
    pub fn carrier(&self) -> Carrier {
        self.common.domain.carrier()
    }

    /// Bytes of private data that a program can give with a connection:
    /// [`PRIVATE_DATA_MAX`](crate::limits::PRIVATE_DATA_MAX) over the engine, 241 over iWARP
    /// devices, 42 over others. A peer over another carrier refuses more than it can take itself.
    #[must_use]
    pub fn private_data_max(&self) -> usize {
        private_data_max(&self.common)
    }

    /// Listens for connections at an IP address and a port; port 0 takes a free one
    /// ([`Listener::address`]).
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the address is not one of this host, or the port
    /// is in use.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener> {
        Listener::new(&self.common, address)
    }

    /// Listens for connections of this host at a Unix-domain path of up to 108 bytes. The path is
    /// removed with the listener. Who may connect to a socket there, by the permissions of the
    /// path, can connect; nobody else can. The socket has the permissions that the process's umask
    /// leaves, by default those that let its own user connect.
    ///
    /// A socket at which nobody listens, such as one of a process that was killed, is replaced,
    /// unless this process may not read the directory. A listener does that with the directory
    /// locked (`flock`), and waits at most ten seconds for others.
    ///
    /// The connections go by the loopback interface, as those to an IP address of this host do, and
    /// so [`Listener::address`] is one of that interface.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the socket cannot be made: `EADDRINUSE` for a
    /// path at which there is another file, or somebody listens; `ENAMETOOLONG` for one that is too
    /// long; `EACCES`; `ETIMEDOUT` if the directory stays locked; and `EOPNOTSUPP` in a simulation.
    pub fn listen_path(&self, path: impl AsRef<Path>) -> Result<Listener> {
        Listener::at_path(&self.common, path.as_ref())
    }

    /// Connects to a listener, and gives its program `private_data`, of up to
    /// [`Fabric::private_data_max`] bytes. With [`Carrier::System`] it waits until the address and
    /// the route are found, for at most ten seconds.
    ///
    /// # Errors
    /// [`Error::TooLong`](crate::Error::TooLong), [`Error::Memory`](crate::Error::Memory);
    /// [`Error::Unreachable`](crate::Error::Unreachable) if there is no route.
    pub fn connect(&self, peer: SocketAddr, private_data: &[u8]) -> Result<Connecting> {
        Connecting::new(&self.common, peer, private_data)
    }

    /// Connects to a listener at a Unix-domain path, and gives its program `private_data`, of up to
    /// [`Fabric::private_data_max`] bytes less 16. It waits until the process that listens has
    /// answered at the path, for at most ten seconds.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if nobody listens there (`ENOENT`, `ECONNREFUSED`),
    /// this process may not connect (`EACCES`), the path is too long (`ENAMETOOLONG`), or the
    /// socket is one of another program (`EPROTO`, `EPROTOTYPE`, `ETIMEDOUT`); those of
    /// [`Fabric::connect`].
    pub fn connect_path(&self, path: impl AsRef<Path>, private_data: &[u8]) -> Result<Connecting> {
        Connecting::to_path(&self.common, path.as_ref(), private_data)
    }

    /// Blocks the thread until a future is ready, such as an [`Operation`](crate::Operation), a
    /// [`Connecting`], an [`Accept`](crate::Accept), a [`Close`](crate::Close), or one that is made
    /// of those. Returns `None` if `stop` ends the wait before.
    ///
    /// The future is dropped then, and what that means for it is what happens: a connection is
    /// given up, an operation goes on. After [`Stop::stop`] it is not polled any more; at the
    /// deadline it has been polled once at least. For a single operation the `wait` of its own
    /// costs less.
    ///
    /// In a simulation there is no time: the wait ends when nothing more can happen.
    ///
    /// ```
    /// # use std::time::{Duration, Instant};
    /// # use weft_fabric::{Fabric, Options, Result, Stop};
    /// # fn main() -> Result<()> {
    /// let fabric = Fabric::open(Options::default())?;
    /// let listener = fabric.listen(([127, 0, 0, 1], 0).into())?;
    /// let stop = Stop::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let mut accepted = 0;
    ///         while let Some(Ok(_incoming)) = fabric.wait_until(listener.accept(), &stop) {
    ///             accepted += 1;
    ///         }
    ///         accepted
    ///     });
    ///     stop.stop();
    /// });
    /// // Nobody connects.
    /// let soon = Stop::new().at(Instant::now() + Duration::from_millis(1));
    /// assert!(fabric.wait_until(listener.accept(), &soon).is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait_until<F: Future>(&self, future: F, stop: &Stop) -> Option<F::Output> {
        blocking::wait(&self.common, future, Some(stop))
    }

    /// Allocates a buffer of `len` bytes, all zero.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory); [`Error::System`](crate::Error::System) if no more
    /// memory can be registered.
    pub fn alloc(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.common.domain, len, Placement::default())
    }

    /// Allocates a buffer of `len` bytes, all zero, in huge pages or on a NUMA node.
    ///
    /// ```
    /// # use weft_fabric::{Fabric, HugePages, Options, Placement};
    /// # fn main() -> weft_fabric::Result<()> {
    /// # let fabric = Fabric::open(Options::default())?;
    /// let placement = Placement { huge_pages: HugePages::Wanted, ..Placement::default() };
    /// let buffer = fabric.alloc_placed(64 << 20, placement)?;
    /// assert_eq!(buffer.placement(), placement);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Fabric::alloc`]. [`Error::System`](crate::Error::System) if there are not so many
    /// huge pages ([`HugePages::Reserved`](crate::HugePages::Reserved); `ENOMEM`, or `EFAULT` if
    /// there are none on the node), if there is no such node or it has no memory (`EINVAL`), or if
    /// the process may not choose one (`EPERM`, `ENOSYS`).
    pub fn alloc_placed(&self, len: usize, placement: Placement) -> Result<Buffer> {
        Buffer::new(&self.common.domain, len, placement)
    }

    /// Maps a range of a regular file, so that peers access it without a copy of it in this
    /// process. Whether it can be written to depends on how `file` is open; the file does not
    /// become longer.
    ///
    /// ```
    /// # use weft_fabric::{Fabric, Options, Rights};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = Fabric::open(Options::default())?;
    /// let file = std::fs::File::open("/etc/passwd")?;
    /// let mapped = fabric.map_file(&file, ..)?;
    /// let mut start = [0; 16];
    /// mapped.read_at(0, &mut start)?;
    /// let shared = mapped.share(Rights::READ, ..)?;
    /// let key = shared.key(); // to the peer, by a message
    /// # assert_eq!(key.len(), mapped.len() as u64);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The first call sets a handler of `SIGBUS` in this process, for files that somebody cuts
    /// off; what it does not know it passes on to the handler that was set before. A program that
    /// sets one of its own has to do so before, or pass on likewise.
    ///
    /// # Errors
    /// [`Error::Range`](crate::Error::Range) if the range is empty, or not inside the file;
    /// [`Error::System`](crate::Error::System) if it cannot be mapped: `EACCES` if it is open for
    /// writing only, `ENODEV` if it is no regular file, `ENFILE` if 1,024 files are mapped.
    pub fn map_file(&self, file: &File, range: impl RangeBounds<u64>) -> Result<MappedFile> {
        MappedFile::new(&self.common, file, &range)
    }
}
