//! In-memory cluster for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::brokers::{Change, Kind, Object, ObjectKey, Phase, Wanted};
use leafhost_core::cluster::NodeState;
use leafhost_core::configuration::Manifest;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::ResourceNames;
use serde_json::{Value, json};

use crate::brokers::plan::{Plan, World, plan};
use crate::brokers::restarts::Restarts;
use crate::brokers::template::PLACEHOLDER;

/// The Configuration `cams` in namespace `n`, with its Instances and objects.
#[derive(Default)]
pub struct Site {
    pub manifests: BTreeMap<ConfigurationKey, Arc<Manifest>>,
    pub instances: BTreeMap<InstanceKey, Arc<Instance>>,
    pub objects: BTreeMap<ObjectKey, Arc<Object>>,
    pub nodes: BTreeMap<String, NodeState>,
    pub names: ResourceNames,
    pub restarts: Restarts,
    pub now: Timestamp,
    made: usize,
}

/// Returns a `PodSpec` that asks for one slot.
pub fn pod_spec() -> Value {
    json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {PLACEHOLDER: "1"}}}]})
}

pub fn manifest(spec: &Value) -> Manifest {
    let mut manifest = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "cams", "namespace": "n", "uid": "config", "generation": 7},
        "spec": {"discoveryHandler": {"name": "onvif"}},
    });
    let fields = spec.as_object().unwrap().clone();
    manifest["spec"].as_object_mut().unwrap().extend(fields);
    serde_json::from_value(manifest).unwrap()
}

pub fn instance(name: &str, shared: bool, nodes: &[&str], capacity: u32) -> Instance {
    serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "ownerReferences": [
            {"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cams", "uid": "config", "controller": true}]},
        "spec": {"configurationName": "cams", "capacity": capacity, "shared": shared, "nodes": nodes},
    }))
    .unwrap()
}

/// Returns an Instance of the Configuration that [`Site::configure_in`] creates.
pub fn instance_in(namespace: &str, name: &str) -> Instance {
    let mut instance = instance(name, false, &["a"], 1);
    instance.spec.configuration_name = format!("cams-of-{namespace}");
    instance.metadata.namespace = namespace.to_owned();
    instance.metadata.uid = format!("uid-{namespace}-{name}");
    instance
}

impl Site {
    /// Creates a site with nodes `a` and `b`, a Configuration with this spec, and no Instance.
    pub fn new(spec: &Value) -> Self {
        let mut site = Self {
            nodes: ["a", "b"]
                .map(|node| (node.to_owned(), NodeState::default()))
                .into(),
            ..Self::default()
        };
        site.configure(spec);
        site
    }

    /// Creates a site whose brokers ask for one slot each and that has both services.
    pub fn with_pods() -> Self {
        Self::new(&json!({"brokerSpec": {"brokerPodSpec": pod_spec()},
            "instanceServiceSpec": {"ports": [{"port": 80}]}, "configurationServiceSpec": {"ports": [{"port": 80}]}}))
    }

    pub fn configure(&mut self, spec: &Value) {
        let key = ConfigurationKey::new("n", "cams").unwrap();
        self.manifests.insert(key, Arc::new(manifest(spec)));
    }

    /// Copies the Configuration to another namespace under another name, because a name belongs to one namespace.
    pub fn configure_in(&mut self, namespace: &str) {
        let first = self.manifests.values().next().unwrap();
        let mut manifest = Manifest::clone(first);
        let name = format!("cams-of-{namespace}");
        manifest.metadata.namespace = Some(namespace.to_owned());
        manifest.metadata.name.clone_from(&name);
        let key = ConfigurationKey::new(namespace, &name).unwrap();
        self.manifests.insert(key, Arc::new(manifest));
    }

    pub fn add(&mut self, instance: Instance) {
        self.instances.insert(instance.key(), Arc::new(instance));
    }

    pub fn edit(&mut self, name: &str, edit: impl FnOnce(&mut Instance)) {
        let key = InstanceKey::new("n", name);
        edit(Arc::make_mut(self.instances.get_mut(&key).unwrap()));
    }

    pub fn plan(&mut self) -> Plan {
        let world = World {
            manifests: &self.manifests,
            instances: &self.instances,
            objects: &self.objects,
            nodes: &self.nodes,
            names: &self.names,
        };
        plan(&world, &mut self.restarts, self.now)
    }

    /// Applies the plan and returns which objects were created, replaced and deleted. Deleted objects are gone at once.
    pub fn step(&mut self) -> Vec<String> {
        let changes = self.plan().changes;
        changes
            .iter()
            .map(|(_, change)| self.apply(change))
            .collect()
    }

    pub fn apply(&mut self, change: &Change) -> String {
        let key = change.key().clone();
        let name = &key.name;
        match change {
            Change::Create(Wanted { body, made_of, .. }) => {
                let told = format!("+{name}");
                let object = self.object(body, made_of);
                assert!(self.objects.insert(key, Arc::new(object)).is_none());
                told
            }
            Change::Replace { wanted, .. } => {
                let Wanted { made_of, body, .. } = wanted;
                let owner = body["metadata"]["ownerReferences"][0]["uid"].as_str();
                let object = Arc::make_mut(self.objects.get_mut(&key).unwrap());
                object.made_of = Some(made_of.clone());
                object.owner = object.owner.take().or_else(|| owner.map(str::to_owned));
                format!("={name}")
            }
            Change::Delete { uid, .. } => {
                assert_eq!(self.objects.remove(&key).unwrap().uid, *uid);
                format!("-{name}")
            }
        }
    }

    fn object(&mut self, body: &Value, made_of: &str) -> Object {
        self.made += 1;
        let label = |name: &str| {
            let label = &body["metadata"]["labels"][name];
            label.as_str().map(str::to_owned)
        };
        let owner = body["metadata"]["ownerReferences"][0]["uid"].as_str();
        Object {
            uid: format!("object-{}", self.made),
            owner: owner.map(str::to_owned),
            is_made: label("controller").is_some(),
            configuration: label("akri.sh/configuration"),
            instance: label("akri.sh/instance"),
            node: label("akri.sh/target-node"),
            made_of: Some(made_of.to_owned()),
            is_deleting: false,
            phase: Phase::Pending,
        }
    }

    pub fn change(&mut self, kind: Kind, name: &str, change: impl FnOnce(&mut Object)) {
        let key = key(kind, name);
        change(Arc::make_mut(self.objects.get_mut(&key).unwrap()));
    }

    /// Sets the phase of these pods to running and gives each a slot of the Instance.
    pub fn run(&mut self, instance: &str, pods: &[(&str, &str)]) {
        for (slot, (name, node)) in pods.iter().enumerate() {
            self.change(Kind::Pod, name, |pod| pod.phase = Phase::Running);
            self.hold(instance, slot, node);
        }
    }

    pub fn hold(&mut self, instance: &str, slot: usize, node: &str) {
        self.edit(instance, |one| {
            let id = format!("{instance}-{slot}");
            one.spec.device_usage.insert(id, node.to_owned());
        });
    }
}

pub fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey {
        kind,
        namespace: "n".into(),
        name: name.into(),
    }
}
