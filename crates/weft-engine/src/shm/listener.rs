//! The socket by which other processes find this one to share memory: a Unix socket named after the
//! random identity in the hello. It is in the abstract namespace, which processes of one network
//! namespace share, and, if `WEFT_SHM_DIR` names a directory, also there, for processes in other
//! namespaces or containers that see the directory.

use weft_sys::Forkable;
use weft_sys::calls::net::{SocketAddrUnix, SocketType};

use super::directory::{directory, name_of, sweep};
use super::policy::{Choice, choice};
use super::session::Session;
use crate::hello::ProcessId;
use crate::limits::SESSION_BACKLOG;
use crate::log::{self, Level};
use crate::reactor::Handle;
use crate::strangers::Listener;
use crate::{Result, random};

/// This process's identity; all zero if it does not share memory. The first call opens the sockets.
pub(crate) fn own_id() -> &'static ProcessId {
    static ID: Forkable<ProcessId> = Forkable::new(start);
    ID.get()
}

fn start() -> ProcessId {
    if choice() == Choice::Forbidden {
        return ProcessId::default();
    }
    let id: ProcessId = match random::bytes() {
        Ok(id) => id,
        Err(error) => {
            log::write(Level::Warn, format_args!("no shared memory: {error}"));
            return ProcessId::default();
        }
    };
    let abstract_name = name_of(&id);
    let started = SocketAddrUnix::new_abstract_name(abstract_name.as_bytes()).and_then(serve);
    if let Err(error) = started {
        log::write(Level::Warn, format_args!("no shared memory: {error}"));
        return ProcessId::default();
    }
    if let Some(directory) = directory() {
        sweep(&directory);
        let path = directory.join(name_of(&id));
        let started = SocketAddrUnix::new(&path).and_then(serve);
        match started {
            Ok(()) => weft_sys::remove_at_exit(path),
            Err(error) => log::write(Level::Warn, format_args!("{}: {error}", path.display())),
        }
    }
    id
}

fn serve(address: SocketAddrUnix) -> Result<()> {
    Listener::serve_unix(
        Handle::of_process(),
        &address,
        SocketType::SEQPACKET,
        SESSION_BACKLOG,
        Session::accept,
    )
}
