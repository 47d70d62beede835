//! Follows the watches: Instances that appear, change and disappear.
//!
//! Does not use `crate::index`, because events and the answers to own writes go to one view, in which the newest version wins.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use leafhost_core::instance::{Instance, InstanceKey, NODE_LABEL, SHARED_LABEL};
use leafhost_core::instance_view::Scope;
use leafhost_core::names::label_value;
use tokio::time::Instant;

use super::{IN_FLIGHT, Shared};
use crate::answers;
use crate::instance::{self, InstanceObject, REQUEST};
use crate::watch::{Event, Watch};
use crate::{backoff, until};

/// Scopes of the watches.
pub const SCOPES: [Scope; 2] = [Scope::Local, Scope::Shared];
/// Shortest interval between two publications of watched changes, since each makes every task look at all Instances. The node's own writes
/// are published at once.
const SPACING: Duration = Duration::from_millis(50);

/// An object, or the reason why it cannot be read.
pub type Object = DeserializeGuard<InstanceObject>;

/// Returns the label selector of the Instances of a scope.
pub fn selector(scope: Scope, node: &str) -> String {
    match scope {
        Scope::Local => format!("{NODE_LABEL}={}", label_value(node)),
        Scope::Shared => format!("{SHARED_LABEL}=true"),
    }
}

/// Follows one watch forever.
pub async fn follow(shared: Arc<Shared>, api: Api<Object>, scope: Scope) {
    let shared = &shared;
    let mut watch = Watch::new(api.clone()).labels(&selector(scope, &shared.node));
    let mut restored = shared.restored.subscribe();
    let mut gone: BTreeSet<(InstanceKey, String)> = BTreeSet::new();
    let (mut failures, mut again) = (0_u32, None);
    // Time of the next publication; set while there is a change to publish.
    let mut publication: Option<Instant> = None;
    let mut earliest = Instant::now();
    loop {
        let due = publication.into_iter().chain(again).min();
        tokio::select! {
            event = watch.next() => {
                publication.get_or_insert(earliest);
                match event {
                    Ok(Event::InitDone(listed)) => {
                        shared.interrupted(scope, None);
                        if list_ended(shared, &api, scope, listed).await {
                            // This list is from after the restore.
                            restored.mark_unchanged();
                        }
                    }
                    Ok(Event::Resumed) => shared.interrupted(scope, None),
                    Ok(event) => gone.extend(take_in(shared, scope, event)),
                    Err(failure) => {
                        shared.interrupted(scope, Some(failure.describe_watch("instances.akri.sh")));
                    }
                }
            }
            () = until(due) => {
                publication = None;
                // An object that left a watch may only have lost its label, so each is looked up, and again while the API server does not
                // answer: no other event reports it.
                if again.is_none_or(|again| again <= Instant::now()) {
                    let looks = gone.into_iter();
                    let looks = looks.map(|(key, uid)| look_for(shared, key, uid));
                    let looks = futures::stream::iter(looks).buffer_unordered(IN_FLIGHT);
                    gone = looks.filter_map(std::future::ready).collect().await;
                    failures = if gone.is_empty() { 0 } else { failures + 1 };
                    again = (failures > 0).then(|| Instant::now() + backoff(failures));
                }
                shared.publish();
                earliest = Instant::now() + SPACING;
            }
            // `shared` holds the sender, so the channel stays open.
            Ok(()) = restored.changed() => watch.restart(),
        }
    }
}

/// Handles the end of a list. Returns true if the list shows that the database was restored: the list is older than known versions, and so
/// is the database. If only the list is older, the server that answered lags behind, and newer objects stay.
async fn list_ended(shared: &Shared, api: &Api<Object>, scope: Scope, listed: u64) -> bool {
    let overtaken = shared.state().view.overtaken(scope, listed);
    let is_restored = match overtaken {
        Some(newest) => current(api).await.is_some_and(|current| current < newest),
        None => false,
    };
    let mut state = shared.state();
    if is_restored {
        state.view.list_restored(scope, listed);
        state.unread.remove(&scope);
        drop(state);
        tracing::warn!(
            "the API server has returned to an earlier state; the agent now uses that state"
        );
        shared.restored.send_modify(|signs| *signs += 1);
    } else {
        state.view.list_ended(scope, listed);
        state.unread.remove(&scope);
    }
    is_restored
}

/// Returns the current resource version of the database, or `None` if the API server does not answer.
async fn current(api: &Api<Object>) -> Option<u64> {
    let least = ListParams::default().limit(1);
    let answer = answers::within(REQUEST, api.list(&least)).await.ok()?;
    answer.metadata.resource_version?.parse().ok()
}

/// Handles an event; returns the object that it reports as gone.
fn take_in(shared: &Shared, scope: Scope, event: Event<Object>) -> Option<(InstanceKey, String)> {
    match event {
        Event::Init => shared.state().view.list_begins(scope),
        Event::InitApply(object) | Event::Apply(object) => match object.0 {
            Ok(object) => drop(shared.observe(object)),
            Err(invalid) => {
                let name = invalid.metadata.name.unwrap_or_default();
                let error = invalid.error;
                tracing::warn!(instance = name, error, "cannot read an Instance");
            }
        },
        Event::Resumed | Event::InitDone(_) => {}
        Event::Delete(object) => {
            let (key, uid) = (instance::key(&object), object.uid().unwrap_or_default());
            let held = shared.state().view.instances().get(&key).cloned();
            let held = held.filter(|held| held.metadata.uid == uid);
            let is_ours = |held: &Instance| scope == Scope::Local || held.concerns(&shared.node);
            if held.is_some_and(|held| is_ours(&held)) {
                return Some((key, uid));
            }
            // The nodes that use the object find out whether it exists without its label, and restore the label.
            let version = object.resource_version().unwrap_or_default();
            shared.observe_leave(&key, &uid, version.parse().unwrap_or_default());
        }
    }
    None
}

/// Removes an object from the view if it no longer exists; returns it if that is unknown.
async fn look_for(shared: &Shared, key: InstanceKey, uid: String) -> Option<(InstanceKey, String)> {
    let Ok(found) = shared.look(&key).await else {
        return Some((key, uid));
    };
    if found.is_none_or(|found| found.metadata.uid != uid) {
        shared.observe_deletion(&key, &uid);
    }
    None
}

#[cfg(test)]
mod tests;
