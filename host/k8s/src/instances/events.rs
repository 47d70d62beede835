//! What the watches show: Instances that come, change and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::Api;
use kube::core::DeserializeGuard;
use leafhost_core::instance::{InstanceKey, NODE_LABEL, SHARED_LABEL};
use leafhost_core::instance_view::Scope;
use leafhost_core::names::label_value;
use tokio::time::Instant;

use super::object::InstanceObject;
use super::{IN_FLIGHT, Shared};
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
pub async fn follow(shared: Arc<Shared>, api: Api<Object>, scope: Scope, node: String) {
    let guard = Guard(shared);
    let shared = &guard.0;
    let selector = match scope {
        Scope::Local => format!("{NODE_LABEL}={}", label_value(&node)),
        Scope::Shared => format!("{SHARED_LABEL}=true"),
    };
    let mut watch = Watch::new(api).labels(&selector);
    let mut gone: BTreeSet<(InstanceKey, String)> = BTreeSet::new();
    let (mut failures, mut again) = (0_u32, None);
    loop {
        let mut next = tokio::select! {
            event = watch.next() => Some(event),
            () = until(again) => None,
        };
        for _ in 0..TOGETHER {
            match next {
                Some(Ok(event)) => {
                    if matches!(event, Event::InitDone | Event::Resumed) {
                        shared.interrupted(scope, None);
                    }
                    gone.extend(take_in(shared, scope, event));
                }
                Some(Err(failure)) => {
                    shared.interrupted(scope, Some(failure.told("instances.akri.sh")));
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
        Event::Resumed => {}
        Event::InitDone => {
            let mut state = shared.state();
            state.view.list_ended(scope);
            state.unread.remove(&scope);
        }
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
            let state = shared.state();
            let held = state.view.instances().get(&key);
            return held
                .is_some_and(|held| held.metadata.uid == uid)
                .then_some((key, uid));
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
