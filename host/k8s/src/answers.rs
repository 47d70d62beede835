//! What the API server's answers to a write mean.

use std::time::Duration;

use kube::Error;
use kube::core::Status;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::StoreError;
use leafhost_core::status_store::WriteError;
use leafhost_core::text::chain;

/// Time limit for a request.
const REQUEST: Duration = Duration::from_secs(3);

/// Why a request did not do what it was to do.
#[derive(Debug)]
pub enum Failure {
    /// The name is taken.
    AlreadyExists,
    /// The object is not as the request assumes.
    Conflict,
    /// There is no such object.
    NotFound,
    /// A rule forbids it: RBAC, an admission policy, the schema.
    Denied(String),
    /// No answer came.
    Unknown(String),
    /// The server takes no writes at the moment, or there is no connection to it; when it wants to be asked again.
    Unavailable(String, Option<Duration>),
}

impl Failure {
    /// As an error of the store.
    pub fn for_key(&self, key: &InstanceKey) -> StoreError {
        let key = key.clone();
        match self {
            Self::AlreadyExists => StoreError::AlreadyExists { key, found: None },
            Self::Conflict => StoreError::Conflict { key },
            Self::NotFound => StoreError::Gone { key },
            Self::Denied(message) => StoreError::Denied {
                key,
                message: message.clone(),
            },
            Self::Unknown(message) => StoreError::Unknown {
                key,
                message: message.clone(),
            },
            Self::Unavailable(message, retry_after) => StoreError::Unavailable {
                key,
                message: message.clone(),
                retry_after: *retry_after,
                source: None,
            },
        }
    }

    /// As an error of another write.
    pub fn into_write_error(self) -> WriteError {
        match self {
            Self::AlreadyExists | Self::Conflict | Self::NotFound => WriteError::Outdated,
            Self::Denied(message) => WriteError::Denied(message),
            Self::Unknown(message) => WriteError::NoAnswer {
                message,
                retry_after: None,
            },
            Self::Unavailable(message, retry_after) => WriteError::NoAnswer {
                message,
                retry_after,
            },
        }
    }

    fn of(status: &Status) -> Self {
        let message = leafhost_core::text::escape(&status.message).to_string();
        let details = status.details.as_ref();
        match status.code {
            404 if status.details.as_ref().is_none_or(|details| details.name.is_empty()) => {
                Self::Denied(
                    "the API server knows no Instances of akri.sh/v0; install the CRDs (leafhost crds | kubectl apply -f -)"
                        .to_owned(),
                )
            }
            404 => Self::NotFound,
            409 if status.reason == "AlreadyExists" => Self::AlreadyExists,
            409 => Self::Conflict,
            // A failed test of a JSON Patch has no causes. A list that has the value already is what somebody else wrote.
            422 if details.is_none_or(|details| {
                let mut causes = details.causes.iter();
                causes.all(|cause| cause.reason == "FieldValueDuplicate")
            }) =>
            {
                Self::Conflict
            }
            401 | 403 => Self::Denied(format!(
                "the API server refuses it: {message}; give the agent's service account the rights of the chart"
            )),
            400 | 405 | 413 | 415 | 422 => {
                Self::Denied(format!("the API server refuses it: {message}"))
            }
            code @ (429 | 503) => {
                let seconds = details.map_or(0, |details| details.retry_after_seconds);
                let retry_after = Duration::from_secs(seconds.into());
                Self::Unavailable(
                    format!("the API server answered {code}: {message}"),
                    (seconds > 0).then_some(retry_after),
                )
            }
            // Something behind it has failed, or was too slow: of this object, perhaps after it was written.
            code => Self::Unknown(format!("the API server answered {code}: {message}")),
        }
    }
}

/// Tells that the request cannot have left this node.
fn is_without_connection(error: &Error) -> bool {
    use std::io::ErrorKind;
    let mut causes = std::iter::successors(Some(error as &dyn std::error::Error), |cause| {
        cause.source()
    });
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| {
            matches!(
                cause.kind(),
                ErrorKind::ConnectionRefused
                    | ErrorKind::HostUnreachable
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::NetworkDown
                    | ErrorKind::AddrNotAvailable
            )
        })
    })
}

/// The answer to a request, in bounded time.
pub async fn within<T>(request: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::Api(status))) => Err(Failure::of(&status)),
        Ok(Err(error @ Error::SerdeError(_))) => Err(Failure::Unknown(format!(
            "the API server's answer cannot be read: {}",
            chain(&error)
        ))),
        Ok(Err(error)) if is_without_connection(&error) => Err(Failure::Unavailable(
            format!("the API server cannot be reached: {}", chain(&error)),
            None,
        )),
        Ok(Err(error)) => Err(Failure::Unknown(format!(
            "the API server did not answer: {}",
            chain(&error)
        ))),
        Err(_) => Err(Failure::Unknown(format!(
            "the API server did not answer within {} seconds",
            REQUEST.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(text: &str) -> Failure {
        Failure::of(&serde_json::from_str(text).unwrap())
    }

    #[test]
    fn answers_mean_what_the_api_server_means_by_them() {
        let cases = [
            (r#"{"code":409,"reason":"AlreadyExists"}"#, "exists"),
            (r#"{"code":409,"reason":"Conflict"}"#, "conflict"),
            // A test of a JSON Patch that fails.
            (
                r#"{"code":422,"reason":"Invalid","details":{"name":"a"}}"#,
                "conflict",
            ),
            (r#"{"code":422,"reason":"Invalid"}"#, "conflict"),
            (
                r#"{"code":422,"reason":"Invalid","details":{"causes":[{"reason":"FieldValueDuplicate","field":"spec.nodes[1]"}]}}"#,
                "conflict",
            ),
            (
                r#"{"code":422,"reason":"Invalid","details":{"causes":[{"reason":"FieldValueInvalid","field":"spec.capacity"}]}}"#,
                "denied",
            ),
            (r#"{"code":403,"reason":"Forbidden"}"#, "denied"),
            (
                r#"{"code":404,"reason":"NotFound","details":{"name":"a-1"}}"#,
                "gone",
            ),
            // The resource itself is unknown.
            (r#"{"code":404,"reason":"NotFound"}"#, "denied"),
            (
                r#"{"code":429,"details":{"retryAfterSeconds":7}}"#,
                "unavailable",
            ),
            (r#"{"code":503}"#, "unavailable"),
            // Of this object: too large for the database, or a webhook that fails; or it was slow and is written.
            (r#"{"code":500}"#, "unknown"),
            (r#"{"code":504}"#, "unknown"),
        ];
        let key = InstanceKey {
            namespace: "default".into(),
            name: "a-1".into(),
        };
        for (text, label) in cases {
            assert_eq!(failure(text).for_key(&key).label(), label, "{text}");
        }
        let busy = failure(r#"{"code":429,"details":{"retryAfterSeconds":7}}"#);
        assert!(matches!(busy, Failure::Unavailable(_, Some(wait)) if wait.as_secs() == 7));
    }

    #[tokio::test]
    async fn a_request_without_a_connection_was_not_made() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let client = crate::client::client(config).unwrap();
        let ended = within(client.apiserver_version()).await;
        assert!(matches!(ended, Err(Failure::Unavailable(..))), "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_ends_as_unknown() {
        let ended = within(std::future::pending::<Result<(), Error>>()).await;
        assert!(matches!(ended, Err(Failure::Unknown(_))));
    }
}
