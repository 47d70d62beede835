use std::sync::Mutex;

use async_trait::async_trait;
use leafhost_core::cluster::NodeState;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::Change;
use serde_json::json;
use tokio::sync::watch;

use super::*;

/// A cluster of plain data.
struct Fake {
    leads: watch::Sender<bool>,
    nodes: watch::Sender<Arc<NodeSet>>,
    instances: watch::Sender<Arc<InstanceSet>>,
    /// What pods ask for; nothing if the API server does not answer.
    requested: Mutex<Option<BTreeSet<String>>>,
    writes: watch::Sender<Vec<InstanceKey>>,
    conflicts: Mutex<usize>,
}

#[async_trait]
impl Cluster for Fake {
    fn leads(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>> {
        self.nodes.subscribe()
    }

    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>> {
        self.instances.subscribe()
    }

    async fn has_node(&self, name: &str) -> Result<bool, ReadError> {
        Ok(self.nodes.borrow().nodes.contains_key(name))
    }

    async fn requested(&self, _node: &str) -> Result<BTreeSet<String>, ReadError> {
        let requested = self.requested.lock().unwrap().clone();
        requested.ok_or_else(|| ReadError {
            what: "pods".into(),
            why: "no answer".into(),
        })
    }

    async fn write(&self, base: &Instance, change: &Change) -> Result<(), StoreError> {
        let key = change.key();
        let mut conflicts = self.conflicts.lock().unwrap();
        if *conflicts > 0 {
            *conflicts -= 1;
            return Err(StoreError::Conflict { key });
        }
        let mut after = base.clone();
        let mut set = InstanceSet::clone(&self.instances.borrow());
        match change {
            Change::Update { edits, .. } => {
                for edit in edits {
                    edit.apply(&mut after).unwrap();
                }
                set.instances.insert(key.clone(), Arc::new(after));
            }
            _ => drop(set.instances.remove(&key)),
        }
        self.instances.send_replace(Arc::new(set));
        self.writes.send_modify(|writes| writes.push(key));
        Ok(())
    }
}

impl Fake {
    /// A shared Instance of nodes `a` and `b`, which both have a slot; the controller runs.
    fn start() -> (
        Arc<Self>,
        tokio_util::task::AbortOnDropHandle<Result<(), Error>>,
    ) {
        let instance: Instance = serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": "cams-1", "namespace": "n", "uid": "u", "resourceVersion": "7"},
            "spec": {"configurationName": "cams", "capacity": 2, "shared": true, "nodes": ["a", "b"],
                "deviceUsage": {"cams-1-0": "b", "cams-1-1": "a"}},
        }))
        .unwrap();
        let set = InstanceSet::read(BTreeMap::from([(instance.key(), Arc::new(instance))]));
        let there = NodeState::default();
        let nodes = NodeSet {
            complete: true,
            nodes: BTreeMap::from([("a".to_owned(), there), ("b".to_owned(), there)]),
        };
        let fake = Arc::new(Self {
            leads: watch::Sender::new(true),
            nodes: watch::Sender::new(Arc::new(nodes)),
            instances: watch::Sender::new(Arc::new(set)),
            requested: Mutex::new(Some(BTreeSet::new())),
            writes: watch::Sender::new(Vec::new()),
            conflicts: Mutex::new(0),
        });
        let controller = Controller::new(fake.clone());
        let task = tokio::spawn(controller.run(CancellationToken::new()));
        (fake, tokio_util::task::AbortOnDropHandle::new(task))
    }

    fn set(&self, node: &str, state: Option<NodeState>) {
        let mut nodes = NodeSet::clone(&self.nodes.borrow());
        match state {
            Some(state) => drop(nodes.nodes.insert(node.to_owned(), state)),
            None => drop(nodes.nodes.remove(node)),
        }
        self.nodes.send_replace(Arc::new(nodes));
    }

    async fn written(&self, count: usize) {
        let mut writes = self.writes.subscribe();
        let found = writes
            .wait_for(|writes| writes.len() >= count)
            .await
            .unwrap();
        assert_eq!(found.len(), count);
    }

    /// What follows within ten minutes if nothing else happens.
    async fn settled(&self) -> usize {
        tokio::time::sleep(Duration::from_mins(10)).await;
        self.writes.borrow().len()
    }

    fn holders(&self) -> Vec<String> {
        let set = self.instances.borrow();
        let usage = set
            .instances
            .values()
            .flat_map(|one| one.spec.device_usage.values());
        usage.cloned().collect()
    }
}

fn not_ready(ago: Duration) -> NodeState {
    NodeState {
        is_out_of_service: false,
        not_ready_since: Some(Timestamp::now() - ago),
    }
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_deleted_node_are_free_with_one_write() {
    let (fake, _task) = Fake::start();
    assert_eq!(fake.settled().await, 0);
    fake.set("b", None);
    fake.written(1).await;
    assert_eq!(fake.holders(), ["", "a"]);
    assert_eq!(fake.settled().await, 1);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_writes_nothing_and_who_becomes_leader_begins() {
    let (fake, _task) = Fake::start();
    fake.leads.send_replace(false);
    fake.set("b", None);
    assert_eq!(fake.settled().await, 0);
    fake.leads.send_replace(true);
    fake.written(1).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_before_all_nodes_are_known() {
    let (fake, _task) = Fake::start();
    fake.nodes.send_replace(Arc::default());
    assert_eq!(fake.settled().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_keeps_its_slots_until_no_pod_of_it_asks_for_them() {
    let (fake, _task) = Fake::start();
    *fake.requested.lock().unwrap() = Some(BTreeSet::from(["akri.sh/cams".to_owned()]));
    fake.set("b", Some(not_ready(Duration::from_mins(7))));
    assert_eq!(fake.settled().await, 0);
    *fake.requested.lock().unwrap() = None;
    assert_eq!(fake.settled().await, 0);
    *fake.requested.lock().unwrap() = Some(BTreeSet::new());
    fake.written(1).await;
    assert_eq!(fake.holders(), ["", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_somebody_was_quicker_than_is_tried_again() {
    let (fake, _task) = Fake::start();
    *fake.conflicts.lock().unwrap() = 2;
    let out = NodeState {
        is_out_of_service: true,
        not_ready_since: None,
    };
    fake.set("b", Some(out));
    fake.written(1).await;
}
