//! What all endpoints and buffers of a fabric share.

use std::sync::Arc;

use weft_engine::Context;
use weft_engine::pd::Pd;

use crate::options::Options;
use crate::watcher::Watcher;

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) options: Options,
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) watcher: Watcher,
}
