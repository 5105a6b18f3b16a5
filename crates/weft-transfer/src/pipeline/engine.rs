//! Asynchronous operations: many in flight, completed in any order.

use std::sync::Arc;
use std::time::Duration;

/// Does the operations of an asynchronous stage: a disk's queue, for instance.
pub trait Engine<I, O, E>: Send {
    /// How many operations may be in flight.
    fn depth(&self) -> usize;

    /// Begins one. It is called only while fewer than [`Engine::depth`] are in flight.
    ///
    /// # Errors
    /// What stops the pipeline.
    fn submit(&mut self, task: I) -> Result<(), E>;

    /// Appends what has been completed. With a time, it sleeps until something is, until
    /// [`Engine::waker`]'s function is called, or for that long; with none it does not sleep.
    /// Returns how many operations have ended, which may be more than there are results.
    ///
    /// # Errors
    /// What stops the pipeline.
    fn complete(&mut self, wait: Option<Duration>, done: &mut Vec<O>) -> Result<usize, E>;

    /// Ends the sleep of [`Engine::complete`], from any thread; the next sleep, if none goes on.
    fn waker(&self) -> Arc<dyn Fn() + Send + Sync>;
}
