//! Address handles: the resolved destination of datagrams.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::attr::AddressVector;
use crate::device::{Device, address_of};
use crate::pd::Pd;
use crate::{Errno, Result, numbers, tcp};

/// The destination of datagrams, and the local address to send them from.
#[derive(Debug)]
pub struct AddressHandle {
    pd: Arc<Pd>,
    /// The host's address; the port follows from the queue pair number.
    host: SocketAddr,
    source: (IpAddr, u32),
    has_crc: bool,
}

impl AddressHandle {
    /// `ibv_create_ah`.
    ///
    /// # Errors
    /// `EINVAL` for a port other than 1, a source GID that is not in the table, and a destination
    /// that is missing or of another address family than the source. For a multicast group of
    /// another family the device uses one of its addresses of that family, if there is one.
    pub fn new(pd: &Arc<Pd>, vector: &AddressVector) -> Result<Arc<Self>> {
        let device = pd.context().device();
        if vector.port_num != 1 {
            return Err(Errno::INVAL);
        }
        let (mut source, host) = ends(device, vector).ok_or(Errno::INVAL)?;
        if host.is_multicast() && source.is_ipv4() != host.is_ipv4() {
            let mut own = device.addresses.iter();
            let like = own.find(|own| own.is_ipv4() == host.is_ipv4());
            source = like.copied().ok_or(Errno::INVAL)?;
        }
        if host.is_unspecified() || source.is_ipv4() != host.is_ipv4() {
            return Err(Errno::INVAL);
        }
        let is_on_link = match host {
            IpAddr::V4(v4) => v4.is_multicast(),
            IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
        };
        Ok(Arc::new(Self {
            pd: Arc::clone(pd),
            host: tcp::address_on(device, host, 0),
            source: (source, if is_on_link { device.index } else { 0 }),
            has_crc: tcp::crc_wanted(source, host),
        }))
    }

    /// The protection domain.
    #[must_use]
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// The UDP address of that host's queue pair `qp_num`.
    pub(super) fn address_of(&self, qp_num: u32) -> SocketAddr {
        let mut address = self.host;
        address.set_port(numbers::port_of(qp_num));
        address
    }

    /// The source address, and the index of the outgoing interface (0: the kernel chooses).
    pub(super) fn source(&self) -> (IpAddr, u32) {
        self.source
    }

    /// Whether datagrams to this destination carry a CRC.
    pub(super) fn has_crc(&self) -> bool {
        self.has_crc
    }
}

/// The source and destination addresses.
fn ends(device: &Device, vector: &AddressVector) -> Option<(IpAddr, IpAddr)> {
    match vector.global {
        Some(route) => {
            let source = device.addresses.get(usize::from(route.sgid_index)).copied()?;
            Some((source, address_of(route.dgid)))
        }
        None if vector.dlid == 0 => None,
        None => Some((device.addresses.first().copied()?, device.address_of_lid(vector.dlid)?)),
    }
}
