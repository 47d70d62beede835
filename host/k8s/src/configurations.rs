//! All Configurations of the cluster, with their properties.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use leafhost_core::ports::{ConfigurationSet, ConfigurationSource, SourceProblem};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Duration, Instant, sleep_until};

mod book;

use crate::crd;
use crate::memory;
use crate::values::{Object, Values, Wanted};
use crate::watch::{Failure, Watch};
use book::Book;
pub(crate) use book::manifest;

/// How long the watch must work before its last failure is forgotten.
const WORKS: Duration = Duration::from_secs(5);
/// The most events that are taken together.
const TOGETHER: usize = 1_000;

/// The Configurations of a cluster. Dropping it ends its tasks.
pub struct KubeConfigurations {
    set: watch::Receiver<Arc<ConfigurationSet>>,
    _tasks: JoinSet<()>,
}

impl KubeConfigurations {
    /// Watches them. Secrets and `ConfigMap`s are read in their own namespaces and in `namespaces`. `memory` is the file that keeps the
    /// Configurations for an agent that starts while the API server is away; their Secrets are not in it.
    pub fn watch(client: Client, namespaces: BTreeSet<String>, memory: PathBuf) -> Self {
        let (sender, set) = watch::channel(Arc::default());
        let mut book = Book::default();
        if let Some(objects) = memory::read(&memory) {
            book.remember(objects);
        }
        let (keep, kept) = watch::channel(None);
        let mut tasks = JoinSet::new();
        tasks.spawn(run(client, namespaces, book, sender, keep));
        tasks.spawn(memory::keep(memory, kept, Clone::clone));
        Self { set, _tasks: tasks }
    }
}

impl ConfigurationSource for KubeConfigurations {
    fn configurations(&self) -> watch::Receiver<Arc<ConfigurationSet>> {
        self.set.clone()
    }
}

async fn run(
    client: Client,
    namespaces: BTreeSet<String>,
    mut book: Book,
    sender: watch::Sender<Arc<ConfigurationSet>>,
    keep: watch::Sender<Option<Vec<DynamicObject>>>,
) {
    // With any spec, so that one bad object does not fail a list.
    let resource = ApiResource::erase::<crd::Configuration>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let mut watch = Watch::new(api);
    let values = Values::new(client);
    let mut found = values.found();
    let mut trouble = Trouble::default();
    loop {
        let mut wanted = Wanted::new();
        for reference in book.references(&namespaces) {
            let keys = wanted.entry(Object::of(&reference)).or_default();
            keys.insert(reference.key.to_owned());
        }
        values.want(wanted);
        let looked_up = found.borrow_and_update().clone();
        let mut next = book.set(&namespaces, &looked_up, &sender.borrow());
        next.problems.extend(trouble.problem.clone());
        next.problems.sort();
        if crate::publish(&sender, next) {
            keep.send_replace(book.worth_keeping());
        }
        tokio::select! {
            event = watch.next() => {
                take(event, &mut book, &mut trouble, &mut watch);
                for _ in 0..TOGETHER {
                    let Some(event) = watch.try_next() else { break };
                    take(event, &mut book, &mut trouble, &mut watch);
                }
            }
            changed = found.changed() => if changed.is_err() {
                return;
            },
            () = sleep_until(trouble.over.unwrap_or_else(Instant::now)), if trouble.over.is_some() => {
                trouble = Trouble::default();
            }
        }
    }
}

fn take(
    event: Result<Event<DynamicObject>, Failure>,
    book: &mut Book,
    trouble: &mut Trouble,
    watch: &mut Watch<DynamicObject>,
) {
    match event {
        Ok(Event::Init) => book.begin(),
        Ok(Event::InitApply(object)) => book.list(object),
        Ok(Event::InitDone) => {
            book.finish();
            trouble.over = trouble.problem.as_ref().map(|_| Instant::now() + WORKS);
        }
        Ok(Event::Apply(object)) => book.apply(object),
        Ok(Event::Delete(object)) => {
            // One that was too many may serve now.
            if book.delete(&object) {
                watch.restart();
            }
        }
        Err(failure) => *trouble = Trouble::new(&failure),
    }
}

/// What is wrong with the watch.
#[derive(Debug, Default)]
struct Trouble {
    problem: Option<SourceProblem>,
    /// When it is over unless it comes again.
    over: Option<Instant>,
}

impl Trouble {
    fn new(failure: &Failure) -> Self {
        let why = failure.told("configurations.akri.sh");
        let message = format!("cannot be watched: {why}; what was read last serves on");
        Self {
            problem: Some(SourceProblem::new("Configurations", message)),
            over: None,
        }
    }
}

#[cfg(test)]
mod tests;
