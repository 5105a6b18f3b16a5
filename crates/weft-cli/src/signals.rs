//! Signals that a server acts on.

use std::ffi::c_int;
use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::thread::spawn;

use anyhow::{Context as _, Result};
use signal_hook::low_level::pipe;

/// Calls `act` on a thread of its own after each of these signals, until the process ends.
///
/// # Errors
///
/// If the process is out of descriptors.
pub(crate) fn on(signals: &[c_int], mut act: impl FnMut() + Send + 'static) -> Result<()> {
    let (mut arrived, sender) = UnixStream::pair()?;
    for &signal in signals {
        pipe::register(signal, sender.try_clone()?).context("cannot watch for signals")?;
    }
    spawn(move || {
        while arrived.read_exact(&mut [0]).is_ok() {
            act();
        }
    });
    Ok(())
}
