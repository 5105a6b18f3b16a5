//! TLS between servers of a group.
//!
//! Each process makes a key of its own, which says nothing about who it is. Both ends show that
//! they know the secret of the group by what the session exports (RFC 9266), which another session
//! does not have: a peer between them that does not know the secret cannot pass it on.

use std::fmt;
use std::io;
use std::sync::Arc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs as library,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, Error, ServerConfig, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// The bytes before an Ed25519 key in DER (RFC 8410, section 4).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
/// The ALPN protocol (RFC 7301).
const PROTOCOL: &[u8] = b"weft-tuples-servers/1";
/// The label of what a session exports.
const LABEL: &[u8] = b"EXPORTER-weft-tuples-servers";

/// What a session exports: it and no other one.
pub(crate) type Binding = [u8; 32];

/// What this process needs for connections to other servers.
#[derive(Clone)]
pub(crate) struct Tls {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn key(provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, Error> {
    let failed = |what: &str| Error::General(what.into());
    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new());
    let pkcs8 = pkcs8.map_err(|_| failed("no random bytes"))?;
    let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|_| failed("no key"))?;
    let public = [&SPKI_PREFIX[..], pair.public_key().as_ref()].concat();
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pkcs8.as_ref().to_vec()));
    let signer = provider.key_provider.load_private_key(private)?;
    Ok(Arc::new(CertifiedKey::new(vec![CertificateDer::from(public)], signer)))
}

impl Tls {
    /// Makes a key.
    ///
    /// # Errors
    ///
    /// If the system has no random bytes, or the library fails.
    pub(crate) fn new() -> io::Result<Self> {
        Self::make().map_err(io::Error::other)
    }

    fn make() -> Result<Self, Error> {
        let provider = Arc::new(library::default_provider());
        let key = key(&provider)?;
        let verifier = Verifier(provider.signature_verification_algorithms);
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = Resumption::disabled();
        let (acceptor, connector) = (Arc::new(server).into(), Arc::new(client).into());
        Ok(Self { acceptor, connector })
    }

    /// Begins a session with a server that accepts a connection.
    pub(crate) async fn dial(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Binding)> {
        // Servers have no names that TLS could check, but it needs one. It is not sent.
        let name = ServerName::from(std::net::Ipv4Addr::LOCALHOST);
        let stream = self.connector.connect(name, stream).await?;
        let binding = stream.get_ref().1.export_keying_material(Binding::default(), LABEL, None);
        Ok((stream.into(), binding.map_err(io::Error::other)?))
    }

    /// Takes part in a session that another server begins.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<TcpStream>, Binding)> {
        let stream = self.acceptor.accept(stream).await?;
        let binding = stream.get_ref().1.export_keying_material(Binding::default(), LABEL, None);
        Ok((stream.into(), binding.map_err(io::Error::other)?))
    }
}

/// Verifies that a peer has the key that it shows, whichever that is.
#[derive(Debug)]
struct Verifier(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, dss, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::channel::Channel;
    use crate::group::Group;

    fn group(name: &str) -> Group {
        let server =
            |name| format!("[[server]]\nname = \"{name}\"\nclients = \"\"\npeers = \"\"\n");
        let servers = ["a", "b", "c"].map(server).concat();
        Group::parse(&format!("secret = \"0123456789abcdef\"\n{servers}"), name).unwrap()
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialled, listener.accept().await.unwrap().0)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(future)
    }

    #[test]
    fn both_ends_export_the_same_and_each_session_something_else() {
        run(async {
            let (one, other) = (Tls::new().unwrap(), Tls::new().unwrap());
            let mut bindings = Vec::new();
            for _ in 0..2 {
                let (dialled, accepted) = pair().await;
                let (dialled, accepted) = tokio::join!(one.dial(dialled), other.accept(accepted));
                let ((mut dialled, binding), (mut accepted, same)) =
                    (dialled.unwrap(), accepted.unwrap());
                assert_eq!(binding, same);
                bindings.push(binding);
                dialled.write_all(b"hello").await.unwrap();
                dialled.flush().await.unwrap();
                let mut bytes = [0; 5];
                accepted.read_exact(&mut bytes).await.unwrap();
                assert_eq!(&bytes, b"hello");
            }
            assert_ne!(bindings[0], bindings[1]);
        });
    }

    /// A peer with a session to each of two servers, and without the secret, passes on what one
    /// says to the other one.
    #[test]
    fn peer_between_two_servers_is_noticed() {
        run(async {
            let [a, b, between] = [(); 3].map(|()| Tls::new().unwrap());
            let ((to_b, from_a), (to_it, from_it)) = (pair().await, pair().await);
            let dialer = async {
                let (stream, binding) = a.dial(to_b).await?;
                Channel::dial(stream, &group("a"), 2, &binding).await.map(drop)
            };
            let acceptor = async {
                let (stream, binding) = b.accept(from_it).await?;
                Channel::accept(stream, &group("b"), &binding).await.map(drop)
            };
            let relay = async {
                let (mut one, _) = between.accept(from_a).await?;
                let (mut other, _) = between.dial(to_it).await?;
                tokio::io::copy_bidirectional(&mut one, &mut other).await
            };
            let (_, accepted, _) = tokio::join!(dialer, acceptor, relay);
            assert!(accepted.is_err(), "the secret was passed on");
        });
    }
}
