//! Which servers clients trust. The certificates are in files beside this one: `server.pem` was
//! issued by `ca.pem` for `localhost` and 127.0.0.1, `self.pem` by itself, for nobody.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustls::{CertificateError, Error};

use super::*;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/access/tests").join(name)
}

/// A server with one of the certificates. Its key is copied, since a checkout may let others read
/// it.
pub(crate) fn server(name: &str) -> TlsServer {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    fs::write(&key, fs::read(file(&format!("{name}.key"))).unwrap()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    TlsServer::read(&file(&format!("{name}.pem")), &key).unwrap()
}

/// What trusts one of the certificates.
pub(crate) fn trust(name: &str) -> Trust {
    Trust::read(&file(&format!("{name}.pem"))).unwrap()
}

/// Does the handshake of a client that connects to an address.
fn shake_hands(server: &TlsServer, trust: &Trust, address: &str) -> Result<(), Error> {
    let (mut server, mut client) = (server.accept()?, trust.connect(address).unwrap());
    let mut bytes = Vec::new();
    while client.is_handshaking() || server.is_handshaking() {
        bytes.clear();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets()?;
        }
    }
    Ok(())
}

fn problem(result: Result<(), Error>) -> CertificateError {
    match result {
        Err(Error::InvalidCertificate(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_server_is_trusted_by_its_authority_and_its_name_or_by_its_certificate() {
    let issued = server("server");
    for address in ["localhost:7417", "127.0.0.1:7417"] {
        shake_hands(&issued, &trust("ca"), address).unwrap();
    }
    for address in ["otherhost:7417", "192.0.2.1:7417", "[::1]:7417"] {
        let found = problem(shake_hands(&issued, &trust("ca"), address));
        assert!(matches!(found, CertificateError::NotValidForNameContext { .. }), "{found:?}");
    }
    let found = problem(shake_hands(&issued, &trust("self"), "localhost:7417"));
    assert_eq!(found, CertificateError::UnknownIssuer);
    let own = server("self");
    shake_hands(&own, &trust("self"), "192.0.2.1:7417").unwrap();
    // It is an authority, too, and those are no servers.
    let found = problem(shake_hands(&own, &trust("ca"), "localhost:7417"));
    assert!(matches!(found, CertificateError::Other(_)), "{found:?}");
    shake_hands(&issued, &trust("server"), "any:1").unwrap();
}

#[test]
fn files_that_are_of_no_use_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let write = |content: &[u8], mode| {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let pem = file("server.pem");
    write(&fs::read(file("server.key")).unwrap(), 0o644);
    let refused = TlsServer::read(&pem, &path).unwrap_err();
    assert!(matches!(refused, TlsError::File(FileError::Open(0o644))), "{refused:?}");
    write(&fs::read(file("self.key")).unwrap(), 0o600);
    let refused = TlsServer::read(&pem, &path).unwrap_err();
    assert!(matches!(refused, TlsError::Unfit(_)), "the key of another certificate: {refused:?}");
    write(b"no key", 0o600);
    assert!(matches!(TlsServer::read(&pem, &path), Err(TlsError::Pem(_))));
    assert!(matches!(Trust::read(&path), Err(TlsError::Empty)));
    write(&vec![b'\n'; (1 << 20) + 1], 0o600);
    assert!(matches!(Trust::read(&path), Err(TlsError::Len)));
    assert!(matches!(TlsServer::read(&pem, &path), Err(TlsError::File(FileError::Len))));
    let cut = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
    write(cut, 0o600);
    assert!(matches!(Trust::read(&path), Err(TlsError::Unfit(_))), "what is no certificate");
    assert!(matches!(Trust::read(&folder.path().join("none")), Err(TlsError::Io(_))));
}
