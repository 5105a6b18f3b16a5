//! `weft info`: the devices, limits and transports of this machine.

use std::net::Ipv6Addr;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use weft_engine::device::{self, Device, address_of};
use weft_engine::limits;

use crate::layout::Layout;
use crate::output;
use crate::sharing::Sharing;
use crate::sockets::readiness::Readiness;

/// The transports of queue pairs, best first. `weft dump` shows the one that each pair uses.
const TRANSPORTS: [(&str, &str); 3] = [
    ("loopback", "between queue pairs of one process"),
    ("shm", "between processes of one host: shared memory"),
    ("tcp", "between processes and hosts: iWARP (RFC 5040 to 5044) over IPv4 and IPv6"),
];

/// The most requested limits, by their names in `ibv_query_device(3)`.
const LIMITS: [(&str, u64); 9] = [
    ("max_qp", limits::OBJECTS_MAX as u64),
    ("max_qp_wr", limits::QP_WR_MAX as u64),
    ("max_sge", limits::SGE_MAX as u64),
    ("max_inline_data", limits::INLINE_MAX as u64),
    ("max_qp_rd_atom", limits::READ_DEPTH_MAX as u64),
    ("max_cqe", limits::CQE_MAX as u64),
    ("max_mr", limits::MR_MAX as u64),
    ("max_mr_size", limits::MR_SIZE_MAX),
    ("max_msg_sz", limits::MESSAGE_MAX as u64),
];

/// Prints the devices with their addresses and limits, the transports, and whether TCP connections
/// can use shared memory.
///
/// # Errors
///
/// If the network interfaces cannot be listed.
pub(crate) fn print(json: bool) -> Result<()> {
    let devices = device::list()
        .map_err(std::io::Error::from)
        .context("cannot list the network interfaces")?;
    if json {
        return output::print(&format!("{:#}\n", to_json(&devices)));
    }
    output::print(&describe(&devices))
}

fn to_json(devices: &[Device]) -> Value {
    let limits: serde_json::Map<_, _> =
        LIMITS.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect();
    let transports: Vec<_> = TRANSPORTS.iter().map(|(name, _)| name).collect();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "libraries": Layout::find().ok().map(|layout| layout.directory),
        "devices": devices.iter().map(device_to_json).collect::<Vec<_>>(),
        "limits": limits,
        "transports": transports,
        "shared_memory": Sharing::find().to_json(),
        "sockets": Readiness::find().to_json(),
    })
}

fn device_to_json(device: &Device) -> Value {
    let gids = device.gids().into_iter().map(|gid| {
        json!({"gid": Ipv6Addr::from(gid).to_string(), "address": address_of(gid).to_string()})
    });
    json!({
        "name": device.name,
        "interface": device.interface,
        "guid": format!("{:016x}", device.guid()),
        "lid": device.lid(),
        "gids": gids.collect::<Vec<_>>(),
    })
}

fn describe(devices: &[Device]) -> String {
    let libraries = match Layout::find() {
        Ok(layout) => layout.directory.display().to_string(),
        Err(error) => error.to_string(),
    };
    let mut text = format!("weft {}\nlibraries: {libraries}\n\n", env!("CARGO_PKG_VERSION"));
    if devices.is_empty() {
        text.push_str("No device: no network interface is up and chosen by WEFT_DEVICES.\n");
    } else {
        text.push_str(&format!("{}\n", table(devices).trim_fmt()));
    }
    text.push_str("\nLimits of each device, as ibv_query_device(3) names them\n");
    LIMITS.iter().for_each(|(name, value)| text.push_str(&format!("  {name:<16} {value}\n")));
    text.push_str("\nTransports, best first\n");
    TRANSPORTS.iter().for_each(|(name, use_)| text.push_str(&format!("  {name:<9} {use_}\n")));
    text.push_str("\nShared memory with other processes of this host\n");
    text.push_str(&Sharing::find().describe());
    text.push_str("\nTCP connections between processes of this host\n");
    text.push_str(&Readiness::find().describe());
    text
}

fn table(devices: &[Device]) -> comfy_table::Table {
    let mut table = output::table(["DEVICE", "INTERFACE", "LID", "INDEX", "GID", "ADDRESS"]);
    for device in devices {
        for (index, gid) in device.gids().into_iter().enumerate() {
            // Columns of the device are filled in its first row only.
            let own = |text: String| if index == 0 { text } else { String::new() };
            table.add_row([
                own(output::printable(&device.name)),
                own(output::printable(&device.interface)),
                own(format!("{:#06x}", device.lid())),
                index.to_string(),
                Ipv6Addr::from(gid).to_string(),
                address_of(gid).to_string(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device {
            name: "weft_eth0".into(),
            interface: "eth0".into(),
            index: 2,
            loopback: false,
            addresses: vec![[192, 0, 2, 7].into(), Ipv6Addr::LOCALHOST.into()],
        }
    }

    #[test]
    fn text_shows_device_addresses_limits_and_transports() {
        let text = describe(&[device()]);
        for part in [
            "weft_eth0",
            "::ffff:192.0.2.7",
            "0x0207",
            "max_qp_wr",
            "tcp",
            "shm",
            "process_vm",
            "rules",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(describe(&[]).contains("No device"));
    }

    #[test]
    fn json_has_all_gids_in_order() {
        let info = to_json(&[device()]);
        assert_eq!(info["devices"][0]["gids"][0]["address"], "192.0.2.7");
        assert_eq!(info["devices"][0]["gids"][1]["gid"], "::1");
        assert_eq!(info["devices"][0]["lid"], 0x0207);
    }
}
