//! What the watches show: Instances that come, change and go.
//!
//! No index holds them: events meet the answers to own writes in one view, where the newest version wins.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::{Api, ListParams};
use kube::core::DeserializeGuard;
use leafhost_core::instance::{Instance, InstanceKey, NODE_LABEL, SHARED_LABEL};
use leafhost_core::instance_view::Scope;
use leafhost_core::names::label_value;
use tokio::time::Instant;

use super::{IN_FLIGHT, Shared};
use crate::answers;
use crate::instance::{InstanceObject, REQUEST};
use crate::watch::{Event, Watch};
use crate::{backoff, until};

/// The watches.
pub const SCOPES: [Scope; 2] = [Scope::Local, Scope::Shared];
/// The most events that are taken in before what they come to is shown.
const TOGETHER: usize = 1024;
/// The least time between two showings of what came by a watch: each makes every task look at all Instances. What this node writes is
/// shown at once.
const SPACING: Duration = Duration::from_millis(50);

/// An object, or why it cannot be read.
pub type Object = DeserializeGuard<InstanceObject>;

/// Ends what is shown, so that whoever waits for it learns that nothing follows.
struct Guard(Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.state().set = None;
    }
}

/// Follows one watch without end.
pub async fn follow(shared: Arc<Shared>, api: Api<Object>, scope: Scope) {
    let guard = Guard(shared);
    let shared = &guard.0;
    let selector = match scope {
        Scope::Local => format!("{NODE_LABEL}={}", label_value(&shared.node)),
        Scope::Shared => format!("{SHARED_LABEL}=true"),
    };
    let mut watch = Watch::new(api.clone()).labels(&selector);
    let mut restored = shared.restored.subscribe();
    let mut gone: BTreeSet<(InstanceKey, String)> = BTreeSet::new();
    let (mut failures, mut again) = (0_u32, None);
    loop {
        let mut next = tokio::select! {
            event = watch.next() => Some(event),
            () = until(again) => None,
            // Its sender is there as long as this is.
            Ok(()) = restored.changed() => {
                watch.restart();
                None
            }
        };
        for _ in 0..TOGETHER {
            match next {
                Some(Ok(event)) => {
                    if matches!(event, Event::InitDone | Event::Resumed) {
                        shared.interrupted(scope, None);
                    }
                    if matches!(event, Event::InitDone) {
                        list_ended(shared, &api, scope, watch.listed()).await;
                        // Its own list is not read again.
                        restored.mark_unchanged();
                    }
                    gone.extend(take_in(shared, scope, event));
                }
                Some(Err(failure)) => {
                    shared.interrupted(scope, Some(failure.told_of("instances.akri.sh")));
                }
                None => break,
            }
            next = watch.try_next();
        }
        // An object that has lost its label is still there. Nothing else tells of one about which the API server does not answer.
        if again.is_none_or(|again| again <= Instant::now()) {
            let looks = gone.into_iter();
            let looks = looks.map(|(key, uid)| look_for(shared, key, uid));
            let looks = futures::stream::iter(looks).buffer_unordered(IN_FLIGHT);
            gone = looks.filter_map(std::future::ready).collect().await;
            failures = if gone.is_empty() { 0 } else { failures + 1 };
            again = (failures > 0).then(|| Instant::now() + backoff(failures));
        }
        shared.publish();
        tokio::time::sleep(SPACING).await;
    }
}

/// Takes the end of a list in. One that is older than what was seen before is believed if the database itself is older.
async fn list_ended(shared: &Shared, api: &Api<Object>, scope: Scope, listed: u64) {
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
        tracing::warn!("the API server has gone back to an earlier state, and so does this agent");
        shared.restored.send_modify(|signs| *signs += 1);
    } else {
        state.view.list_ended(scope, listed);
        state.unread.remove(&scope);
    }
}

/// The version of the database, which is asked itself.
async fn current(api: &Api<Object>) -> Option<u64> {
    let least = ListParams::default().limit(1);
    let answer = answers::within(REQUEST, api.list(&least)).await.ok()?;
    answer.metadata.resource_version?.parse().ok()
}

/// Takes an event in; returns what it says is gone.
fn take_in(shared: &Shared, scope: Scope, event: Event<Object>) -> Option<(InstanceKey, String)> {
    match event {
        Event::Init => shared.state().view.list_begins(scope),
        Event::InitApply(object) | Event::Apply(object) => match object.0 {
            Ok(object) => drop(shared.saw(object)),
            Err(invalid) => {
                let name = invalid.metadata.name.unwrap_or_default();
                let error = invalid.error;
                tracing::warn!(instance = name, error, "cannot read an Instance");
            }
        },
        Event::Resumed | Event::InitDone => {}
        Event::Delete(object) => {
            let metadata = match object.0 {
                Ok(object) => object.metadata,
                Err(invalid) => invalid.metadata,
            };
            let key = InstanceKey {
                namespace: metadata.namespace.unwrap_or_default(),
                name: metadata.name.unwrap_or_default(),
            };
            let uid = metadata.uid.unwrap_or_default();
            let held = shared.state().view.instances().get(&key).cloned();
            let held = held.filter(|held| held.metadata.uid == uid);
            let is_ours = |held: &Instance| scope == Scope::Local || held.concerns(&shared.node);
            if held.is_some_and(|held| is_ours(&held)) {
                return Some((key, uid));
            }
            // The nodes that have it find out whether it is there without its label, and give that back.
            let version = metadata.resource_version.unwrap_or_default();
            shared.saw_leave(&key, &uid, version.parse().unwrap_or_default());
        }
    }
    None
}

/// Takes an object away if it is not there any more; returns it if that cannot be told.
async fn look_for(shared: &Shared, key: InstanceKey, uid: String) -> Option<(InstanceKey, String)> {
    let Ok(found) = shared.look(&key).await else {
        return Some((key, uid));
    };
    if found.is_none_or(|found| found.metadata.uid != uid) {
        shared.saw_deletion(&key, &uid);
    }
    None
}

#[cfg(test)]
mod tests;
