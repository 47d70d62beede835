//! Simulated API server: Instances, pods, Nodes, and failures.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use leafhost_core::instance::{Edit, Instance, InstanceKey};
use leafhost_core::ports::{StoreError, Written};
use leafhost_core::scheduling::{BindingArgs, Cluster, Given, NodeSeen, Pod, PodError, PodKey};

/// Outcome of a Binding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    Well,
    Refused,
    /// Applied, but without an answer.
    Unheard,
    /// Not applied, and without an answer.
    Lost,
}

/// Simulated API server: Instances, pods, Nodes, and failures.
pub struct Played {
    pub instances: Mutex<BTreeMap<InstanceKey, Arc<Instance>>>,
    pub pods: Mutex<BTreeMap<PodKey, Pod>>,
    pub binds: Mutex<Vec<Given>>,
    pub ends: Mutex<Ends>,
    pub tried: Mutex<Vec<PodKey>>,
    pub told: Mutex<Vec<String>>,
    pub nodes: Mutex<BTreeMap<String, NodeSeen>>,
    pub version: AtomicUsize,
    /// Number of the next edits that are not made.
    pub refused: AtomicUsize,
    /// Number of the next edits that are made without an answer.
    pub unheard: AtomicUsize,
    /// Instance and slot usage that another client writes before the next edit.
    pub meanwhile: Mutex<Option<(String, String)>>,
}

impl Default for Played {
    fn default() -> Self {
        Self {
            instances: Mutex::default(),
            pods: Mutex::default(),
            binds: Mutex::default(),
            ends: Mutex::new(Ends::Well),
            tried: Mutex::default(),
            told: Mutex::default(),
            nodes: Mutex::default(),
            version: AtomicUsize::new(1),
            refused: AtomicUsize::new(0),
            unheard: AtomicUsize::new(0),
            meanwhile: Mutex::default(),
        }
    }
}

impl Played {
    pub fn put(&self, mut instance: Instance) -> Arc<Instance> {
        let version = self.version.fetch_add(1, Ordering::Relaxed);
        instance.metadata.resource_version = version.to_string();
        let instance = Arc::new(instance);
        let mut all = self.instances.lock().unwrap();
        all.insert(instance.key(), Arc::clone(&instance));
        instance
    }

    pub fn get(&self, name: &str) -> Arc<Instance> {
        let all = self.instances.lock().unwrap();
        let mut found = all.values().filter(|one| one.metadata.name == name);
        Arc::clone(found.next().unwrap())
    }

    pub fn usage(&self, name: &str) -> String {
        self.get(name).usage(&format!("{name}-0")).to_owned()
    }

    pub fn set_usage(&self, name: &str, usage: &str) -> Arc<Instance> {
        let mut instance = Instance::clone(&self.get(name));
        let slots = &mut instance.spec.device_usage;
        slots.insert(format!("{name}-0"), usage.to_owned());
        self.put(instance)
    }
}

#[async_trait]
impl Cluster for Played {
    async fn pod(&self, key: &PodKey) -> Result<Option<Pod>, PodError> {
        Ok(self.pods.lock().unwrap().get(key).cloned())
    }

    async fn bind(&self, target: &BindingArgs, given: &Given) -> Result<(), PodError> {
        let ends = *self.ends.lock().unwrap();
        if ends == Ends::Refused {
            return Err(PodError::Failed("it is bound already".to_owned()));
        }
        if ends == Ends::Lost {
            return Err(PodError::Unknown("no answer".to_owned()));
        }
        let mut pods = self.pods.lock().unwrap();
        let found = pods.get_mut(&target.key());
        let found = found.filter(|found| found.uid == target.uid);
        let found = found.ok_or(PodError::Failed("the pod is gone".to_owned()))?;
        found.node.clone_from(&target.node);
        found.bound_at = "2026-11-26T12:00:00Z".to_owned();
        found.allocated = given.clone();
        self.binds.lock().unwrap().push(given.clone());
        match ends {
            Ends::Unheard => Err(PodError::Unknown("no answer".to_owned())),
            _ => Ok(()),
        }
    }

    async fn try_again(&self, pod: &PodKey, _uid: &str) -> Result<(), PodError> {
        self.tried.lock().unwrap().push(pod.clone());
        Ok(())
    }

    async fn set_lock(
        &self,
        node: &str,
        version: &str,
        lock: Option<&str>,
    ) -> Result<Option<NodeSeen>, PodError> {
        let next = self.version.fetch_add(1, Ordering::Relaxed);
        let mut nodes = self.nodes.lock().unwrap();
        let found = nodes
            .get_mut(node)
            .ok_or(PodError::Failed("the pod is gone".to_owned()))?;
        if found.version != version {
            return Ok(None);
        }
        *found = NodeSeen {
            version: next.to_string(),
            lock: lock.unwrap_or_default().to_owned(),
        };
        Ok(Some(found.clone()))
    }

    async fn record_event(&self, _pod: &BindingArgs, reason: &str, message: &str, _: bool) {
        self.told
            .lock()
            .unwrap()
            .push(format!("{reason}: {message}"));
    }

    async fn instance(&self, key: &InstanceKey) -> Result<Option<Arc<Instance>>, PodError> {
        Ok(self.instances.lock().unwrap().get(key).cloned())
    }

    async fn edit(&self, edits: Vec<(Arc<Instance>, Vec<Edit>)>) -> Vec<Written> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some((name, usage)) = meanwhile {
            self.set_usage(&name, &usage);
        }
        let one = |(base, edits): (Arc<Instance>, Vec<Edit>)| {
            let key = base.key();
            let left = self.refused.load(Ordering::Relaxed);
            if left > 0 {
                self.refused.store(left - 1, Ordering::Relaxed);
                return Err(StoreError::Unavailable {
                    key,
                    message: "the API server is unreachable".to_owned(),
                    retry_after: None,
                });
            }
            let found = self.instances.lock().unwrap().get(&key).cloned();
            let Some(found) = found else {
                return Err(StoreError::Gone { key });
            };
            let mut instance = Instance::clone(&found);
            for edit in edits {
                if edit.apply(&mut instance).is_err() {
                    return Err(StoreError::Conflict { key });
                }
            }
            let instance = self.put(instance);
            let left = self.unheard.load(Ordering::Relaxed);
            if left > 0 {
                self.unheard.store(left - 1, Ordering::Relaxed);
                return Err(StoreError::Unknown {
                    key,
                    message: "no answer".to_owned(),
                });
            }
            Ok(Some(instance))
        };
        edits.into_iter().map(one).collect()
    }
}
