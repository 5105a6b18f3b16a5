//! TLS between hosts: a server has a certificate, and its clients have what they trust.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::VerifierBuilderError;
use rustls::version::TLS13;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme,
};

use super::file::{self, FileError};
use crate::limits::PEM_LEN_MAX;

/// Why files are of no use for TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
    /// The file of the key cannot be read, or others than its owner can.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not PEM, or does not have what it has to.
    #[error("not PEM, or without what it has to have")]
    Pem(#[from] pem::Error),
    /// There is no certificate.
    #[error("there is no certificate in it")]
    Empty,
    /// It is too long.
    #[error("longer than 1 MiB")]
    Len,
    /// The certificates and the key do not fit, or are of no known kind.
    #[error("the certificates or the key cannot be used")]
    Unfit(#[from] Error),
    /// The certificates cannot be trusted.
    #[error("the certificates cannot be trusted")]
    Trust(#[from] VerifierBuilderError),
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let mut text = Vec::new();
    File::open(path)?.take(PEM_LEN_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > PEM_LEN_MAX {
        return Err(TlsError::Len);
    }
    chain(&text)
}

fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>()?;
    if all.is_empty() { Err(TlsError::Empty) } else { Ok(all) }
}

/// The certificate of a server, for any number of connections.
#[derive(Clone)]
pub struct TlsServer(Arc<ServerConfig>);

impl fmt::Debug for TlsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsServer").finish_non_exhaustive()
    }
}

impl TlsServer {
    /// Reads PEM files: the certificate of the server with those that lead to its authority, and
    /// its key, which only its owner may read.
    ///
    /// # Errors
    ///
    /// If the files do not have that.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        Self::new(certificates(certificate)?, &file::read_private(key, PEM_LEN_MAX)?)
    }

    /// The same with the texts of both files, for fuzzing.
    pub(crate) fn parse(certificate: &[u8], key: &[u8]) -> Result<Self, TlsError> {
        Self::new(chain(certificate)?, key)
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: &[u8]) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key)?;
        let mut config = ServerConfig::builder_with_provider(aws_lc_rs::default_provider().into())
            .with_protocol_versions(&[&TLS13])?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        // A client connects seldom: a session that is taken up again would save little.
        config.send_tls13_tickets = 0;
        Ok(Self(Arc::new(config)))
    }

    /// Begins a session.
    pub(crate) fn accept(&self) -> Result<ServerConnection, Error> {
        ServerConnection::new(Arc::clone(&self.0))
    }
}

/// The servers that a client trusts.
#[derive(Clone)]
pub struct Trust(Arc<ClientConfig>);

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

impl Trust {
    /// Reads a PEM file of certificates. A server is trusted whose certificate is one of them, or
    /// was issued by one of them for the name or address by which the client connects.
    ///
    /// # Errors
    ///
    /// If the file does not have that.
    pub fn read(path: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = Verifier::new(certificates(path)?, &provider)?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Begins a session with the server at a host and a port.
    pub(crate) fn connect(&self, address: &str) -> io::Result<ClientConnection> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(io::Error::other)?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)
    }
}

/// Trusts some certificates themselves, whatever they say, and those that they have issued by the
/// usual rules. The simplest set-up is a certificate that the server has issued to itself.
#[derive(Debug)]
struct Verifier {
    known: Vec<CertificateDer<'static>>,
    issued: Arc<WebPkiServerVerifier>,
}

impl Verifier {
    fn new(
        known: Vec<CertificateDer<'static>>,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        for certificate in &known {
            roots.add(certificate.clone())?;
        }
        let builder =
            WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(provider));
        Ok(Self { known, issued: builder.build()? })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.known.iter().any(|known| known == end_entity) {
            return Ok(ServerCertVerified::assertion());
        }
        self.issued.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.issued.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.issued.supported_verify_schemes()
    }
}
