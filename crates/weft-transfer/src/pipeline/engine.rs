//! Asynchronous operations, which complete in any order.

use std::sync::Arc;
use std::time::Duration;

/// Runs the operations of an asynchronous stage, for instance on a disk's queue.
pub trait Engine<I, O, E>: Send {
    /// The most operations in flight.
    fn depth(&self) -> usize;

    /// Begins an operation. It is called only while fewer than [`Engine::depth`] are in flight.
    ///
    /// # Errors
    /// An error stops the pipeline.
    fn submit(&mut self, task: I) -> Result<(), E>;

    /// Appends the results of completed operations. If `wait` is given, it sleeps until one
    /// completes, until the function of [`Engine::waker`] is called, or for that long; otherwise it
    /// does not sleep. Returns how many operations have ended, which may exceed the number of
    /// results.
    ///
    /// # Errors
    /// An error stops the pipeline.
    fn complete(&mut self, wait: Option<Duration>, done: &mut Vec<O>) -> Result<usize, E>;

    /// Returns a function that ends the current sleep of [`Engine::complete`], or else the next
    /// one, from any thread.
    fn waker(&self) -> Arc<dyn Fn() + Send + Sync>;
}
