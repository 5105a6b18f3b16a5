//! Asynchronous events of a context.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// An object that events refer to.
pub trait Object: Send + Sync + Debug {
    /// The C ABI's pointer for the object, which events carry to the program; 0 if there is none.
    fn cookie(&self) -> &AtomicUsize;
}

impl dyn Object {
    /// Whether this object is `other`.
    pub fn is<T: Object>(&self, other: &T) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

/// The type of an event: `ibv_event_type`, with the same values.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The names are those of ibv_get_async_event(3).
pub enum EventKind {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
}

/// The object that an event is about.
#[derive(Clone, Debug)]
pub enum Element {
    /// A queue pair.
    Qp(Arc<dyn Object>),
    /// A completion queue.
    Cq(Arc<dyn Object>),
    /// A shared receive queue.
    Srq(Arc<dyn Object>),
    /// A port, counted from 1.
    Port(u8),
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// The type of the event.
    pub kind: EventKind,
    /// The object that it is about.
    pub element: Element,
}
