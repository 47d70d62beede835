//! Certificate of a webhook: kept in a Secret, renewed before it expires, and published to the API server.
//!
//! Each replica of the webhook does the same: the first one creates the certificate, the others read it. The Secret must exist, and
//! may be empty: a webhook creates none, since a program that may create Secrets could obtain the token of another account. The Secret holds
//! the certificates that the API server is to trust, the new one and the one before it, so that both are trusted while replicas change from
//! one to the other.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use rustls::sign::CertifiedKey;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

mod certificate;

pub use crate::certificates::Names;
use certificate::Certificate;

use crate::answers::{self, Failure, Kind};
use crate::watched_object::WatchedObject;
use crate::{backoff, certificates, until};

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Time between publishing a new certificate and serving with it in place of another; the API server's own copies are current by then.
const PROPAGATION: Duration = Duration::from_secs(10);
/// Interval between two checks of whether the certificate expires soon.
const LOOK: Duration = Duration::from_hours(1);

/// Certificate that the webhook serves with.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Private key and certificate.
    pub key: Arc<CertifiedKey>,
    /// True if the API server is configured to trust the certificate.
    pub is_published: bool,
}

/// Maintains the certificate until the future is dropped. `webhook` is the name of the `ValidatingWebhookConfiguration`.
pub async fn keep(
    client: Client,
    names: Names,
    webhook: String,
    serving: watch::Sender<Option<Serving>>,
) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &names.namespace);
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(client);
    let mut task = CertificateTask {
        secret: WatchedObject::new(secrets.clone(), &names.secret, "the webhook's Secret"),
        webhook: WatchedObject::new(
            webhooks.clone(),
            &webhook,
            "the webhook's ValidatingWebhookConfiguration",
        ),
        secrets,
        webhooks,
        names,
        serving,
        published: None,
    };
    let mut failures = 0;
    let mut next = None;
    loop {
        tokio::select! {
            () = task.secret.changed() => {}
            () = task.webhook.changed() => {}
            () = until(next) => {}
        }
        next = match answers::within(REQUEST, task.settle()).await {
            Ok(wait) => {
                failures = 0;
                Some(Instant::now() + wait)
            }
            Err(failure) => {
                failures += 1;
                let error = failure.message;
                tracing::warn!(
                    error,
                    secret = task.names.secret,
                    webhook,
                    "cannot maintain the webhook's certificate; retrying"
                );
                Some(Instant::now() + backoff(failures))
            }
        };
    }
}

struct CertificateTask {
    names: Names,
    secrets: Api<Secret>,
    webhooks: Api<ValidatingWebhookConfiguration>,
    secret: WatchedObject<Secret>,
    webhook: WatchedObject<ValidatingWebhookConfiguration>,
    serving: watch::Sender<Option<Serving>>,
    /// Certificates last published to the API server, and the time.
    published: Option<(Vec<u8>, Instant)>,
}

impl CertificateTask {
    /// Creates and publishes the certificate if needed; the Secret must exist. Returns the time until the next check.
    async fn settle(&mut self) -> Result<Duration, Failure> {
        if !self.secret.is_read() || !self.webhook.is_read() {
            return Ok(LOOK);
        }
        let (now, dns) = (Timestamp::now(), self.names.dns());
        let Some(found) = self.secret.object() else {
            let (namespace, name) = (&self.names.namespace, &self.names.secret);
            let why = format!("there is no Secret {namespace}/{name}; helm upgrade creates it");
            return Err(Failure::new(Kind::Missing, why));
        };
        let kept = match Certificate::of(found, &dns) {
            Some(kept) if kept.renew_after > now => kept,
            before => {
                let mut secret = found.clone();
                Certificate::make(&mut secret, &dns, before.as_ref(), now)
                    .map_err(|why| Failure::new(Kind::Failed, why))?;
                certificates::write(&self.secrets, &self.names.secret, secret).await?;
                // The watch shows the written Secret.
                return Ok(LOOK);
            }
        };
        let is_published = self.publish(&kept.trusted).await?;
        let serves = self.serving.borrow().clone();
        // Waits only while the old certificate is still trusted.
        if let (Some(serves), Some((_, published))) = (&serves, &self.published)
            && serves.key.cert != kept.key.cert
            && certificate::is_among(&serves.key.cert, &kept.trusted)
            && published.elapsed() < PROPAGATION
        {
            return Ok(PROPAGATION.saturating_sub(published.elapsed()));
        }
        let is_served = serves.is_some_and(|serves| {
            serves.key.cert == kept.key.cert && serves.is_published == is_published
        });
        if !is_served {
            tracing::info!(
                secret = self.names.secret,
                is_told = is_published,
                "serves with the certificate of the Secret"
            );
            self.serving.send_replace(Some(Serving {
                key: kept.key,
                is_published,
            }));
        }
        Ok(LOOK)
    }

    /// Publishes the trusted certificates to the API server. Returns false while the webhook's object does not exist.
    async fn publish(&mut self, trusted: &[u8]) -> Result<bool, Failure> {
        let Some(webhook) = self.webhook.object() else {
            self.published = None;
            return Ok(false);
        };
        let all = webhook.webhooks.iter().flatten().enumerate();
        let differs = all.filter(|(_, one)| {
            one.client_config
                .ca_bundle
                .as_ref()
                .is_none_or(|bundle| bundle.0 != trusted)
        });
        let edits: Vec<_> = differs
            .flat_map(|(index, one)| {
                let place = format!("/webhooks/{index}");
                [
                    json!({"op": "test", "path": format!("{place}/name"), "value": one.name}),
                    json!({"op": "add", "path": format!("{place}/clientConfig/caBundle"), "value": ByteString(trusted.to_vec())}),
                ]
            })
            .collect();
        if !edits.is_empty() {
            let edits = serde_json::from_value(edits.into());
            let patch: Patch<()> = Patch::Json(edits.map_err(kube::Error::SerdeError)?);
            self.webhooks
                .patch(&webhook.name_any(), &PatchParams::default(), &patch)
                .await?;
        }
        if self
            .published
            .as_ref()
            .is_none_or(|(published, _)| published != trusted)
        {
            self.published = Some((trusted.to_vec(), Instant::now()));
        }
        Ok(true)
    }
}
