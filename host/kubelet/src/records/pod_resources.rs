//! Asks the kubelet which containers have which device ids.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Listed, ListedHolder};
use crate::causes::{causes, io_cause, owned};
use crate::proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use crate::proto::pod_resources::{ListPodResourcesRequest, ListPodResourcesResponse};

#[cfg(test)]
mod tests;

/// How long one List may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// What the kubelet's own client takes at most; a gRPC client takes 4 MiB unless told.
const LARGEST_ANSWER: usize = 16 << 20;
/// A node has at most some hundred pods.
const MOST_PODS: usize = 10_000;
/// Device ids in one answer, over all containers.
const MOST_IDS: usize = 500_000;
/// Limits the claims of one answer, over all containers.
const MOST_CLAIMS: usize = 100_000;

/// Why there is no answer. None of these says that an id is free.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens there.
    #[error(
        "cannot reach PodResources at {}: no kubelet runs, or its folder is another one; name it with --kubelet-dir", socket.display()
    )]
    NotThere {
        /// The socket.
        socket: PathBuf,
        /// What the connect said.
        #[source]
        source: io::Error,
    },
    /// The socket is there and not for us.
    #[error("cannot open the PodResources socket {}: run as root", socket.display())]
    Denied {
        /// The socket.
        socket: PathBuf,
        /// What the connect said.
        #[source]
        source: io::Error,
    },
    /// The connection cannot be made for another reason.
    #[error("cannot connect to PodResources at {}", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the connect said.
        #[source]
        source: io::Error,
    },
    /// This kubelet does not serve the version asked.
    #[error("the kubelet at {} serves no v1.PodResourcesLister: it must be 1.28 or newer", socket.display())]
    Unimplemented {
        /// The socket.
        socket: PathBuf,
    },
    /// Asked too often, by us or by others.
    #[error("the kubelet at {} limits how often PodResources is asked: ask again in a second", socket.display())]
    Limited {
        /// The socket.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("the kubelet at {} did not answer PodResources within {} s: it may be overloaded", socket.display(), ANSWER_TIMEOUT.as_secs())]
    Slow {
        /// The socket.
        socket: PathBuf,
    },
    /// More than a node can have.
    #[error("the kubelet at {} listed {what}: refused, at most {limit} are taken", socket.display())]
    TooMuch {
        /// The socket.
        socket: PathBuf,
        /// What and how many.
        what: String,
        /// How many are taken.
        limit: usize,
    },
    /// Anything else the kubelet said.
    #[error("the kubelet at {} refused PodResources List: {code:?}: {message}", socket.display())]
    Failed {
        /// The socket.
        socket: PathBuf,
        /// The code.
        code: Code,
        /// The kubelet's words, cut at 512 characters.
        message: String,
    },
}

/// A client of the kubelet's PodResources API, v1.
///
/// One connection, made at the first question and again after the kubelet was restarted.
#[derive(Debug)]
pub struct PodResources {
    socket: PathBuf,
    channel: OnceLock<Channel>,
}

impl PodResources {
    /// Of the kubelet that listens at `socket`, usually `/var/lib/kubelet/pod-resources/kubelet.sock`. Does not connect.
    pub fn new(socket: PathBuf) -> Self {
        Self {
            socket,
            channel: OnceLock::new(),
        }
    }

    /// The active pods and what their containers have; ordinary init containers and pods that have ended are not in it.
    /// Answers within five seconds.
    ///
    /// The kubelet sweeps its records of pods that have ended when it is asked.
    pub async fn list(&self) -> Result<Listed, Error> {
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, self.ask())
            .await
            .map_err(|_| Error::Slow {
                socket: self.socket.clone(),
            })??;
        self.fold(answer)
    }

    async fn ask(&self) -> Result<ListPodResourcesResponse, Error> {
        let mut client = PodResourcesListerClient::new(self.channel()?)
            .max_decoding_message_size(LARGEST_ANSWER);
        let first = client.list(ListPodResourcesRequest {}).await;
        let answer = match first {
            // The kubelet that this connection was to has just gone; there may be a new one.
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
        let unreachable = |source| Error::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let path = self.socket.to_str().ok_or_else(|| {
            unreachable(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the path is not UTF-8",
            ))
        })?;
        let endpoint = Endpoint::from_shared(format!("unix://{path}"))
            .map_err(|error| unreachable(io::Error::other(error)))?;
        Ok(self.channel.get_or_init(|| endpoint.connect_lazy()).clone())
    }

    fn fold(&self, answer: ListPodResourcesResponse) -> Result<Listed, Error> {
        let too_much = |count: usize, what: &str, limit| {
            (count > limit).then(|| Error::TooMuch {
                socket: self.socket.clone(),
                what: format!("{count} {what}"),
                limit,
            })
        };
        let ids = answer
            .pod_resources
            .iter()
            .flat_map(|pod| &pod.containers)
            .flat_map(|container| &container.devices)
            .map(|devices| devices.device_ids.len())
            .sum();
        let containers = answer.pod_resources.iter().flat_map(|pod| &pod.containers);
        let claims = containers.map(|one| one.dynamic_resources.len()).sum();
        if let Some(error) = too_much(answer.pod_resources.len(), "pods", MOST_PODS)
            .or_else(|| too_much(ids, "device ids", MOST_IDS))
            .or_else(|| too_much(claims, "claims", MOST_CLAIMS))
        {
            return Err(error);
        }
        Ok(fold(answer))
    }
}

fn fold(answer: ListPodResourcesResponse) -> Listed {
    let mut holders: BTreeMap<(String, String), BTreeSet<ListedHolder>> = BTreeMap::new();
    let (mut pods, mut claims) = (BTreeSet::new(), BTreeSet::new());
    for pod in answer.pod_resources {
        for container in pod.containers {
            let holder = ListedHolder {
                namespace: pod.namespace.clone(),
                pod: pod.name.clone(),
                container: container.name,
            };
            let used = container.dynamic_resources.into_iter();
            claims.extend(used.map(|claim| (claim.claim_namespace, claim.claim_name)));
            for devices in container.devices {
                for id in devices.device_ids {
                    // The same id comes once per NUMA node it is near to.
                    holders
                        .entry((devices.resource_name.clone(), id))
                        .or_default()
                        .insert(holder.clone());
                }
            }
        }
        pods.insert((pod.namespace, pod.name));
    }
    Listed {
        holders: holders
            .into_iter()
            .map(|(id, holders)| (id, holders.into_iter().collect()))
            .collect(),
        pods,
        claims,
    }
}

/// Whether the connection ended under the call: then the code is one of several, but it was not the kubelet that sent it.
fn is_broken(status: &Status) -> bool {
    status.source().is_some()
}

/// What the operating system said to the attempt to connect.
fn connect_error(status: &Status) -> Option<io::Error> {
    let connecting = causes(status).find(|cause| cause.is::<tonic::ConnectError>())?;
    io_cause(connecting).map(owned)
}

fn refusal(socket: &Path, status: &Status) -> Error {
    let socket = socket.to_owned();
    if let Some(source) = connect_error(status) {
        return match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                Error::NotThere { socket, source }
            }
            io::ErrorKind::PermissionDenied => Error::Denied { socket, source },
            _ => Error::Unreachable { socket, source },
        };
    }
    match status.code() {
        Code::Unimplemented => Error::Unimplemented { socket },
        Code::ResourceExhausted => Error::Limited { socket },
        code => Error::Failed {
            socket,
            code,
            message: status.message().chars().take(512).collect(),
        },
    }
}
