//! Classifies the API server's answers to requests. Does not depend on the kind of object; the caller converts a failure to the error of
//! its port.

use std::fmt::Debug;
use std::time::Duration;

use kube::Error;
use kube::core::Status;
use leafhost_core::text;
use tokio::time::timeout;

/// Maximum size of the API server's message text, in bytes.
const MAX_MESSAGE: usize = 512;

/// A failed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Meaning of the failure.
    pub kind: Kind,
    /// HTTP status of the answer, if there was one.
    pub code: Option<u16>,
    /// Message of the API server, or a description of the error.
    pub message: String,
    /// Delay that the API server asked for, if any.
    pub retry_after: Option<Duration>,
}

/// Meaning of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The name is taken.
    Taken,
    /// The object is not in the state that the request assumes.
    Conflict,
    /// A test of a JSON Patch failed, so the object is not in the assumed state; or a list already has the value, which another writer
    /// added.
    Mismatch,
    /// The object does not exist.
    Missing,
    /// The namespace does not exist.
    NoNamespace,
    /// The API server does not know this kind of object.
    Undefined,
    /// The caller is not authenticated, or is not allowed to do this.
    Denied,
    /// The schema or an admission policy forbids the request.
    Refused,
    /// The API server accepts no such requests at the moment.
    Busy,
    /// No connection could be made, so the request was not sent.
    Unreachable,
    /// The API server or a component behind it failed, or did not answer in time, perhaps after the write.
    Failed,
    /// The connection broke.
    Lost,
    /// The answer cannot be parsed.
    Unreadable,
}

impl Failure {
    /// Creates the failure of a request that got no answer in time.
    pub fn silent(waited: Duration) -> Self {
        let seconds = waited.as_secs();
        Self::new(
            Kind::Failed,
            format!("the API server did not answer within {seconds} seconds"),
        )
    }

    /// Creates a failure without an answer.
    pub fn new(kind: Kind, message: String) -> Self {
        Self {
            kind,
            code: None,
            message,
            retry_after: None,
        }
    }

    /// Returns true if the request may have taken effect.
    pub fn may_be_done(&self) -> bool {
        matches!(self.kind, Kind::Failed | Kind::Lost | Kind::Unreadable)
    }

    /// Returns true if the named object or its namespace does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self.kind, Kind::Missing | Kind::NoNamespace)
    }

    /// Returns true if the object is not in the state that the request assumes.
    pub fn is_conflict(&self) -> bool {
        matches!(self.kind, Kind::Conflict | Kind::Mismatch)
    }

    /// Returns a full description with the remedy.
    pub fn describe(&self) -> String {
        let message = &self.message;
        match (self.kind, self.code) {
            (Kind::Undefined, _) => {
                "the API server knows no such objects; install the CRDs (leafhost crds | kubectl apply -f -)"
                    .to_owned()
            }
            (Kind::Denied, _) => format!(
                "the API server refuses it: {message}; give the agent's service account the rights of the chart"
            ),
            (Kind::Refused, _) => format!("the API server refuses it: {message}"),
            (_, Some(code)) => format!("the API server answered {code}: {message}"),
            (Kind::Unreachable, _) => format!("cannot reach the API server: {message}"),
            (Kind::Lost, _) => format!("the API server did not answer: {message}"),
            (Kind::Unreadable, _) => {
                format!("cannot read the API server's answer: {message}")
            }
            _ => message.clone(),
        }
    }

    /// Returns the message with the remedy for a `resource` that is to be listed and watched.
    pub fn describe_watch(&self, resource: &str) -> String {
        let remedy = match self.code {
            Some(404) => {
                "apply the definitions: leafhost crds | kubectl apply --server-side -f -".to_owned()
            }
            Some(401 | 403) => format!(
                "allow the agent's service account to list and watch {resource} in the whole cluster"
            ),
            _ => "the agent tries again".to_owned(),
        };
        format!("{}; {remedy}", self.message)
    }
}

impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        let details = status.details.as_ref();
        let kind = match status.code {
            404 if details.is_none_or(|details| details.name.is_empty()) => Kind::Undefined,
            404 if details.is_some_and(|details| details.kind == "namespaces") => Kind::NoNamespace,
            404 => Kind::Missing,
            409 if status.reason == "AlreadyExists" => Kind::Taken,
            409 => Kind::Conflict,
            // A failed test of a JSON Patch has no causes.
            422 if details.is_none_or(|details| {
                let mut causes = details.causes.iter();
                causes.all(|cause| cause.reason == "FieldValueDuplicate")
            }) =>
            {
                Kind::Mismatch
            }
            401 | 403 => Kind::Denied,
            400 | 405 | 413 | 415 | 422 => Kind::Refused,
            429 | 503 => Kind::Busy,
            _ => Kind::Failed,
        };
        let message = match &*status.message {
            "" => format!("it answers {}", status.code),
            said => text::abridge(said, MAX_MESSAGE),
        };
        let seconds = details.map_or(0, |details| details.retry_after_seconds);
        Self {
            kind,
            code: Some(status.code),
            message,
            retry_after: (seconds > 0).then(|| Duration::from_secs(seconds.into())),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, message) = match &error {
            Error::Api(status) => return Self::from(&**status),
            Error::SerdeError(_) => (Kind::Unreadable, text::chain(&error)),
            _ if is_without_connection(&error) => (Kind::Unreachable, chain(&error)),
            _ => (Kind::Lost, chain(&error)),
        };
        Self::new(kind, text::abridge(&message, MAX_MESSAGE))
    }
}

fn chain(error: &Error) -> String {
    match error {
        Error::Service(error) => text::chain(error.as_ref()),
        error => text::chain(error),
    }
}

/// Returns true if the request cannot have left this node.
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

/// Awaits the answer to a request, up to a timeout.
pub async fn within<T, E: Into<Failure>>(
    limit: Duration,
    request: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    match timeout(limit, request).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(Failure::silent(limit)),
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::instance::InstanceKey;

    use super::*;
    use crate::instance::store_error;

    const LIMIT: Duration = Duration::from_secs(3);

    impl Failure {
        /// Creates a failure from a status and a message, or from a message alone.
        pub fn answered(code: Option<u16>, message: &str) -> Self {
            let Some(code) = code else {
                return Self::new(Kind::Lost, message.to_owned());
            };
            Self::from(&Status {
                code,
                message: message.to_owned(),
                ..Status::default()
            })
        }
    }

    fn failure(text: &str) -> Failure {
        Failure::from(&serde_json::from_str::<Status>(text).unwrap())
    }

    #[test]
    fn answers_mean_what_the_api_server_means_by_them() {
        let cases = [
            (r#"{"code":409,"reason":"AlreadyExists"}"#, "exists"),
            (r#"{"code":409,"reason":"Conflict"}"#, "conflict"),
            // A failed test of a JSON Patch.
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
            // Failures of this object: it is too large for the database, a webhook fails, or the write was slow but took effect.
            (r#"{"code":500}"#, "unknown"),
            (r#"{"code":504}"#, "unknown"),
        ];
        let key = InstanceKey::new("default", "a-1");
        for (text, label) in cases {
            assert_eq!(store_error(&failure(text), &key).label(), label, "{text}");
        }
        let busy = failure(r#"{"code":429,"details":{"retryAfterSeconds":7}}"#);
        assert_eq!(busy.retry_after, Some(Duration::from_secs(7)));
    }

    #[tokio::test]
    async fn a_request_without_a_connection_was_not_made() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let mut config = kube::Config::new(format!("http://{address}").parse().unwrap());
        config.default_retry = false;
        let client = crate::client::client(config).unwrap();
        let ended = within(LIMIT, client.apiserver_version()).await;
        assert_eq!(ended.unwrap_err().kind, Kind::Unreachable);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_without_an_answer_ends_as_unknown() {
        let ended = within(LIMIT, std::future::pending::<Result<(), Error>>()).await;
        let failure = ended.unwrap_err();
        assert_eq!(failure.kind, Kind::Failed);
        assert_eq!(
            failure.describe(),
            "the API server did not answer within 3 seconds"
        );
    }
}
