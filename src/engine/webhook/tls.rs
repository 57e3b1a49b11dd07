//! The settings of TLS handshakes: the certificate of the webhook, and the authority that client certificates must have.
//!
//! # Guarantees
//! After a failed read of the authority, the last good one stays in use. A client without a certificate of it fails the
//! handshake, and costs nothing more.

use crate::survival::lock;
use anyhow::{Context, Result, anyhow};
use arc_swap::ArcSwap;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::{ResolvesServerCert, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_rustls::TlsAcceptor;
use tracing::{info, warn};

/// The settings for the next handshake.
pub struct Tls {
    certificates: Arc<dyn ResolvesServerCert>,
    settings: ArcSwap<ServerConfig>,
    clients: Option<Clients>,
}

/// The authority of client certificates.
struct Clients {
    file: PathBuf,
    /// The content that is in use.
    pem: Mutex<Vec<u8>>,
}

impl Tls {
    /// Settings with the certificate of `certificates`, for any client.
    pub fn new(certificates: Arc<dyn ResolvesServerCert>) -> Self {
        let settings = ArcSwap::from_pointee(settings(certificates.clone(), None).expect("no part can be refused"));
        Self { certificates, settings, clients: None }
    }

    /// The same, for clients with a certificate of the authorities in `file` only, as PEM.
    ///
    /// # Errors
    /// If `file` has no usable certificate.
    pub fn for_clients(certificates: Arc<dyn ResolvesServerCert>, file: &Path) -> Result<Self> {
        let pem = std::fs::read(file).with_context(|| file.display().to_string())?;
        let settings = settings(certificates.clone(), Some(&pem)).with_context(|| file.display().to_string())?;
        let clients = Clients { file: file.to_owned(), pem: Mutex::new(pem) };
        Ok(Self { certificates, settings: ArcSwap::from_pointee(settings), clients: Some(clients) })
    }

    /// The acceptor of the next handshake.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.settings.load_full())
    }

    /// Reads the authority again at each interval `poll`, for ever.
    pub async fn run(&self, poll: Duration) {
        let Some(clients) = &self.clients else { return std::future::pending().await };
        loop {
            tokio::time::sleep(poll).await;
            match self.refresh(clients) {
                Ok(false) => {}
                Ok(true) => info!(file = %clients.file.display(), "The webhook has another authority of its clients"),
                Err(error) => {
                    let detail = format!("{error:#}");
                    warn!(file = %clients.file.display(), detail, "No new authority of clients; the last good one counts");
                }
            }
        }
    }

    fn refresh(&self, clients: &Clients) -> Result<bool> {
        let pem = std::fs::read(&clients.file)?;
        let mut known = lock(&clients.pem);
        if *known == pem {
            return Ok(false);
        }
        self.settings.store(Arc::new(settings(self.certificates.clone(), Some(&pem))?));
        *known = pem;
        Ok(true)
    }
}

fn settings(certificates: Arc<dyn ResolvesServerCert>, clients: Option<&[u8]>) -> Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match clients {
        Some(pem) => builder.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots(pem)?), provider).build()?,
        ),
        None => builder.with_no_client_auth(),
    };
    let mut settings = builder.with_cert_resolver(certificates);
    // With HTTP/2, an API server would open a single connection, to a single replica.
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(settings)
}

fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.map_err(|error| anyhow!("it is no list of certificates in PEM: {error}"))?)?;
    }
    if roots.is_empty() { Err(anyhow!("it has no certificate in PEM")) } else { Ok(roots) }
}
