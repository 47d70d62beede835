//! Pools of shared devices, which offer the scheduler devices that several nodes see. Pure.
//!
//! The pool of a device never depends on the nodes that see it: in another pool it would count as another device, free
//! while it is used.

use std::collections::{BTreeMap, BTreeSet};

use crate::claim::ports::SliceFeatures;
use crate::device::Health;
use crate::instance::Instance;
use crate::names::{ConfigurationKey, shortened};
use crate::ports::InstanceSet;
use crate::slice_device::offered;
use crate::slices::{Devices, MISSING, Reach, Taint, UNHEALTHY};

/// Maximum length of the name of a pool.
const MAX_NAME: usize = 253;

/// Offered devices by pool name and reach.
pub type Pools = BTreeMap<String, BTreeMap<Reach, Devices>>;

/// Returns the name of the pool for the shared devices of a Configuration: `<namespace>/<configuration>`.
pub fn pool_name(namespace: &str, configuration: &str) -> String {
    shortened(&format!("{namespace}/{configuration}"), MAX_NAME)
}

/// Returns the pools of the Configurations in `wanted`, and the attributes and capacities that did not fit. A value of
/// `wanted` is true if pods are evicted when their device does not work. `hostnames` maps the nodes whose kubelets use the
/// driver to the values of their label `kubernetes.io/hostname`.
///
/// Offers a device to the nodes from which it works. If there are none, taints the device, or leaves it out where
/// taints are not kept.
pub fn pools(
    instances: &InstanceSet,
    wanted: &BTreeMap<ConfigurationKey, bool>,
    hostnames: &BTreeMap<String, String>,
    features: SliceFeatures,
) -> (Pools, BTreeSet<String>) {
    let name = |key: &ConfigurationKey| pool_name(key.namespace(), key.name());
    let mut pools: Pools = wanted
        .keys()
        .map(|key| (name(key), BTreeMap::new()))
        .collect();
    let mut left_out = BTreeSet::new();
    for instance in instances.instances.values().filter(|one| one.spec.shared) {
        let key = instance.configuration();
        let Some((key, evicts)) = key.as_ref().and_then(|key| wanted.get_key_value(key)) else {
            continue;
        };
        let (nodes, why) = reach(instance, hostnames);
        if nodes.is_empty()
            || instance.metadata.deletion_timestamp.is_some()
            || (why.is_some() && !features.taints)
        {
            continue;
        }
        // Evict only if every node reports the device as unhealthy: one that a node only misses may come back.
        let mut seeing = instance.spec.nodes.iter();
        let is_ill_everywhere = seeing.all(|node| ailment(instance, node) == Some(UNHEALTHY));
        let taints = why.map(|key| Taint {
            key: key.to_owned(),
            evicts: *evicts && is_ill_everywhere,
        });
        let taints = taints.into_iter().collect();
        let (devices, over) = offered(key, instance, &taints, features.shares);
        left_out.extend(over);
        let pool = pools.entry(name(key)).or_default();
        pool.entry(Reach::Hostnames(nodes))
            .or_default()
            .extend(devices);
    }
    (pools, left_out)
}

/// Returns the hostnames of the nodes from which a device works. If there are none, returns those of all nodes that see
/// it, and the key of its taint.
fn reach(
    instance: &Instance,
    hostnames: &BTreeMap<String, String>,
) -> (BTreeSet<String>, Option<&'static str>) {
    let (mut well, mut others, mut why) = (BTreeSet::new(), BTreeSet::new(), MISSING);
    for node in &instance.spec.nodes {
        let Some(hostname) = hostnames.get(node) else {
            continue;
        };
        let Some(key) = ailment(instance, node) else {
            well.insert(hostname.clone());
            continue;
        };
        others.insert(hostname.clone());
        if key == UNHEALTHY {
            why = key;
        }
    }
    if well.is_empty() {
        (others, Some(why))
    } else {
        (well, None)
    }
}

/// Returns the key of the taint for a device that does not work from a node; `None` if it works.
fn ailment(instance: &Instance, node: &str) -> Option<&'static str> {
    let status = instance.status.nodes.get(node)?;
    if status.missing_since.is_some() {
        return Some(MISSING);
    }
    matches!(status.health, Health::Unhealthy(_)).then_some(UNHEALTHY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    const ALL: SliceFeatures = SliceFeatures {
        shares: true,
        taints: true,
    };

    fn mk_instance(name: &str, nodes: &[&str], status: &serde_json::Value) -> Instance {
        serde_json::from_value(json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {"name": name, "namespace": "lab", "uid": "u"},
            "spec": {"configurationName": "cams", "shared": true, "capacity": 5, "nodes": nodes,
                "deviceUsage": {format!("{name}-0"): "R:lab:viewer:u:node-a", format!("{name}-1"): "node-b"}},
            "status": {"nodes": status},
        }))
        .unwrap()
    }

    /// Formats the devices of the pool of these Instances: node names, devices with shares and taints.
    fn shown(instances: Vec<Instance>, able: &[&str], features: SliceFeatures) -> Vec<String> {
        let all = instances.into_iter().map(|one| (one.key(), Arc::new(one)));
        let instances = InstanceSet::read(all.collect());
        let key = ConfigurationKey::new("lab", "cams").unwrap();
        let hostnames = able
            .iter()
            .map(|node| ((*node).to_owned(), node.replace("node", "host")));
        let wanted = BTreeMap::from([(key, true)]);
        let (pools, left_out) = pools(&instances, &wanted, &hostnames.collect(), features);
        assert!(left_out.is_empty());
        let mut shown = Vec::new();
        for (reach, devices) in &pools["lab/cams"] {
            let Reach::Hostnames(names) = reach else {
                panic!("{reach:?}")
            };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for (name, device) in devices {
                let taints = device
                    .taints
                    .iter()
                    .map(|taint| (&*taint.key, taint.evicts));
                shown.push(format!(
                    "{}: {name} {:?} {:?}",
                    names.join(","),
                    device.shares,
                    taints.collect::<Vec<_>>()
                ));
            }
        }
        shown
    }

    #[test]
    fn a_shared_device_is_offered_to_the_nodes_that_see_it_and_use_the_driver() {
        let both = || {
            vec![
                mk_instance("cams-1", &["node-a", "node-b"], &json!({})),
                mk_instance("cams-2", &["node-b"], &json!({})),
            ]
        };
        assert_eq!(
            shown(both(), &["node-a", "node-b"], ALL),
            [
                "host-a,host-b: cams-1 Some(4) []",
                "host-b: cams-2 Some(4) []"
            ],
            "the slot of a device plugin is left out, that of a claim is the scheduler's to count"
        );
        assert_eq!(
            shown(both(), &["node-a"], ALL),
            ["host-a: cams-1 Some(4) []"]
        );
        assert!(shown(both(), &[], ALL).is_empty());
        let slots = shown(both(), &["node-a"], SliceFeatures::default());
        assert_eq!(slots.len(), 4, "{slots:?}");
        assert_eq!(slots[1], "host-a: cams-1-2 None []");
    }

    #[test]
    fn a_device_that_no_node_sees_well_is_tainted_or_left_out() {
        let ill = json!({"health": "Unhealthy", "reason": "hot"});
        let away = json!({"health": "Healthy", "missingSince": "2026-11-25T00:00:00Z"});
        let nodes = &["node-a", "node-b"];
        let of = |status: serde_json::Value| vec![mk_instance("cams-1", nodes, &status)];
        for (status, expected) in [
            (json!({"node-a": ill}), "host-b: cams-1 Some(4) []"),
            (
                json!({"node-a": ill, "node-b": ill}),
                "host-a,host-b: cams-1 Some(4) [(\"leafhost.dev/unhealthy\", true)]",
            ),
            (
                json!({"node-a": ill, "node-b": away}),
                "host-a,host-b: cams-1 Some(4) [(\"leafhost.dev/unhealthy\", false)]",
            ),
            (
                json!({"node-a": away, "node-b": away}),
                "host-a,host-b: cams-1 Some(4) [(\"leafhost.dev/missing\", false)]",
            ),
        ] {
            assert_eq!(shown(of(status), nodes, ALL), [expected]);
        }
        let without = SliceFeatures {
            taints: false,
            ..ALL
        };
        assert!(shown(of(json!({"node-a": ill, "node-b": ill})), nodes, without).is_empty());
    }

    #[test]
    fn the_name_of_a_pool_is_bounded() {
        assert_eq!(pool_name("lab", "cams"), "lab/cams");
        let long = pool_name(&"n".repeat(63), &"c".repeat(253));
        assert!(long.len() <= 253 && long.starts_with("nnn"), "{long}");
        assert_ne!(
            long,
            pool_name(&"n".repeat(63), &format!("{}d", "c".repeat(252)))
        );
    }
}
