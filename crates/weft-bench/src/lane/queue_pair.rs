//! Queue pairs: creating one of each type, and bringing it to RTS.

use std::net::IpAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use weft_engine::access::Access;
use weft_engine::cq::Cq;
use weft_engine::device::Gid;
use weft_engine::pd::Pd;
use weft_engine::qp::{
    AddressVector, GlobalRoute, Qp, QpAttr, QpCap, QpInit, QpState, QpType, required,
};
use weft_engine::ud::AddressHandle;
use weft_engine::wr::Destination;
use weft_engine::{Context, Errno, device};

use crate::limits::{INLINE_MAX, READS_MAX};

/// The Q_Key of both sides' datagrams.
const QKEY: u32 = 0x1157_c0de;

/// A device with a protection domain.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
}

impl Host {
    /// Opens the device that owns an address.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn open(address: IpAddr) -> Result<Self> {
        let devices = device::list().context("cannot list the devices")?;
        let found = devices.iter().find(|device| device.owns(address));
        let found = found.with_context(|| format!("no device has the address {address}"))?;
        let context = Context::open(found).context("cannot open the device")?;
        let pd = Pd::new(&context);
        Ok(Self { context, pd })
    }

    /// Creates a queue pair with room for `sends` and `receives`, in state INIT.
    ///
    /// # Errors
    /// The error of the engine.
    pub(crate) fn queue_pair(
        &self,
        qp_type: QpType,
        cq: &Arc<Cq>,
        sends: usize,
        receives: usize,
    ) -> Result<QueuePair> {
        let cap = QpCap {
            max_send_wr: u32::try_from(sends)?,
            max_recv_wr: u32::try_from(receives)?,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: INLINE_MAX as u32,
        };
        let (send_cq, recv_cq) = (Arc::clone(cq), Arc::clone(cq));
        let (srq, xrcd, sq_sig_all) = (None, None, true);
        let init = QpInit { qp_type, send_cq, recv_cq, srq, xrcd, cap, sq_sig_all };
        let qp = Qp::new(&self.pd, init).context("cannot make a queue pair")?;
        let queue_pair = QueuePair { qp, qp_type };
        queue_pair.to_init().context("cannot bring a queue pair to INIT")?;
        Ok(queue_pair)
    }
}

/// A queue pair that is destroyed with this value.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(crate) qp: Arc<Qp>,
    qp_type: QpType,
}

/// The other end: a queue pair of a host, and the own address that leads there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    pub(super) number: u32,
    pub(super) gid: Gid,
    pub(super) sgid_index: u8,
}

impl Remote {
    fn address(self) -> AddressVector {
        let (dgid, sgid_index) = (self.gid, self.sgid_index);
        let global = Some(GlobalRoute { dgid, sgid_index, ..GlobalRoute::default() });
        AddressVector { global, port_num: 1, ..AddressVector::default() }
    }
}

impl QueuePair {
    fn to_init(&self) -> weft_engine::Result<()> {
        let attr = QpAttr {
            qp_state: QpState::Init,
            qp_access_flags: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            port_num: 1,
            qkey: QKEY,
            ..QpAttr::default()
        };
        self.bring_up(&attr)
    }

    /// Brings it up to the next state, with the attributes that its type requires.
    fn bring_up(&self, attr: &QpAttr) -> weft_engine::Result<()> {
        let mask = required(self.qp_type, attr.qp_state).ok_or(Errno::INVAL)?;
        self.qp.modify(attr, mask)
    }

    /// Connects it with its peer; for datagrams, makes it ready and returns the destination.
    pub(super) fn connect(&self, remote: Remote) -> Result<Option<Destination>> {
        let rtr = QpAttr {
            qp_state: QpState::Rtr,
            path_mtu: 5,
            dest_qp_num: remote.number,
            max_dest_rd_atomic: READS_MAX,
            min_rnr_timer: 12,
            ah_attr: remote.address(),
            ..QpAttr::default()
        };
        let rts = QpAttr {
            qp_state: QpState::Rts,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: READS_MAX,
            ..QpAttr::default()
        };
        self.bring_up(&rtr).context("cannot bring a queue pair to RTR")?;
        self.bring_up(&rts).context("cannot bring a queue pair to RTS")?;
        if !self.is_datagram() {
            return Ok(None);
        }
        let ah = AddressHandle::new(self.qp.pd(), &remote.address());
        let ah = ah.context("cannot make an address handle")?;
        Ok(Some(Destination { ah, qp_num: remote.number, qkey: QKEY }))
    }

    fn is_datagram(&self) -> bool {
        self.qp_type == QpType::Ud
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.qp.destroy();
    }
}
