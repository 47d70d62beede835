//! TLS of the webhook: the current certificate, and the clients that may have objects reviewed.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use leafhost_k8s::serving::Serving;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

/// Resolver that uses the current certificate for each connection.
#[derive(Debug)]
struct Certificate(watch::Receiver<Option<Serving>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let serving = self.0.borrow();
        serving.as_ref().map(|serving| Arc::clone(&serving.key))
    }
}

/// Returns the configuration of the server. With `client_ca`, as PEM, a client may show a certificate of that CA or none.
pub fn config(
    certificate: watch::Receiver<Option<Serving>>,
    client_ca: Option<&[u8]>,
) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let tls = match client_ca {
        None => tls.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.context("cannot read a certificate as PEM")?;
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                // The kubelet has no certificate when it asks whether the webhook is ready.
                .allow_unauthenticated()
                .build()
                .context("there is no certificate of a CA")?;
            tls.with_client_cert_verifier(verifier)
        }
    };
    Ok(Arc::new(
        tls.with_cert_resolver(Arc::new(Certificate(certificate))),
    ))
}
