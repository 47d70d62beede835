//! Explains to people which devices would be chosen for a pod on each node, and why the other devices would not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::instance::Instance;
use leafhost_core::resource_names::ResourceNames;
use leafhost_core::scheduling::Pod;
use leafhost_select::{Alternative, ContainerRequest, Verdict, Verdicts, read};

use crate::bind::given;
use crate::filter::Evaluator;
use crate::world::{Device, World};

/// Outcome of scheduling a pod now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// Names of the Instances that each container would get, or the reason for none, by node.
    pub nodes: BTreeMap<String, Result<BTreeMap<String, Vec<String>>, String>>,
    /// Reasons that Instances are not chosen on any node, by the Instance's name.
    pub others: BTreeMap<String, String>,
}

/// Explains which of `instances`, which must be all Instances of the cluster, would be chosen for a pod.
pub fn explain(
    instances: Vec<Arc<Instance>>,
    names: Arc<ResourceNames>,
    pod: &Pod,
) -> Result<Explanation, String> {
    let mut world = World::default();
    world.name(names);
    for instance in &instances {
        world.put(Arc::clone(instance));
    }
    let mut verdicts = Verdicts::default();
    let check = |text: &str| verdicts.expression(text).map(drop);
    let asked = read(&pod.devices, &pod.containers, check).map_err(|error| error.to_string())?;
    let mut explanation = Explanation::default();
    let mut chosen = BTreeSet::new();
    let nodes: Vec<String> = world.nodes().cloned().collect();
    for node in nodes {
        let mut evaluator = Evaluator::new(&world, &mut verdicts, &pod.uid, &asked);
        let taken = evaluator.take(&node, &[]);
        let taken = taken.map(|taken| given(&asked, &taken, &world));
        let names = taken.iter().flat_map(BTreeMap::values).flatten();
        chosen.extend(names.cloned());
        explanation.nodes.insert(node, taken);
    }
    for instance in instances {
        let name = &instance.metadata.name;
        if !chosen.contains(name)
            && let Some(device) = world.get(&instance.key())
        {
            let why = why_not(&world, &mut verdicts, device, &asked);
            explanation.others.insert(name.clone(), why);
        }
    }
    Ok(explanation)
}

fn why_not(
    world: &World,
    verdicts: &mut Verdicts,
    device: &Device,
    asked: &[ContainerRequest],
) -> String {
    let configuration = &device.instance.spec.configuration_name;
    let mut nearest = None;
    for one in asked {
        for request in &one.requests {
            let ways = request.alternatives.iter();
            for alternative in ways.filter(|way| way.configuration == *configuration) {
                let name = format!("{}/{}", one.container, alternative.whole_name(request));
                match unmet_selector(verdicts, device, alternative) {
                    None => return unused(world, device, &name),
                    Some(why) => drop(nearest.get_or_insert(format!("request {name}: {why}"))),
                }
            }
        }
    }
    nearest.unwrap_or_else(|| format!("the pod asks for no device of {configuration}"))
}

/// Returns the first selector of an alternative that a device does not satisfy, with the reason.
fn unmet_selector(
    verdicts: &mut Verdicts,
    device: &Device,
    alternative: &Alternative,
) -> Option<String> {
    let mut numbered = (1..).zip(&alternative.expressions);
    numbered.find_map(|(number, text)| {
        let verdict = match verdicts.expression(text) {
            Ok(expression) => verdicts.judge(&expression, &device.attributes),
            Err(error) => Verdict::Failed(error),
        };
        match verdict {
            Verdict::Fits => None,
            Verdict::Differs => Some(format!("selector {number} is false: {text}")),
            Verdict::Failed(why) => Some(format!("selector {number} fails: {why}: {text}")),
        }
    })
}

/// Returns the reason that a device that satisfies a request is not chosen.
fn unused(world: &World, device: &Device, request: &str) -> String {
    let metadata = &device.instance.metadata;
    let owner = world.owner(&device.instance.spec.configuration_name);
    if owner != Some(&metadata.namespace) {
        let name = &device.instance.spec.configuration_name;
        return format!("another namespace has the name {name}");
    }
    if device.nodes.is_empty() {
        return "no node reports it as usable".to_owned();
    }
    if device.free.is_empty() {
        return "all its slots are used".to_owned();
    }
    format!("satisfies request {request}, but is not needed or does not fit the other devices")
}

#[cfg(test)]
mod tests {
    use leafhost_core::scheduling::{Container, ContainerKind};
    use serde_json::json;

    use super::*;

    fn gpu(name: &str, node: &str, index: i64, usage: &str) -> Arc<Instance> {
        let slot = format!("{name}-0");
        let instance = json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": "lab", "uid": name},
            "spec": {"configurationName": "gpu", "capacity": 1, "nodes": [node], "deviceUsage": {slot: usage},
                "leafhost": {"id": name, "attributes": {"index": {"int": index}}}},
            "status": {"nodes": {node: {"health": "Healthy"}}},
        });
        Arc::new(serde_json::from_value(instance).unwrap())
    }

    #[test]
    fn each_node_and_each_other_device_has_a_reason() {
        let pod = Pod {
            devices: r#"{main: {requests: [{name: a, exactly: {deviceClassName: gpu, selectors:
                [{cel: {expression: 'device.attributes["leafhost.dev"].index < 2'}}]}}]}}"#
                .to_owned(),
            containers: vec![Container {
                name: "main".to_owned(),
                kind: ContainerKind::App,
                asks: true,
            }],
            ..Pod::default()
        };
        let all = vec![
            gpu("gpu-a0", "a", 0, ""),
            gpu("gpu-a1", "a", 1, ""),
            gpu("gpu-b0", "b", 0, "b"),
            gpu("gpu-b5", "b", 5, ""),
        ];
        let found = explain(all, Arc::default(), &pod).unwrap();
        let gets = BTreeMap::from([("main".to_owned(), vec!["gpu-a0".to_owned()])]);
        assert_eq!(found.nodes["a"], Ok(gets));
        let used = "devices for request main/a are in use".to_owned();
        assert_eq!(found.nodes["b"], Err(used));
        assert!(found.others["gpu-a1"].contains("is not needed"));
        assert_eq!(found.others["gpu-b0"], "all its slots are used");
        assert!(found.others["gpu-b5"].contains("selector 1 is false"));
    }
}
