//! Self-signed certificate, and the Secret that holds it.

use std::sync::Arc;

use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::Secret;
use leafhost_core::text;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::sign::CertifiedKey;

use crate::certificates::{self, CHAIN, DAYS, KEY, RENEWED, TRUSTED};

/// Key of the Secret's entry with the time from which the certificate is renewed.
const RENEW_AFTER: &str = "renew-after";
/// Key of the Secret's entry with the certificate's DNS name.
const DNS_NAME: &str = "dns-name";

/// A usable certificate.
#[derive(Debug)]
pub struct Certificate {
    /// Private key and certificate.
    pub key: Arc<CertifiedKey>,
    /// Certificates that the API server is to trust, as PEM.
    pub trusted: Vec<u8>,
    /// Time from which the certificate is renewed.
    pub renew_after: Timestamp,
    chain: Vec<u8>,
}

impl Certificate {
    /// Returns the certificate of a Secret if it is complete and for this name.
    pub fn of(secret: &Secret, dns: &str) -> Option<Self> {
        let data = secret.data.as_ref()?;
        let text = |key: &str| str::from_utf8(&data.get(key)?.0).ok();
        let renew_after = text(RENEW_AFTER)?.parse().ok()?;
        if text(DNS_NAME)? != dns {
            return None;
        }
        let chain = &data.get(CHAIN)?.0;
        let key = certificates::read(secret, CHAIN, KEY)?;
        let trusted = data.get(TRUSTED)?.0.clone();
        let is_trusted = trusted.windows(chain.len()).any(|part| part == chain);
        is_trusted.then(|| Self {
            key: Arc::new(key),
            trusted,
            renew_after,
            chain: chain.clone(),
        })
    }

    /// Creates a certificate that replaces `before`, and writes it into a Secret.
    pub fn make(
        secret: &mut Secret,
        dns: &str,
        before: Option<&Self>,
        now: Timestamp,
    ) -> Result<(), String> {
        let said = |error: rcgen::Error| text::chain(&error);
        let key = KeyPair::generate().map_err(said)?;
        let params = certificates::params("leafhost webhook", vec![dns.to_owned()], DAYS, now);
        let mut params = params.map_err(said)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = params.self_signed(&key).map_err(said)?.pem();
        let mut trusted = before
            .map(|before| before.chain.clone())
            .unwrap_or_default();
        trusted.extend_from_slice(chain.as_bytes());
        let renew_after = now.checked_add((RENEWED * 24).hours());
        let renew_after = renew_after
            .map_err(|error| text::chain(&error))?
            .to_string();
        let key = key.serialize_pem();
        let values = [
            (RENEW_AFTER, renew_after.as_bytes()),
            (DNS_NAME, dns.as_bytes()),
            (CHAIN, chain.as_bytes()),
            (KEY, key.as_bytes()),
            (TRUSTED, trusted.as_slice()),
        ];
        certificates::put(secret, &values);
        Ok(())
    }
}

/// Returns true if the first certificate of a chain is among the trusted ones, given as PEM.
pub fn is_among(chain: &[CertificateDer<'_>], trusted: &[u8]) -> bool {
    chain.first().is_some_and(|first| {
        CertificateDer::pem_slice_iter(trusted).any(|one| one.is_ok_and(|one| one == *first))
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    const DNS: &str = "webhook.leafhost.svc";

    fn secret(before: Option<&Certificate>, now: Timestamp) -> Secret {
        let mut secret = Secret::default();
        Certificate::make(&mut secret, DNS, before, now).unwrap();
        secret
    }

    #[test]
    fn what_is_made_can_be_used_and_the_one_before_is_trusted_too() {
        let now = Timestamp::now();
        let first = Certificate::of(&secret(None, now), DNS).unwrap();
        assert_eq!(first.trusted, first.chain);
        assert!(first.renew_after > now);
        let second = Certificate::of(&secret(Some(&first), now), DNS).unwrap();
        assert_eq!(
            second.trusted,
            [first.chain.clone(), second.chain.clone()].concat()
        );
        // Of the earlier certificates, only the last is trusted.
        let third = Certificate::of(&secret(Some(&second), now), DNS).unwrap();
        let is_trusted = |one: &Certificate| is_among(&one.key.cert, &third.trusted);
        assert!(is_trusted(&third) && is_trusted(&second) && !is_trusted(&first));
        assert!(!is_among(&[], &third.trusted));
        assert_eq!(third.trusted, [second.chain, third.chain].concat());
    }

    #[test]
    fn what_is_damaged_or_of_another_name_is_none() {
        let whole = secret(None, Timestamp::now());
        assert!(Certificate::of(&whole, "other.leafhost.svc").is_none());
        for name in [CHAIN, KEY, TRUSTED, RENEW_AFTER, DNS_NAME] {
            for bytes in [None, Some(""), Some("-----BEGIN"), Some("x")] {
                let mut damaged = whole.clone();
                let data = damaged.data.as_mut().unwrap();
                match bytes {
                    Some(bytes) => data.insert(name.to_owned(), ByteString(bytes.into())),
                    None => data.remove(name),
                };
                assert!(
                    Certificate::of(&damaged, DNS).is_none(),
                    "{name}: {bytes:?}"
                );
            }
        }
        let mut mixed = whole.clone();
        let other = secret(None, Timestamp::now());
        let key = other.data.unwrap()[KEY].clone();
        mixed.data.as_mut().unwrap().insert(KEY.to_owned(), key);
        assert!(
            Certificate::of(&mixed, DNS).is_none(),
            "the key of another certificate"
        );
    }
}
