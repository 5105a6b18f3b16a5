//! The kind of device that programs see: RoCE or iWARP.

use std::sync::OnceLock;

use crate::abi::{
    IBV_GID_TYPE_IB, IBV_GID_TYPE_ROCE_V2, IBV_NODE_CA, IBV_NODE_RNIC, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, ibv_gid_type, ibv_node_type, ibv_transport_type,
};

/// The value of `WEFT_PRESENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presentation {
    /// RoCE version 2, the default: many programs reject an iWARP device or restrict its use (UCX
    /// and MPICH on it, perftest and qperf without a connection manager).
    Roce,
    /// iWARP, the protocol on the wire.
    Iwarp,
}

impl Presentation {
    /// The choice of this process, read from the environment at the first call.
    pub(crate) fn get() -> Self {
        static CHOICE: OnceLock<Presentation> = OnceLock::new();
        *CHOICE.get_or_init(|| match std::env::var("WEFT_PRESENT") {
            Ok(word) if word.eq_ignore_ascii_case("iwarp") => Self::Iwarp,
            _ => Self::Roce,
        })
    }

    pub(crate) fn node_type(self) -> ibv_node_type {
        match self {
            Self::Roce => IBV_NODE_CA,
            Self::Iwarp => IBV_NODE_RNIC,
        }
    }

    pub(crate) fn transport_type(self) -> ibv_transport_type {
        match self {
            Self::Roce => IBV_TRANSPORT_IB,
            Self::Iwarp => IBV_TRANSPORT_IWARP,
        }
    }

    pub(crate) fn gid_type(self) -> ibv_gid_type {
        match self {
            Self::Roce => IBV_GID_TYPE_ROCE_V2,
            Self::Iwarp => IBV_GID_TYPE_IB,
        }
    }

    /// The text for a GID's type in sysfs.
    pub(crate) fn gid_type_text(self) -> &'static str {
        match self {
            Self::Roce => "RoCE v2",
            Self::Iwarp => "IB/RoCE v1",
        }
    }
}
