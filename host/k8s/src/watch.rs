//! A watch of objects that goes on after every error, and says what went wrong.

use std::fmt::Debug;

use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use kube::runtime::watcher::{self, Config, DefaultBackoff, Event};
use kube::{Api, Resource};
use leafhost_core::text;
use serde::de::DeserializeOwned;
use tokio::time::{Duration, Instant, sleep_until};

/// How long the API server keeps a watch open, in seconds. kube gives a silent connection up 5 s later.
const IDLE: u32 = 75;
/// The wait after an error if the backoff has none left, which it always has.
const LONGEST: Duration = Duration::from_secs(30);

/// A watch of some objects. kube lists them in pages of 500, and resumes a watch that ended without listing them again.
pub struct Watch<K> {
    api: Api<K>,
    config: Config,
    stream: Option<BoxStream<'static, watcher::Result<Event<K>>>>,
    backoff: DefaultBackoff,
    resume: Instant,
}

/// Why a watch does not work at the moment. It is tried again by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The status that the API server answered with, if it did.
    pub code: Option<u16>,
    /// What it said.
    pub message: String,
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// All objects of `api`.
    pub fn new(api: Api<K>) -> Self {
        Self {
            api,
            config: Config::default().timeout(IDLE),
            stream: None,
            backoff: DefaultBackoff::default(),
            resume: Instant::now(),
        }
    }

    /// Those that a field selector selects.
    pub fn fields(mut self, selector: &str) -> Self {
        self.config = self.config.fields(selector);
        self
    }

    /// Those that a label selector selects.
    pub fn labels(mut self, selector: &str) -> Self {
        self.config = self.config.labels(selector);
        self
    }

    /// The next event. After an error it waits, longer each time, and lists the objects again: so each error is followed by
    /// another one or by [`Event::InitDone`]. A dropped future loses no event.
    pub async fn next(&mut self) -> Result<Event<K>, Failure> {
        loop {
            if self.stream.is_none() {
                sleep_until(self.resume).await;
            }
            let (api, config) = (&self.api, &self.config);
            let stream = self
                .stream
                .get_or_insert_with(|| watcher::watcher(api.clone(), config.clone()).boxed());
            let error = match stream.next().await {
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => Failure::from(&error),
                None => Failure::default(),
            };
            self.restart();
            // The watch began too long ago: that is no failure.
            if error.code != Some(410) {
                return Err(error);
            }
        }
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Result<Event<K>, Failure>> {
        self.next().now_or_never()
    }

    /// Lists the objects again, after a wait.
    pub fn restart(&mut self) {
        self.stream = None;
        self.resume = Instant::now() + self.backoff.next().unwrap_or(LONGEST);
    }
}

impl Failure {
    /// What it said, with the remedy for that kind of object.
    pub fn told(&self, resource: &str) -> String {
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

    /// There was no answer in time.
    pub fn silent(waited: Duration) -> Self {
        Self {
            code: None,
            message: format!("no answer within {} s", waited.as_secs()),
        }
    }
}

impl Default for Failure {
    fn default() -> Self {
        Self {
            code: None,
            message: "the watch ended".to_owned(),
        }
    }
}

impl From<&watcher::Error> for Failure {
    fn from(error: &watcher::Error) -> Self {
        use watcher::Error;
        match error {
            Error::InitialListFailed(error)
            | Error::WatchStartFailed(error)
            | Error::WatchFailed(error) => error.into(),
            Error::WatchError(status) => Self {
                code: Some(status.code),
                message: text::abridge(&status.message, MAX_MESSAGE),
            },
            Error::NoResourceVersion => Self {
                code: None,
                message: text::abridge(&error.to_string(), MAX_MESSAGE),
            },
        }
    }
}

/// The most bytes of the API server's text that are shown.
const MAX_MESSAGE: usize = 512;

impl From<&kube::Error> for Failure {
    fn from(error: &kube::Error) -> Self {
        let (code, message) = match error {
            kube::Error::Api(status) if status.message.is_empty() => {
                (Some(status.code), format!("it answers {}", status.code))
            }
            kube::Error::Api(status) => (Some(status.code), status.message.clone()),
            kube::Error::Service(error) => (None, text::chain(error.as_ref())),
            error => (None, text::chain(error)),
        };
        Self {
            code,
            message: text::abridge(&message, MAX_MESSAGE),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;
    use tokio::sync::mpsc;

    use super::*;
    use crate::stub::{Answer, Stub, list};

    #[tokio::test]
    async fn a_connection_that_falls_silent_is_replaced_without_a_new_list() {
        let watches = Mutex::new(Vec::new());
        let stub = Stub::start(move |request| {
            if !request.contains("watch=true") {
                return list("7", &[]);
            }
            let (sender, events) = mpsc::unbounded_channel();
            let mut watches = watches.lock().unwrap();
            watches.push(sender);
            // The first one stays silent, and its timeoutSeconds is not kept either.
            if let [_, second] = watches.as_slice() {
                let metadata = json!({"name": "a", "namespace": "n", "resourceVersion": "8"});
                let event = json!({"type": "ADDED", "object": {"metadata": metadata}});
                second.send(event).unwrap();
            }
            Answer::Events(events)
        })
        .await;
        let mut watch = Watch::new(Api::<ConfigMap>::all(stub.client.clone()));
        watch.config.timeout = Some(1);
        let mut seen = Vec::new();
        while !seen
            .iter()
            .any(|event| matches!(event, Ok(Event::Apply(_))))
        {
            seen.push(watch.next().await);
        }
        assert!(seen.iter().all(Result::is_ok), "{seen:?}");
        assert_eq!((stub.requests("watch=true"), stub.requests("")), (2, 3));
    }
}
