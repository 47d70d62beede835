//! Keeps objects as they are wanted: compares them with what a watch shows, and makes, replaces and deletes one after the other.
//!
//! An object that somebody edits or deletes is put right. Knows no kind of object, and not why one is wanted.

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
use crate::requests::{delete_only, put_by};
use crate::shelf::Shelf;
use crate::watch::{Event, UNDEFINED, Watch};
use crate::{backoff, until};

/// Limits the time of a request.
const REQUEST: Duration = Duration::from_secs(5);
/// Separates two writes of an object.
const SPACING: Duration = Duration::from_secs(1);

/// Says of objects what makes them as they are wanted.
pub trait Keep {
    /// Is the type of the objects.
    type Object: Resource<DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + 'static;

    /// Says what is wrong where somebody deletes an object again and again, with the remedy.
    const LOST: &'static str;

    /// Returns the write that makes what is found what is wanted, if it is not.
    fn write(
        &self,
        found: Option<&Self::Object>,
        wanted: Option<&Self::Object>,
    ) -> Option<Write<Self::Object>>;

    /// Takes in an object that is there, within the bounds of what may be held.
    fn hold(&self, held: &mut Shelf<Self::Object>, is_wanted: bool, object: Self::Object);
}

/// Takes in an object of a kind that only few may write: each counts for itself, and one that is too large is left out and told.
pub fn hold_alone<K: Resource<DynamicType = ()> + Serialize>(held: &mut Shelf<K>, object: K) {
    let bytes = serde_json::to_vec(&object).map_or(usize::MAX, |bytes| bytes.len());
    let name = object.name_any();
    if held.put(&name, &name, bytes, object).is_err() && held.is_news() {
        let kind = K::kind(&());
        tracing::warn!(%kind, name, "an object is too large to be read; remove it if it is not of Leafhost");
    }
}

/// Makes an object what it should be.
#[derive(Debug, Clone, PartialEq)]
pub enum Write<K> {
    /// Makes an object.
    Create(Box<K>),
    /// Writes it anew, unless it has changed meanwhile.
    Replace(Box<K>),
    /// Removes the object with that uid.
    Delete(String),
}

/// Is the write that is due, with the name of its object.
type Due<K> = (String, Write<K>);

/// Keeps objects. There is one for the objects that its watch shows: nobody else writes them.
pub struct Keeper<T: Keep> {
    /// Says what is to be written.
    pub keep: T,
    /// Tells that the objects may have to be others than are wanted.
    pub is_doubtful: bool,
    /// Names the resource in texts.
    resource: String,
    api: Api<T::Object>,
    watch: Watch<T::Object>,
    /// Holds what a list that is not at its end has shown.
    listing: Shelf<T::Object>,
    /// Holds what the API server has; nothing until it was listed.
    found: Option<Shelf<T::Object>>,
    /// Maps names to what is wanted.
    wanted: BTreeMap<String, T::Object>,
    /// Maps names to why objects are left alone for a while.
    pauses: HashMap<String, Pause>,
    lost: Lost,
    /// Says why the objects cannot be watched.
    unwatched: Option<String>,
}

struct Pause {
    until: Instant,
    /// Counts failures in a row.
    failures: u32,
    /// Says what was wrong the last time.
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

impl<T: Keep> Keeper<T> {
    /// Makes one for the objects of an API that are watched. Nothing is wanted yet.
    pub fn new(keep: T, api: Api<T::Object>, watch: Watch<T::Object>) -> Self {
        Self {
            keep,
            is_doubtful: false,
            resource: format!("{}.{}", T::Object::plural(&()), T::Object::group(&())),
            watch,
            api,
            listing: Shelf::default(),
            found: None,
            wanted: BTreeMap::new(),
            pauses: HashMap::new(),
            lost: Lost::default(),
            unwatched: None,
        }
    }

    /// Returns what the API server has; nothing until it was listed.
    pub fn found(&self) -> Option<&Shelf<T::Object>> {
        self.found.as_ref()
    }

    /// Says which objects are wanted from now on, by name.
    pub fn want(&mut self, wanted: BTreeMap<String, T::Object>) {
        self.wanted = wanted;
    }

    /// Leaves all objects alone until then, and says why.
    pub fn pause(&mut self, until: Instant, why: &str) {
        let found = self.found.iter().flat_map(Shelf::names);
        let all = self.wanted.keys().chain(found);
        let pause = |name: &String| (name.clone(), Pause::new(until, Some(why)));
        self.pauses = all.map(pause).collect();
    }

    /// Forgets what went wrong: other objects are wanted now.
    pub fn resume(&mut self) {
        self.lost.forget();
        self.pauses.clear();
    }

    /// Waits for an event, which it takes in, or until a write is due, which it returns, if it `writes`. A dropped future loses nothing.
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

    /// Takes an event in.
    pub fn take(&mut self, event: Result<Event<T::Object>, Failure>) {
        let event = match event {
            Ok(event) => event,
            Err(failure) => {
                let resource = &self.resource;
                let why = failure.told_of(resource);
                self.unwatched = Some(format!("cannot list {resource}: {why}"));
                return;
            }
        };
        match event {
            Event::Init => self.listing = Shelf::default(),
            Event::InitApply(object) => {
                let is_wanted = self.wanted.contains_key(&object.name_any());
                self.keep.hold(&mut self.listing, is_wanted, object);
            }
            Event::InitDone => {
                self.unwatched = None;
                self.found = Some(std::mem::take(&mut self.listing));
            }
            Event::Apply(object) => self.saw(object),
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

    /// Notes that somebody else has deleted an object; garbage collection does, if what it belongs to is gone.
    fn lose(&mut self, name: String) {
        if !self.wanted.contains_key(&name) {
            return;
        }
        self.is_doubtful = true;
        let (until, is_again) = self.lost.note(&name, Instant::now());
        let pause = Pause::new(until, is_again.then_some(T::LOST));
        self.pauses.insert(name, pause);
    }

    /// Takes in an object unless a newer state of it is known. Versions of one resource are numbers that grow.
    fn saw(&mut self, object: T::Object) {
        let version = |object: &T::Object| object.resource_version()?.parse::<u64>().ok();
        if let Some(found) = &mut self.found {
            let name = object.name_any();
            let known = found.get(&name).and_then(version);
            if known <= version(&object) {
                let is_wanted = self.wanted.contains_key(&name);
                self.keep.hold(found, is_wanted, object);
            }
        }
    }

    /// Returns why the objects are not what they should be.
    pub fn problem(&self) -> Option<String> {
        let kind = T::Object::kind(&()).to_lowercase();
        let unwritten = self.pauses.iter().filter_map(|(name, pause)| {
            let error = pause.error.as_ref().filter(|_| self.differs(name))?;
            Some(format!("cannot write {kind} {name}: {error}"))
        });
        // Always the same one of several.
        self.unwatched.clone().or_else(|| unwritten.min())
    }

    /// Returns why an object is not what it should be.
    pub fn why(&self, name: &str) -> Option<String> {
        let pause = self.pauses.get(name).filter(|_| self.differs(name));
        let error = pause.and_then(|pause| pause.error.clone());
        self.unwatched.clone().or(error)
    }

    /// Returns the write that is due first, and when.
    pub fn next(&self) -> Option<(Due<T::Object>, Instant)> {
        let found = self.found.as_ref()?;
        let names = self.wanted.keys().chain(found.names());
        let now = Instant::now();
        names
            .filter_map(|name| {
                let write = self.keep.write(found.get(name), self.wanted.get(name))?;
                let pause = self.pauses.get(name);
                Some((
                    (name.clone(), write),
                    pause.map_or(now, |pause| pause.until),
                ))
            })
            .min_by_key(|(_, at)| *at)
    }

    /// Writes, and pauses for a while: a failure for ever longer. Returns true if it is written and kept.
    pub async fn write(&mut self, name: String, write: Write<T::Object>) -> bool {
        let is_new = matches!(write, Write::Create(_));
        let failure = match answers::within(REQUEST, self.request(&name, write)).await {
            // Written again and again it would not differ less.
            Ok(()) if self.differs(&name) => {
                let why = "the API server does not keep what is written; apply the definitions of this version (leafhost crds)";
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
        // What is new can be missing only if nothing of its kind can be there.
        let is_undefined = is_new && failure.code == Some(404);
        let mut wait = backoff(failures);
        if is_undefined {
            wait = wait.min(UNDEFINED);
        }
        // Somebody else was faster: that is no failure.
        let is_race = matches!(failure.code, Some(404 | 409)) && !is_undefined;
        // The policies refuse what belongs to another object than there is now.
        self.is_doubtful |= matches!(failure.code, Some(401 | 403 | 422));
        let pause = Pause {
            until: Instant::now() + wait,
            failures,
            error: (!is_race).then(|| self.told(&failure)),
        };
        self.pauses.insert(name.clone(), pause);
        // The object is not what it was taken for.
        if is_race
            && let Ok(object) = answers::within(REQUEST, self.api.get_opt(&name)).await
            && let Some(found) = &mut self.found
        {
            match object {
                Some(object) => {
                    let is_wanted = self.wanted.contains_key(&name);
                    self.keep.hold(found, is_wanted, object);
                }
                None => found.remove(&name),
            }
        }
        false
    }

    fn differs(&self, name: &str) -> bool {
        let found = self.found.as_ref().and_then(|found| found.get(name));
        self.keep.write(found, self.wanted.get(name)).is_some()
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
        self.saw(object);
        Ok(())
    }

    /// Says why an object was not written, with the remedy.
    fn told(&self, failure: &Failure) -> String {
        let resource = &self.resource;
        match failure.kind {
            Kind::Denied => format!(
                "{}; allow the service account to write {resource}",
                failure.message
            ),
            _ => failure.told_of(resource),
        }
    }

    /// Returns how often in a row an object could not be written.
    #[cfg(test)]
    pub fn failures(&self, name: &str) -> u32 {
        self.pauses.get(name).map_or(0, |pause| pause.failures)
    }
}
