//! Keeps objects in their wanted state: compares them with the objects that a watch shows, and creates, replaces and deletes them one by
//! one.
//!
//! An object that a user edits or deletes is restored. Does not depend on the kind of the objects, or on the reason why they are wanted.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::time::Duration;

use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

mod lost;

use lost::Lost;

use crate::answers::{self, Failure, Kind};
use crate::bounded_store::BoundedStore;
use crate::requests::{delete_only, put_by};
use crate::watch::{Event, UNDEFINED, Watch};
use crate::{backoff, until};

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Pause between two writes of an object.
const SPACING: Duration = Duration::from_secs(1);

/// Rules that bring objects into their wanted state.
pub trait Reconcile {
    /// Type of the objects.
    type Object: Resource<DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static;

    /// Problem text with the remedy for an object that is deleted again and again.
    const LOST: &'static str;

    /// Returns true if the reconciler may delete the found object when it is not wanted.
    fn is_own(&self, _found: &Self::Object) -> bool {
        true
    }

    /// Returns the found object, changed to agree with the wanted one, or `None` if it needs no change.
    fn corrected(&self, found: &Self::Object, wanted: &Self::Object) -> Option<Self::Object>;

    /// Adds an existing object to `held`, within the bounds of `held`.
    fn hold(&self, held: &mut BoundedStore<Self::Object>, _is_wanted: bool, object: Self::Object) {
        hold_alone(held, object);
    }

    /// Returns the write that turns the found object into the wanted one, or `None` if they agree.
    fn write(
        &self,
        found: Option<&Self::Object>,
        wanted: Option<&Self::Object>,
    ) -> Option<Write<Self::Object>> {
        let Some(found) = found else {
            return wanted.map(|wanted| Write::Create(Box::new(wanted.clone())));
        };
        if found.meta().deletion_timestamp.is_some() {
            return None;
        }
        match wanted {
            Some(wanted) => {
                let corrected = self.corrected(found, wanted)?;
                Some(Write::Replace(Box::new(corrected)))
            }
            None => self
                .is_own(found)
                .then(|| Write::Delete(found.uid().unwrap_or_default())),
        }
    }
}

/// Adds an object of a kind that only few may write: each object is a group of its own, which always has room for it.
pub fn hold_alone<K: Resource<DynamicType = ()>>(held: &mut BoundedStore<K>, object: K) {
    let name = object.name_any();
    _ = held.put(&name, &name, 0, object);
}

/// A write that brings an object into its wanted state.
#[derive(Debug, Clone, PartialEq)]
pub enum Write<K> {
    /// Creates an object.
    Create(Box<K>),
    /// Replaces an object unless it has changed since it was read.
    Replace(Box<K>),
    /// Deletes the object with this uid.
    Delete(String),
}

/// A write that is due, with the name of its object.
type Due<K> = (String, Write<K>);

/// Reconciler of the objects that its watch shows. It is their only writer.
pub struct Reconciler<T: Reconcile> {
    /// Rules that decide the writes.
    pub rules: T,
    /// True if the wanted objects may be out of date.
    pub is_stale: bool,
    /// Name of the resource in texts.
    resource: String,
    api: Api<T::Object>,
    watch: Watch<T::Object>,
    /// Objects of a list that has not ended yet.
    listing: BoundedStore<T::Object>,
    /// Objects of the API server; `None` until they were listed.
    found: Option<BoundedStore<T::Object>>,
    /// Wanted objects by name.
    wanted: BTreeMap<String, T::Object>,
    /// Pauses of objects by name.
    pauses: HashMap<String, Pause>,
    lost: Lost,
    /// Reason why the objects cannot be watched.
    unwatched: Option<String>,
}

struct Pause {
    until: Instant,
    /// Failures in a row.
    failures: u32,
    /// Error of the last attempt.
    error: Option<String>,
}

impl Pause {
    fn new(until: Instant, error: Option<&str>) -> Self {
        Self {
            until,
            failures: 0,
            error: error.map(str::to_owned),
        }
    }
}

impl<T: Reconcile> Reconciler<T> {
    /// Creates a reconciler of the objects of an API and its watch. Nothing is wanted yet.
    pub fn new(rules: T, api: Api<T::Object>, watch: Watch<T::Object>) -> Self {
        Self {
            rules,
            is_stale: false,
            resource: format!("{}.{}", T::Object::plural(&()), T::Object::group(&())),
            watch,
            api,
            listing: BoundedStore::default(),
            found: None,
            wanted: BTreeMap::new(),
            pauses: HashMap::new(),
            lost: Lost::default(),
            unwatched: None,
        }
    }

    /// Returns the objects of the API server, or `None` until they were listed.
    pub fn found(&self) -> Option<&BoundedStore<T::Object>> {
        self.found.as_ref()
    }

    /// Replaces the wanted objects.
    pub fn want(&mut self, wanted: BTreeMap<String, T::Object>) {
        self.wanted = wanted;
    }

    /// Pauses the writes of all objects until `until`, for the reason `why`.
    pub fn pause(&mut self, until: Instant, why: &str) {
        let found = self.found.iter().flat_map(BoundedStore::names);
        let all = self.wanted.keys().chain(found);
        let pause = |name: &String| (name.clone(), Pause::new(until, Some(why)));
        self.pauses = all.map(pause).collect();
    }

    /// Forgets all pauses and deletions, since the wanted objects have changed.
    pub fn resume(&mut self) {
        self.lost.forget();
        self.pauses.clear();
    }

    /// Waits for an event, which it applies, or, if `writes` is true, for a due write, which it returns. Dropping the future loses nothing.
    pub async fn due(&mut self, writes: bool) -> Option<Due<T::Object>> {
        let (next, at) = self.next().filter(|_| writes).unzip();
        tokio::select! {
            event = self.watch.next() => {
                self.take(event);
                None
            }
            () = until(at) => next,
        }
    }

    /// Applies an event.
    pub fn take(&mut self, event: Result<Event<T::Object>, Failure>) {
        let event = match event {
            Ok(event) => event,
            Err(failure) => {
                let resource = &self.resource;
                let why = failure.describe_watch(resource);
                self.unwatched = Some(format!("cannot list {resource}: {why}"));
                return;
            }
        };
        match event {
            Event::Init => self.listing = BoundedStore::default(),
            Event::InitApply(object) => {
                let is_wanted = self.wanted.contains_key(&object.name_any());
                self.rules.hold(&mut self.listing, is_wanted, object);
            }
            Event::InitDone(_) => {
                self.unwatched = None;
                self.found = Some(std::mem::take(&mut self.listing));
            }
            Event::Apply(object) => self.observe(object),
            Event::Resumed => self.unwatched = None,
            Event::Delete(object) => {
                let name = object.name_any();
                if let Some(found) = &mut self.found
                    && found.get(&name).is_some_and(|it| it.uid() == object.uid())
                {
                    found.remove(&name);
                    self.lose(name);
                }
            }
        }
    }

    /// Records that another writer has deleted an object. Garbage collection does so if the owner is gone.
    fn lose(&mut self, name: String) {
        if !self.wanted.contains_key(&name) {
            return;
        }
        self.is_stale = true;
        let (until, is_again) = self.lost.note(&name, Instant::now());
        let pause = Pause::new(until, is_again.then_some(T::LOST));
        self.pauses.insert(name, pause);
    }

    /// Takes an object unless a newer version of it is known. Resource versions of one resource are increasing numbers.
    fn observe(&mut self, object: T::Object) {
        let version = |object: &T::Object| object.resource_version()?.parse::<u64>().ok();
        if let Some(found) = &mut self.found {
            let name = object.name_any();
            let known = found.get(&name).and_then(version);
            if known <= version(&object) {
                let is_wanted = self.wanted.contains_key(&name);
                self.rules.hold(found, is_wanted, object);
            }
        }
    }

    /// Returns why the objects differ from the wanted ones.
    pub fn problem(&self) -> Option<String> {
        let kind = T::Object::kind(&()).to_lowercase();
        let unwritten = self.pauses.iter().filter_map(|(name, pause)| {
            let error = pause.error.as_ref().filter(|_| self.differs(name))?;
            Some(format!("cannot write {kind} {name}: {error}"))
        });
        // The smallest text, so that the choice among several is stable.
        self.unwatched.clone().or_else(|| unwritten.min())
    }

    /// Returns why an object differs from the wanted one.
    pub fn why(&self, name: &str) -> Option<String> {
        let pause = self.pauses.get(name).filter(|_| self.differs(name));
        let error = pause.and_then(|pause| pause.error.clone());
        self.unwatched.clone().or(error)
    }

    /// Returns the next write and the time at which it is due.
    pub fn next(&self) -> Option<(Due<T::Object>, Instant)> {
        let found = self.found.as_ref()?;
        let names = self.wanted.keys().chain(found.names());
        let now = Instant::now();
        names
            .filter_map(|name| {
                let write = self.rules.write(found.get(name), self.wanted.get(name))?;
                let pause = self.pauses.get(name);
                Some((
                    (name.clone(), write),
                    pause.map_or(now, |pause| pause.until),
                ))
            })
            .min_by_key(|(_, at)| *at)
    }

    /// Writes an object, then pauses it, for longer after each failure. Returns true if the object was written as wanted.
    pub async fn write(&mut self, name: String, write: Write<T::Object>) -> bool {
        let is_new = matches!(write, Write::Create(_));
        let failure = match answers::within(REQUEST, self.request(&name, write)).await {
            // A repeated write would not reduce the difference.
            Ok(()) if self.differs(&name) => {
                let why = "the API server drops fields that were written; apply the definitions of this version (leafhost crds)";
                Failure::new(Kind::Failed, why.to_owned())
            }
            Ok(()) => {
                let now = Instant::now();
                let wanted = &self.wanted;
                self.pauses.retain(|name, pause| {
                    pause.until > now || (pause.failures > 0 && wanted.contains_key(name))
                });
                self.pauses.insert(name, Pause::new(now + SPACING, None));
                return true;
            }
            Err(failure) => failure,
        };
        let before = self.pauses.get(&name).map_or(0, |pause| pause.failures);
        let failures = before.saturating_add(1);
        // A 404 on creation means that the kind does not exist.
        let is_undefined = is_new && failure.code == Some(404);
        let mut wait = backoff(failures);
        if is_undefined {
            wait = wait.min(UNDEFINED);
        }
        // Another writer changed the object first, which is not a failure.
        let is_race = matches!(failure.code, Some(404 | 409)) && !is_undefined;
        // The policies refuse objects that belong to an owner other than the existing one.
        self.is_stale |= matches!(failure.code, Some(401 | 403 | 422));
        let pause = Pause {
            until: Instant::now() + wait,
            failures,
            error: (!is_race).then(|| self.describe(&failure)),
        };
        self.pauses.insert(name.clone(), pause);
        // Reads the object again, since it is not in the assumed state.
        if is_race
            && let Ok(object) = answers::within(REQUEST, self.api.get_opt(&name)).await
            && let Some(found) = &mut self.found
        {
            match object {
                Some(object) => {
                    let is_wanted = self.wanted.contains_key(&name);
                    self.rules.hold(found, is_wanted, object);
                }
                None => found.remove(&name),
            }
        }
        false
    }

    fn differs(&self, name: &str) -> bool {
        let found = self.found.as_ref().and_then(|found| found.get(name));
        self.rules.write(found, self.wanted.get(name)).is_some()
    }

    async fn request(&mut self, name: &str, write: Write<T::Object>) -> kube::Result<()> {
        let params = put_by("leafhost");
        let object = match write {
            Write::Create(object) => self.api.create(&params, &object).await?,
            Write::Replace(object) => self.api.replace(name, &params, &object).await?,
            Write::Delete(uid) => {
                let params = delete_only(Some(uid), None);
                self.api.delete(name, &params).await?;
                if let Some(found) = &mut self.found {
                    found.remove(name);
                }
                return Ok(());
            }
        };
        self.observe(object);
        Ok(())
    }

    /// Returns why an object was not written, with the remedy.
    fn describe(&self, failure: &Failure) -> String {
        let resource = &self.resource;
        match failure.kind {
            Kind::Denied => format!(
                "{}; allow the service account to write {resource}",
                failure.message
            ),
            _ => failure.describe_watch(resource),
        }
    }
}
