//! Certificates with their keys as PEM in a Secret: creation, reading and writing. Knows nothing of the servers that use them.

use jiff::civil::Date;
use jiff::{Timestamp, ToSpan as _, tz::TimeZone};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, PostParams};
use rcgen::{CertificateParams, DnType, Error, date_time_ymd};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::answers::Failure;

/// Names of the objects of a server.
#[derive(Debug, Clone)]
pub struct Names {
    /// Namespace of the Secret and the Service.
    pub namespace: String,
    /// Name of the Secret.
    pub secret: String,
    /// Name of the Service, by which clients call the server.
    pub service: String,
}

impl Names {
    /// Returns the DNS name that the certificate is for.
    pub fn dns(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

/// Key of the certificate chain in a Secret of type `kubernetes.io/tls`.
pub const CHAIN: &str = "tls.crt";
/// Key of the private key.
pub const KEY: &str = "tls.key";
/// Key of the certificates that clients are to trust.
pub const TRUSTED: &str = "ca.crt";

/// Validity of a server certificate in days.
pub const DAYS: i64 = 365;
/// Age in days at which a server certificate is renewed.
pub const RENEWED: i64 = 240;

/// Returns the parameters of a certificate with this validity in days and these DNS names, if any.
pub fn params(
    name: &str,
    dns: Vec<String>,
    days: i64,
    now: Timestamp,
) -> Result<CertificateParams, Error> {
    let day = |date: Date| {
        let part = |part: i8| u8::try_from(part).unwrap_or(1);
        date_time_ymd(date.year().into(), part(date.month()), part(date.day()))
    };
    let mut params = CertificateParams::new(dns)?;
    // Clocks in a cluster differ.
    params.not_before = day(after(now, -1));
    params.not_after = day(after(now, days));
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

/// Returns the date `days` after `now`. A certificate with this validity expires at the first moment of that day.
pub fn after(now: Timestamp, days: i64) -> Date {
    let today = now.to_zoned(TimeZone::UTC).date();
    today.saturating_add(days.days())
}

/// Reads the certificate and the private key under these keys of a Secret. Returns `None` unless they belong together.
pub fn read(secret: &Secret, chain: &str, key: &str) -> Option<CertifiedKey> {
    let data = secret.data.as_ref()?;
    let chain = CertificateDer::pem_slice_iter(&data.get(chain)?.0);
    let chain: Result<Vec<_>, _> = chain.collect();
    let private = PrivateKeyDer::from_pem_slice(&data.get(key)?.0).ok()?;
    let key = CertifiedKey::from_der(chain.ok()?, private, &default_provider()).ok()?;
    (!key.cert.is_empty()).then_some(key)
}

/// Puts values into a Secret before it is written.
pub fn put(secret: &mut Secret, values: &[(&str, &[u8])]) {
    let data = secret.data.get_or_insert_default();
    for (name, bytes) in values {
        data.insert((*name).to_owned(), ByteString(bytes.to_vec()));
    }
}

/// Replaces a Secret unless another replica wrote it first; the caller's watch then shows the current one.
pub async fn write(api: &Api<Secret>, name: &str, mut secret: Secret) -> Result<(), Failure> {
    secret.metadata.managed_fields = None;
    let params = PostParams::default();
    let written = api.replace(name, &params, &secret);
    match written.await.map_err(Failure::from) {
        Err(failure) if failure.code != Some(409) => Err(failure),
        _ => Ok(()),
    }
}
