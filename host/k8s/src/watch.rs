//! A watch of objects that goes on after every error, and says what went wrong.
//!
//! kube's own watcher connects again at once when a watch ends, as often as the server ends it, and does not say whether it works again
//! after an error.

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

/// How long the API server keeps a watch open, in seconds.
const OPEN: u32 = 75;
/// How much longer an answer is waited for.
const MARGIN: Duration = Duration::from_secs(5);
/// A watch that has been open for so long works. One that ends earlier is not opened again at once.
const WORKS: Duration = Duration::from_secs(5);
/// The wait after an error if the backoff has none left, which it always has.
const LONGEST: Duration = Duration::from_secs(30);
/// The longest wait while the API server does not know such objects: somebody is about to apply their definition.
pub(crate) const UNDEFINED: Duration = Duration::from_secs(5);
/// How many objects a list has at a time.
const PAGE: u32 = 500;
/// Bounds the events that are taken in together, before what they come to is shown.
const TOGETHER: usize = 1_000;

/// What happens to the objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event<K> {
    /// A list begins.
    Init,
    /// The list has this object.
    InitApply(K),
    /// The list has ended: what it does not have is gone.
    InitDone,
    /// An object is new or has changed.
    Apply(K),
    /// An object is gone, or is no longer one of those that are watched.
    Delete(K),
    /// The watch works again after an error.
    Resumed,
}

/// A watch of some objects. They are listed once. After an error the watch goes on where it was, and they are listed again only if the
/// API server says that this was too long ago.
pub struct Watch<K> {
    api: Api<K>,
    list: ListParams,
    follow: WatchParams,
    events: Option<BoxStream<'static, Result<Event<K>, Failure>>>,
    /// A list does not begin before that.
    resume: Instant,
    /// The version of the list that was last read.
    listed: Arc<AtomicU64>,
}

/// A list of some objects as the API server remembers them, in one piece. For another list it may read and decode all objects of its database, for each
/// agent that starts. What it remembers may be a little old: the watch goes on from there, and each write names what it assumes.
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
    /// All objects of `api`.
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

    /// With so many objects of a list at a time.
    pub fn page(mut self, objects: u32) -> Self {
        self.list = self.list.limit(objects);
        self
    }

    /// Those that a field selector selects.
    pub fn fields(mut self, selector: &str) -> Self {
        self.list = selected(self.list).fields(selector);
        self.follow = self.follow.fields(selector);
        self
    }

    /// Those that a label selector selects.
    pub fn labels(mut self, selector: &str) -> Self {
        self.list = selected(self.list).labels(selector);
        self.follow = self.follow.labels(selector);
        self
    }

    /// The next event. Each error is followed by another one or, when the watch works again, by [`Event::Resumed`], with a list before
    /// it if there is need for one. A dropped future loses no event.
    pub async fn next(&mut self) -> Result<Event<K>, Failure> {
        let events = self.events.get_or_insert_with(|| {
            let reader = Reader {
                api: self.api.clone(),
                list: self.list.clone(),
                follow: self.follow.clone(),
                at: At::Start,
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

    /// Waits for an event, and passes it on with those that are there already. A dropped future loses none.
    pub async fn take(&mut self, mut pass: impl FnMut(Result<Event<K>, Failure>)) {
        pass(self.next().await);
        let more = std::iter::from_fn(|| self.try_next());
        more.take(TOGETHER).for_each(pass);
    }

    /// The next event if there is one already.
    pub fn try_next(&mut self) -> Option<Result<Event<K>, Failure>> {
        self.next().now_or_never()
    }

    /// The version of the list that has ended last; zero where it has none.
    pub fn listed(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    /// Lists the objects again, after a wait.
    pub fn restart(&mut self) {
        self.events = None;
        self.resume = Instant::now() + DefaultBackoff::default().next().unwrap_or(LONGEST);
    }
}

/// All objects.
impl<K> From<Api<K>> for Watch<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn from(api: Api<K>) -> Self {
        Self::new(api)
    }
}

/// Makes the requests, one after the other.
struct Reader<K> {
    api: Api<K>,
    list: ListParams,
    follow: WatchParams,
    at: At<K>,
    backoff: DefaultBackoff,
    /// Nothing is asked before that.
    resume: Instant,
    /// Whether the last that was said of the watch is that it does not work.
    is_failing: bool,
    /// The version of the list that was last read.
    listed: Arc<AtomicU64>,
}

/// What was read.
enum At<K> {
    /// Nothing.
    Start,
    /// A part of a list: objects, and what follows them.
    List(vec::IntoIter<K>, After),
    /// All up to that version.
    Version(String),
    /// The same, and a watch is open.
    Open(Open<K>),
}

/// What follows a page of a list.
enum After {
    /// The page with that token; the first one has none.
    Page(Option<String>),
    /// Nothing: the list is of that version.
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
            let event = match std::mem::replace(&mut self.at, At::Start) {
                At::Start => {
                    sleep_until(self.resume).await;
                    self.at = At::List(Vec::new().into_iter(), After::Page(None));
                    Some(Event::Init)
                }
                At::List(objects, after) => self.read(objects, after).await?,
                At::Version(version) => self.open(version).await?,
                At::Open(open) => self.follow(open).await?,
            };
            if let Some(event) = event {
                return Ok(event);
            }
        }
    }

    /// The next object of a list.
    async fn read(&mut self, mut objects: vec::IntoIter<K>, after: After) -> Step<K> {
        if let Some(object) = objects.next() {
            self.at = At::List(objects, after);
            return Ok(Some(Event::InitApply(object)));
        }
        let token = match after {
            After::Page(token) => token,
            After::End(version) => {
                let number = version.parse().unwrap_or_default();
                self.listed.store(number, Ordering::Relaxed);
                self.at = At::Version(version);
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
                self.at = At::List(page.items.into_iter(), after);
                Ok(None)
            }
            Err(failure) => self.failed(failure, At::Start),
        }
    }

    async fn open(&mut self, version: String) -> Step<K> {
        sleep_until(self.resume).await;
        match answers::within(self.limit(), self.api.watch(&self.follow, &version)).await {
            Ok(events) => {
                self.at = At::Open(Open {
                    version,
                    since: Instant::now(),
                    events: events.boxed(),
                });
                Ok(None)
            }
            Err(failure) => self.failed(failure, At::Version(version)),
        }
    }

    async fn follow(&mut self, mut open: Open<K>) -> Step<K> {
        let (now, works) = (Instant::now(), open.since + WORKS);
        if self.is_failing && works <= now {
            self.is_failing = false;
            self.at = At::Open(open);
            return Ok(Some(Event::Resumed));
        }
        let end = if self.is_failing {
            works
        } else {
            now + self.limit()
        };
        let Ok(event) = timeout_at(end, open.events.next()).await else {
            if self.is_failing {
                self.at = At::Open(open);
                return Ok(None);
            }
            return self.failed(Failure::silent(self.limit()), At::Version(open.version));
        };
        let event = match event {
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                Event::Apply(object)
            }
            Some(Ok(WatchEvent::Deleted(object))) => Event::Delete(object),
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                open.version = bookmark.metadata.resource_version;
                self.at = At::Open(open);
                return Ok(None);
            }
            Some(Ok(WatchEvent::Error(status))) => {
                let failure = missed(kube::Error::Api(status.boxed()));
                return self.failed(failure, At::Version(open.version));
            }
            // One event that cannot be read does not hold up those after it.
            Some(Err(error)) if is_undecodable(&error) => {
                open.since = now;
                return self.failed(missed(error), At::Open(open));
            }
            Some(Err(error)) => {
                return self.failed(missed(error), At::Version(open.version));
            }
            None if open.since.elapsed() < WORKS => {
                return self.failed(ended(), At::Version(open.version));
            }
            None => {
                self.at = At::Version(open.version);
                return Ok(None);
            }
        };
        if let Event::Apply(object) | Event::Delete(object) = &event
            && let Some(version) = object.resource_version()
        {
            open.version = version;
        }
        self.at = At::Open(open);
        Ok(Some(event))
    }

    /// Waits before it goes on at `at`; or with a list, which is no failure, if what was read is of too long ago.
    fn failed(&mut self, failure: Failure, at: At<K>) -> Step<K> {
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

    /// How long the API server may be silent. It ends a watch before that.
    fn limit(&self) -> Duration {
        Duration::from_secs(self.follow.timeout.unwrap_or(OPEN).into()) + MARGIN
    }
}

/// Whether an event came that cannot be read. Its object may be one that reads as a status without a code, as each field of a status is optional.
fn is_undecodable(error: &kube::Error) -> bool {
    match error {
        kube::Error::SerdeError(_) => true,
        kube::Error::Api(status) => status.code == 0,
        _ => false,
    }
}

/// An event, or nothing yet.
type Step<K> = Result<Option<Event<K>>, Failure>;

/// Says that the API server ended a watch that it had just begun.
fn ended() -> Failure {
    Failure::new(
        Kind::Lost,
        "the API server ended the watch at once".to_owned(),
    )
}

/// Says why an event is missing.
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
