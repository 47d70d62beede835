//! The task that applies the registrations: publishes the set of sources, writes the file in the state folder, and probes handlers that are gone.

use std::sync::Arc;

use leafhost_core::ports::{SourceProblem, SourceSet, SourceVersion};
use leafhost_core::wait::{self, until};
use leafhost_grants::Grants;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::Instant;

use crate::endpoint::Error;
use crate::handler::Target;
use crate::registrations::Registered;
use crate::{Shared, keep};

/// Runs until the publisher of components is dropped.
pub async fn run(
    shared: Arc<Shared>,
    mut components: watch::Receiver<Arc<SourceSet>>,
    sender: watch::Sender<Arc<SourceSet>>,
) {
    let mut looks = JoinSet::new();
    let mut socket = shared.socket_problem.subscribe();
    loop {
        let known = Arc::clone(&components.borrow_and_update());
        let deadline = step(&shared, &known, &mut looks);
        keep_registrations(&shared).await;
        let set = joined(&shared, &known);
        wait::publish(&sender, Arc::new(set));
        tokio::select! {
            changed = components.changed() => if changed.is_err() {
                return;
            },
            () = shared.changed.notified() => {}
            Ok(()) = socket.changed() => {}
            Some(looked) = looks.join_next() => if let Ok((source, is_there)) = looked {
                shared.edit(|registrations, now| registrations.looked(&source, is_there, now));
            },
            () = until(deadline) => {}
        }
    }
}

/// Does the work that is due; returns the `Instant` at which more work is due.
fn step(
    shared: &Arc<Shared>,
    components: &SourceSet,
    looks: &mut JoinSet<(String, bool)>,
) -> Option<Instant> {
    let (due, deadline) = shared.registrations(|registrations, now| {
        registrations.tidy(now);
        (registrations.take_looks(now), registrations.deadline(now))
    });
    for (source, registered) in due {
        let grants = components.grants.get(&registered.grants_file());
        let grants = grants.map(|grants| Arc::clone(&grants.text));
        looks.spawn(look(Arc::clone(shared), source, registered, grants));
    }
    deadline
}

/// Probes a handler. The loader and the sessions report what is not allowed.
async fn look(
    shared: Arc<Shared>,
    source: String,
    registered: Registered,
    grants: Option<Arc<str>>,
) -> (String, bool) {
    let grants = Grants::read(grants.as_deref()).unwrap_or_default();
    let target = Target::new(shared, source, registered, &grants);
    let reached = match target.reach().await {
        Err(Error::NotTheFirst(_)) => target.connect().await.map(drop),
        reached => reached.map(drop),
    };
    let is_gone = matches!(reached, Err(Error::Unreachable { .. }));
    (target.source, !is_gone)
}

async fn keep_registrations(shared: &Arc<Shared>) {
    let Some(unkept) = shared.registrations(|registrations, _| registrations.take_unkept()) else {
        return;
    };
    let path = shared.kept.clone();
    let kept = spawn_blocking(move || keep::write(&path, unkept)).await;
    if let Ok(Err(error)) = kept {
        shared.registrations(|registrations, _| registrations.is_unkept = true);
        tracing::warn!(%error, file = %shared.kept.display(),
            "cannot store the registrations of external handlers; after a restart of the agent start these handlers again");
    }
}

/// Returns the components and the external handlers as one set.
fn joined(shared: &Shared, components: &SourceSet) -> SourceSet {
    let mut set = components.clone();
    let sources = shared.registrations(|registrations, now| {
        set.problems.extend(registrations.refusals().cloned());
        registrations.sources(now)
    });
    for (name, source) in sources {
        let grants = components.grants.get(&source.registered.grants_file());
        // A grants file without a component may belong to an external handler.
        let orphaned = grants.and_then(|grants| grants.orphaned.as_ref());
        set.problems.retain(|problem| Some(problem) != orphaned);
        let version = SourceVersion {
            digest: source.digest(),
            grants: grants.map(|grants| Arc::clone(&grants.text)),
        };
        set.files.insert(name, Some(version));
    }
    let problem = shared.socket_problem.borrow().clone();
    set.problems.extend(problem.map(|problem| {
        let subject = format!("external handlers in {}", shared.folder.path().display());
        SourceProblem::new(subject, format!("cannot register: {problem}"))
    }));
    set.problems.sort();
    set
}
