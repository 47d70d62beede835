//! TLS as the grants require: verified by this machine's authorities, one pinned certificate, or any.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use rustls_native_certs::CertificateResult;
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::HttpError;
use super::target::{Host, Target};
use super::wire::{Meter, Metered};
use crate::grants::Tls;

/// Trusted authorities, loaded on first use, and again as long as there are none.
#[derive(Debug)]
pub(super) struct Roots {
    verifier: OnceCell<Arc<WebPkiServerVerifier>>,
    load: fn() -> CertificateResult,
}

/// Authorities of this machine.
pub(super) static MACHINE: Roots = Roots::of(rustls_native_certs::load_native_certs);

impl Roots {
    pub(super) const fn of(load: fn() -> CertificateResult) -> Self {
        Self {
            verifier: OnceCell::const_new(),
            load,
        }
    }

    #[cfg(test)]
    pub(super) fn are_read(&self) -> bool {
        self.verifier.initialized()
    }

    async fn verifier(&self) -> Result<Arc<WebPkiServerVerifier>, HttpError> {
        let load = self.load;
        let read = async {
            tokio::task::spawn_blocking(move || verifier_of(load()))
                .await
                .map_err(|_| HttpError::NoRoots)?
        };
        self.verifier.get_or_try_init(|| read).await.cloned()
    }
}

fn verifier_of(found: CertificateResult) -> Result<Arc<WebPkiServerVerifier>, HttpError> {
    for error in &found.errors {
        tracing::warn!(%error, "cannot read a certificate authority of this machine");
    }
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(found.certs);
    WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider())
        .build()
        .map_err(|_| HttpError::NoRoots)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Speaks TLS over a stream that `meter` counts.
pub(super) async fn handshake(
    stream: Metered,
    meter: &Meter,
    target: &Target,
    tls: &Tls,
    roots: &Roots,
) -> Result<TlsStream<Metered>, HttpError> {
    let name = match &target.host {
        Host::Address(address) => ServerName::from(address.ip()),
        Host::Name(name) => ServerName::try_from(name.clone())
            .map_err(|_| HttpError::Request(format!("{name:?} is not a name of a TLS server")))?,
    };
    let trust = match tls {
        Tls::Verify => Trust::Authorities(roots.verifier().await?),
        Tls::Pin(digest) => Trust::Pin(*digest),
        Tls::Insecure => Trust::Anybody,
    };
    let provider = provider();
    let check = Arc::new(Check {
        trust,
        algorithms: provider.signature_verification_algorithms,
        rejected: Mutex::default(),
    });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| HttpError::Request(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&check) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|error| {
            let error = || HttpError::Tls {
                address: meter.address,
                source: io::Error::new(error.kind(), error.to_string()),
            };
            let cause = meter.error().or_else(|| check.rejected().take());
            cause.unwrap_or_else(error)
        })
}

#[derive(Debug)]
enum Trust {
    Authorities(Arc<WebPkiServerVerifier>),
    Pin([u8; 32]),
    Anybody,
}

/// Verifier of one connection's certificate; remembers the rejection.
#[derive(Debug)]
struct Check {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
    rejected: Mutex<Option<HttpError>>,
}

impl Check {
    fn rejected(&self) -> MutexGuard<'_, Option<HttpError>> {
        self.rejected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reject(&self, digest: [u8; 32], reason: &str) {
        *self.rejected() = Some(HttpError::Untrusted {
            reason: reason.to_owned(),
            sha256: digest.iter().map(|byte| format!("{byte:02x}")).collect(),
        });
    }
}

impl ServerCertVerifier for Check {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let digest: [u8; 32] = Sha256::digest(end_entity).into();
        match &self.trust {
            Trust::Anybody => Ok(ServerCertVerified::assertion()),
            Trust::Pin(pin) if *pin == digest => Ok(ServerCertVerified::assertion()),
            Trust::Pin(_) => {
                self.reject(digest, "it is not the one that the grants pin");
                Err(CertificateError::ApplicationVerificationFailure.into())
            }
            Trust::Authorities(verifier) => verifier
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
                .inspect_err(|error| {
                    let reason = match error {
                        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                            "no authority of this machine has signed it".to_owned()
                        }
                        Error::InvalidCertificate(reason) => reason.to_string(),
                        other => other.to_string(),
                    };
                    self.reject(digest, &reason);
                }),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.trust {
            Trust::Anybody => Ok(HandshakeSignatureValid::assertion()),
            _ => verify_tls12_signature(message, cert, dss, &self.algorithms),
        }
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        match self.trust {
            Trust::Anybody => Ok(HandshakeSignatureValid::assertion()),
            _ => verify_tls13_signature(message, cert, dss, &self.algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let mut schemes = self.algorithms.supported_schemes();
        if matches!(self.trust, Trust::Anybody) {
            // Some old servers have no other schemes; their signatures are not verified anyway.
            schemes.extend([
                SignatureScheme::RSA_PKCS1_SHA1,
                SignatureScheme::ECDSA_SHA1_Legacy,
            ]);
        }
        schemes
    }
}
