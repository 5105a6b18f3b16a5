//! `weft bench serve`: starts workers for measurements whose other ends are on another host.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::control::{self, Answer};
use crate::limits::WORKERS_MAX;
use crate::session;

/// How long a client may take to send its hello.
const GREETING_TIME: Duration = Duration::from_secs(5);

/// Starts a worker for each control connection. Returns only if it fails.
///
/// # Errors
/// If it cannot listen on the address.
pub(crate) fn run(listen: SocketAddr) -> Result<()> {
    let listener =
        TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
    eprintln!("weft bench: listening on {}", listener.local_addr()?);
    let workers = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, from)) = listener.accept() else {
            // Out of descriptors, or the peer is gone already. A lasting error also fails the next
            // call.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let workers = Arc::clone(&workers);
        // The worker dies with the thread that has started it, so the thread waits for it.
        std::thread::spawn(move || {
            let running = workers.fetch_add(1, Ordering::SeqCst);
            if let Err(error) = serve(&stream, running) {
                eprintln!("weft bench: {from}: {error:#}");
                // The peer may be gone.
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
    // The worker may take as long as it needs.
    stream.set_read_timeout(None)?;
    let mut worker = session::spawn(stream.try_clone()?.into(), &environment)?;
    worker.wait().context("cannot wait for a worker")?;
    Ok(())
}
