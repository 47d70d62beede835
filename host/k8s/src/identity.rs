//! Which node this agent runs on, as the API server knows it from the agent's token.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::core::v1::Node;
use kube::api::PostParams;
use kube::{Api, Client};
use leafhost_core::names::is_node_name;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::memory;
use crate::watch::Failure;

/// How long each of the two requests may take.
const REQUEST: Duration = Duration::from_secs(10);
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// Who the agent is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The node's name.
    pub node: String,
    /// The uid of the Node object.
    pub node_uid: String,
    /// The namespace of the service account; without one that of the kubeconfig.
    pub namespace: String,
}

/// Why the agent does not know who it is.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The API server does not answer as it should. It may later.
    #[error("cannot ask the API server which node this is: {0}; the agent needs it once to start")]
    Unavailable(String),
    /// Two different nodes.
    #[error(
        "--node-name is {given:?}, but the agent's token is bound to node {bound:?}; remove --node-name"
    )]
    OtherNode {
        /// What the flag says.
        given: String,
        /// What the token says.
        bound: String,
    },
    /// No node.
    #[error(
        "the credentials of {user:?} are bound to no node; run the agent as a pod of the cluster (1.32 or newer), or give --node-name"
    )]
    NoNode {
        /// Whose.
        user: String,
    },
    /// Not the name of a node of this cluster.
    #[error("the cluster has no node {0:?}; correct --node-name")]
    UnknownNode(String),
    /// The Node object may not be read.
    #[error("cannot read Node {node}: {message}; allow the user of KUBECONFIG to get nodes")]
    Denied {
        /// Which.
        node: String,
        /// Why.
        message: String,
    },
}

/// Asks the API server. `node_name` is what the operator says. While the API server is away it is what an earlier agent was told, which
/// the file `memory` keeps.
pub async fn identify(
    client: &Client,
    node_name: Option<&str>,
    memory: &Path,
) -> Result<Identity, IdentityError> {
    let error = match ask(client, node_name).await {
        Ok(identity) => {
            if let Err(error) = memory::write(memory, &identity) {
                let path = memory.display();
                tracing::warn!(%path, %error, "cannot keep the node's identity for a start without the API server");
            }
            return Ok(identity);
        }
        Err(error) => error,
    };
    let earlier = memory::read::<Identity>(memory)
        .filter(|earlier| node_name.is_none_or(|name| name == earlier.node));
    match (&error, earlier) {
        (IdentityError::Unavailable(why), Some(earlier)) => {
            tracing::warn!(
                why,
                "the API server is away: the agent goes by what it knew"
            );
            Ok(earlier)
        }
        _ => Err(error),
    }
}

async fn ask(client: &Client, node_name: Option<&str>) -> Result<Identity, IdentityError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let params = PostParams::default();
    let review = bounded(reviews.create(&params, &review))
        .await
        .map_err(|failure| IdentityError::Unavailable(failure.message))?;
    let user = review.status.and_then(|status| status.user_info);
    let claims = Claims::of(&user.unwrap_or_default(), node_name)?;
    let node_uid = match claims.node_uid {
        Some(uid) => uid,
        None => uid_of(client, &claims.node).await?,
    };
    Ok(Identity {
        node: claims.node,
        node_uid,
        namespace: claims
            .namespace
            .unwrap_or_else(|| client.default_namespace().to_owned()),
    })
}

/// What the credentials say.
#[derive(Debug, PartialEq, Eq)]
struct Claims {
    node: String,
    node_uid: Option<String>,
    namespace: Option<String>,
}

impl Claims {
    fn of(user: &UserInfo, given: Option<&str>) -> Result<Self, IdentityError> {
        let extra = |key: &str| user.extra.as_ref()?.get(key)?.first().cloned();
        let name = user.username.as_deref().unwrap_or_default();
        let namespace = name
            .strip_prefix("system:serviceaccount:")
            .and_then(|account| account.split(':').next())
            .map(str::to_owned);
        let (node, node_uid) = match (extra(NODE_NAME), given) {
            (Some(bound), Some(given)) if bound != given => {
                let given = given.to_owned();
                return Err(IdentityError::OtherNode { given, bound });
            }
            (Some(bound), _) => (bound, extra(NODE_UID)),
            (None, Some(given)) if is_node_name(given) => (given.to_owned(), None),
            (None, Some(given)) => return Err(IdentityError::UnknownNode(given.to_owned())),
            (None, None) => {
                let user = name.to_owned();
                return Err(IdentityError::NoNode { user });
            }
        };
        Ok(Self {
            node,
            node_uid,
            namespace,
        })
    }
}

async fn uid_of(client: &Client, node: &str) -> Result<String, IdentityError> {
    let nodes: Api<Node> = Api::all(client.clone());
    match bounded(nodes.get_metadata(node)).await {
        Ok(node) => Ok(node.metadata.uid.unwrap_or_default()),
        Err(Failure { code, message }) => Err(match code {
            Some(404) => IdentityError::UnknownNode(node.to_owned()),
            Some(403) => IdentityError::Denied {
                node: node.to_owned(),
                message,
            },
            _ => IdentityError::Unavailable(message),
        }),
    }
}

/// Within its time.
async fn bounded<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Failure> {
    match timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| Failure::from(&error)),
        Err(_) => Err(Failure::silent(REQUEST)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: (&str, Option<(&str, &str)>) = (
        "system:serviceaccount:leafhost:leafhost-agent",
        Some(("node-a", "uid-a")),
    );
    const PERSON: (&str, Option<(&str, &str)>) = ("admin", None);

    fn claims(
        (name, node): (&str, Option<(&str, &str)>),
        given: Option<&str>,
    ) -> Result<Claims, String> {
        let extra = node.map(|(name, uid)| {
            [(NODE_NAME, name), (NODE_UID, uid)]
                .map(|(key, value)| (key.to_owned(), vec![value.to_owned()]))
                .into()
        });
        let user = UserInfo {
            username: Some(name.to_owned()),
            extra,
            ..UserInfo::default()
        };
        Claims::of(&user, given).map_err(|error| error.to_string())
    }

    #[test]
    fn the_token_of_a_pod_names_its_node_and_its_namespace() {
        for given in [None, Some("node-a")] {
            let expected = Claims {
                node: "node-a".into(),
                node_uid: Some("uid-a".into()),
                namespace: Some("leafhost".into()),
            };
            assert_eq!(claims(POD, given), Ok(expected));
        }
    }

    #[test]
    fn a_person_says_which_node_it_is() {
        let expected = Claims {
            node: "node-a".into(),
            node_uid: None,
            namespace: None,
        };
        assert_eq!(claims(PERSON, Some("node-a")), Ok(expected));
    }

    #[test]
    fn another_node_no_node_and_what_is_no_name_are_refused_with_the_remedy() {
        for (user, given, words) in [
            (
                POD,
                Some("node-b"),
                "bound to node \"node-a\"; remove --node-name",
            ),
            (PERSON, None, "or give --node-name"),
            (PERSON, Some("../pods"), "correct --node-name"),
        ] {
            let error = claims(user, given).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
