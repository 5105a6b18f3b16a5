//! Devices: one for each usable network interface.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weft_sys::{InterfaceAddress, interface_addresses};

use crate::{Errno, Result};

/// A 16-byte global identifier: an IPv6 address, or an IPv4 address mapped into one (RoCEv2).
pub type Gid = [u8; 16];

/// An RDMA device: a network interface with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// The device name: `weft_` and the interface's name.
    pub name: String,
    /// The network interface.
    pub interface: String,
    /// The interface's index.
    pub index: u32,
    /// Whether it is the loopback interface.
    pub loopback: bool,
    /// Addresses in the order of the GID table: IPv4, then IPv6, link-local last.
    pub addresses: Vec<IpAddr>,
}

/// Lists the devices: interfaces that are up and have an address, loopback last.
///
/// `WEFT_DEVICES` selects them: interface or device names separated by commas, in that order.
///
/// # Errors
/// The system's error if it cannot list its interfaces.
pub fn list() -> Result<Vec<Device>> {
    let choice = std::env::var("WEFT_DEVICES").unwrap_or_default();
    Ok(choose(group(interface_addresses()?), &choice))
}

fn group(addresses: Vec<InterfaceAddress>) -> Vec<Device> {
    let mut devices: Vec<Device> = Vec::new();
    for found in addresses.into_iter().filter(|found| found.up) {
        match devices.iter_mut().find(|device| device.interface == found.name) {
            Some(device) => device.addresses.push(found.address),
            None => devices.push(Device {
                name: format!("weft_{}", found.name),
                index: found.index,
                loopback: found.loopback,
                addresses: vec![found.address],
                interface: found.name,
            }),
        }
    }
    for device in &mut devices {
        device.addresses.sort_by_key(|address| match address {
            IpAddr::V4(_) => 0,
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
            IpAddr::V6(_) => 2,
        });
    }
    devices.sort_by_key(|device| (device.loopback, device.index));
    devices
}

fn choose(devices: Vec<Device>, choice: &str) -> Vec<Device> {
    if choice.is_empty() || choice == "all" {
        return devices;
    }
    let wanted = choice.split(',').map(str::trim);
    wanted
        .filter_map(|name| devices.iter().find(|d| d.interface == name || d.name == name).cloned())
        .collect()
}

impl Device {
    /// The GID table, index 0 first.
    #[must_use]
    pub fn gids(&self) -> Vec<Gid> {
        self.addresses.iter().map(|&address| gid_of(address)).collect()
    }

    /// A LID for programs that do not use GIDs: the low 16 bits of the first IPv4 address, never 0.
    #[must_use]
    pub fn lid(&self) -> u16 {
        let low = self.ipv4().map_or(0, |v4| u32::from(v4) & 0xffff);
        u16::try_from(low).ok().filter(|&lid| lid != 0).unwrap_or(1)
    }

    /// The IPv4 address that a LID stands for: this device's upper 16 bits and the LID.
    #[must_use]
    pub fn address_of_lid(&self, lid: u16) -> Option<IpAddr> {
        if lid == self.lid() {
            return self.addresses.first().copied();
        }
        let own = u32::from(self.ipv4()?);
        Some(Ipv4Addr::from(own & 0xffff_0000 | u32::from(lid)).into())
    }

    /// A node GUID derived from the interface's name and first address, the same in every process.
    #[must_use]
    pub fn guid(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64; // FNV-1a
        let gid = self.addresses.first().map_or([0; 16], |&address| gid_of(address));
        for byte in self.interface.bytes().chain(gid) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        // The bits for "locally administered" and "individual" (IEEE EUI-64), so that it is no
        // vendor's.
        hash & !(1 << 56) | 1 << 57
    }

    /// Whether the address is one of this device's own.
    #[must_use]
    pub fn owns(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address)
            || self.loopback && matches!(address, IpAddr::V4(v4) if v4.is_loopback())
    }

    fn ipv4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|address| match address {
            IpAddr::V4(v4) => Some(*v4),
            IpAddr::V6(_) => None,
        })
    }
}

/// The GID of an address.
#[must_use]
pub fn gid_of(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The GID, with its index, of a loopback address. All devices own the loopback network, so the
/// first device stands for it, and its address is used for both ends, because queue pairs know no
/// other.
///
/// # Errors
/// `ENODEV` if there is no device.
pub(crate) fn loopback_gid(loopback: IpAddr) -> Result<(u8, Gid)> {
    let devices = list()?;
    let gids = devices.first().ok_or(Errno::NODEV)?.addresses.iter().enumerate();
    let alike = |(_, address): &(usize, &IpAddr)| address.is_ipv4() == loopback.is_ipv4();
    let (index, &address) =
        gids.clone().find(alike).or_else(|| gids.clone().next()).ok_or(Errno::NODEV)?;
    Ok((u8::try_from(index).map_err(|_| Errno::NODEV)?, gid_of(address)))
}

/// The address of a GID.
#[must_use]
pub fn address_of(gid: Gid) -> IpAddr {
    let v6 = Ipv6Addr::from(gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(name: &str, index: u32, address: &str, loopback: bool) -> InterfaceAddress {
        let address = address.parse().expect("an address");
        InterfaceAddress { name: name.into(), address, prefix_len: 24, index, loopback, up: true }
    }

    #[test]
    fn addresses_are_grouped_by_device_and_ordered() {
        let devices = group(vec![
            address("lo", 1, "127.0.0.1", true),
            address("eth0", 2, "fe80::1", false),
            address("eth0", 2, "2001:db8::7", false),
            address("eth0", 2, "10.1.2.3", false),
        ]);
        assert_eq!(devices[0].name, "weft_eth0");
        assert_eq!(devices[0].addresses[0], "10.1.2.3".parse::<IpAddr>().expect("an address"));
        assert!(devices[1].loopback);
        assert_eq!(devices[0].lid(), 0x0203);
        assert_eq!(devices[0].address_of_lid(0x0204), Some(Ipv4Addr::new(10, 1, 2, 4).into()));
        assert_eq!(choose(devices.clone(), "lo,eth0")[0].interface, "lo");
        assert!(choose(devices, "eth9").is_empty());
    }

    #[test]
    fn address_survives_conversion_to_gid_and_back() {
        for text in ["10.0.0.1", "2001:db8::1", "fe80::2"] {
            let address: IpAddr = text.parse().expect("an address");
            assert_eq!(address_of(gid_of(address)), address);
        }
    }
}
