//! Creates the GPUs as devices, with the attributes that Kubernetes' example DRA driver gives its own.

use leafhost_sdk::{AttributeValue, Device, Health};
use uuid::Uuid;

use crate::model::Details;

/// Returns the GPUs of a node, by index.
pub fn devices(node: &str, details: &Details) -> Vec<Device> {
    let mut numa_nodes = details.numa_nodes.iter().cycle();
    (0..details.count)
        .map(|index| device(node, index, numa_nodes.next().copied(), details))
        .collect()
}

fn device(node: &str, index: u32, numa_node: Option<u32>, details: &Details) -> Device {
    let uuid = uuid(node, index);
    let unhealthy = details.unhealthy.iter().find(|gpu| gpu.index == index);
    let device = Device::new(&uuid)
        .property("MOCK_GPU_UUID", &uuid)
        .property("MOCK_GPU_INDEX", index.to_string())
        .property("MOCK_GPU_MODEL", &details.model)
        .property("MOCK_GPU_MEMORY", &details.memory)
        .property("MOCK_GPU_DRIVER_VERSION", &details.driver_version)
        .attribute("uuid", uuid)
        .attribute("index", index)
        .attribute("model", details.model.as_str())
        .attribute(
            "driverVersion",
            AttributeValue::version(&details.driver_version),
        )
        .capacity("memory", &details.memory)
        .health(match unhealthy {
            Some(gpu) => Health::Unhealthy(gpu.reason.clone()),
            None => Health::Healthy,
        });
    match numa_node {
        Some(numa_node) => device
            .property("MOCK_GPU_NUMA_NODE", numa_node.to_string())
            .attribute("numaNode", numa_node),
        None => device,
    }
}

/// Returns a version 5 UUID (RFC 9562) that depends only on node and index.
fn uuid(node: &str, index: u32) -> String {
    let namespace = Uuid::new_v5(&Uuid::NAMESPACE_DNS, b"mock-gpu.leafhost.dev");
    let uuid = Uuid::new_v5(&namespace, format!("{node}/{index}").as_bytes());
    format!("gpu-{uuid}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use leafhost_sdk::testing::{Call, FakeHost, description_problems};
    use leafhost_sdk::{AttributeValue, Device, Health};

    use crate::MockGpu;

    fn run(node: &str, details: &str) -> Vec<Device> {
        let call = Call::<MockGpu>::new(details).node(node);
        call.run(&FakeHost::new()).unwrap().devices().to_vec()
    }

    #[test]
    fn without_details_there_are_four_gpus() {
        let gpus = run("node-a", "");
        assert_eq!(gpus.len(), 4);
        let gpu = &gpus[1];
        let uuid = gpu.id.as_str();
        for (name, value) in [
            ("uuid", uuid.into()),
            ("index", 1_u32.into()),
            ("model", "LATEST-GPU-MODEL".into()),
            ("driverVersion", AttributeValue::version("1.0.0")),
        ] {
            assert_eq!(gpu.get_attribute(name), Some(&value), "{name}");
        }
        assert_eq!(gpu.get_attribute("numaNode"), None);
        assert_eq!(gpu.capacity, [("memory".to_owned(), "80Gi".to_owned())]);
        assert_eq!(gpu.get_property("MOCK_GPU_UUID"), Some(uuid));
        assert_eq!(gpu.get_property("MOCK_GPU_INDEX"), Some("1"));
        assert_eq!(gpu.shared, None);
        assert_eq!(gpu.health, Health::Healthy);
    }

    #[test]
    fn a_uuid_depends_only_on_node_and_index() {
        let ids =
            |gpus: Vec<Device>| -> Vec<String> { gpus.into_iter().map(|gpu| gpu.id).collect() };
        let here = ids(run("node-a", ""));
        assert_eq!(here[0], "gpu-01917fb4-b402-51c1-baaa-5a13c41123df");
        assert_eq!(here, ids(run("node-a", "{model: other, memory: 1Gi}")));
        let all: BTreeSet<_> = here.into_iter().chain(ids(run("node-b", ""))).collect();
        assert_eq!(all.len(), 8);
    }

    #[test]
    fn numa_nodes_are_taken_in_turn() {
        let numa: Vec<_> = run("node-a", "{count: 3, numaNodes: [0, 1]}")
            .iter()
            .map(|gpu| gpu.get_attribute("numaNode").cloned())
            .collect();
        assert_eq!(
            numa,
            [Some(0_u32.into()), Some(1_u32.into()), Some(0_u32.into())]
        );
    }

    #[test]
    fn configured_gpus_are_unhealthy() {
        let gpus = run("node-a", "unhealthy: [1, {index: 3, reason: fan stuck}]");
        let health: Vec<_> = gpus.into_iter().map(|gpu| gpu.health).collect();
        assert_eq!(
            health,
            [
                Health::Healthy,
                Health::Unhealthy("listed in unhealthy".into()),
                Health::Healthy,
                Health::Unhealthy("fan stuck".into()),
            ]
        );
    }

    #[test]
    fn a_count_of_zero_gives_no_devices() {
        assert_eq!(run("node-a", "count: 0"), []);
    }

    #[test]
    fn the_description_is_valid() {
        assert_eq!(description_problems::<MockGpu>(), Vec::<String>::new());
    }
}
