//! `weft bench serve`: starts workers for measurements whose other end is on another host.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::control::{self, Answer};
use crate::limits::WORKERS_MAX;
use crate::session;

/// How long a client may take to greet.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// Starts a worker for each control connection. Returns on failure only.
///
/// # Errors
/// If the address cannot be listened on.
pub(crate) fn run(listen: SocketAddr) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    eprintln!("weft bench: listening on {}", listener.local_addr()?);
    let workers = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, from)) = listener.accept() else {
            // No descriptor, or a peer that is gone already: what lasts, lasts for the next one.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let workers = Arc::clone(&workers);
        // The thread stays until the worker has ended, for that ends with the thread.
        std::thread::spawn(move || {
            let running = workers.fetch_add(1, Ordering::SeqCst);
            if let Err(error) = serve(&stream, running) {
                eprintln!("weft bench: {from}: {error:#}");
                // There may be nobody to tell.
                let _ = control::send(&stream, &Answer::Failed(format!("{error:#}")));
            }
            workers.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

fn serve(stream: &TcpStream, running: usize) -> Result<()> {
    ensure!(running < WORKERS_MAX, "{running} workers are running already");
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_TIME))?;
    let environment = control::check_hello(control::receive(stream)?)?;
    // A worker waits as long as it takes.
    stream.set_read_timeout(None)?;
    let mut worker = session::spawn(stream.try_clone()?.into(), &environment)?;
    worker.wait().context("cannot wait for a worker")?;
    Ok(())
}
