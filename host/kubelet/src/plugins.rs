//! Starts and ends the tasks of all resources as the offers change, and publishes the report.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::PluginConfig;
use crate::endpoint::{Endpoint, Shared};
use crate::folder::{Folder, FolderState, KUBELET};
use crate::offered::{Offered, locked, publish, until};
use crate::registration::Registrar;
use crate::{Allocator, Offers, Report, ResourceName, State, sockets};

/// Minimum time between two reports.
const SPACING: Duration = Duration::from_millis(100);

/// Reason why devices are no longer offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The prefix of the sockets is not usable.
    #[error(
        "cannot name sockets after the prefix {0:?}: it must have 1 to 32 letters, digits, '-' and '_'"
    )]
    Prefix(String),
    /// The task of this name panicked.
    #[error("task {0} of the device plugins panicked; this is a bug, see the log")]
    Broken(&'static str, #[source] JoinError),
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Resources = Arc<Mutex<BTreeMap<ResourceName, Arc<Offered>>>>;

/// Handle to the running device plugins.
#[derive(Clone)]
pub struct DevicePlugins {
    report: watch::Receiver<Arc<Report>>,
    checkpoints: watch::Receiver<u64>,
    resources: Resources,
}

impl DevicePlugins {
    /// Returns the receiver of reports, which come at most every 100 ms.
    pub fn report(&self) -> watch::Receiver<Arc<Report>> {
        self.report.clone()
    }

    /// Returns the receiver of the number of times that the kubelet was seen to replace its checkpoint.
    pub fn checkpoint_changes(&self) -> watch::Receiver<u64> {
        self.checkpoints.clone()
    }

    /// Sends the shortest of the lists again, unchanged: the kubelet writes its checkpoint at every list. Returns true if it follows any.
    pub fn resend(&self) -> bool {
        let resources = locked(&self.resources);
        let shortest = resources
            .values()
            .filter(|offered| offered.report().state == State::Listed)
            .min_by_key(|offered| offered.listed());
        if let Some(offered) = shortest {
            offered.resend();
        }
        shortest.is_some()
    }
}

/// Task that offers devices until it is stopped.
pub struct DevicePluginsTask {
    config: PluginConfig,
    offers: watch::Receiver<Arc<Offers>>,
    allocator: Arc<dyn Allocator>,
    report: watch::Sender<Arc<Report>>,
    checkpoints: watch::Sender<u64>,
    resources: Resources,
}

impl DevicePluginsTask {
    /// Creates the task and its handle. `offers` always contains everything that is wanted.
    pub fn new(
        config: PluginConfig,
        offers: watch::Receiver<Arc<Offers>>,
        allocator: Arc<dyn Allocator>,
    ) -> (Self, DevicePlugins) {
        let task = Self {
            config,
            offers,
            allocator,
            report: watch::Sender::default(),
            checkpoints: watch::Sender::default(),
            resources: Resources::default(),
        };
        let handle = DevicePlugins {
            report: task.report.subscribe(),
            checkpoints: task.checkpoints.subscribe(),
            resources: Arc::clone(&task.resources),
        };
        (task, handle)
    }

    /// Runs until `shutdown`. Then everything is withdrawn: running Allocates are still answered, streams end, and sockets are removed.
    pub async fn run(self, shutdown: CancellationToken) -> Result<()> {
        let prefix = &self.config.prefix;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        if !(1..=32).contains(&prefix.len()) || !prefix.chars().all(is_plain) {
            return Err(Error::Prefix(prefix.clone()));
        }
        let allocations = TaskTracker::new();
        let shared = Arc::new(Shared {
            registrar: Registrar::new(self.config.folder.join(KUBELET), self.config.times.register),
            config: self.config,
            allocator: self.allocator,
            allocations: allocations.clone(),
        });
        let folder_state = watch::Sender::new(Arc::new(FolderState::default()));
        let reports = Arc::new(Notify::new());
        let over = CancellationToken::new();
        let folder = Folder {
            path: shared.config.folder.clone(),
            prefix: shared.config.prefix.clone(),
            backstop: shared.config.times.backstop,
            state: folder_state.clone(),
            checkpoints: self.checkpoints,
        };
        let mut folder = tokio::spawn(folder.run());
        let mut reporter = tokio::spawn(keep_report(
            Arc::clone(&self.resources),
            folder_state.subscribe(),
            Arc::clone(&reports),
            self.report,
        ));
        let allocate = shared.config.times.allocate;
        let mut plugins = Plugins {
            shared,
            resources: self.resources,
            reports,
            folder_state: folder_state.subscribe(),
            over: over.clone(),
            known: BTreeMap::new(),
            tasks: JoinSet::new(),
        };
        let follow = plugins.follow_offers(self.offers);
        let broken = |task| move |error| Error::Broken(task, error);
        let result = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            result = follow => result,
            ended = &mut folder => ended.map_err(broken("folder")),
            ended = &mut reporter => ended.map_err(broken("reporter")),
        };
        plugins.withdraw();
        if tokio::time::timeout(allocate, plugins.drain())
            .await
            .is_err()
        {
            tracing::warn!("shutdown: some Allocate calls have no answer");
        }
        over.cancel();
        plugins.drain().await;
        allocations.close();
        if tokio::time::timeout(allocate, allocations.wait())
            .await
            .is_err()
        {
            tracing::warn!("shutdown: some allocations are still running");
        }
        for task in [folder, reporter] {
            task.abort();
            if !task.is_finished() {
                drop(task.await);
            }
        }
        result
    }
}

/// Resource that is offered, or was until recently.
struct Known {
    endpoint: Arc<Endpoint>,
    task: Option<Id>,
}

struct Plugins {
    shared: Arc<Shared>,
    resources: Resources,
    reports: Arc<Notify>,
    folder_state: watch::Receiver<Arc<FolderState>>,
    over: CancellationToken,
    known: BTreeMap<ResourceName, Known>,
    tasks: JoinSet<ResourceName>,
}

impl Plugins {
    async fn follow_offers(&mut self, mut offers: watch::Receiver<Arc<Offers>>) -> Result<()> {
        // Without a sender the offers never change again.
        let mut is_open = true;
        let wanted = Arc::clone(&offers.borrow_and_update());
        self.apply(&wanted);
        loop {
            let forget = self.forget();
            tokio::select! {
                changed = offers.changed(), if is_open => {
                    is_open = changed.is_ok();
                    let wanted = Arc::clone(&offers.borrow_and_update());
                    self.apply(&wanted);
                }
                Some(ended) = self.tasks.join_next() => self.ended(ended)?,
                () = until(forget) => {}
            }
        }
    }

    /// Applies the offers to each resource.
    fn apply(&mut self, offers: &Offers) {
        for (name, known) in &self.known {
            if !offers.contains_key(name) {
                known.endpoint.offered.want(Arc::default());
            }
        }
        for (name, devices) in offers {
            if !devices.is_empty() && !self.known.contains_key(name) {
                self.add(name);
            }
            if let Some(known) = self.known.get(name) {
                known.endpoint.offered.want(Arc::clone(devices));
            }
            self.start(name);
        }
    }

    fn add(&mut self, name: &ResourceName) {
        let config = &self.shared.config;
        let mut resources = locked(&self.resources);
        let socket = sockets::name(&config.folder, &config.prefix, name, |name| {
            let mut others = resources.values();
            others.any(|offered| offered.has_socket(name))
        });
        let offered = Arc::new(Offered::new(
            name.clone(),
            socket,
            &config.times,
            Arc::clone(&self.reports),
        ));
        resources.insert(name.clone(), Arc::clone(&offered));
        drop(resources);
        self.reports.notify_one();
        let known = Known {
            endpoint: Endpoint::new(offered, Arc::clone(&self.shared)),
            task: None,
        };
        self.known.insert(name.clone(), known);
    }

    /// Starts the task of a resource that has none. If its task is about to end, a new one starts afterwards.
    fn start(&mut self, name: &ResourceName) {
        let Some(known) = self.known.get_mut(name) else {
            return;
        };
        if known.task.is_none() && !known.endpoint.offered.has_ended() {
            let running =
                Arc::clone(&known.endpoint).run(self.folder_state.clone(), self.over.child_token());
            let name = name.clone();
            let task = self.tasks.spawn(async move {
                running.await;
                name
            });
            known.task = Some(task.id());
        }
    }

    fn ended(&mut self, ended: Result<ResourceName, JoinError>) -> Result<()> {
        let name = ended.map_err(|error| Error::Broken("resource", error))?;
        if let Some(known) = self.known.get_mut(&name) {
            known.task = None;
        }
        self.start(&name);
        Ok(())
    }

    /// Forgets resources that have ended and whose ids no Allocate can name any more; returns the time of the next call.
    fn forget(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None;
        self.known.retain(|name, known| {
            if known.task.is_some() {
                return true;
            }
            let over = known.endpoint.offered.over(now);
            if over.is_some_and(|over| over <= now) {
                locked(&self.resources).remove(name);
                self.reports.notify_one();
                return false;
            }
            next = [next, over].into_iter().flatten().min();
            true
        });
        next
    }

    fn withdraw(&mut self) {
        for known in self.known.values() {
            known.endpoint.offered.want(Arc::default());
        }
    }

    async fn drain(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Publishes the report after each change, at most once in [`SPACING`].
async fn keep_report(
    resources: Resources,
    mut folder_state: watch::Receiver<Arc<FolderState>>,
    reports: Arc<Notify>,
    report: watch::Sender<Arc<Report>>,
) {
    loop {
        let folder = Arc::clone(&folder_state.borrow_and_update());
        let resources = locked(&resources)
            .iter()
            .map(|(name, offered)| (name.clone(), offered.report()))
            .collect();
        let current = Report {
            kubelet: folder.kubelet,
            problems: folder.problems.clone(),
            resources,
        };
        publish(&report, Arc::new(current));
        tokio::time::sleep(SPACING).await;
        tokio::select! {
            () = reports.notified() => {}
            changed = folder_state.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
