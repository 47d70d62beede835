//! Benchmarks of one planning pass over the brokers of a cluster: once when each Instance gets a pod on both of its nodes, and once when
//! all pods run and nothing is to be written. Throughput is Instances per second, so a cost that grows faster than the number of Instances
//! shows as a falling number.
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::collections::BTreeMap;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use jiff::Timestamp;
use leafhost_controller::brokers::{Restarts, World, plan};
use leafhost_core::brokers::{
    CONFIGURATION_LABEL, Change, INSTANCE_LABEL, Object, ObjectKey, Phase, TARGET_NODE_LABEL,
};
use leafhost_core::cluster::NodeState;
use leafhost_core::configuration::Manifest;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::ResourceNames;
use serde_json::{Value, json};

/// A Configuration with brokers and services, and its Instances.
struct Site {
    manifests: BTreeMap<ConfigurationKey, Arc<Manifest>>,
    instances: BTreeMap<InstanceKey, Arc<Instance>>,
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    nodes: BTreeMap<String, NodeState>,
}

impl Site {
    fn new(instances: u64) -> Self {
        let ports = json!({"ports": [{"port": 80}]});
        let resources = json!({"limits": {"{{PLACEHOLDER}}": "1"}});
        let manifest = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": "cameras", "namespace": "n", "uid": "configuration", "generation": 1},
            "spec": {"discoveryHandler": {"name": "bench"}, "capacity": 2,
                "brokerSpec": {"brokerPodSpec": {"containers": [{"name": "c", "image": "i", "resources": resources}]}},
                "instanceServiceSpec": ports, "configurationServiceSpec": ports},
        });
        let key = ConfigurationKey::new("n", "cameras").unwrap();
        let instances = (0..instances).map(|number| {
            let instance = instance(&format!("cameras-{number:06}"));
            (instance.key(), Arc::new(instance))
        });
        let node = |name: &str| (name.to_owned(), NodeState::default());
        Self {
            manifests: BTreeMap::from([(key, Arc::new(serde_json::from_value(manifest).unwrap()))]),
            instances: instances.collect(),
            objects: BTreeMap::new(),
            nodes: BTreeMap::from([node("node-a"), node("node-b")]),
        }
    }

    fn plan(&self) -> Vec<Change> {
        let world = World {
            manifests: &self.manifests,
            instances: &self.instances,
            objects: &self.objects,
            nodes: &self.nodes,
            names: &ResourceNames::default(),
        };
        let plan = plan(&world, &mut Restarts::default(), Timestamp::UNIX_EPOCH);
        plan.changes.into_iter().map(|(_, change)| change).collect()
    }

    /// Applies the planned changes. Pods run at once and hold their slots.
    fn create(&mut self) {
        for change in self.plan() {
            let Change::Create(wanted) = change else {
                continue;
            };
            let object = object(&wanted.key, &wanted.body, wanted.made_of);
            self.objects.insert(wanted.key, Arc::new(object));
        }
        for instance in self.instances.values_mut() {
            let name = instance.metadata.name.clone();
            let nodes = self.nodes.keys().enumerate();
            let slots = nodes.map(|(slot, node)| (format!("{name}-{slot}"), node.clone()));
            Arc::make_mut(instance).spec.device_usage = slots.collect();
        }
    }
}

/// Returns a shared Instance that two nodes see.
fn instance(name: &str) -> Instance {
    let owner = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cameras", "uid": "configuration", "controller": true});
    serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}"), "ownerReferences": [owner]},
        "spec": {"configurationName": "cameras", "capacity": 2, "shared": true, "nodes": ["node-a", "node-b"]},
    }))
    .unwrap()
}

fn object(key: &ObjectKey, body: &Value, made_of: String) -> Object {
    let labels = body.pointer("/metadata/labels").unwrap();
    let label = |name: &str| {
        let label = labels.get(name).and_then(Value::as_str);
        label.map(str::to_owned)
    };
    let owner = body.pointer("/metadata/ownerReferences/0/uid");
    let owner = owner.and_then(Value::as_str);
    Object {
        uid: key.to_string(),
        owner: owner.map(str::to_owned),
        is_made: true,
        configuration: label(CONFIGURATION_LABEL),
        instance: label(INSTANCE_LABEL),
        node: label(TARGET_NODE_LABEL),
        made_of: Some(made_of),
        is_deleting: false,
        phase: Phase::Running,
    }
}

fn brokers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("brokers");
    for instances in [10, 100, 1_000, 10_000] {
        group.throughput(Throughput::Elements(instances));
        let mut site = Site::new(instances);
        let created = usize::try_from(instances).unwrap();
        assert_eq!(site.plan().len(), created * 2, "a pod on each node");
        group.bench_with_input(
            BenchmarkId::new("all new", instances),
            &site,
            |bencher, site| bencher.iter(|| site.plan()),
        );
        // The first pass creates the pods, the second the services of running pods.
        site.create();
        site.create();
        assert_eq!(site.objects.len(), created * 3 + 1);
        assert_eq!(
            site.plan(),
            Vec::new(),
            "an unchanged cluster writes nothing"
        );
        group.bench_with_input(
            BenchmarkId::new("unchanged", instances),
            &site,
            |bencher, site| bencher.iter(|| site.plan()),
        );
    }
    group.finish();
}

criterion_group!(benches, brokers);
criterion_main!(benches);
