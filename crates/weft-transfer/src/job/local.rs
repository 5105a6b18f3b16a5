//! Copies within one host, with both ends in one process.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::accept::{Accepting, Answer, Resolve, accept};
use super::initiate::{Initiating, InitiatorRole, initiate};
use super::lines::{Lines, MemoryLine};
use super::places::{Naming, Target, check_apart, keep_links_out};
use super::request::{Flags, Request};
use super::task::CopyTask;
use crate::end::{EndError, Finished, SourceChannel};
use crate::limits::{BLOCK_SIZE, LOCAL_CHANNELS};
use crate::placement::{Placement, Reason};
use crate::transport::memory;
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::source::Content;
use crate::wire::{Refusal, Role, Terms};
use weft_sys::lock;

/// The target of the only copy.
struct Here(Mutex<Option<Target>>);

impl Resolve for Here {
    fn resolve(&self, _role: Role, _request: &Request) -> Result<Answer, (Refusal, String)> {
        let taken = lock(&self.0).take();
        taken.map(Answer::Write).ok_or_else(|| (Refusal::Busy, "one copy at a time".into()))
    }
}

impl CopyTask {
    /// Copies within this host.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn within_host(
        mut self,
        mut content: Content,
        target: Target,
    ) -> Result<Finished, EndError> {
        // Blocks do not leave this process.
        let useless = Flags::COMPRESSES.with(Flags::COMPRESSES_ALWAYS, true);
        let useless = useless.with(Flags::VERSIONS, true);
        self.request.flags = self.request.flags.without(useless.with(Flags::CLEAR, true));
        let mut is_plain = false;
        if let (Content::Entries(starts), Target::Directory(to)) = (&mut content, &target) {
            let apart = check_apart(starts, to).and_then(|()| keep_links_out(starts, to));
            apart.map_err(|error| EndError::Here(error.to_string()))?;
            // Digests, a rate limit and direct I/O need the bytes.
            let needs_bytes = [Flags::VERIFIES, Flags::DIRECT];
            let needs_bytes = needs_bytes.into_iter().any(|flag| self.request.flags.has(flag));
            is_plain = self.limit.is_none() && !needs_bytes;
        }
        let target = match target {
            Target::Directory(to) => {
                let to = to.with_own_asides(&self.request.extras);
                Target::Directory(to.map_err(|error| EndError::Here(error.to_string()))?)
            }
            other => other,
        };
        // The kernel copies through its cache.
        self.request.flags = self.request.flags.with(Flags::CACHED, is_plain);
        let copies = is_plain.then(|| {
            let progress = Arc::clone(&self.progress);
            Arc::new(KernelCopies::new(move |len| {
                progress.bytes.fetch_add(len, SeqCst);
            }))
        });
        let (near, remote) = memory::control_pair();
        let (to, lines): (Sender<(u16, Box<dyn Lines>)>, _) = channel();
        let resolve = Here(Mutex::new(Some(target)));
        thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                accept(Accepting {
                    keeps_special_bits: true,
                    is_same_host: true,
                    copies: copies.clone(),
                    ..Accepting::new(Arc::new(remote), lines, &resolve)
                })
            });
            let connect = Box::new(move |_: &Terms, number: u16| {
                let (source, sink) = memory::data_pair();
                let _ = to.send((number, Box::new(MemoryLine(sink)) as Box<dyn Lines>));
                Ok(Box::new(source) as SourceChannel)
            });
            let finished = initiate(Initiating {
                task: self,
                control: Arc::new(near),
                keys: &|_, _| Ok(None),
                role: InitiatorRole::Send { content, connect },
                channels: LOCAL_CHANNELS,
                block_size: BLOCK_SIZE,
                copies: copies.clone(),
                naming: Naming::Shares,
                beside: None,
                placement: &Placement::Anywhere(Reason::NoDevice),
                rdma: None,
                fabric: None,
            });
            let accepted = accepting.join();
            // An end that fails by itself knows why; the other one knows only that it has ended.
            match (finished, accepted) {
                (Err(EndError::Here(why)), _) | (Err(_), Ok(Err(EndError::Here(why)))) => {
                    Err(EndError::Here(why))
                }
                (finished, _) => finished,
            }
        })
    }
}
