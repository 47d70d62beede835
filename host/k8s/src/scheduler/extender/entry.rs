//! Configuration of a cluster's kube-scheduler for an extender that serves TLS: an extender entry with a client certificate.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{Api, Client};
use leafhost_core::scheduling::DEVICES;
use serde::Serialize;

use super::Names;
use super::authority::Authority;
use crate::answers::{self, Failure, Kind};
use crate::certificates;

/// Name of the Service's port, if it has several.
const PORT: &str = "https";

/// Reason that no entry can be made.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// No Secret has that name.
    #[error(
        "there is no Secret {0}; name it with --secret, or let the chart make it (scheduler.enabled=true, scheduler.kubeScheduler.enabled=false)"
    )]
    NoSecret(String),
    /// The Secret has no CA.
    #[error(
        "the Secret {0} has no CA (ca.crt, ca.key); leafhost scheduler --tls-secret makes it when it runs, and its log says why it does not"
    )]
    NoAuthority(String),
    /// The content of the Secret cannot be used.
    #[error("cannot use the Secret {name}: {why}")]
    Unusable {
        /// Namespace and name of the Secret.
        name: String,
        /// Description of the problem, with the remedy.
        why: String,
    },
    /// No Service has that name.
    #[error(
        "there is no Service {0}; name it with --service, or let the chart make it (scheduler.enabled=true, scheduler.kubeScheduler.enabled=false)"
    )]
    NoService(String),
    /// The Service has no cluster IP.
    #[error(
        "the Service {0} has no address in spec.clusterIP; make it one of the type ClusterIP, as that of the chart"
    )]
    NoAddress(String),
    /// The Service has neither a port named `https` nor exactly one port.
    #[error("the Service {0} has several ports or none; name the extender's https")]
    NoPort(String),
    /// An object cannot be read.
    #[error("cannot read the {what}: {why}")]
    Unread {
        /// Kind and name of the object.
        what: String,
        /// Description of the problem.
        why: String,
    },
    /// The entry cannot be written as YAML.
    #[error("cannot write the entry as YAML")]
    Yaml(#[source] serde_saphyr::SerializeError),
}

/// Part of a `KubeSchedulerConfiguration` that is printed.
#[derive(Serialize)]
struct Document {
    extenders: [Entry; 1],
}

/// Extender entry of `kubescheduler.config.k8s.io/v1`.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    url_prefix: String,
    filter_verb: &'static str,
    prioritize_verb: &'static str,
    bind_verb: &'static str,
    weight: u32,
    #[serde(rename = "enableHTTPS")]
    enable_https: bool,
    node_cache_capable: bool,
    ignorable: bool,
    http_timeout: &'static str,
    managed_resources: [Managed; 1],
    tls_config: Tls,
}

/// Resource of the pods for which the extender is asked.
#[derive(Serialize)]
struct Managed {
    name: &'static str,
}

/// CA to trust, and client certificate to show.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tls {
    server_name: String,
    ca_data: ByteString,
    cert_data: ByteString,
    key_data: ByteString,
}

/// Returns the entry as YAML, with a new client certificate that is valid for at least `days` days. Reads with the caller's rights.
pub async fn entry(client: &Client, names: &Names, days: u32) -> Result<String, EntryError> {
    let authority = authority(client, names).await?;
    let address = address(client, names).await?;
    let now = Timestamp::now();
    // Valid until the start of the following day, so never shorter than `days`.
    let days = i64::from(days) + 1;
    let made = authority.sign_client(days, now);
    let made = made.map_err(|why| unusable(names, why))?;
    let bytes = |text: String| ByteString(text.into_bytes());
    let entry = Entry {
        // A static kube-scheduler does not use the cluster's DNS.
        url_prefix: format!("https://{address}"),
        filter_verb: "filter",
        prioritize_verb: "prioritize",
        bind_verb: "bind",
        weight: 1,
        enable_https: true,
        node_cache_capable: true,
        ignorable: false,
        http_timeout: "15s",
        managed_resources: [Managed { name: DEVICES }],
        tls_config: Tls {
            server_name: names.dns(),
            ca_data: bytes(authority.chain),
            cert_data: bytes(made.chain),
            key_data: bytes(made.key),
        },
    };
    let document = Document { extenders: [entry] };
    let text = serde_saphyr::to_string(&document).map_err(EntryError::Yaml)?;
    let until = certificates::after(now, days);
    Ok(format!(
        "# For the KubeSchedulerConfiguration of the cluster's own kube-scheduler.\n\
         #\n\
         # KEEP IT SECRET: whoever has certData and keyData can bind any pod that waits to any node. They are good until {until}, 00:00 UTC; print\n\
         # others before, and start kube-scheduler again with them.\n\
         #\n\
         # Set percentageOfNodesToScore: 100 beside extenders: else kube-scheduler looks at some of the nodes only, and one with the devices may not be\n\
         # among them.\n\
         {text}"
    ))
}

async fn authority(client: &Client, names: &Names) -> Result<Authority, EntryError> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &names.namespace);
    let read = answers::within(super::REQUEST, secrets.get_opt(&names.secret)).await;
    let read = read.map_err(|failure| unread("Secret", &secret_name(names), &failure))?;
    let secret = read.ok_or_else(|| EntryError::NoSecret(secret_name(names)))?;
    let authority = Authority::of(&secret).map_err(|why| unusable(names, why))?;
    authority.ok_or_else(|| EntryError::NoAuthority(secret_name(names)))
}

async fn address(client: &Client, names: &Names) -> Result<SocketAddr, EntryError> {
    let name = || format!("{}/{}", names.namespace, names.service);
    let services: Api<Service> = Api::namespaced(client.clone(), &names.namespace);
    let read = answers::within(super::REQUEST, services.get_opt(&names.service)).await;
    let read = read.map_err(|failure| unread("Service", &name(), &failure))?;
    let service = read.ok_or_else(|| EntryError::NoService(name()))?;
    let spec = service.spec.unwrap_or_default();
    let address: Option<IpAddr> = spec.cluster_ip.and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| EntryError::NoAddress(name()))?;
    let ports = spec.ports.unwrap_or_default();
    let by_name = ports.iter().find(|port| port.name.as_deref() == Some(PORT));
    let only = || match &ports[..] {
        [only] => Some(only),
        _ => None,
    };
    let port = by_name.or_else(only);
    let port = port.and_then(|port| u16::try_from(port.port).ok());
    let port = port.ok_or_else(|| EntryError::NoPort(name()))?;
    Ok(SocketAddr::new(address, port))
}

fn secret_name(names: &Names) -> String {
    format!("{}/{}", names.namespace, names.secret)
}

fn unusable(names: &Names, why: String) -> EntryError {
    let name = secret_name(names);
    EntryError::Unusable { name, why }
}

fn unread(kind: &str, name: &str, failure: &Failure) -> EntryError {
    let why = match failure.kind {
        Kind::Denied => format!(
            "the API server refuses it: {}; set KUBECONFIG to the kubeconfig of a user who may read it",
            failure.message
        ),
        _ => failure.describe(),
    };
    EntryError::Unread {
        what: format!("{kind} {name}"),
        why,
    }
}
