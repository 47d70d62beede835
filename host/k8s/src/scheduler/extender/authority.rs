//! CA of an extender, the certificates that it signs, and their form in a Secret. Knows no API server.

use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::Secret;
use leafhost_core::text;
use rcgen::{
    BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier as _;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};

use crate::certificates::{self, CHAIN, DAYS, KEY, RENEWED, TRUSTED};

/// Key of the CA's private key in the Secret.
const TRUSTED_KEY: &str = "ca.key";
/// Validity of the CA in days.
const CA_DAYS: i64 = 3_650;
/// Common names of the CA, of server and of client certificates.
const CA: &str = "leafhost scheduler CA";
const EXTENDER: &str = "leafhost scheduler";
const CLIENT: &str = "kube-scheduler";
const REMEDY: &str = "remove ca.crt and ca.key from it, so that the extender creates a new CA, and configure kube-scheduler with the new output of leafhost scheduler config";

/// Usable content of a Secret.
#[derive(Debug)]
pub struct Found {
    /// TLS configuration to serve with, if the Secret has a valid certificate.
    pub tls: Option<Arc<ServerConfig>>,
    /// Secret with a new certificate, if it has no valid one or one that expires soon.
    pub renewed: Option<Secret>,
}

/// Examines the Secret of an extender with the DNS name `dns`, and creates a CA and a certificate for it if needed.
pub fn look(secret: &Secret, dns: &str, now: Timestamp) -> Result<Found, String> {
    let authority = Authority::of(secret)?;
    let key = certificates::read(secret, CHAIN, KEY);
    let until = now
        .checked_add(((DAYS - RENEWED - 1) * 24).hours())
        .map_err(|error| text::chain(&error))?;
    let (mut tls, mut is_kept) = (None, false);
    if let (Some(authority), Some(key)) = (&authority, key) {
        is_kept = authority.has_signed(&key, dns, until);
        if is_kept || authority.has_signed(&key, dns, now) {
            tls = Some(Arc::new(authority.tls(key)?));
        }
    }
    if is_kept {
        return Ok(Found { tls, renewed: None });
    }
    let mut renewed = secret.clone();
    let authority = match authority {
        Some(authority) => authority,
        None => Authority::make(&mut renewed, now)?,
    };
    let signed = authority.sign_server(dns, now)?;
    let (chain, key) = (signed.chain.as_bytes(), signed.key.as_bytes());
    certificates::put(&mut renewed, &[(CHAIN, chain), (KEY, key)]);
    // An unusable certificate would be renewed again and again.
    let read = certificates::read(&renewed, CHAIN, KEY);
    if !read.is_some_and(|key| authority.has_signed(&key, dns, until)) {
        return Err(foreign());
    }
    Ok(Found {
        tls,
        renewed: Some(renewed),
    })
}

/// New certificate and its key, as PEM.
pub struct Made {
    /// PEM of the certificate.
    pub chain: String,
    /// PEM of the private key.
    pub key: String,
}

/// CA of a Secret.
pub struct Authority {
    roots: Arc<RootCertStore>,
    /// PEM of the CA's own certificate.
    pub chain: String,
    key: KeyPair,
}

impl Authority {
    /// Reads the CA of a Secret; `None` if the Secret has neither `ca.crt` nor `ca.key`.
    pub fn of(secret: &Secret) -> Result<Option<Self>, String> {
        let text = |name: &str| {
            let value = secret.data.as_ref()?.get(name)?;
            Some(String::from_utf8_lossy(&value.0).into_owned())
        };
        let (chain, key) = match (text(TRUSTED), text(TRUSTED_KEY)) {
            (None, None) => return Ok(None),
            (Some(chain), Some(key)) => (chain, key),
            (None, _) => return Err(format!("it has ca.key, but no ca.crt; {REMEDY}")),
            (_, None) => return Err(format!("it has ca.crt, but no ca.key; {REMEDY}")),
        };
        let certified = certificates::read(secret, TRUSTED, TRUSTED_KEY);
        let authority = certified.and_then(|certified| {
            let mut roots = RootCertStore::empty();
            for certificate in &certified.cert {
                roots.add(certificate.clone()).ok()?;
            }
            Some(Self {
                roots: Arc::new(roots),
                chain,
                key: KeyPair::from_pem(&key).ok()?,
            })
        });
        let unusable =
            || format!("its ca.crt and ca.key are not a certificate and its key, as PEM; {REMEDY}");
        authority.ok_or_else(unusable).map(Some)
    }

    /// Creates a CA and puts it into a Secret.
    fn make(secret: &mut Secret, now: Timestamp) -> Result<Self, String> {
        let key = KeyPair::generate().map_err(said)?;
        let params = ca(now)?;
        let chain = params.self_signed(&key).map_err(said)?.pem();
        let key = key.serialize_pem();
        let values = [(TRUSTED, chain.as_bytes()), (TRUSTED_KEY, key.as_bytes())];
        certificates::put(secret, &values);
        let authority = Self::of(secret)?;
        authority.ok_or_else(|| "the created certificate is not a CA; this is a bug".to_owned())
    }

    /// Creates a server certificate for an extender with the DNS name `dns`.
    fn sign_server(&self, dns: &str, now: Timestamp) -> Result<Made, String> {
        let names = vec![dns.to_owned()];
        let params = certificates::params(EXTENDER, names, DAYS, now).map_err(said)?;
        self.sign(params, ExtendedKeyUsagePurpose::ServerAuth, now)
    }

    /// Creates a client certificate for a scheduler, valid for `days` days.
    pub fn sign_client(&self, days: i64, now: Timestamp) -> Result<Made, String> {
        let params = certificates::params(CLIENT, Vec::new(), days, now).map_err(said)?;
        let signed = self.sign(params, ExtendedKeyUsagePurpose::ClientAuth, now)?;
        let own = CertificateDer::from_pem_slice(signed.chain.as_bytes());
        let own = own.map_err(|error| text::chain(&error))?;
        let verified = self.clients()?.verify_client_cert(&own, &[], time(now));
        verified.map(|_| signed).map_err(|_| foreign())
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
        now: Timestamp,
    ) -> Result<Made, String> {
        let key = KeyPair::generate().map_err(said)?;
        params.extended_key_usages = vec![purpose];
        let ca = ca(now)?;
        let signed = params.signed_by(&key, &Issuer::from_params(&ca, &self.key));
        Ok(Made {
            chain: signed.map_err(said)?.pem(),
            key: key.serialize_pem(),
        })
    }

    /// Returns true if the CA has signed the certificate of `key`, and the certificate is valid for an extender with the DNS name `dns` at
    /// that time.
    fn has_signed(&self, key: &CertifiedKey, dns: &str, at: Timestamp) -> bool {
        let provider = Arc::new(default_provider());
        let roots = Arc::clone(&self.roots);
        let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
        let (Ok(verifier), Ok(name)) = (verifier, ServerName::try_from(dns)) else {
            return false;
        };
        let Some((own, others)) = key.cert.split_first() else {
            return false;
        };
        verifier
            .verify_server_cert(own, others, &name, &[], time(at))
            .is_ok()
    }

    /// Returns the verifier of clients, which accepts client certificates that the CA has signed.
    fn clients(&self) -> Result<Arc<dyn ClientCertVerifier>, String> {
        let (roots, provider) = (Arc::clone(&self.roots), Arc::new(default_provider()));
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
        verifier.map_err(|error| text::chain(&error))
    }

    /// Returns the TLS configuration for a certificate; clients without a certificate of the CA are refused.
    fn tls(&self, key: CertifiedKey) -> Result<ServerConfig, String> {
        let tls = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| text::chain(&error))?;
        let own = Arc::new(SingleCertAndKey::from(key));
        let tls = tls.with_client_cert_verifier(self.clients()?);
        Ok(tls.with_cert_resolver(own))
    }
}

/// Returns the parameters of the CA certificate. Of these, only the name appears in certificates that it signs.
fn ca(now: Timestamp) -> Result<CertificateParams, String> {
    let mut params = certificates::params(CA, Vec::new(), CA_DAYS, now).map_err(said)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    Ok(params)
}

fn time(at: Timestamp) -> UnixTime {
    let seconds = u64::try_from(at.as_second()).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

fn foreign() -> String {
    format!("its ca.crt is not a CA that leafhost has created; {REMEDY}")
}

#[expect(clippy::needless_pass_by_value, reason = "what an error is mapped by")]
fn said(error: rcgen::Error) -> String {
    text::chain(&error)
}
