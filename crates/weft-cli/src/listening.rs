//! TCP listeners of servers.

use std::fmt::Display;
use std::io::ErrorKind;
use std::net::{TcpListener, ToSocketAddrs};

use anyhow::{Error, Result};

/// Listens at an address, which `option` of the command names.
///
/// # Errors
///
/// That of the system call, with the address, and with what to do about it.
pub(crate) fn listen(
    address: &(impl ToSocketAddrs + Display + ?Sized),
    option: &str,
) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| {
        let hint = match error.kind() {
            ErrorKind::AddrInUse => format!(": {option} names another one"),
            ErrorKind::AddrNotAvailable => ": this host has no such address".to_owned(),
            ErrorKind::PermissionDenied => {
                format!(": low ports are for root, {option} names another one")
            }
            _ => String::new(),
        };
        Error::from(error).context(format!("cannot listen at {address}{hint}"))
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn failures_name_the_address_and_the_way_out() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let first = listen(&any, "--port").unwrap();
        let taken = first.local_addr().unwrap();
        let error = format!("{:#}", listen(&taken, "--port").unwrap_err());
        let start = format!("cannot listen at {taken}: --port names another one: ");
        assert!(error.starts_with(&start), "{error}");
        let error = format!("{:#}", listen("203.0.113.1:0", "--bind").unwrap_err());
        assert!(error.contains("203.0.113.1:0: this host has no such address: "), "{error}");
    }
}
