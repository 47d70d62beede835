//! What the watches show: Instances that come, change and go.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use kube::api::Api;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use leafhost_core::instance::{InstanceKey, NODE_LABEL, SHARED_LABEL};
use leafhost_core::instance_view::Scope;
use leafhost_core::names::label_value;

use super::object::InstanceObject;
use super::{IN_FLIGHT, Shared};
use crate::watch::Watch;

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
    loop {
        let mut gone = Vec::new();
        let mut next = Some(watch.next().await);
        for _ in 0..TOGETHER {
            match next {
                Some(Ok(event)) => {
                    // A list begins before the API server has said anything.
                    if !matches!(event, Event::Init) {
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
        // An object that has lost its label is still there.
        let looks = gone
            .into_iter()
            .map(|(key, uid)| look_for(shared, key, uid));
        futures::stream::iter(looks)
            .buffer_unordered(IN_FLIGHT)
            .collect::<()>()
            .await;
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

/// Takes an object away if it is not there any more. What cannot be told now is told by the next list.
async fn look_for(shared: &Shared, key: InstanceKey, uid: String) {
    let Ok(found) = shared.look(&key).await else {
        return;
    };
    if found.is_none_or(|found| found.metadata.uid != uid) {
        shared.saw_deletion(&key, &uid);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use leafhost_core::ports::InstanceStore as _;
    use tokio::sync::mpsc;

    use crate::instances::KubeInstances;
    use crate::stub::{Answer, Stub, failure};

    #[tokio::test]
    async fn watches_are_interrupted_until_the_api_server_has_answered() {
        let (requests, silent) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let stub = Stub::start(move |_| {
            if requests.fetch_add(1, Ordering::Relaxed) < 2 {
                return failure(500, "broken");
            }
            let (sender, events) = mpsc::unbounded_channel();
            silent.lock().unwrap().push(sender);
            Answer::Events(events)
        })
        .await;
        let folder = tempfile::tempdir().unwrap();
        let memory = folder.path().join("instances.json");
        let store = KubeInstances::watch(&stub.client, "node-a", memory);
        let mut set = store.instances();
        set.wait_for(|set| set.interrupted.is_some()).await.unwrap();
        while stub.requests("") < 4 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(set.borrow().interrupted.is_some());
    }
}
