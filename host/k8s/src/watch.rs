//! Watch of objects that continues after every error and reports errors.
//!
//! kube's own watcher reconnects at once when a watch ends, as often as the server ends it, and does not report when it works again after an
//! error.

use std::convert::Infallible;
use std::fmt::Debug;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep_until, timeout_at};

use crate::answers::{self, Failure, Kind};

/// Seconds for which the API server keeps a watch open.
const OPEN: u32 = 75;
/// Additional time to wait for an answer.
const MARGIN: Duration = Duration::from_secs(5);
/// Time after which an open watch counts as working. A watch that ends earlier is not reopened at once.
const WORKS: Duration = Duration::from_secs(5);
/// Wait after an error if the backoff returned none, which it never does.
const LONGEST: Duration = Duration::from_secs(30);
/// Longest wait while the API server does not know the kind: an operator is about to apply its definition.
pub(crate) const UNDEFINED: Duration = Duration::from_secs(5);
/// Number of objects per page of a list.
const PAGE: u32 = 500;
/// Maximum number of events that are handled together before the result is published.
const TOGETHER: usize = 1_000;

/// Change of the watched objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<K> {
    /// A list begins.
    Init,
    /// Object of the list.
    InitApply(K),
    /// The list of this version has ended; objects that are not in it are gone.
    InitDone(u64),
    /// An object is new or has changed.
    Apply(K),
    /// An object is gone, or is no longer selected.
    Delete(K),
    /// The watch works again after an error.
    Resumed,
}

/// A watch of some objects. They are listed once. After an error the watch resumes at its last version; the objects are listed again only
/// if the API server reports that version as too old.
pub struct Watch<K> {
    api: Api<K>,
    list: ListParams,
    follow: WatchParams,
    reading: Option<Reading<K>>,
    /// Earliest time of the next list.
    resume: Instant,
}

/// Running reader, and the events that it passes on. Each event waits until the previous one is received.
type Reading<K> = (
    BoxFuture<'static, Infallible>,
    mpsc::Receiver<Result<Event<K>, Failure>>,
);

/// Requests a list of selected objects from the API server's cache, in one piece. For any other list the server may read and decode all
/// objects of its database, for each agent that starts. The cache may be slightly stale: the watch continues from its version, and each
/// write carries the state that it assumes.
fn selected(list: ListParams) -> ListParams {
    ListParams {
        limit: None,
        ..list.match_any()
    }
}

impl<K> Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    /// Watches all objects of `api`.
    pub fn new(api: Api<K>) -> Self {
        Self {
            api,
            list: ListParams::default().limit(PAGE),
            follow: WatchParams::default().timeout(OPEN),
            reading: None,
            resume: Instant::now(),
        }
    }

    /// Sets the number of objects per page of a list.
    pub fn page(mut self, objects: u32) -> Self {
        self.list = self.list.limit(objects);
        self
    }

    /// Restricts the watch by a field selector.
    pub fn fields(mut self, selector: &str) -> Self {
        self.list = selected(self.list).fields(selector);
        self.follow = self.follow.fields(selector);
        self
    }

    /// Restricts the watch by a label selector.
    pub fn labels(mut self, selector: &str) -> Self {
        self.list = selected(self.list).labels(selector);
        self.follow = self.follow.labels(selector);
        self
    }

    /// Returns the next event. Each error is followed by another one or, once the watch works again, by [`Event::Resumed`], after a list if
    /// one is needed. Dropping the future loses no event.
    pub async fn next(&mut self) -> Result<Event<K>, Failure> {
        let (reading, events) = self.reading.get_or_insert_with(|| {
            let (passed, events) = mpsc::channel(1);
            let reader = Reader {
                api: self.api.clone(),
                list: self.list.clone(),
                follow: self.follow.clone(),
                passed,
                backoff: DefaultBackoff::default(),
                resume: self.resume,
                is_failing: false,
            };
            (reader.run().boxed(), events)
        });
        tokio::select! {
            // An event that the reader passes on is taken at once.
            biased;
            never = reading => match never {},
            event = events.recv() => event.unwrap_or_else(|| Err(ended())),
        }
    }

    /// Waits for an event, and passes it on together with those that are ready. Dropping the future loses no event; some may have been
    /// passed on by then.
    pub async fn take(&mut self, mut pass: impl FnMut(Result<Event<K>, Failure>)) {
        pass(self.next().await);
        for _ in 1..TOGETHER {
            // The task of the connection holds back a chunk of the answer until the one before it was read, and then needs a turn.
            tokio::task::yield_now().await;
            match self.next().now_or_never() {
                Some(event) => pass(event),
                None => return,
            }
        }
    }

    /// Returns the next event like [`Self::next`], but logs errors; `what` names the watched objects in the log.
    pub async fn next_or_log(&mut self, what: &str) -> Event<K> {
        loop {
            match self.next().await {
                Ok(event) => return event,
                Err(failure) => {
                    let error = failure.message;
                    tracing::warn!(error, "cannot watch {what}; retrying");
                }
            }
        }
    }

    /// Makes the watch list the objects again, after a wait.
    pub fn restart(&mut self) {
        self.reading = None;
        self.resume = Instant::now() + DefaultBackoff::default().next().unwrap_or(LONGEST);
    }
}

/// Sequence of list and watch requests.
struct Reader<K> {
    api: Api<K>,
    list: ListParams,
    follow: WatchParams,
    /// Sender of the events; its receiver exists as long as the reader.
    passed: mpsc::Sender<Result<Event<K>, Failure>>,
    backoff: DefaultBackoff,
    /// Earliest time of the next request.
    resume: Instant,
    /// True if the last report about the watch was an error.
    is_failing: bool,
}

impl<K> Reader<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn run(mut self) -> Infallible {
        loop {
            sleep_until(self.resume).await;
            self.pass(Ok(Event::Init)).await;
            match self.read_all().await {
                Ok(version) => self.watch(version).await,
                Err(failure) => _ = self.continues_after(failure).await,
            }
        }
    }

    async fn pass(&mut self, event: Result<Event<K>, Failure>) {
        _ = self.passed.send(event).await;
    }

    /// Reads all pages of a list. Returns its version.
    async fn read_all(&mut self) -> Result<String, Failure> {
        let mut page = self.list.clone();
        loop {
            let list = answers::within(self.limit(), self.api.list(&page)).await?;
            for object in list.items {
                self.pass(Ok(Event::InitApply(object))).await;
            }
            page.continue_token = list.metadata.continue_.filter(|token| !token.is_empty());
            if page.continue_token.is_none() {
                let version = list.metadata.resource_version.unwrap_or_default();
                let listed = version.parse().unwrap_or_default();
                self.pass(Ok(Event::InitDone(listed))).await;
                return Ok(version);
            }
        }
    }

    /// Passes on the changes after a version until the API server does not have them any more.
    async fn watch(&mut self, mut version: String) {
        loop {
            sleep_until(self.resume).await;
            let opened = self.api.watch(&self.follow, &version);
            let followed = match answers::within(self.limit(), opened).await {
                Ok(events) => self.follow(events.boxed(), &mut version).await,
                Err(failure) => Err(failure),
            };
            if let Err(failure) = followed
                && !self.continues_after(failure).await
            {
                return;
            }
        }
    }

    /// Passes on the events of an open watch until it ends. `version` is that of the last event.
    async fn follow(
        &mut self,
        mut events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
        version: &mut String,
    ) -> Result<(), Failure> {
        let mut since = Instant::now();
        loop {
            let (now, works) = (Instant::now(), since + WORKS);
            if self.is_failing && works <= now {
                self.is_failing = false;
                self.pass(Ok(Event::Resumed)).await;
                continue;
            }
            let end = if self.is_failing {
                works
            } else {
                now + self.limit()
            };
            let event = match timeout_at(end, events.next()).await {
                Ok(event) => event,
                Err(_) if self.is_failing => continue,
                Err(_) => return Err(Failure::silent(self.limit())),
            };
            let event = match event {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    Event::Apply(object)
                }
                Some(Ok(WatchEvent::Deleted(object))) => Event::Delete(object),
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    *version = bookmark.metadata.resource_version;
                    continue;
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    return Err(missed(kube::Error::Api(status.boxed())));
                }
                // An event that cannot be read does not hold up later ones.
                Some(Err(error)) if is_undecodable(&error) => {
                    since = now;
                    self.continues_after(missed(error)).await;
                    continue;
                }
                Some(Err(error)) => return Err(missed(error)),
                None if since.elapsed() < WORKS => return Err(ended()),
                None => return Ok(()),
            };
            if let Event::Apply(object) | Event::Delete(object) = &event
                && let Some(newer) = object.resource_version()
            {
                *version = newer;
            }
            self.pass(Ok(event)).await;
        }
    }

    /// Delays the next request after a failure, and passes the failure on. If the version is too old, returns false and does not pass the
    /// failure on.
    async fn continues_after(&mut self, failure: Failure) -> bool {
        self.delay(&failure);
        if failure.code == Some(410) {
            return false;
        }
        self.is_failing = true;
        self.pass(Err(failure)).await;
        true
    }

    fn delay(&mut self, failure: &Failure) {
        let mut wait = self.backoff.next().unwrap_or(LONGEST);
        if failure.code == Some(404) {
            wait = wait.min(UNDEFINED);
        }
        self.resume = Instant::now() + wait;
    }

    /// Returns the time after which a silent API server counts as lost. It ends each watch earlier.
    fn limit(&self) -> Duration {
        Duration::from_secs(self.follow.timeout.unwrap_or(OPEN).into()) + MARGIN
    }
}

/// Returns true if an event cannot be decoded. Its object may decode as a status without a code, since each field of a status is optional.
fn is_undecodable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

/// Returns the failure of a watch that ended as soon as it began.
fn ended() -> Failure {
    Failure::new(
        Kind::Lost,
        "the API server ended the watch at once".to_owned(),
    )
}

/// Converts an error in place of an event to a failure.
fn missed(error: kube::Error) -> Failure {
    let failure = Failure::from(error);
    if failure.code == Some(0) {
        return Failure::new(
            Kind::Unreadable,
            "cannot read an event of the watch".to_owned(),
        );
    }
    failure
}

#[cfg(test)]
mod tests;
