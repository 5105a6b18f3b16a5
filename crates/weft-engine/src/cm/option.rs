//! Options of an identifier (`rdma_set_option(3)`).

/// The options that a program has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// Type of service of sent packets (RFC 2474).
    pub(super) tos: Option<u8>,
    /// Whether other sockets may bind the same port, as long as none listens.
    pub(super) reuse_address: bool,
    /// Whether an IPv6 wildcard refuses IPv4 connections; `None` is the system's default.
    pub(super) af_only: Option<bool>,
    /// Acknowledgement timeout of the queue pair, 4.096 µs · 2^n; `None` is the default.
    pub(super) ack_timeout: Option<u8>,
}

/// One option with its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdOption {
    /// `RDMA_OPTION_ID_TOS`.
    Tos(u8),
    /// `RDMA_OPTION_ID_REUSEADDR`.
    ReuseAddress(bool),
    /// `RDMA_OPTION_ID_AFONLY`.
    AfOnly(bool),
    /// `RDMA_OPTION_ID_ACK_TIMEOUT`.
    AckTimeout(u8),
}
