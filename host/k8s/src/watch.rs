//! Watch of objects that continues after every error and reports errors.
//!
//! kube's own watcher reconnects at once when a watch ends, as often as the server ends it, and does not tell when it works again after an
//! error.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;

use futures::stream::{self, BoxStream};
use futures::{FutureExt as _, StreamExt as _};
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
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
/// Upper bound of events that are handled together before the result is published.
const TOGETHER: usize = 1_000;

/// Change of the watched objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<K> {
    /// A list begins.
    Init,
    /// Object of the list.
    InitApply(K),
    /// The list has ended; objects that are not in it are gone.
    InitDone,
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
    events: Option<BoxStream<'static, Result<Event<K>, Failure>>>,
    /// Earliest time of the next list.
    resume: Instant,
    /// Version of the last list.
    listed: Arc<AtomicU64>,
}

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
            events: None,
            resume: Instant::now(),
            listed: Arc::default(),
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
        let events = self.events.get_or_insert_with(|| {
            let reader = Reader {
                api: self.api.clone(),
                list: self.list.clone(),
                follow: self.follow.clone(),
                at: ReadPosition::Start,
                backoff: DefaultBackoff::default(),
                resume: self.resume,
                is_failing: false,
                listed: Arc::clone(&self.listed),
            };
            let next = async |mut reader: Reader<K>| Some((reader.next().await, reader));
            stream::unfold(reader, next).boxed()
        });
        events.next().await.unwrap_or_else(|| Err(ended()))
    }

    /// Waits for an event, and passes it on together with those that are ready. Dropping the future loses none, but may do so after some were passed on.
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

    /// Returns the version of the last completed list, or zero before the first.
    pub fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Lists the objects again, after a wait.
    pub fn restart(&mut self) {
        self.events = None;
        self.resume = Instant::now() + DefaultBackoff::default().next().unwrap_or(LONGEST);
    }
}

/// Watches all objects.
impl<K> From<Api<K>> for Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn from(api: Api<K>) -> Self {
        Self::new(api)
    }
}

/// Sequence of list and watch requests.
struct Reader<K> {
    api: Api<K>,
    list: ListParams,
    follow: WatchParams,
    at: ReadPosition<K>,
    backoff: DefaultBackoff,
    /// Earliest time of the next request.
    resume: Instant,
    /// True if the last report about the watch was an error.
    is_failing: bool,
    /// Version of the last list.
    listed: Arc<AtomicU64>,
}

/// Progress of the reader.
enum ReadPosition<K> {
    /// Nothing was read.
    Start,
    /// Part of a list was read: its unread objects, and the part after them.
    List(vec::IntoIter<K>, After),
    /// All objects up to this version were read.
    Version(String),
    /// All objects up to a version were read, and a watch is open.
    Open(Open<K>),
}

/// Continuation of a page of a list.
enum After {
    /// The page with this token; the first page has none.
    Page(Option<String>),
    /// The end of a list of this version.
    End(String),
}

struct Open<K> {
    version: String,
    since: Instant,
    events: BoxStream<'static, kube::Result<WatchEvent<K>>>,
}

impl<K> Reader<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    async fn next(&mut self) -> Result<Event<K>, Failure> {
        loop {
            let event = match std::mem::replace(&mut self.at, ReadPosition::Start) {
                ReadPosition::Start => {
                    sleep_until(self.resume).await;
                    self.at = ReadPosition::List(Vec::new().into_iter(), After::Page(None));
                    Some(Event::Init)
                }
                ReadPosition::List(objects, after) => self.read(objects, after).await?,
                ReadPosition::Version(version) => self.open(version).await?,
                ReadPosition::Open(open) => self.follow(open).await?,
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    /// Returns the next object of a list.
    async fn read(&mut self, mut objects: vec::IntoIter<K>, after: After) -> Step<K> {
        if let Some(object) = objects.next() {
            self.at = ReadPosition::List(objects, after);
            return Ok(Some(Event::InitApply(object)));
        }
        let token = match after {
            After::Page(token) => token,
            After::End(version) => {
                let number = version.parse().unwrap_or_default();
                self.listed.store(number, Ordering::Relaxed);
                self.at = ReadPosition::Version(version);
                return Ok(Some(Event::InitDone));
            }
        };
        let page = ListParams {
            continue_token: token,
            ..self.list.clone()
        };
        match answers::within(self.limit(), self.api.list(&page)).await {
            Ok(page) => {
                let token = page.metadata.continue_.filter(|token| !token.is_empty());
                let after = match token {
                    Some(token) => After::Page(Some(token)),
                    None => After::End(page.metadata.resource_version.unwrap_or_default()),
                };
                self.at = ReadPosition::List(page.items.into_iter(), after);
                Ok(None)
            }
            Err(failure) => self.failed(failure, ReadPosition::Start),
        }
    }

    async fn open(&mut self, version: String) -> Step<K> {
        sleep_until(self.resume).await;
        match answers::within(self.limit(), self.api.watch(&self.follow, &version)).await {
            Ok(events) => {
                self.at = ReadPosition::Open(Open {
                    version,
                    since: Instant::now(),
                    events: events.boxed(),
                });
                Ok(None)
            }
            Err(failure) => self.failed(failure, ReadPosition::Version(version)),
        }
    }

    async fn follow(&mut self, mut open: Open<K>) -> Step<K> {
        let (now, works) = (Instant::now(), open.since + WORKS);
        if self.is_failing && works <= now {
            self.is_failing = false;
            self.at = ReadPosition::Open(open);
            return Ok(Some(Event::Resumed));
        }
        let end = if self.is_failing {
            works
        } else {
            now + self.limit()
        };
        let Ok(event) = timeout_at(end, open.events.next()).await else {
            if self.is_failing {
                self.at = ReadPosition::Open(open);
                return Ok(None);
            }
            return self.failed(
                Failure::silent(self.limit()),
                ReadPosition::Version(open.version),
            );
        };
        let event = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                Event::Apply(object)
            }
            Some(Ok(WatchEvent::Deleted(object))) => Event::Delete(object),
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                open.version = bookmark.metadata.resource_version;
                self.at = ReadPosition::Open(open);
                return Ok(None);
            }
            Some(Ok(WatchEvent::Error(status))) => {
                let failure = missed(kube::Error::Api(status.boxed()));
                return self.failed(failure, ReadPosition::Version(open.version));
            }
            // An event that cannot be read does not hold up later ones.
            Some(Err(error)) if is_undecodable(&error) => {
                open.since = now;
                return self.failed(missed(error), ReadPosition::Open(open));
            }
            Some(Err(error)) => {
                return self.failed(missed(error), ReadPosition::Version(open.version));
            }
            None if open.since.elapsed() < WORKS => {
                return self.failed(ended(), ReadPosition::Version(open.version));
            }
            None => {
                self.at = ReadPosition::Version(open.version);
                return Ok(None);
            }
        };
        if let Event::Apply(object) | Event::Delete(object) = &event
            && let Some(version) = object.resource_version()
        {
            open.version = version;
        }
        self.at = ReadPosition::Open(open);
        Ok(Some(event))
    }

    /// Schedules the continuation at `at` after a wait. If the version is too old, continues with a list instead, which is no failure.
    fn failed(&mut self, failure: Failure, at: ReadPosition<K>) -> Step<K> {
        let mut wait = self.backoff.next().unwrap_or(LONGEST);
        if failure.code == Some(404) {
            wait = wait.min(UNDEFINED);
        }
        self.resume = Instant::now() + wait;
        if failure.code == Some(410) {
            return Ok(None);
        }
        self.at = at;
        self.is_failing = true;
        Err(failure)
    }

    /// Returns the longest silence of the API server, which ends a watch earlier.
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

/// An event, or `None` if more reading is needed.
type Step<K> = Result<Option<Event<K>>, Failure>;

/// Returns the failure of a watch that ended as soon as it began.
fn ended() -> Failure {
    Failure::new(
        Kind::Lost,
        "the API server ended the watch at once".to_owned(),
    )
}

/// Returns the failure for a missing event.
fn missed(error: kube::Error) -> Failure {
    let failure = Failure::from(error);
    if failure.code == Some(0) {
        return Failure::new(
            Kind::Unreadable,
            "an event of the watch cannot be read".to_owned(),
        );
    }
    failure
}

#[cfg(test)]
mod tests;
