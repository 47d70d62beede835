//! A cluster for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use leafhost_core::brokers::ManifestSet;
use leafhost_core::cluster::{
    Classes, Cluster, ClusterViews, Deleting, EvictionError, NodeLabels, NodeSet, NodeState,
    PodState,
};
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::resource_names::{NameRecord, NameSet, NameStore, Reservation};
use leafhost_core::scheduling::PodKey;
use leafhost_core::status_store::{
    ConfigurationState, ConfigurationStates, ConfigurationStatus, Event, Regarding, ReportSet,
    StatusStore, WriteError,
};
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::metrics::Metrics;

/// In-memory cluster.
pub struct Fake {
    pub leads: watch::Sender<bool>,
    pub nodes: watch::Sender<Arc<NodeSet>>,
    pub node_labels: watch::Sender<Arc<BTreeMap<String, NodeLabels>>>,
    /// Attempted writes of labels.
    pub labelled: Mutex<Vec<(String, BTreeSet<String>)>>,
    pub instances: watch::Sender<Arc<InstanceSet>>,
    /// Resources that pods ask for; `None` if the API server does not answer.
    pub requested: Mutex<Option<BTreeSet<String>>>,
    /// Number of requests for `requested`.
    pub lists: Mutex<usize>,
    pub writes: watch::Sender<Vec<InstanceKey>>,
    /// Attempted writes with their times.
    pub tried: Mutex<Vec<(Instant, InstanceKey)>>,
    /// Number of writes that fail, and the error they fail with.
    pub refuses: Mutex<Option<(usize, WriteError)>>,
    /// Namespaces whose writes get no answer within three seconds.
    pub hangs: Mutex<BTreeSet<&'static str>>,
    /// Runs during the first write.
    pub meanwhile: Mutex<Option<Meanwhile>>,
    pub classes: watch::Sender<Arc<Classes>>,
    pub deleting: watch::Sender<Vec<Deleting>>,
    pub configurations: watch::Sender<Arc<ConfigurationStates>>,
    pub manifests: watch::Sender<Arc<ManifestSet>>,
    pub reports: watch::Sender<Arc<ReportSet>>,
    /// Statuses that were shown, with their times.
    pub shown: Mutex<Vec<(Instant, ConfigurationKey)>>,
    pub events: Mutex<Vec<(Instant, Event)>>,
    pub finalizers: Mutex<Vec<(Instant, String, Vec<String>)>>,
    pub names: watch::Sender<Arc<NameSet>>,
    /// Writes of names, with their times.
    pub named: Mutex<Vec<(Instant, String)>>,
    /// Errors of writes, by name.
    pub unnamed: Mutex<BTreeMap<String, WriteError>>,
    pub metrics: Arc<Metrics>,
    /// Error of status, Event and finalizer writes.
    pub answer: Mutex<Option<WriteError>>,
    pub pods: Mutex<BTreeMap<PodKey, PodState>>,
    /// Error of evictions.
    pub keeps: Mutex<Option<EvictionError>>,
    /// Attempted evictions with their times and the uids of the pods.
    pub evictions: Mutex<Vec<(Instant, PodKey, String)>>,
}

pub type Meanwhile = fn(&Fake);

pub const WITHOUT_END: usize = usize::MAX;

pub fn denied() -> WriteError {
    WriteError::Denied("no right".into())
}

pub fn unanswered() -> WriteError {
    WriteError::NoAnswer {
        message: "no answer".into(),
        retry_after: None,
    }
}

#[async_trait]
impl Cluster for Fake {
    fn views(&self) -> ClusterViews {
        ClusterViews {
            leads: self.leads.subscribe(),
            nodes: self.nodes.subscribe(),
            node_labels: self.node_labels.subscribe(),
            instances: self.instances.subscribe(),
            configurations: self.configurations.subscribe(),
            manifests: self.manifests.subscribe(),
            reports: self.reports.subscribe(),
            names: self.names.subscribe(),
            classes: self.classes.subscribe(),
            deleting: self.deleting.subscribe(),
        }
    }

    async fn set_finalizers(
        &self,
        object: &Deleting,
        finalizers: &[String],
    ) -> Result<(), WriteError> {
        let written = (Instant::now(), object.name.clone(), finalizers.to_vec());
        self.finalizers.lock().unwrap().push(written);
        if self.hangs(&object.namespace).await {
            return Err(unanswered());
        }
        self.answer()
    }

    async fn node(&self, name: &str) -> Result<Option<NodeState>, String> {
        Ok(self.nodes.borrow().nodes.get(name).copied())
    }

    async fn requested(&self, _node: &str) -> Result<BTreeSet<String>, String> {
        *self.lists.lock().unwrap() += 1;
        let requested = self.requested.lock().unwrap().clone();
        requested.ok_or_else(|| "no answer".to_owned())
    }

    async fn write(&self, base: &Instance, change: &Change) -> Result<(), WriteError> {
        let key = change.key();
        self.tried
            .lock()
            .unwrap()
            .push((Instant::now(), key.clone()));
        if self.hangs(&key.namespace).await {
            return Err(unanswered());
        }
        if let Some(meanwhile) = self.meanwhile.lock().unwrap().take() {
            meanwhile(self);
        }
        if let Some((left, error)) = &mut *self.refuses.lock().unwrap()
            && *left > 0
        {
            *left -= 1;
            return Err(error.clone());
        }
        let mut set = InstanceSet::clone(&self.instances.borrow());
        let now = &set.instances[&key].metadata.resource_version;
        if *now != base.metadata.resource_version {
            return Err(WriteError::Outdated);
        }
        match change {
            Change::Update { edits, .. } => {
                let mut after = base.clone();
                for edit in edits {
                    edit.apply(&mut after).unwrap();
                }
                set.instances.insert(key.clone(), Arc::new(newer(after)));
            }
            _ => drop(set.instances.remove(&key)),
        }
        self.instances.send_replace(Arc::new(set));
        self.writes.send_modify(|writes| writes.push(key));
        Ok(())
    }

    async fn pod(&self, key: &PodKey) -> Result<Option<PodState>, EvictionError> {
        Ok(self.pods.lock().unwrap().get(key).cloned())
    }

    async fn evict(&self, key: &PodKey, uid: &str) -> Result<(), EvictionError> {
        let tried = (Instant::now(), key.clone(), uid.to_owned());
        self.evictions.lock().unwrap().push(tried);
        self.keeps.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    async fn label_node(&self, node: &str, labels: &BTreeSet<String>) -> Result<(), WriteError> {
        let tried = (node.to_owned(), labels.clone());
        self.labelled.lock().unwrap().push(tried);
        self.answer()?;
        let mut nodes = BTreeMap::clone(&self.node_labels.borrow());
        let found = nodes.get_mut(node).unwrap();
        found.all = &(&found.all - &found.own) | labels;
        found.own.clone_from(labels);
        self.node_labels.send_replace(Arc::new(nodes));
        Ok(())
    }
}

#[async_trait]
impl StatusStore for Fake {
    async fn show(
        &self,
        key: &ConfigurationKey,
        seen: &ConfigurationState,
        status: &ConfigurationStatus,
    ) -> Result<(), WriteError> {
        self.shown
            .lock()
            .unwrap()
            .push((Instant::now(), key.clone()));
        if self.hangs(key.namespace()).await {
            return Err(unanswered());
        }
        self.answer()?;
        let mut all = ConfigurationStates::clone(&self.configurations.borrow());
        let state = all.configurations.get_mut(key).unwrap();
        if state.resource_version != seen.resource_version {
            return Err(WriteError::Outdated);
        }
        let state = Arc::make_mut(state);
        let version: u64 = state.resource_version.parse().unwrap();
        state.resource_version = (version + 1).to_string();
        state.status = Some(status.clone());
        self.configurations.send_replace(Arc::new(all));
        Ok(())
    }

    async fn publish(&self, event: &Event) -> Result<(), WriteError> {
        self.events
            .lock()
            .unwrap()
            .push((Instant::now(), event.clone()));
        if let Regarding::Configuration(key, _) = &event.regarding
            && self.hangs(key.namespace()).await
        {
            return Err(unanswered());
        }
        self.answer()
    }
}

#[async_trait]
impl NameStore for Fake {
    async fn reserve(&self, name: &str, namespace: &str) -> Result<(), WriteError> {
        self.name(name, format!("{name} for {namespace}"), |records| {
            let record = NameRecord {
                reservation: Reservation {
                    namespace: namespace.to_owned(),
                    created: Some(Timestamp::now()),
                },
                uid: "u".into(),
                resource_version: "1".into(),
                unused_since: None,
            };
            let before = records.insert(name.to_owned(), record);
            assert_eq!(before, None);
        })
    }

    async fn note_unused(
        &self,
        name: &str,
        seen: &NameRecord,
        since: Option<Timestamp>,
    ) -> Result<(), WriteError> {
        let word = if since.is_some() { "unused" } else { "used" };
        self.name(name, format!("{name} {word}"), |records| {
            let record = records.get_mut(name).unwrap();
            assert_eq!(record, seen);
            record.unused_since = since;
        })
    }

    async fn free(&self, name: &str, seen: &NameRecord) -> Result<(), WriteError> {
        self.name(name, format!("{name} free"), |records| {
            let before = records.remove(name);
            assert_eq!(before.as_ref(), Some(seen));
        })
    }
}

/// Returns the Instance with the next resource version.
fn newer(mut instance: Instance) -> Instance {
    let version: u64 = instance.metadata.resource_version.parse().unwrap();
    instance.metadata.resource_version = (version + 1).to_string();
    instance
}

impl Fake {
    /// Creates shared Instances of nodes `a` and `b`; both nodes hold a slot.
    pub fn new(count: usize) -> Arc<Self> {
        Self::with(&[("n", count)])
    }

    /// Creates such Instances in several namespaces.
    pub fn with(namespaces: &[(&str, usize)]) -> Arc<Self> {
        let all = namespaces.iter();
        let all =
            all.flat_map(|(namespace, count)| (1..=*count).map(move |number| (namespace, number)));
        let instances = all.map(|(namespace, number)| {
            let name = format!("cams-{number}");
            let instance: Instance = serde_json::from_value(json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": name, "namespace": namespace, "uid": "u", "resourceVersion": "7"},
                "spec": {"configurationName": "cams", "capacity": 2, "shared": true, "nodes": ["a", "b"],
                    "deviceUsage": {format!("{name}-0"): "b", format!("{name}-1"): "a"}},
            }))
            .unwrap();
            (instance.key(), Arc::new(instance))
        });
        let set = InstanceSet::read(instances.collect());
        let there = NodeState::default();
        let nodes = NodeSet {
            complete: true,
            nodes: BTreeMap::from([("a".to_owned(), there), ("b".to_owned(), there)]),
        };
        let configurations = ConfigurationStates {
            complete: true,
            ..ConfigurationStates::default()
        };
        let reports = ReportSet {
            complete: true,
            ..ReportSet::default()
        };
        let (leads, is_leader) = watch::channel(true);
        Arc::new(Self {
            metrics: Metrics::new(is_leader, None),
            leads,
            nodes: watch::Sender::new(Arc::new(nodes)),
            node_labels: watch::Sender::default(),
            labelled: Mutex::default(),
            instances: watch::Sender::new(Arc::new(set)),
            requested: Mutex::new(Some(BTreeSet::new())),
            writes: watch::Sender::new(Vec::new()),
            lists: Mutex::default(),
            tried: Mutex::default(),
            refuses: Mutex::default(),
            hangs: Mutex::default(),
            meanwhile: Mutex::default(),
            classes: watch::Sender::default(),
            deleting: watch::Sender::default(),
            configurations: watch::Sender::new(Arc::new(configurations)),
            manifests: watch::Sender::default(),
            reports: watch::Sender::new(Arc::new(reports)),
            shown: Mutex::default(),
            events: Mutex::default(),
            finalizers: Mutex::default(),
            names: watch::Sender::new(Arc::new(NameSet::read(BTreeMap::new()))),
            named: Mutex::default(),
            unnamed: Mutex::default(),
            answer: Mutex::default(),
            pods: Mutex::default(),
            keeps: Mutex::default(),
            evictions: Mutex::default(),
        })
    }

    async fn hangs(&self, namespace: &str) -> bool {
        let hangs = self.hangs.lock().unwrap().contains(namespace);
        if hangs {
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        hangs
    }

    fn name(
        &self,
        name: &str,
        told: String,
        write: impl FnOnce(&mut BTreeMap<String, NameRecord>),
    ) -> Result<(), WriteError> {
        self.named.lock().unwrap().push((Instant::now(), told));
        if let Some(error) = self.unnamed.lock().unwrap().get(name) {
            return Err(error.clone());
        }
        let mut records = self.names.borrow().records.clone();
        write(&mut records);
        self.names.send_replace(Arc::new(NameSet::read(records)));
        Ok(())
    }

    fn answer(&self) -> Result<(), WriteError> {
        self.answer.lock().unwrap().clone().map_or(Ok(()), Err)
    }

    /// Edits every Instance, as a user would.
    pub fn edit(&self, edit: impl Fn(&mut Instance)) {
        let mut set = InstanceSet::clone(&self.instances.borrow());
        for instance in set.instances.values_mut() {
            let mut edited = Instance::clone(instance);
            edit(&mut edited);
            *instance = Arc::new(newer(edited));
        }
        self.instances.send_replace(Arc::new(set));
    }

    pub fn tried(&self) -> usize {
        self.tried.lock().unwrap().len()
    }

    pub fn set(&self, node: &str, state: Option<NodeState>) {
        let mut nodes = NodeSet::clone(&self.nodes.borrow());
        match state {
            Some(state) => drop(nodes.nodes.insert(node.to_owned(), state)),
            None => drop(nodes.nodes.remove(node)),
        }
        self.nodes.send_replace(Arc::new(nodes));
    }

    pub async fn written(&self, count: usize) {
        let mut writes = self.writes.subscribe();
        let found = writes
            .wait_for(|writes| writes.len() >= count)
            .await
            .unwrap();
        assert_eq!(found.len(), count);
    }

    /// Returns the number of writes after ten minutes in which nothing else happens.
    pub async fn settled(&self) -> usize {
        tokio::time::sleep(Duration::from_mins(10)).await;
        self.writes.borrow().len()
    }

    pub fn holders(&self) -> Vec<String> {
        let set = self.instances.borrow();
        let usage = set
            .instances
            .values()
            .flat_map(|one| one.spec.device_usage.values());
        usage.cloned().collect()
    }
}
