//! Handlers in ConfigMaps of one namespace that have the label [`LABEL`].
//!
//! The watch carries only metadata, since every node gets each event. A node fetches the whole object only if its copy on disk is older,
//! and the nodes of a large cluster spread these requests over time.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::PartialObjectMeta;
use kube::{Api, Client};
use leafhost_core::ports::{HandlerSource, LoadError, SourceFile, SourceSet, SourceVersion};
use leafhost_core::tasks::Tasks;
use rand::RngExt as _;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{Instant, sleep_until};

mod contents;
mod disk;
mod objects;

use contents::Contents;
use disk::Disk;
use objects::{Held, Objects};

use crate::answers::{self, Failure, Kind};
use crate::watch::{Event, Watch};
use crate::{nodes, publish, until};

/// Label of ConfigMaps with handlers.
pub const LABEL: (&str, &str) = ("leafhost.dev/handlers", "true");

/// Maximum number of concurrent fetches.
const AT_ONCE: usize = 4;
/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(30);
/// Maximum wait for the API server at the start; after it, the agent uses the other sources of handlers alone.
const START: Duration = Duration::from_secs(15);
/// Number of nodes to assume if the API server does not report it.
const NODES: u64 = 100;

/// Source of the handlers in watched ConfigMaps.
pub struct KubeHandlers {
    set: watch::Receiver<Arc<SourceSet>>,
    disk: Arc<Disk>,
}

impl KubeHandlers {
    /// Watches the ConfigMaps of a namespace. `folder` belongs to this source alone and keeps the fetched objects. The client must not
    /// retry requests by itself.
    pub fn watch(client: &Client, namespace: &str, folder: PathBuf, tasks: &mut Tasks) -> Self {
        let disk = Arc::new(Disk::new(folder));
        let (sender, set) = watch::channel(Arc::default());
        let namespace = namespace.to_owned();
        let running = run(client.clone(), namespace, Arc::clone(&disk), sender);
        tasks.add_loop("watch of handlers", running);
        Self { set, disk }
    }
}

impl HandlerSource for KubeHandlers {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        let find = |object: ConfigMap| {
            let component = Contents::of(&object).files.remove(name)?;
            let found = component.version.as_ref() == Some(version);
            let bytes = contents::bytes(&object, &component.key).filter(|_| found)?;
            Some(SourceFile {
                name: name.to_owned(),
                bytes: bytes.into(),
                grants: version.grants.clone(),
            })
        };
        let found = self.disk.all().find_map(find);
        let why = "its ConfigMap has changed since it was found, or is no longer in the state folder; if this stays, restart the agent, which fetches it again";
        found.ok_or_else(|| LoadError::new(name, why, true))
    }
}

async fn run(
    client: Client,
    namespace: String,
    disk: Arc<Disk>,
    sender: watch::Sender<Arc<SourceSet>>,
) {
    let kept = Arc::clone(&disk);
    let of_namespace = namespace.clone();
    let objects = spawn_blocking(move || Objects::new(&of_namespace, kept.all()));
    let Ok(objects) = objects.await else {
        return;
    };
    let metadata: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), &namespace);
    let task = Task {
        watch: Watch::new(metadata).labels(&format!("{}={}", LABEL.0, LABEL.1)),
        whole: Api::namespaced(client.clone(), &namespace),
        nodes: Api::all(client),
        spread: None,
        disk,
        objects,
        requests: JoinSet::new(),
        sender,
    };
    task.run().await;
}

/// Name of a requested object, with the answer.
type Answer = (String, Result<ConfigMap, Failure>);

struct Task {
    watch: Watch<PartialObjectMeta<ConfigMap>>,
    whole: Api<ConfigMap>,
    nodes: Api<PartialObjectMeta<Node>>,
    /// Time over which the nodes spread their requests.
    spread: Option<Duration>,
    disk: Arc<Disk>,
    objects: Objects,
    requests: JoinSet<Answer>,
    sender: watch::Sender<Arc<SourceSet>>,
}

impl Task {
    async fn run(mut self) {
        let given_up = Instant::now() + START;
        let mut complete = false;
        loop {
            let mut events = Vec::new();
            tokio::select! {
                () = self.watch.take(|event| events.push(event)) => {}
                Some(Ok(answer)) = self.requests.join_next() => self.answered(answer).await,
                () = until(self.objects.next()), if self.requests.len() < AT_ONCE => self.request(),
                () = sleep_until(given_up), if !complete => complete = true,
            }
            let mut is_less = false;
            for event in events {
                is_less |= self.take(event).await;
            }
            if is_less {
                self.clean().await;
            }
            complete |= self.objects.is_settled();
            if complete {
                publish(&self.sender, self.objects.sources());
            }
        }
    }

    /// Applies an event. Returns true if objects may be gone.
    async fn take(&mut self, event: Result<Event<PartialObjectMeta<ConfigMap>>, Failure>) -> bool {
        let event = match event {
            Ok(event) => event,
            Err(failure) => {
                self.objects.failure = Some(describe(&failure));
                return false;
            }
        };
        match event {
            Event::Init => self.objects.list(),
            Event::InitApply(object) => self.objects.list_one(&object.metadata),
            Event::InitDone(_) => {
                self.objects.failure = None;
                if self.spread.is_none() {
                    // Counts the nodes only once: even if the cluster grows tenfold later, status 429 slows the requests down.
                    let nodes = nodes::count(&self.nodes).await;
                    self.spread = Some(spread(nodes.unwrap_or(NODES)));
                }
                let spread = self.spread;
                self.objects.list_end(|| soon(spread));
                return true;
            }
            Event::Apply(object) => {
                let spread = self.spread;
                self.objects.changed(&object.metadata, || soon(spread));
            }
            Event::Delete(object) => {
                self.objects.gone(&object.metadata);
                return true;
            }
            Event::Resumed => self.objects.failure = None,
        }
        false
    }

    fn request(&mut self) {
        let most = AT_ONCE.saturating_sub(self.requests.len());
        for name in self.objects.take_due(Instant::now(), most) {
            let whole = self.whole.clone();
            self.requests.spawn(async move {
                let answer = answers::within(REQUEST, whole.get(&name)).await;
                (name, answer)
            });
        }
    }

    async fn answered(&mut self, (name, answer): Answer) {
        let object = match answer {
            Ok(object) => object,
            Err(failure) => {
                let wait = failure.retry_after.unwrap_or_default();
                return self.objects.failed(&name, describe(&failure), wait);
            }
        };
        match self.keep(object).await {
            Ok(held) => {
                self.objects.fetched(&name, held);
                self.clean().await;
            }
            Err(error) => {
                let message =
                    format!("cannot be kept in the state folder: {error}; free or repair the disk");
                self.objects.failed(&name, message, Duration::ZERO);
            }
        }
    }

    async fn keep(&mut self, mut object: ConfigMap) -> io::Result<Held> {
        let disk = Arc::clone(&self.disk);
        object.metadata.managed_fields = None;
        let kept = spawn_blocking(move || disk.keep(&object).map(|()| Held::of(&object))).await;
        kept.unwrap_or_else(|error| Err(io::Error::other(error)))
    }

    /// Deletes the files of ConfigMaps that are no longer needed.
    async fn clean(&mut self) {
        let (disk, held) = (Arc::clone(&self.disk), self.objects.held());
        if spawn_blocking(move || disk.keep_only(&held)).await.is_err() {
            tracing::error!("cleaning the folder of ConfigMaps panicked; this is a bug");
        }
    }
}

fn describe(failure: &Failure) -> String {
    let remedy = match failure.kind {
        Kind::Denied => {
            "; allow the agent's service account to get, list and watch ConfigMaps there"
        }
        _ => "",
    };
    format!("cannot be read: {}{remedy}", failure.message)
}

/// Returns the time over which this number of nodes spreads requests for a few hundred kilobytes: a second for 20 nodes, ten for 500.
fn spread(nodes: u64) -> Duration {
    let few = Duration::from_millis(nodes.saturating_mul(50)).min(Duration::from_secs(1));
    let many = Duration::from_millis(nodes.saturating_mul(20));
    few.max(many).min(Duration::from_mins(1))
}

/// Returns a random moment within `spread` from now.
fn soon(spread: Option<Duration>) -> Instant {
    let spread = spread.unwrap_or_default();
    Instant::now() + spread.mul_f64(rand::rng().random_range(0.0..1.0))
}

#[cfg(test)]
mod tests;
