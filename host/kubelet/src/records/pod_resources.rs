//! Asks the kubelet which containers have which device ids.

use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Listed, ListedHolder};
use crate::causes::{causes, io_cause};
use crate::proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::pod_resources::{ListPodResourcesRequest, ListPodResourcesResponse};

#[cfg(test)]
mod tests;

/// Time limit of a List call.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum size of an answer, in bytes, as in the kubelet's own client; a gRPC client accepts 4 MiB by default.
const LARGEST_ANSWER: usize = 16 << 20;
/// Maximum number of pods in one answer; a node has at most a few hundred.
const MOST_PODS: usize = 10_000;
/// Maximum number of device ids in one answer, over all containers.
const MOST_IDS: usize = 500_000;
/// Maximum number of claims in one answer, over all containers.
const MOST_CLAIMS: usize = 100_000;

/// Reason why there is no answer. No reason implies that an id is free.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Too many requests, by this or other clients.
    #[error("the kubelet at {} limits how often PodResources is asked; ask again in a second", .0.display())]
    Limited(PathBuf),
    /// Any other reason, for the operator.
    #[error("{0}")]
    Failed(String),
}

/// Client of the kubelet's PodResources API, v1.
///
/// Uses one connection, opened at the first request and again after a restart of the kubelet.
#[derive(Debug)]
pub struct PodResources {
    socket: PathBuf,
    channel: OnceLock<Channel>,
}

impl PodResources {
    /// Creates a client of the kubelet that listens at `socket`, usually `/var/lib/kubelet/pod-resources/kubelet.sock`. Does not connect.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            channel: OnceLock::new(),
        }
    }

    /// Returns the active pods and the devices of their containers, without ordinary init containers and pods that have ended. Returns
    /// within five seconds.
    ///
    /// The request makes the kubelet drop its records of pods that have ended.
    pub async fn list(&self) -> Result<Listed, Error> {
        let late = |_| {
            Error::Failed(format!(
                "the kubelet at {} did not answer PodResources within {} s: it may be overloaded",
                self.socket.display(),
                ANSWER_TIMEOUT.as_secs()
            ))
        };
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.ask()).await;
        let answer = answer.map_err(late)??;
        self.fold(answer)
    }

    async fn ask(&self) -> Result<ListPodResourcesResponse, Error> {
        let mut client = PodResourcesListerClient::new(self.channel()?)
            .max_decoding_message_size(LARGEST_ANSWER);
        let first = client.list(ListPodResourcesRequest {}).await;
        let answer = match first {
            // The kubelet of this connection has just ended; a new one may run.
            Err(status) if connect_error(&status).is_none() && is_broken(&status) => {
                client.list(ListPodResourcesRequest {}).await
            }
            other => other,
        };
        Ok(answer
            .map_err(|status| refusal(&self.socket, &status))?
            .into_inner())
    }

    fn channel(&self) -> Result<Channel, Error> {
        if let Some(channel) = self.channel.get() {
            return Ok(channel.clone());
        }
        let unreachable = |why: &str| {
            let at = self.socket.display();
            Error::Failed(format!("cannot connect to PodResources at {at}: {why}"))
        };
        let path = self.socket.to_str();
        let path = path.ok_or_else(|| unreachable("the path is not UTF-8"))?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|error| unreachable(&error.to_string()))?;
        Ok(self.channel.get_or_init(|| endpoint.connect_lazy()).clone())
    }

    fn fold(&self, answer: ListPodResourcesResponse) -> Result<Listed, Error> {
        let containers = || answer.pod_resources.iter().flat_map(|pod| &pod.containers);
        let devices = containers().flat_map(|container| &container.devices);
        let ids: usize = devices.map(|devices| devices.device_ids.len()).sum();
        let claims: usize = containers().map(|one| one.dynamic_resources.len()).sum();
        for (count, what, most) in [
            (answer.pod_resources.len(), "pods", MOST_PODS),
            (ids, "device ids", MOST_IDS),
            (claims, "claims", MOST_CLAIMS),
        ] {
            if count > most {
                return Err(Error::Failed(format!(
                    "the kubelet at {} listed {count} {what}; at most {most} are accepted",
                    self.socket.display()
                )));
            }
        }
        Ok(fold(answer))
    }
}

fn fold(answer: ListPodResourcesResponse) -> Listed {
    let mut listed = Listed::default();
    for pod in answer.pod_resources {
        for container in pod.containers {
            let holder = ListedHolder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
            };
            let used = container.dynamic_resources.into_iter();
            let used = used.map(|claim| (claim.claim_namespace, claim.claim_name));
            listed.claims.extend(used);
            for devices in container.devices {
                for id in devices.device_ids {
                    // An id that is near several NUMA nodes is listed once for each.
                    let holders = &mut listed.holders;
                    holders
                        .entry((devices.resource_name.clone(), id))
                        .or_default()
                        .insert(holder.clone());
                }
            }
        }
        listed.pods.insert((pod.namespace, pod.name));
    }
    listed
}

/// Returns true if the connection ended during the call. The kubelet did not send such a status, and its code varies.
fn is_broken(status: &Status) -> bool {
    status.source().is_some()
}

/// Returns the I/O error of the attempt to connect.
fn connect_error(status: &Status) -> Option<&io::Error> {
    let connecting = causes(status).find(|cause| cause.is::<tonic::ConnectError>())?;
    io_cause(connecting)
}

fn refusal(socket: &Path, status: &Status) -> Error {
    let at = socket.display();
    if let Some(source) = connect_error(status) {
        let what = match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                "cannot reach PodResources at {at}: the kubelet is not running or uses another folder; set --kubelet-dir"
            ),
            io::ErrorKind::PermissionDenied => {
                format!("cannot open the PodResources socket {at}; run as root")
            }
            _ => format!("cannot connect to PodResources at {at}"),
        };
        return Error::Failed(format!("{what}: {source}"));
    }
    match status.code() {
        Code::Unimplemented => Error::Failed(format!(
            "the kubelet at {at} serves no v1.PodResourcesLister: it must be 1.28 or newer"
        )),
        Code::ResourceExhausted => Error::Limited(socket.to_owned()),
        code => {
            let said: String = status.message().chars().take(512).collect();
            Error::Failed(format!(
                "the kubelet at {at} refused PodResources List: {code:?}: {said}"
            ))
        }
    }
}
