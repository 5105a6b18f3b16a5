//! Signals that end the program, after the terminal has been restored.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::{flag, low_level};

/// Records the last signal that asks the program to end.
pub(super) struct Stop(Arc<AtomicUsize>);

impl Stop {
    pub(super) fn on_signals() -> Result<Self> {
        let noted = Arc::new(AtomicUsize::new(0));
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            flag::register_usize(signal, Arc::clone(&noted), signal as usize)
                .context("cannot watch for signals")?;
        }
        Ok(Self(noted))
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    /// Kills the process by the recorded signal, if there was one, so that its parent learns of it.
    pub(super) fn follow(&self) -> Result<()> {
        match self.0.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => low_level::emulate_default_handler(i32::try_from(signal)?)
                .context("cannot end by a signal"),
        }
    }
}
