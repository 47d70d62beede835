//! Configuration of a cluster's kube-scheduler for an extender that serves TLS: an extender entry with a client certificate.

use std::net::{IpAddr, SocketAddr};

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Secret, Service};
use kube::{Api, Client};
use leafhost_core::scheduling::DEVICES;
use leafhost_core::text;
use leafhost_core::yaml;
use serde_json::json;

use super::Names;
use super::authority::Authority;
use crate::answers::{self, Failure, Kind};
use crate::certificates;

/// Name of the Service's port, if it has several.
const PORT: &str = "https";
/// Remedy for an object that is missing.
const CHART: &str =
    "let the chart create it (scheduler.enabled=true, scheduler.kubeScheduler.enabled=false)";

/// Returns the entry as YAML, with a new client certificate that is valid for at least `days` days. Reads with the caller's rights. The
/// error says why no entry can be created, with the remedy.
pub async fn entry(client: &Client, names: &Names, days: u32) -> Result<String, String> {
    let secret = format!("{}/{}", names.namespace, names.secret);
    let unusable = |why: String| format!("cannot use the Secret {secret}: {why}");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), &names.namespace);
    let found = answers::within(super::REQUEST, secrets.get_opt(&names.secret)).await;
    let found = found.map_err(|failure| unread("Secret", &secret, &failure))?;
    let found = found
        .ok_or_else(|| format!("there is no Secret {secret}; name it with --secret, or {CHART}"))?;
    let authority = Authority::of(&found).map_err(unusable)?.ok_or_else(|| {
        format!(
            "the Secret {secret} has no CA (ca.crt, ca.key); leafhost scheduler --tls-secret creates the CA when it runs; if it cannot, its log has the reason"
        )
    })?;
    let address = address(client, names).await?;
    let now = Timestamp::now();
    // The certificate is valid until the start of the following day, so never for less than `days` days.
    let days = i64::from(days) + 1;
    let signed = authority.sign_client(days, now).map_err(unusable)?;
    let bytes = |text: String| ByteString(text.into_bytes());
    let document = json!({"extenders": [{
        // A static kube-scheduler does not use the cluster's DNS.
        "urlPrefix": format!("https://{address}"),
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "bindVerb": "bind",
        "weight": 1,
        "enableHTTPS": true,
        "nodeCacheCapable": true,
        "ignorable": false,
        "httpTimeout": "15s",
        // Resource of the pods for which the extender is called.
        "managedResources": [{"name": DEVICES}],
        "tlsConfig": {
            "serverName": names.dns(),
            "caData": bytes(authority.chain),
            "certData": bytes(signed.chain),
            "keyData": bytes(signed.key),
        },
    }]});
    let text = yaml::write(&document)
        .map_err(|error| format!("cannot write the entry as YAML: {}", text::chain(&error)))?;
    let until = certificates::after(now, days);
    Ok(format!(
        "# For the KubeSchedulerConfiguration of the cluster's own kube-scheduler.\n\
         #\n\
         # KEEP IT SECRET: whoever has certData and keyData can bind any pending pod to any node. They are valid until {until}, 00:00 UTC; print\n\
         # new ones before that, and restart kube-scheduler with them.\n\
         #\n\
         # Set percentageOfNodesToScore: 100 beside extenders: otherwise kube-scheduler checks only some of the nodes, and may miss those that have\n\
         # the devices.\n\
         {text}"
    ))
}

async fn address(client: &Client, names: &Names) -> Result<SocketAddr, String> {
    let name = format!("{}/{}", names.namespace, names.service);
    let services: Api<Service> = Api::namespaced(client.clone(), &names.namespace);
    let read = answers::within(super::REQUEST, services.get_opt(&names.service)).await;
    let read = read.map_err(|failure| unread("Service", &name, &failure))?;
    let service = read
        .ok_or_else(|| format!("there is no Service {name}; name it with --service, or {CHART}"))?;
    let spec = service.spec.unwrap_or_default();
    let address: Option<IpAddr> = spec.cluster_ip.and_then(|address| address.parse().ok());
    let address = address.ok_or_else(|| {
        format!(
            "the Service {name} has no address in spec.clusterIP; set its type to ClusterIP, as the chart does"
        )
    })?;
    let ports = spec.ports.unwrap_or_default();
    let by_name = ports.iter().find(|port| port.name.as_deref() == Some(PORT));
    let only = || match &ports[..] {
        [only] => Some(only),
        _ => None,
    };
    let port = by_name.or_else(only);
    let port = port.and_then(|port| u16::try_from(port.port).ok());
    let port = port.ok_or_else(|| {
        format!("the Service {name} has several ports or none; name the extender's {PORT}")
    })?;
    Ok(SocketAddr::new(address, port))
}

fn unread(kind: &str, name: &str, failure: &Failure) -> String {
    let why = match failure.kind {
        Kind::Denied => format!(
            "the API server refuses it: {}; set KUBECONFIG to the kubeconfig of a user who may read it",
            failure.message
        ),
        _ => failure.describe(),
    };
    format!("cannot read the {kind} {name}: {why}")
}
