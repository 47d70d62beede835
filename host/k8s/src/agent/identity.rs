//! Identity of the agent's node, as the API server derives it from the agent's token.

use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, UserInfo};
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Client};
use leafhost_core::names::is_node_name;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::answers::{self, Failure};
use crate::memory;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(10);
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
const NODE_UID: &str = "authentication.kubernetes.io/node-uid";

/// Identity of the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Name of the node.
    pub node: String,
    /// Uid of the Node object.
    pub node_uid: String,
    /// Namespace of the service account, or else the default namespace of the kubeconfig.
    pub namespace: String,
}

/// Reason why the identity is unknown.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The API server does not answer properly, but may answer later.
    #[error("the API server does not say which node this is: {0}; the agent tries again")]
    Unavailable(String),
    /// Something has to be corrected first; the text has the reason and the remedy.
    #[error("{0}")]
    Final(String),
}

/// Asks the API server for the identity. `node_name` is the value of `--node-name`. While the API server is unreachable, the file `memory`
/// supplies the identity of an earlier agent; the first agent of a node waits, and `waits` gets the reason.
pub async fn identify(
    client: &Client,
    node_name: Option<&str>,
    memory: &Path,
    waits: &watch::Sender<Option<String>>,
) -> Result<Identity, IdentityError> {
    let mut backoff = DefaultBackoff::default();
    loop {
        let error = match ask(client, node_name).await {
            Ok(identity) => {
                if let Err(error) = memory::write(memory, &identity) {
                    let path = memory.display();
                    tracing::warn!(%path, %error, "cannot store the node's identity for a start without the API server");
                }
                return Ok(identity);
            }
            Err(error) => error,
        };
        let IdentityError::Unavailable(why) = &error else {
            return Err(error);
        };
        let earlier = memory::read::<Identity>(memory);
        if let Some(earlier) =
            earlier.filter(|earlier| node_name.is_none_or(|name| name == earlier.node))
        {
            tracing::warn!(
                why,
                "the API server is unreachable: using the stored identity"
            );
            return Ok(earlier);
        }
        if waits.send_replace(Some(error.to_string())).is_none() {
            tracing::warn!(%error, "no stored identity for this node; waiting for the API server");
        }
        sleep(backoff.next().unwrap_or(REQUEST)).await;
    }
}

/// State of the Node object of the agent's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NodeObject {
    /// Node object that the credentials are bound to, by its uid.
    Bound(String),
    /// A Node object that was created later: until the credentials are renewed, policies do not let the agent create objects that belong to
    /// it.
    Newer,
    /// No Node object exists.
    Gone,
}

/// Asks the API server for the current state of the Node object.
pub(crate) async fn node_object(
    client: &Client,
    node_name: Option<&str>,
) -> Result<NodeObject, IdentityError> {
    let identity = ask(client, node_name).await?;
    let nodes: Api<Node> = Api::all(client.clone());
    let selector = format!("metadata.name={}", identity.node);
    let params = ListParams::default().fields(&selector);
    let found = match answers::within(REQUEST, nodes.list_metadata(&params)).await {
        Ok(found) => found.items,
        // An agent that may not list nodes trusts its credentials.
        Err(Failure {
            code: Some(403), ..
        }) => return Ok(NodeObject::Bound(identity.node_uid)),
        Err(failure) => return Err(unanswered(failure)),
    };
    Ok(match found.first().map(|node| &node.metadata.uid) {
        None => NodeObject::Gone,
        Some(Some(uid)) if *uid != identity.node_uid => NodeObject::Newer,
        Some(_) => NodeObject::Bound(identity.node_uid),
    })
}

async fn ask(client: &Client, node_name: Option<&str>) -> Result<Identity, IdentityError> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review = SelfSubjectReview::default();
    let params = PostParams::default();
    let review = answers::within(REQUEST, reviews.create(&params, &review))
        .await
        .map_err(unanswered)?;
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

/// Claims of the agent's credentials.
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
                return Err(IdentityError::Final(format!(
                    "--node-name is {given:?}, but the agent's token is bound to node {bound:?}; remove --node-name"
                )));
            }
            (Some(bound), _) => (bound, extra(NODE_UID)),
            (None, Some(given)) if is_node_name(given) => (given.to_owned(), None),
            (None, Some(given)) => return Err(unknown(given)),
            (None, None) => {
                return Err(IdentityError::Final(format!(
                    "the credentials of {name:?} are bound to no node; run the agent as a pod of the cluster (1.32 or newer), or give --node-name"
                )));
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
    match answers::within(REQUEST, nodes.get_metadata(node)).await {
        Ok(node) => Ok(node.metadata.uid.unwrap_or_default()),
        Err(failure) => Err(match failure.code {
            Some(404) => unknown(node),
            Some(403) => IdentityError::Final(format!(
                "cannot read Node {node}: {}; allow the user of KUBECONFIG to get nodes",
                failure.message
            )),
            _ => unanswered(failure),
        }),
    }
}

fn unknown(node: &str) -> IdentityError {
    IdentityError::Final(format!(
        "the cluster has no node {node:?}; correct --node-name"
    ))
}

/// Converts a failure: a busy, starting or absent server may answer later, a refusal is final.
fn unanswered(Failure { code, message, .. }: Failure) -> IdentityError {
    match code {
        Some(400..=428 | 430..=499) => IdentityError::Final(format!(
            "the API server does not say which node this is: {message}; correct the credentials of the pod's service account or of KUBECONFIG"
        )),
        _ => IdentityError::Unavailable(message),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

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

    fn review() -> Answer {
        let extra = json!({NODE_NAME: ["node-a"], NODE_UID: ["uid-a"]});
        Answer::Object(
            201,
            json!({"metadata": {}, "status": {"userInfo": {"username": POD.0, "extra": extra}}}),
        )
    }

    /// Returns the identity that an agent without a memory gets from these answers, and the reason for which it waited.
    async fn learned(
        answers: Vec<Answer>,
        given: Option<&str>,
    ) -> (Result<Identity, String>, Option<String>) {
        let answers = Mutex::new(answers.into_iter());
        let stub = Stub::start(move |_| answers.lock().unwrap().next().unwrap()).await;
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("identity.json");
        let (waits, told) = watch::channel(None);
        let identity = identify(&stub.client, given, &memory, &waits).await;
        if let Ok(identity) = &identity {
            assert_eq!(memory::read::<Identity>(&memory).as_ref(), Some(identity));
        }
        let told = told.borrow().clone();
        (identity.map_err(|error| error.to_string()), told)
    }

    #[tokio::test]
    async fn the_first_agent_of_a_node_waits_for_an_api_server_that_is_busy() {
        let busy = vec![failure(429, "too many"), failure(503, "starts"), review()];
        let (identity, told) = learned(busy, None).await;
        assert_eq!(identity.unwrap().node, "node-a");
        let told = told.unwrap();
        assert!(told.contains("which node this is: starts"), "{told}");
    }

    #[tokio::test]
    async fn the_first_agent_of_a_node_waits_for_an_api_server_that_is_away() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        let client = crate::client::client(config).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("identity.json");
        let (waits, mut told) = watch::channel(None);
        tokio::select! {
            ended = identify(&client, None, &memory, &waits) => panic!("{ended:?}"),
            told = told.wait_for(Option::is_some) => assert!(told.unwrap().is_some()),
        }
    }

    #[tokio::test]
    async fn what_the_api_server_refuses_and_another_node_are_not_waited_for() {
        for (answer, given, words) in [
            (failure(401, "who are you"), None, "correct the credentials"),
            (review(), Some("node-b"), "remove --node-name"),
        ] {
            let (identity, told) = learned(vec![answer], given).await;
            assert!(identity.unwrap_err().contains(words));
            assert_eq!(told, None);
        }
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
