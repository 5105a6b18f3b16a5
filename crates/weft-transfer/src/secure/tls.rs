//! TLS 1.3 between two ends that authenticate by raw public keys.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, aws_lc_rs, verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, Connection, DigitallySignedStruct,
    DistinguishedName, Error, OtherError, ServerConfig, ServerConnection, SignatureScheme,
};

use super::secrets::{Cipher, Direction, Exported, LABEL, SECRET_LEN, Secret, context};
use super::{Identity, PublicKey, SecureError};
use crate::limits::{REFUSAL_TIME, REFUSED_LEN_MAX};

/// The ALPN protocol (RFC 7301).
const PROTOCOL: &[u8] = b"weft-transfer/1";
/// Servers have keys and no names, but TLS needs a name. It is not sent.
const NAME: &str = "weft.invalid";

/// Decides during the handshake whether a peer's key is accepted.
pub type Accepts = Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// Hears which key a peer has proven to have.
pub type Proven = Arc<dyn Fn(&PublicKey) + Send + Sync>;

/// A key that is not accepted.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the key {0} is not accepted")]
pub(super) struct KeyRefused(pub(super) PublicKey);

/// Verifies that the peer owns its key, and that the key is accepted.
struct Verifier {
    accepts: Accepts,
    algorithms: WebPkiSupportedAlgorithms,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").finish_non_exhaustive()
    }
}

impl Verifier {
    fn new(accepts: Accepts, provider: &CryptoProvider) -> Arc<Self> {
        let algorithms = provider.signature_verification_algorithms;
        Arc::new(Self { accepts, algorithms })
    }

    fn check(&self, entity: &CertificateDer<'_>) -> Result<(), Error> {
        let refused = |error| Error::InvalidCertificate(error);
        let key = PublicKey::from_spki(entity);
        let key = key.map_err(|_| refused(CertificateError::BadEncoding))?;
        if (self.accepts)(&key) {
            Ok(())
        } else {
            Err(refused(CertificateError::Other(OtherError(Arc::new(KeyRefused(key))))))
        }
    }

    fn check_signature(
        &self,
        message: &[u8],
        entity: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(entity.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

fn no_tls12() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2".into()))
}

/// The methods that verifiers of servers and of clients share: both traits declare them alike.
macro_rules! raw_key_methods {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _cert: &CertificateDer<'_>,
            _dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            no_tls12()
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.check_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            vec![SignatureScheme::ED25519]
        }

        fn requires_raw_public_keys(&self) -> bool {
            true
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity).map(|()| ServerCertVerified::assertion())
    }

    raw_key_methods!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity).map(|()| ClientCertVerified::assertion())
    }

    raw_key_methods!();
}

fn certified(
    identity: &Identity,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, SecureError> {
    let pkcs8 = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(identity.pkcs8()?));
    let public = CertificateDer::from(identity.public().spki());
    // `from_der` would parse the public key as a certificate.
    Ok(Arc::new(CertifiedKey::new(vec![public], provider.key_provider.load_private_key(pkcs8)?)))
}

/// The TLS configuration of a client, for any number of connections.
#[derive(Clone)]
pub struct TlsClient {
    config: Arc<ClientConfig>,
    proven: Option<Proven>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("config", &self.config).finish_non_exhaustive()
    }
}

impl TlsClient {
    /// Creates a client with this identity, which connects to servers whose key `accepts` accepts.
    ///
    /// # Errors
    /// If the library refuses the identity.
    pub fn new(identity: &Identity, accepts: Accepts) -> Result<Self, SecureError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (verifier, key) = (Verifier::new(accepts, &provider), certified(identity, &provider)?);
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(key)));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        // A resumed session would not prove the server's key.
        config.resumption = Resumption::disabled();
        Ok(Self { config: Arc::new(config), proven: None })
    }

    /// Reports the key of each server that has proven to have it. That server may refuse this
    /// client nevertheless.
    #[must_use]
    pub fn reporting(self, proven: Proven) -> Self {
        Self { proven: Some(proven), ..self }
    }

    /// Performs the handshake over a connection, within `time`.
    ///
    /// # Errors
    /// If one end does not accept the other's key, or a system call fails.
    pub fn connect(&self, stream: &TcpStream, time: Duration) -> Result<Tls, SecureError> {
        let name = ServerName::try_from(NAME).map_err(|_| SecureError::Library("no name"))?;
        let connection = ClientConnection::new(Arc::clone(&self.config), name)?;
        let tls = Tls::shake_hands(connection.into(), stream, time)?;
        if let Some(proven) = &self.proven {
            proven(&tls.peer);
        }
        Ok(tls)
    }
}

/// The TLS configuration of a server, for any number of connections.
#[derive(Clone, Debug)]
pub struct TlsServer(Arc<ServerConfig>);

impl TlsServer {
    /// Creates a server with this identity, which serves clients whose key `accepts` accepts.
    ///
    /// # Errors
    /// If the library refuses the identity.
    pub fn new(identity: &Identity, accepts: Accepts) -> Result<Self, SecureError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let (verifier, key) = (Verifier::new(accepts, &provider), certified(identity, &provider)?);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(key)));
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }

    /// Performs the handshake over a connection, within `time`.
    ///
    /// # Errors
    /// If one end does not accept the other's key, or a system call fails.
    pub fn accept(&self, stream: &TcpStream, time: Duration) -> Result<Tls, SecureError> {
        let connection = ServerConnection::new(Arc::clone(&self.0))?;
        let shaken = Tls::shake_hands(connection.into(), stream, time);
        if let Err(SecureError::NotAccepted(_)) = &shaken {
            // What the client has sent must not make the kernel reset the connection before the
            // client has read why it is refused.
            drain(stream);
        }
        shaken
    }
}

/// Ends a connection, and discards what comes until the other end has ended it too.
fn drain(stream: &TcpStream) {
    let mut timed = Timed { stream, end: Instant::now() + REFUSAL_TIME };
    let mut left = REFUSED_LEN_MAX;
    let mut buffer = [0; 4096];
    // Any error ends it.
    let _ = stream.shutdown(Shutdown::Write);
    while let Ok(len @ 1..) = timed.read(&mut buffer) {
        left = left.saturating_sub(len);
        if left == 0 {
            return;
        }
    }
}

/// A stream whose reads and writes end at a deadline.
struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// One end of a TLS session after its handshake. It does no input or output.
pub struct Tls {
    connection: Connection,
    peer: PublicKey,
    exported: Exported,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Tls {
    fn shake_hands(
        mut connection: Connection,
        stream: &TcpStream,
        time: Duration,
    ) -> Result<Self, SecureError> {
        let mut timed = Timed { stream, end: Instant::now() + time };
        while connection.is_handshaking() {
            connection.complete_io(&mut timed).map_err(handshake_error)?;
        }
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        let shown = connection.peer_certificates().and_then(|list| list.first());
        let peer = PublicKey::from_spki(shown.ok_or(SecureError::BadKey)?)?;
        if connection.alpn_protocol() != Some(PROTOCOL) {
            return Err(Error::NoApplicationProtocol.into());
        }
        connection.set_buffer_limit(None);
        Ok(Self { connection, peer, exported: Exported::default() })
    }

    /// Returns the peer's key.
    #[must_use]
    pub fn peer(&self) -> PublicKey {
        self.peer
    }

    /// The direction of the blocks that this end sends.
    #[must_use]
    pub fn outgoing(&self) -> Direction {
        match self.connection {
            Connection::Client(_) => Direction::ToServer,
            Connection::Server(_) => Direction::ToClient,
        }
    }

    /// The direction of the blocks that this end receives.
    #[must_use]
    pub fn incoming(&self) -> Direction {
        match self.outgoing() {
            Direction::ToServer => Direction::ToClient,
            Direction::ToClient => Direction::ToServer,
        }
    }

    /// Exports the secret of a session's blocks in one direction, which is the same at both ends.
    /// Each is exported once, in the order of the sessions' numbers, because a second sealer would
    /// repeat nonces.
    ///
    /// # Errors
    /// `ExportedBefore`, or an error of TLS.
    pub fn block_secret(
        &mut self,
        session: u32,
        cipher: Cipher,
        direction: Direction,
    ) -> Result<Secret, SecureError> {
        self.exported.once(session, direction)?;
        let context = context(session, cipher, direction);
        let bytes = [0; SECRET_LEN];
        let bytes = self.connection.export_keying_material(bytes, LABEL, Some(&context))?;
        Ok(Secret::new(cipher, &bytes))
    }

    /// Encrypts `plain`, and appends the TLS records to `out`.
    ///
    /// # Errors
    /// If TLS fails.
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), SecureError> {
        self.connection.writer().write_all(plain)?;
        self.flush(out)
    }

    /// Appends a `close_notify` to `out`.
    ///
    /// # Errors
    /// If TLS fails.
    pub fn end(&mut self, out: &mut Vec<u8>) -> Result<(), SecureError> {
        self.connection.send_close_notify();
        self.flush(out)
    }

    fn flush(&mut self, out: &mut Vec<u8>) -> Result<(), SecureError> {
        while self.connection.wants_write() {
            self.connection.write_tls(out)?;
        }
        Ok(())
    }

    /// Decrypts the bytes `came` of the peer, and appends the plain text to `plain`. Returns
    /// whether the peer has sent `close_notify`.
    ///
    /// # Errors
    /// If TLS fails.
    pub fn decrypt(&mut self, mut came: &[u8], plain: &mut Vec<u8>) -> Result<bool, SecureError> {
        loop {
            let has_read = !came.is_empty() && self.connection.read_tls(&mut came)? > 0;
            let state = self.connection.process_new_packets()?;
            let before = plain.len();
            plain.resize(before + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut plain[before..])?;
            if state.peer_has_closed() || !has_read {
                return Ok(state.peer_has_closed());
            }
        }
    }
}

fn handshake_error(error: io::Error) -> SecureError {
    match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => return SecureError::TimedOut,
        io::ErrorKind::UnexpectedEof => return SecureError::Cut,
        _ => {}
    }
    match error.downcast::<Error>() {
        Ok(error) => error.into(),
        Err(error) => SecureError::System(error),
    }
}
