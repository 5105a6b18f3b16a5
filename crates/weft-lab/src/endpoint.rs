//! Finds out from `/proc` whether a process listens, without a connection that it would notice.

use std::fs;

/// A port of a protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// A TCP port, in state LISTEN.
    Tcp(u16),
    /// A UDP port, bound.
    Udp(u16),
}

/// Whether a socket listens on `port` in the network namespace of process `pid`.
pub fn is_listening(pid: u32, port: Port) -> bool {
    let (tables, number, state) = match port {
        Port::Tcp(number) => (["tcp", "tcp6"], number, Some("0A")),
        Port::Udp(number) => (["udp", "udp6"], number, None),
    };
    tables.iter().any(|table| {
        fs::read_to_string(format!("/proc/{pid}/net/{table}"))
            .is_ok_and(|text| text.lines().skip(1).any(|line| matches(line, number, state)))
    })
}

/// Whether a line of proc_net_tcp(5) has this port and state. Its columns are the slot, local
/// address:port, remote address:port and state, in hex.
fn matches(line: &str, number: u16, state: Option<&str>) -> bool {
    let mut columns = line.split_whitespace().skip(1);
    let local = columns.next().and_then(|local| local.rsplit_once(':'));
    let is_port = local.is_some_and(|(_, port)| u16::from_str_radix(port, 16) == Ok(number));
    is_port && state.is_none_or(|state| columns.nth(1) == Some(state))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener, UdpSocket};
    use std::process;

    use super::*;

    #[test]
    fn socket_is_seen_as_listening_until_it_is_closed() {
        let pid = process::id();
        let tcp = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
        let tcp_port = Port::Tcp(tcp.local_addr().unwrap().port());
        let udp = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let udp_port = Port::Udp(udp.local_addr().unwrap().port());
        assert!(is_listening(pid, tcp_port));
        assert!(is_listening(pid, udp_port));
        drop((tcp, udp));
        assert!(!is_listening(pid, tcp_port));
        assert!(!is_listening(pid, udp_port));
    }
}
