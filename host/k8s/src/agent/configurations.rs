//! All Configurations of the cluster, with their properties.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use kube::api::DynamicObject;
use kube::{Api, Client};
use leafhost_core::ports::{ConfigurationSet, SourceProblem};
use leafhost_core::resource_names::{NameSet, ResourceNames};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::changed;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};

mod capped_set;
mod index;

use crate::agent::values::{Values, Wanted};
use crate::answers::Failure;
use crate::names;
use crate::watch::{Event, Watch};
use crate::{manifest, memory, until};
use index::ConfigurationIndex;

/// Name of the file that keeps the reserved resource names of namespaces.
const NAMES: &str = "names.json";
/// Delay before the Configurations are listed again because some that exceeded a cap may fit now.
const LIST_FIRST: Duration = Duration::from_secs(1);
/// Minimum interval between two such lists, so that a user who deletes and creates objects repeatedly causes no more of them.
const LIST_AGAIN: Duration = Duration::from_mins(5);

/// Watches the Configurations of a cluster. Reads Secrets and `ConfigMap`s in the namespace of the Configuration and in `namespaces`. The
/// file `memory` keeps the Configurations, without their Secrets, for an agent that starts while the API server is unreachable; a file
/// beside it keeps the reserved resource names.
pub fn follow(
    client: Client,
    namespaces: BTreeSet<String>,
    memory: PathBuf,
    tasks: &mut Tasks,
) -> watch::Receiver<Arc<ConfigurationSet>> {
    let (sender, set) = watch::channel(Arc::default());
    let mut index = ConfigurationIndex::default();
    if let Some(objects) = memory::read(&memory) {
        index.remember(objects);
    }
    let file = memory.with_file_name(NAMES);
    let remembered = memory::read(&file).unwrap_or_default();
    let (name_sender, names) = watch::channel(Arc::default());
    let (keep, kept) = watch::channel(None);
    let publish = move |set: NameSet| _ = crate::publish(&name_sender, set);
    let following = names::follow(client.clone(), remembered, publish);
    tasks.add_loop("watch of names", following);
    let keeping = memory::keep(file, names.clone(), |set: &Arc<NameSet>| {
        set.is_read.then(|| ResourceNames::clone(&set.names))
    });
    tasks.add_loop("file of names", keeping);
    let values = Values::new(client.clone(), tasks);
    let running = run(client, namespaces, (index, values), names, sender, keep);
    tasks.add_loop("watch of Configurations", running);
    let keeping = memory::keep(memory, kept, Clone::clone);
    tasks.add_loop("file of Configurations", keeping);
    set
}

async fn run(
    client: Client,
    namespaces: BTreeSet<String>,
    (mut index, mut values): (ConfigurationIndex, Values),
    mut names: watch::Receiver<Arc<NameSet>>,
    sender: watch::Sender<Arc<ConfigurationSet>>,
    keep: watch::Sender<Option<Vec<DynamicObject>>>,
) {
    let api: Api<DynamicObject> = Api::all_with(client, &manifest::resource());
    let mut watch = Watch::new(api);
    let mut trouble = None;
    let mut wanted = Wanted::default();
    let mut not_before = Instant::now();
    let mut list_at = None;
    loop {
        wanted = Wanted::of(index.references(&namespaces), &wanted);
        crate::publish(&values.wanted, wanted.clone());
        let looked_up = values.found.borrow_and_update().clone();
        let known = Arc::clone(&names.borrow_and_update());
        let looked_up = (&wanted, &*looked_up);
        let mut next = index.set(&namespaces, looked_up, &known, &sender.borrow());
        next.problems.extend(trouble.clone());
        next.problems.sort();
        if crate::publish(&sender, next) {
            keep.send_replace(index.worth_keeping());
        }
        if index.has_room() {
            list_at.get_or_insert_with(|| not_before.max(Instant::now() + LIST_FIRST));
        } else {
            list_at = None;
        }
        tokio::select! {
            () = watch.take(|event| take(event, &mut index, &mut trouble)) => {}
            () = until(list_at) => {
                list_at = None;
                not_before = Instant::now() + LIST_AGAIN;
                watch.restart();
            }
            () = changed(&mut values.found) => {}
            () = changed(&mut names) => {}
        }
    }
}

fn take(
    event: Result<Event<DynamicObject>, Failure>,
    index: &mut ConfigurationIndex,
    trouble: &mut Option<SourceProblem>,
) {
    match event {
        Ok(Event::Init) => index.begin(),
        Ok(Event::InitApply(object)) => index.list(object),
        Ok(Event::InitDone(_)) => index.finish(),
        Ok(Event::Apply(object)) => index.apply(object),
        Ok(Event::Delete(object)) => index.delete(&object),
        Ok(Event::Resumed) => *trouble = None,
        Err(failure) => *trouble = Some(describe(&failure)),
    }
}

fn describe(failure: &Failure) -> SourceProblem {
    let why = failure.describe_watch("configurations.akri.sh");
    let message = format!("cannot be watched: {why}; those that were read last stay in use");
    SourceProblem::new("Configurations", message)
}

#[cfg(test)]
mod tests;
