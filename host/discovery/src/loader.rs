//! The loader task: turns handler files into handlers that serve.
//!
//! After any failure the previous version keeps serving; after a restart that is the version accepted last. The bytes of a file are held
//! until it is loaded and stored. The task knows neither Configurations nor sessions.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::iter;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::handler::{MOST_HANDLERS, Registration};
use leafhost_core::node_report::ObjectName;
use leafhost_core::ports::{
    AcceptedVersion, Handler, HandlerSource, LoadError, Loader, LoaderStore, SourceFile,
    SourceLocation, SourceProblem, SourceSet, SourceVersion,
};
use leafhost_core::text;
use leafhost_core::timeouts::FOLDER_BACKSTOP;
use leafhost_core::wait::{publish, until};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet, spawn_blocking};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod attempt;
mod owners;
mod published;
use attempt::Attempt;
use owners::{Candidate, HandlerOwners};
pub use published::{HandlerSet, LoadedSource, TrustedSource};

/// Maximum number of loads at once, not counting slow ones.
const AT_ONCE: usize = 2;
/// Time after which a load counts as slow and no longer delays others: it waits for the compiler, or for the handler's description.
const SLOW: Duration = Duration::from_millis(500);
/// Maximum number of loads at once, including slow ones.
const MOST_AT_ONCE: usize = 16;

/// Version to load.
#[derive(Debug, Clone)]
struct Job {
    name: String,
    version: SourceVersion,
    /// True for the version accepted before, as opposed to the current file.
    fallback: bool,
}

#[derive(Debug)]
struct Entry {
    newest: Attempt,
    /// Version accepted before, until it or a newer one serves or it is known not to load.
    fallback: Option<Attempt>,
    loaded: LoadedSource,
}

impl Entry {
    /// Returns true if the result of the job is still needed.
    fn wants(&self, job: &Job) -> bool {
        let attempt = if job.fallback {
            self.fallback.as_ref()
        } else {
            Some(&self.newest)
        };
        attempt.is_some_and(|attempt| attempt.version == job.version)
    }

    fn retry(&self) -> Option<Instant> {
        let fallback = self.fallback.as_ref().and_then(|fallback| fallback.retry);
        self.newest.retry.into_iter().chain(fallback).min()
    }
}

/// Loaded handler with the bytes of its component.
type Loaded = (Arc<dyn Handler>, SourceFile);

/// Task that loads handlers.
pub struct LoaderTask {
    source: Arc<dyn HandlerSource>,
    store: Arc<dyn LoaderStore>,
    loader: Arc<dyn Loader>,
    handlers: watch::Sender<Arc<HandlerSet>>,
    accepted: BTreeMap<String, AcceptedVersion>,
    /// Accepted files that are not in the store yet.
    unstored: BTreeMap<String, SourceFile>,
    /// Time of the next write to the store, if one is due.
    store_at: Option<Instant>,
    /// Problem of the last write to the store.
    store_problem: Option<SourceProblem>,
    entries: BTreeMap<String, Entry>,
    queue: VecDeque<Job>,
    running: JoinSet<Result<Loaded, LoadError>>,
    /// Running loads, with the time they began.
    jobs: HashMap<Id, (Job, Instant)>,
    read: bool,
    owners: HandlerOwners,
    /// Files that exist, usable or not.
    there: BTreeSet<String>,
    objects: BTreeMap<String, ObjectName>,
    warnings: Vec<SourceProblem>,
    problems: Vec<SourceProblem>,
}

impl LoaderTask {
    /// Creates the task; returns it with the receiver of its handlers.
    pub fn new(
        source: Arc<dyn HandlerSource>,
        store: Arc<dyn LoaderStore>,
        loader: Arc<dyn Loader>,
    ) -> (Self, watch::Receiver<Arc<HandlerSet>>) {
        let (handlers, receiver) = watch::channel(Arc::default());
        let task = Self {
            source,
            store,
            loader,
            handlers,
            accepted: BTreeMap::new(),
            unstored: BTreeMap::new(),
            store_at: None,
            store_problem: None,
            entries: BTreeMap::new(),
            queue: VecDeque::new(),
            running: JoinSet::new(),
            jobs: HashMap::new(),
            read: false,
            owners: HandlerOwners::default(),
            there: BTreeSet::new(),
            objects: BTreeMap::new(),
            warnings: Vec::new(),
            problems: Vec::new(),
        };
        (task, receiver)
    }

    /// Runs until `shutdown`, or until the source of files ends.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let store = Arc::clone(&self.store);
        let kept = spawn_blocking(move || (store.accepted(), store.owners())).await;
        if let Ok((accepted, owners)) = kept {
            self.accepted = accepted;
            self.owners = HandlerOwners(owners);
        } else {
            tracing::error!("reading accepted handlers panicked; this is a bug");
        }
        // The first write removes leftovers of a crash.
        self.store_at = Some(Instant::now());
        let mut files = self.source.handlers();
        files.mark_changed();
        loop {
            let retry = self.entries.values().filter_map(Entry::retry).min();
            let next_slow = self.next_slow();
            tokio::select! {
                () = shutdown.cancelled() => break,
                changed = files.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let set = Arc::clone(&files.borrow_and_update());
                    self.update(&set);
                }
                Some(ended) = self.running.join_next_with_id() => {
                    let (id, result) = match ended {
                        Ok((id, result)) => (id, Some(result)),
                        Err(error) => (error.id(), None),
                    };
                    if let Some((job, _)) = self.jobs.remove(&id) {
                        let result = result.unwrap_or_else(|| Err(broken(&job.name)));
                        self.loaded(job, result);
                    }
                }
                () = until(retry) => self.retry(),
                // Another load may start besides the slow ones.
                () = until(next_slow) => {}
                () = until(self.store_at.filter(|_| self.read)) => self.store().await,
            }
            self.start().await;
            let mut owners = std::mem::take(&mut self.owners);
            if owners.record(&self.candidates()) {
                self.store_at.get_or_insert_with(Instant::now);
            }
            self.owners = owners;
            self.publish();
        }
        self.running.shutdown().await;
        self.jobs.clear();
        // A load that is stopped must not count as a death.
        self.record(&[]).await;
    }

    /// Takes over a set of sources and queues its new versions.
    fn update(&mut self, set: &SourceSet) {
        self.problems.clone_from(&set.problems);
        self.objects.clone_from(&set.objects);
        self.warnings.clone_from(&set.warnings);
        if !set.complete {
            return;
        }
        self.read = true;
        self.there = set.files.keys().cloned().collect();
        let may_be_there = |name: &String| {
            set.files.contains_key(name) || (set.partial && !set.gone.contains(name))
        };
        self.entries.retain(|name, _| may_be_there(name));
        self.unstored.retain(|name, _| may_be_there(name));
        let before = self.accepted.len();
        self.accepted.retain(|name, _| may_be_there(name));
        if self.accepted.len() != before {
            self.store_at = Some(Instant::now());
        }
        let accepted = self.accepted.clone();
        // For a file that cannot be used now, the last accepted version is loaded.
        let unused = accepted
            .iter()
            .filter(|(name, _)| !self.entries.contains_key(*name));
        let mut versions: BTreeMap<&String, &SourceVersion> = unused
            .map(|(name, accepted)| (name, &accepted.version))
            .collect();
        let usable = set.files.iter();
        versions.extend(usable.filter_map(|(name, version)| Some((name, version.as_ref()?))));
        versions.retain(|name, version| {
            let entry = self.entries.get(*name);
            entry.is_none_or(|entry| entry.newest.version != **version)
        });
        let mut changed: Vec<_> = versions
            .into_iter()
            .map(|(name, version)| {
                let known = self.entries.contains_key(name);
                let accepted = accepted.get(name).filter(|_| !known);
                (known, accepted, name, version)
            })
            .collect();
        // Beyond the limit, sources that have never served are left out, those of ConfigMaps first.
        changed.sort_by_key(|(known, accepted, name, _)| {
            let is_of_object = set.objects.contains_key(*name);
            (!known, accepted.is_none(), is_of_object)
        });
        let mut too_many = Vec::new();
        for (known, accepted, name, version) in changed {
            if !known && self.entries.len() >= MOST_HANDLERS {
                too_many.push(name.as_str());
                continue;
            }
            let (newest, error) = self.attempt(name, version);
            let given_up = error.as_ref().is_some_and(|error| !error.transient);
            let job = |version: &SourceVersion, fallback| Job {
                name: name.clone(),
                version: version.clone(),
                fallback,
            };
            if let Some(entry) = self.entries.get_mut(name) {
                entry.newest = newest;
                if error.is_some() {
                    entry.loaded.error = error;
                    entry.loaded.given_up = given_up;
                } else {
                    self.queue.push_back(job(version, false));
                }
                continue;
            }
            let is_accepted = accepted.is_some_and(|accepted| accepted.version == *version);
            let fallback = accepted.filter(|_| !is_accepted);
            let fallback = fallback.map(|accepted| self.attempt(name, &accepted.version));
            if let Some((accepted, None)) = &fallback {
                self.queue.push_back(job(&accepted.version, true));
            }
            if error.is_none() {
                self.queue.push_back(job(version, false));
            }
            // A version that is given up is not a fallback.
            let fallback = fallback.and_then(|(attempt, error)| {
                let is_tried = error.is_none_or(|error| error.transient);
                is_tried.then_some(attempt)
            });
            self.entries.insert(
                name.clone(),
                Entry {
                    newest,
                    fallback,
                    loaded: LoadedSource {
                        handler: None,
                        error,
                        registration: accepted.map(|accepted| accepted.registration.clone()),
                        given_up,
                    },
                },
            );
        }
        if !too_many.is_empty() {
            let message = format!(
                "not loaded: there are already {MOST_HANDLERS} handlers, the maximum; remove those that you do not want"
            );
            self.problems
                .push(SourceProblem::new(text::few(&too_many, 3), message));
        }
    }

    /// Returns the attempt for a new version, with an error if it is not loaded now because the agent has died while loading it.
    fn attempt(&self, name: &str, version: &SourceVersion) -> (Attempt, Option<LoadError>) {
        let deaths = self.store.deaths(version);
        if deaths == 0 {
            return (Attempt::new(version.clone()), None);
        }
        let (attempt, error) = Attempt::after_deaths(version.clone(), name, deaths);
        tracing::warn!(source = name, %error, "handler is not loaded now");
        (attempt, Some(error))
    }

    /// Applies the result of a load.
    fn loaded(&mut self, job: Job, result: Result<Loaded, LoadError>) {
        let wanted = self.entries.get_mut(&job.name);
        let Some(entry) = wanted.filter(|entry| entry.wants(&job)) else {
            return;
        };
        let name = job.name;
        match (result, job.fallback) {
            (Ok((handler, _)), true) => {
                entry.loaded.handler.get_or_insert(handler);
                entry.fallback = None;
            }
            (Ok((handler, file)), false) => {
                tracing::info!(
                    source = name,
                    handler = handler.facts().description.name,
                    version = handler.facts().description.version,
                    "handler loaded"
                );
                let named = handler.facts().description.name.clone();
                entry.loaded.handler = Some(handler);
                entry.loaded.error = None;
                entry.loaded.given_up = false;
                entry.newest.failures = 0;
                entry.fallback = None;
                self.accept(job.version, file, &named);
            }
            (Err(error), true) => {
                let fallback = entry.fallback.as_mut();
                if fallback.is_some_and(|fallback| fallback.failed(&error)) {
                    tracing::warn!(source = name, %error, "the version accepted before does not load");
                }
                entry.fallback.take_if(|_| !error.transient);
            }
            (Err(error), false) => {
                if entry.newest.failed(&error) {
                    tracing::warn!(source = name, %error, "handler does not load");
                }
                entry.loaded.error = Some(error);
                entry.loaded.given_up = false;
            }
        }
    }

    /// Records a version that was loaded and serves. A source keeps its registration as long as it serves the same handler.
    fn accept(&mut self, version: SourceVersion, file: SourceFile, handler: &str) {
        let name = file.name.clone();
        let all = self.accepted.values().map(|one| &one.registration);
        let known = self.accepted.get(&name).map(|one| &one.registration);
        let known = known.filter(|known| known.handler == *handler).cloned();
        let registration = known.unwrap_or_else(|| Registration::after(all, handler));
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.loaded.registration = Some(registration.clone());
        }
        let accepted = AcceptedVersion {
            version,
            registration,
        };
        if self.accepted.get(&name) != Some(&accepted) {
            self.accepted.insert(name.clone(), accepted);
            self.unstored.insert(name, file);
            self.store_at = Some(Instant::now());
        }
    }

    /// Writes the accepted versions to the store; retries later if that fails.
    async fn store(&mut self) {
        let (store, accepted) = (Arc::clone(&self.store), self.accepted.clone());
        let (files, owners) = (std::mem::take(&mut self.unstored), self.owners.0.clone());
        let written = spawn_blocking(move || {
            // The owner of a handler's name must be stored before its file is forgotten.
            let owners = store.set_owners(&owners);
            let result = owners.and_then(|()| store.set_accepted(&accepted, &files));
            (files, result)
        });
        self.store_at = None;
        self.store_problem = None;
        match written.await {
            Ok((_, Ok(()))) => {}
            Ok((files, Err(problem))) => {
                self.unstored = files;
                self.store_at = Some(Instant::now() + FOLDER_BACKSTOP);
                self.store_problem = Some(*problem);
            }
            Err(_) => tracing::error!("storing accepted handlers panicked; this is a bug"),
        }
    }

    /// Queues the failed versions whose retry is due.
    fn retry(&mut self) {
        let now = Instant::now();
        for (name, entry) in &mut self.entries {
            let accepted = entry.fallback.as_mut().map(|attempt| (attempt, true));
            for (attempt, fallback) in iter::once((&mut entry.newest, false)).chain(accepted) {
                if attempt.is_due(now) {
                    self.queue.push_back(Job {
                        name: name.clone(),
                        version: attempt.version.clone(),
                        fallback,
                    });
                }
            }
        }
    }

    /// Starts as many loads as may run at once. A version during whose load the agent died is loaded alone, so that another death proves it
    /// to be the cause.
    async fn start(&mut self) {
        let mut next = Vec::new();
        let slow = self
            .jobs
            .values()
            .filter(|(_, since)| since.elapsed() >= SLOW)
            .count();
        let most = (slow + AT_ONCE).min(MOST_AT_ONCE);
        while self.jobs.len() + next.len() < most
            && let Some(job) = self.next_job()
        {
            let entry = self.entries.get(&job.name);
            if !entry.is_some_and(|entry| entry.wants(&job)) {
                continue;
            }
            let running = self.jobs.values().map(|(job, _)| job);
            let mut others = running.chain(&next).peekable();
            let is_alone = |job: &Job| self.store.deaths(&job.version) > 0;
            if others.peek().is_some() && (is_alone(&job) || others.any(is_alone)) {
                self.queue.push_front(job);
                break;
            }
            next.push(job);
        }
        self.record(&next).await;
        for job in next {
            let (source, loader) = (Arc::clone(&self.source), Arc::clone(&self.loader));
            let store = Arc::clone(&self.store);
            let task = self.running.spawn(load(source, store, loader, job.clone()));
            self.jobs.insert(task.id(), (job, Instant::now()));
        }
    }

    /// Removes the next job from the queue: the first of an accepted version, which does not wait for new ones, or else the first.
    fn next_job(&mut self) -> Option<Job> {
        let is_accepted = |job: &Job| {
            let accepted = self.accepted.get(&job.name);
            accepted.is_some_and(|accepted| accepted.version == job.version)
        };
        let place = self.queue.iter().position(is_accepted);
        self.queue.remove(place.unwrap_or_default())
    }

    /// Returns the time at which the next running load becomes slow, if jobs wait.
    fn next_slow(&self) -> Option<Instant> {
        if self.queue.is_empty() {
            return None;
        }
        let now = Instant::now();
        let slow = self.jobs.values().map(|(_, since)| *since + SLOW);
        slow.filter(|at| *at > now).min()
    }

    /// Returns the sources whose handler is known.
    fn candidates(&self) -> Vec<Candidate<'_>> {
        let entries = self.entries.iter();
        let candidates = entries.filter_map(|(source, entry)| {
            Some(Candidate {
                source,
                registration: entry.loaded.registration.as_ref()?,
                location: self.location(source, entry),
            })
        });
        candidates.collect()
    }

    /// Returns the location of a source, if it is known.
    fn location(&self, source: &str, entry: &Entry) -> Option<SourceLocation> {
        if entry.loaded.handler.as_ref()?.facts().endpoint.is_some() {
            return Some(SourceLocation::External);
        }
        match self.objects.get(source) {
            Some(object) => Some(SourceLocation::ConfigMap {
                namespace: object.namespace.clone(),
                name: object.name.clone(),
            }),
            None => self
                .there
                .contains(source)
                .then_some(SourceLocation::Folder),
        }
    }

    /// Records the running loads and those of `next` in the store, in case the agent dies.
    async fn record(&self, next: &[Job]) {
        let jobs = self.jobs.values().map(|(job, _)| job).chain(next);
        let versions: Vec<_> = jobs.map(|job| job.version.clone()).collect();
        let store = Arc::clone(&self.store);
        let recorded = spawn_blocking(move || store.set_loading(&versions)).await;
        if recorded.is_err() {
            tracing::error!("recording what is being loaded panicked; this is a bug");
        }
    }

    fn publish(&self) {
        let running = self.jobs.values().map(|(job, _)| job);
        let jobs = self.queue.iter().chain(running);
        let waiting: BTreeSet<&str> = jobs.map(|job| job.name.as_str()).collect();
        let tried = |(name, entry): (&String, &Entry)| {
            entry.loaded.handler.is_some()
                || (entry.loaded.error.is_some() && !waiting.contains(name.as_str()))
        };
        let mut problems = self.problems.clone();
        problems.extend(self.store_problem.clone());
        problems.sort();
        let set = HandlerSet {
            complete: self.read && self.entries.iter().all(tried),
            sources: self
                .entries
                .iter()
                .map(|(name, entry)| (name.clone(), entry.loaded.clone()))
                .collect(),
            trusted: self.owners.trusted(&self.candidates()),
            objects: self.objects.clone(),
            problems,
            warnings: self.warnings.clone(),
        };
        publish(&self.handlers, Arc::new(set));
    }
}

/// Reads a version from its source, or else from the store, and loads it.
async fn load(
    source: Arc<dyn HandlerSource>,
    store: Arc<dyn LoaderStore>,
    loader: Arc<dyn Loader>,
    Job { name, version, .. }: Job,
) -> Result<Loaded, LoadError> {
    let named = name.clone();
    let read = spawn_blocking(move || {
        let read = source.read(&named, &version);
        read.or_else(|error| store.read(&named, &version).ok_or(error))
    })
    .await;
    let file = read.unwrap_or_else(|_| Err(broken(&name)))?;
    let handler = loader.load(&file).await?;
    Ok((handler, file))
}

fn broken(name: &str) -> LoadError {
    let why = "the loader panicked; this is a bug, see the log";
    LoadError::new(name, why, false)
}

#[cfg(test)]
mod tests;
