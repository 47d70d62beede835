//! The report of this node: one `discoveryhandlers.leafhost.dev` for each handler, written only when it differs.
//!
//! One task compares what the agent reports with what the API server has, so that an object that somebody edits or deletes is put right.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use leafhost_core::names::label_value;
use leafhost_core::node_report::NodeReport;
use leafhost_core::ports::ReportSink;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

mod lost;
mod object;

use lost::Lost;
use object::{Owner, Write};

use crate::agent::identity::{self, NodeObject};
use crate::answers::{self, Failure, Kind};
use crate::crd::DiscoveryHandler;
use crate::reports::{NODE_LABEL, Shelf, size};
use crate::watch::{Event, UNDEFINED, Watch};
use crate::{backoff, until};

/// How long a write may take.
const REQUEST: Duration = Duration::from_secs(5);
/// An object is written at most so often.
const SPACING: Duration = Duration::from_secs(1);
/// How often it is asked which Node object this is: the kubelet renews a token in less, and another token may say something else.
const RENEWED: Duration = Duration::from_hours(1);
/// The same while the credentials are not those of the Node object that is there.
const OUTDATED: Duration = Duration::from_mins(5);
/// The same while no Node object is there.
const GONE: Duration = Duration::from_secs(10);

/// Where the node's report goes.
pub struct KubeReport {
    client: Client,
    owner: Owner,
    given: Option<String>,
}

impl KubeReport {
    /// Of the node with that uid; `given` is the name that the operator says. The client must not repeat requests by itself.
    pub fn new(client: Client, node: &str, node_uid: &str, given: Option<&str>) -> Self {
        let owner = Owner {
            node: node.to_owned(),
            uid: Some(node_uid.to_owned()),
        };
        let given = given.map(str::to_owned);
        Self {
            client,
            owner,
            given,
        }
    }
}

#[async_trait]
impl ReportSink for KubeReport {
    async fn keep(
        &self,
        mut reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    ) {
        // Nothing is known to be superfluous before the first report.
        if reports.wait_for(|report| report.complete).await.is_err() {
            return;
        }
        let (client, given) = (self.client.clone(), self.given.clone());
        let mut task = Task::new(self.owner.clone(), client, given);
        task.run(reports, problem).await;
    }
}

struct Task {
    client: Client,
    given: Option<String>,
    owner: Owner,
    /// Tells that there may be another Node object than the reports belong to.
    is_doubtful: bool,
    /// Sets the next question which one there is.
    ask_again: Instant,
    lost: Lost,
    /// Holds what the agent reports.
    report: Arc<NodeReport>,
    watch: Watch<DiscoveryHandler>,
    api: Api<DiscoveryHandler>,
    /// What a list that is not at its end has shown.
    listing: Shelf<DiscoveryHandler>,
    /// What the API server has of this node; nothing until it was listed.
    found: Option<Shelf<DiscoveryHandler>>,
    /// By name.
    wanted: BTreeMap<String, DiscoveryHandler>,
    /// The objects that are left alone for a while.
    pauses: HashMap<String, Pause>,
    /// Why the objects cannot be watched.
    unwatched: Option<String>,
}

struct Pause {
    until: Instant,
    /// In a row.
    failures: u32,
    /// What was wrong the last time.
    error: Option<String>,
}

impl Task {
    fn new(owner: Owner, client: Client, given: Option<String>) -> Self {
        let api: Api<DiscoveryHandler> = Api::all(client.clone());
        let label = format!("{NODE_LABEL}={}", label_value(&owner.node));
        Self {
            client,
            given,
            owner,
            is_doubtful: false,
            ask_again: Instant::now() + RENEWED,
            lost: Lost::default(),
            report: Arc::default(),
            watch: Watch::new(api.clone()).labels(&label),
            api,
            listing: Shelf::default(),
            found: None,
            wanted: BTreeMap::new(),
            pauses: HashMap::new(),
            unwatched: None,
        }
    }

    async fn run(
        &mut self,
        mut reports: watch::Receiver<Arc<NodeReport>>,
        problem: watch::Sender<Option<String>>,
    ) {
        reports.mark_changed();
        loop {
            let (next, at) = self.next().unzip();
            let now = self.problem();
            problem.send_if_modified(|told| {
                let differs = *told != now;
                *told = now;
                differs
            });
            tokio::select! {
                changed = reports.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.report = Arc::clone(&reports.borrow_and_update());
                    self.wanted = self.owner.objects(&self.report);
                }
                event = self.watch.next() => self.take(event),
                () = until(at) => {
                    if std::mem::take(&mut self.is_doubtful) {
                        self.ask().await;
                    } else if let Some((name, write)) = next {
                        self.write(name, write).await;
                    }
                }
                () = sleep_until(self.ask_again) => self.ask().await,
            }
        }
    }

    fn take(&mut self, event: Result<Event<DiscoveryHandler>, Failure>) {
        let event = match event {
            Ok(event) => event,
            Err(failure) => {
                let resource = "discoveryhandlers.leafhost.dev";
                self.unwatched = Some(format!(
                    "cannot list {resource}: {}",
                    failure.told_of(resource)
                ));
                return;
            }
        };
        match event {
            Event::Init => self.listing = Shelf::default(),
            Event::InitApply(object) => put(&mut self.listing, &self.wanted, &self.owner, object),
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

    /// Somebody else has deleted a report; garbage collection does, if it belongs to a Node object that is gone.
    fn lose(&mut self, name: String) {
        if !self.wanted.contains_key(&name) {
            return;
        }
        self.is_doubtful = true;
        let (until, is_again) = self.lost.note(&name, Instant::now());
        let why = "it is deleted again and again; see who deletes it, or whether its Node is there: kubectl get nodes";
        let pause = Pause {
            until,
            failures: 0,
            error: is_again.then(|| why.to_owned()),
        };
        self.pauses.insert(name, pause);
    }

    /// Asks which Node object there is, and makes the reports its.
    async fn ask(&mut self) {
        self.ask_again = Instant::now() + RENEWED;
        let uid = match identity::node_object(&self.client, self.given.as_deref()).await {
            Ok(NodeObject::Bound(uid)) => Some(uid),
            Ok(NodeObject::Newer) => {
                self.ask_again = Instant::now() + OUTDATED;
                None
            }
            // Reports go with their Node.
            Ok(NodeObject::Gone) => {
                self.is_doubtful = true;
                let until = Instant::now() + GONE;
                let pause = |name: &String| {
                    let error = Some("its Node is gone".to_owned());
                    let failures = 0;
                    (
                        name.clone(),
                        Pause {
                            until,
                            failures,
                            error,
                        },
                    )
                };
                let found = self.found.iter().flat_map(Shelf::names);
                self.pauses = self.wanted.keys().chain(found).map(pause).collect();
                return;
            }
            Err(error) => {
                let error = error.to_string();
                tracing::warn!(
                    error,
                    "cannot tell which Node object the reports of this node belong to"
                );
                return;
            }
        };
        if uid != self.owner.uid {
            tracing::info!(uid, "another Node object has the name of this node");
            self.owner.uid = uid;
            self.wanted = self.owner.objects(&self.report);
            self.lost.forget();
            self.pauses.clear();
        }
    }

    /// Takes in an object unless a newer state of it is known. Versions of one resource are numbers that grow.
    fn saw(&mut self, object: DiscoveryHandler) {
        let version = |object: &DiscoveryHandler| object.resource_version()?.parse::<u64>().ok();
        if let Some(found) = &mut self.found {
            let name = object.name_any();
            let known = found.get(&name).and_then(version);
            if known <= version(&object) {
                put(found, &self.wanted, &self.owner, object);
            }
        }
    }

    /// Why the objects are not what they should be.
    fn problem(&self) -> Option<String> {
        let unwritten = self.pauses.iter().filter_map(|(name, pause)| {
            let error = pause.error.as_ref().filter(|_| self.differs(name))?;
            Some(format!("cannot write discoveryhandler {name}: {error}"))
        });
        // Always the same one of several.
        self.unwatched.clone().or_else(|| unwritten.min())
    }

    /// The write that is due first, and when.
    fn next(&self) -> Option<((String, Write), Instant)> {
        let found = self.found.as_ref()?;
        let names = self.wanted.keys().chain(found.names());
        let now = Instant::now();
        names
            .filter_map(|name| {
                let write = self.owner.write(found.get(name), self.wanted.get(name))?;
                let pause = self.pauses.get(name);
                Some((
                    (name.clone(), write),
                    pause.map_or(now, |pause| pause.until),
                ))
            })
            .min_by_key(|(_, at)| *at)
    }

    async fn write(&mut self, name: String, write: Write) {
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
                let pause = Pause {
                    until: now + SPACING,
                    failures: 0,
                    error: None,
                };
                self.pauses.insert(name, pause);
                return;
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
        self.is_doubtful |= matches!(failure.code, Some(401 | 403 | 422));
        let pause = Pause {
            until: Instant::now() + wait,
            failures,
            error: (!is_race).then(|| told(&failure)),
        };
        self.pauses.insert(name.clone(), pause);
        // The object is not what it was taken for.
        if is_race
            && let Ok(object) = answers::within(REQUEST, self.api.get_opt(&name)).await
            && let Some(found) = &mut self.found
        {
            match object {
                Some(object) => put(found, &self.wanted, &self.owner, object),
                None => found.remove(&name),
            }
        }
    }

    fn differs(&self, name: &str) -> bool {
        let found = self.found.as_ref().and_then(|found| found.get(name));
        self.owner.write(found, self.wanted.get(name)).is_some()
    }

    async fn request(&mut self, name: &str, write: Write) -> kube::Result<()> {
        let params = PostParams {
            field_manager: Some("leafhost".to_owned()),
            ..PostParams::default()
        };
        let object = match write {
            Write::Create(object) => self.api.create(&params, &object).await?,
            Write::Replace(object) => self.api.replace(name, &params, &object).await?,
            Write::Delete(uid) => {
                let params = DeleteParams {
                    preconditions: Some(Preconditions {
                        uid: Some(uid),
                        resource_version: None,
                    }),
                    ..DeleteParams::default()
                };
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
}

/// Says why an object was not written, with the remedy.
fn told(failure: &Failure) -> String {
    let resource = "discoveryhandlers.leafhost.dev";
    match failure.kind {
        Kind::Denied => format!(
            "{}; allow the agent's service account to write {resource}",
            failure.message
        ),
        _ => failure.told_of(resource),
    }
}

/// Takes in an object. Of those that are not wanted, and of what is more than a node may have, only that is held which another write needs.
fn put(
    shelf: &mut Shelf<DiscoveryHandler>,
    wanted: &BTreeMap<String, DiscoveryHandler>,
    owner: &Owner,
    object: DiscoveryHandler,
) {
    let name = object.name_any();
    let is_wanted = wanted.contains_key(&name);
    let group = if is_wanted { "wanted" } else { "others" };
    let object = if is_wanted {
        let size = size(&object);
        match shelf.put(&name, group, size, object) {
            Ok(()) => return,
            Err(object) => object,
        }
    } else {
        object
    };
    let bare = owner.bare(object);
    let size = size(&bare);
    if shelf.put(&name, group, size, bare).is_err() && shelf.is_news() {
        tracing::warn!(
            report = name,
            "a report is left alone, since too many have the label of this node; delete those that are not its agent's: kubectl get dh"
        );
    }
}

#[cfg(test)]
mod tests;
