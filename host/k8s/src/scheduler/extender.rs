//! TLS of an extender that a kube-scheduler reaches over the network: the extender's certificate, and the clients that may call it.
//!
//! A Secret holds a CA, which is created once, and the extender's server certificate, which the CA signs and which is renewed. A
//! kube-scheduler trusts the CA, so a renewal changes nothing for the kube-scheduler. The kube-scheduler must also show a client certificate
//! that the CA has signed, because whoever can call the extender can bind any pod. All replicas do the same: the first one creates the
//! missing keys, and the others read them. As for the webhook, the Secret must exist, and may be empty. If the Secret is deleted and created
//! again, running replicas put its former content into it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio::time::Instant;

mod authority;
mod entry;

pub use crate::certificates::Names;
use authority::{Found, look};
pub use entry::entry;

use crate::answers::{self, Failure, Kind};
use crate::watched_object::WatchedObject;
use crate::{backoff, certificates, until};

/// Time limit for a request.
const REQUEST: Duration = Duration::from_secs(10);
/// Interval between two checks of whether the certificate expires soon.
const LOOK: Duration = Duration::from_hours(1);

/// Maintains the Secret, and sends the TLS configuration to serve with, until the future is dropped.
pub async fn keep(client: Client, names: Names, serving: watch::Sender<Option<Arc<ServerConfig>>>) {
    let secrets: Api<Secret> = Api::namespaced(client, &names.namespace);
    let mut task = CertificateTask {
        secret: WatchedObject::new(secrets.clone(), &names.secret, "the extender's Secret"),
        secrets,
        names,
        serving,
        served: None,
    };
    let mut failures = 0;
    let mut next = None;
    loop {
        tokio::select! {
            () = task.secret.changed() => {}
            () = until(next) => {}
        }
        let settled = answers::within(REQUEST, task.settle()).await;
        let wait = match settled {
            Ok(()) => {
                failures = 0;
                LOOK
            }
            Err(failure) => {
                failures += 1;
                let (error, secret) = (failure.message, &task.names.secret);
                tracing::warn!(
                    error,
                    secret,
                    "cannot maintain the extender's certificate; retrying"
                );
                backoff(failures)
            }
        };
        next = Some(Instant::now() + wait);
    }
}

struct CertificateTask {
    names: Names,
    secrets: Api<Secret>,
    secret: WatchedObject<Secret>,
    serving: watch::Sender<Option<Arc<ServerConfig>>>,
    /// Secret whose certificate is being served.
    served: Option<Secret>,
}

impl CertificateTask {
    /// Adds a CA or a certificate to the Secret if it has none or the certificate expires soon, and serves with a certificate that is
    /// valid. The Secret itself must exist.
    async fn settle(&mut self) -> Result<(), Failure> {
        if !self.secret.is_read() {
            return Ok(());
        }
        let (namespace, name) = (&self.names.namespace, &self.names.secret);
        let Some(secret) = self.secret.object() else {
            let why = format!("there is no Secret {namespace}/{name}; helm upgrade creates it");
            return Err(Failure::new(Kind::Missing, why));
        };
        let served = self.served.as_ref();
        if let Some(again) = served.and_then(|served| as_before(served, secret)) {
            return certificates::write(&self.secrets, name, again).await;
        }
        let found = look(secret, &self.names.dns(), Timestamp::now());
        let Found { tls, renewed } = found.map_err(|why| {
            let why = format!("cannot use the Secret {namespace}/{name}: {why}");
            Failure::new(Kind::Failed, why)
        })?;
        if let Some(tls) = tls {
            let served = self.served.replace(secret.clone());
            if served.is_none_or(|served| served.data != secret.data) {
                tracing::info!(secret = name, "serves with the certificate of the Secret");
                self.serving.send_replace(Some(tls));
            }
        }
        if let Some(renewed) = renewed {
            // The watch then shows the Secret that was written.
            certificates::write(&self.secrets, name, renewed).await?;
        }
        Ok(())
    }
}

/// Returns the Secret with its former content if it was deleted and created again without content, because kube-schedulers trust the former
/// CA. To get a new CA, a user empties the Secret.
fn as_before(served: &Secret, secret: &Secret) -> Option<Secret> {
    let is_empty = secret.data.as_ref().is_none_or(BTreeMap::is_empty);
    (is_empty && served.metadata.uid != secret.metadata.uid).then(|| {
        let mut again = secret.clone();
        again.data.clone_from(&served.data);
        again
    })
}

#[cfg(test)]
mod tests;
