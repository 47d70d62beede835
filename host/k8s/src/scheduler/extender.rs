//! The TLS of an extender that a kube-scheduler reaches by the network: who it is, and who may call it.
//!
//! A Secret has a CA, which is made once, and the certificate that the extender serves with, which is signed by that CA and renewed. A
//! kube-scheduler trusts the CA, so it needs no change then, and shows a certificate that the CA has signed, too: whoever can call the extender can
//! bind any pod. Each replica does the same: whoever comes first makes what is missing, the others read it. The Secret is there before, empty, as
//! that of the webhook. If it is deleted and made again, replicas that run put what it had into it.

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

use authority::{Found, look};
pub use entry::{EntryError, entry};

use crate::answers::{self, Failure, Kind};
use crate::seen::Seen;
use crate::{backoff, certificates, until};

/// Time limit for a request.
const REQUEST: Duration = Duration::from_secs(10);
/// How often it is looked whether the certificate ends soon.
const LOOK: Duration = Duration::from_hours(1);

/// Names the objects of an extender.
#[derive(Debug, Clone)]
pub struct Names {
    /// The namespace of the Secret and the Service.
    pub namespace: String,
    /// The Secret.
    pub secret: String,
    /// The Service, by whose name the extender is known.
    pub service: String,
}

impl Names {
    /// Returns the name that the certificate is for.
    pub fn dns(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}

/// Keeps what is in the Secret, and tells what the extender is to serve with, without end.
pub async fn keep(client: Client, names: Names, serving: watch::Sender<Option<Arc<ServerConfig>>>) {
    let secrets: Api<Secret> = Api::namespaced(client, &names.namespace);
    let mut keeper = Keeper {
        secret: Seen::new(secrets.clone(), &names.secret, "the extender's Secret"),
        secrets,
        names,
        serving,
        served: None,
    };
    let mut failures = 0;
    let mut next = None;
    loop {
        tokio::select! {
            () = keeper.secret.changed() => {}
            () = until(next) => {}
        }
        let settled = answers::within(REQUEST, keeper.settle()).await;
        let wait = match settled {
            Ok(()) => {
                failures = 0;
                LOOK
            }
            Err(failure) => {
                failures += 1;
                let (error, secret) = (failure.message, &keeper.names.secret);
                tracing::warn!(
                    error,
                    secret,
                    "cannot keep the extender's certificate; it is tried again"
                );
                backoff(failures)
            }
        };
        next = Some(Instant::now() + wait);
    }
}

struct Keeper {
    names: Names,
    secrets: Api<Secret>,
    secret: Seen<Secret>,
    serving: watch::Sender<Option<Arc<ServerConfig>>>,
    /// The Secret that it serves with.
    served: Option<Secret>,
}

impl Keeper {
    /// Makes what is missing but the Secret itself, and serves with what is there.
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
            // The watch shows what was written.
            certificates::write(&self.secrets, name, renewed).await?;
        }
        Ok(())
    }
}

/// Returns a Secret that was deleted and made again, with what it had: kube-schedulers trust that CA. Whoever wants another one empties the Secret.
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
