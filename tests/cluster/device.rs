//! Shared by the tests with devices: an agent on a node, Configurations with artificial devices, and the node's capacity.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::records::PodResources;
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{Cluster, Namespace, Node, TakenNode};
use leafhost_tests::wait::eventually;
use serde_json::Value;

/// Node of the cluster with an agent on it.
pub struct Site {
    /// Agent and its folder.
    pub home: Home,
    /// Reservation of the node for this test alone.
    _taken: TakenNode<'static>,
    /// Node, which lives as long as the cluster.
    pub node: &'static Node,
    cluster: &'static Cluster,
}

/// Device that the kubelet has allocated to a container: (pod, container, resource, ID).
pub type Given = (String, String, String, String);

impl Site {
    /// Takes a free node and prepares an agent with the debug-echo handler; does not start it.
    pub fn new(cluster: &'static Cluster) -> Result<Self> {
        let site = Self::on(cluster, cluster.take_node()?)?;
        site.home.add_handler("debug-echo")?;
        Ok(site)
    }

    /// Prepares an agent without handlers on that node; does not start it.
    pub fn on(cluster: &'static Cluster, taken: TakenNode<'static>) -> Result<Self> {
        let node = cluster
            .nodes()
            .iter()
            .find(|node| node.name() == taken.name())
            .context("the node that was taken is not in the cluster")?;
        Ok(Self {
            home: Home::on(node)?,
            _taken: taken,
            node,
            cluster,
        })
    }

    /// Prepares an agent with the debug-echo handler and all rights in the cluster on that node; does not start it. Failures in the namespace show its
    /// log.
    pub fn joined(
        cluster: &'static Cluster,
        taken: TakenNode<'static>,
        space: &Namespace<'_>,
    ) -> Result<Self> {
        let mut site = Self::on(cluster, taken)?;
        site.home.add_handler("debug-echo")?;
        site.home.join(cluster.kubeconfig());
        space.show_log(&site.home.log_file());
        Ok(site)
    }

    /// Creates a namespace that shows the agent's log after a failure.
    pub fn namespace(&self, name: &str) -> Result<Namespace<'static>> {
        let space = self.cluster.namespace(name)?;
        space.show_log(&self.home.log_file());
        Ok(space)
    }

    /// Writes a Configuration with these local devices and this capacity.
    pub fn configure(&self, name: &str, capacity: u32, devices: &[&str]) -> Result<()> {
        let details = format!("{{shared: false, descriptions: [{}]}}", devices.join(", "));
        self.configure_for(name, "debugEcho", capacity, &details)
    }

    /// Writes a Configuration for a handler, with details in one line.
    pub fn configure_for(
        &self,
        name: &str,
        handler: &str,
        capacity: u32,
        details: &str,
    ) -> Result<()> {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  capacity: {capacity}\n  discoveryHandler:\n    name: {handler}\n    discoveryDetails: |\n      {details}\n"
        );
        self.home
            .write(&format!("configurations/{name}.yaml"), text)
    }

    /// Returns capacity and allocatable of a resource on the node.
    pub fn amounts(&self, resource: &str) -> Result<(u64, u64)> {
        let node = self
            .cluster
            .get(&format!("/api/v1/nodes/{}", self.node.name()))?;
        let amount = |kind: &str| -> Result<u64> {
            let amounts = node.pointer(&format!("/status/{kind}"));
            match amounts.and_then(|amounts| amounts.get(resource)) {
                None => Ok(0),
                Some(amount) => Ok(amount.as_str().context("no quantity")?.parse()?),
            }
        };
        Ok((amount("capacity")?, amount("allocatable")?))
    }

    /// Waits until the node reports these amounts.
    pub fn until_amounts(&self, resource: &str, capacity: u64, allocatable: u64) -> Result<()> {
        let what = format!("{resource} is {allocatable} of {capacity}");
        eventually(&what, || {
            let found = self.amounts(resource)?;
            ensure!(found == (capacity, allocatable), "it is {found:?}");
            Ok(())
        })
        .with_context(|| self.home.log())
    }

    /// Waits until there are `count` Instances and returns their names.
    pub fn instances(&self, count: usize) -> Result<Vec<String>> {
        let instances = self.home.instances(count)?;
        let name = |instance: &Value| {
            let name = instance.pointer("/metadata/name")?.as_str()?;
            Some(name.to_owned())
        };
        Ok(instances.iter().filter_map(name).collect())
    }

    /// Waits until the node has `count` of the only Instance's resource and returns its name.
    pub fn only_resource(&self, count: u64) -> Result<String> {
        let resource = format!("akri.sh/{}", self.instances(1)?.remove(0));
        self.until_amounts(&resource, count, count)?;
        Ok(resource)
    }

    /// Waits until the kubelet lists every resource; returns the status document.
    pub fn until_listed(&self) -> Result<Value> {
        self.home.until("all resources are listed", |status| {
            let listed = |one: &Value| one.get("state").is_some_and(|state| state == "listed");
            !resources(status).is_empty() && resources(status).iter().all(listed)
        })
    }

    /// Returns the devices of our resources that the kubelet has allocated, from PodResources.
    pub fn given(&self) -> Result<BTreeSet<Given>> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let socket = self.node.pod_resources().join("kubelet.sock");
        let listed = runtime.block_on(PodResources::new(socket).list())?;
        let given = listed
            .holders
            .into_iter()
            .filter(|((resource, _), _)| resource.starts_with("akri.sh/"));
        Ok(given
            .flat_map(|((resource, id), holders)| {
                holders.into_iter().map(move |holder| {
                    let pod = format!("{}/{}", holder.namespace, holder.pod);
                    (pod, holder.container, resource.clone(), id.clone())
                })
            })
            .collect())
    }

    /// Waits until Instances, agent and kubelet agree that exactly these pods have a slot, one each; returns the pod of each slot.
    pub fn until_held_by(
        &self,
        space: &Namespace<'_>,
        pods: &[&str],
    ) -> Result<BTreeMap<String, String>> {
        let pods: BTreeSet<String> = pods
            .iter()
            .map(|pod| format!("{}/{pod}", space.name()))
            .collect();
        eventually(&format!("{pods:?} hold slots and all agree"), || {
            let status = self.home.status()?;
            let given = self.given()?;
            let held = held(&status)?;
            let used: BTreeSet<&String> = held.keys().collect();
            let claimed = used_slots(&status);
            ensure!(
                used == claimed.keys().collect(),
                "the agent has {held:?}, the Instances say {claimed:?}"
            );
            let ours: BTreeSet<(&str, &str, &str)> = held
                .values()
                .map(|slot| (&*slot.pod, &*slot.resource, &*slot.device))
                .collect();
            let theirs: BTreeSet<(&str, &str, &str)> = given
                .iter()
                .map(|(pod, _, resource, id)| (&**pod, &**resource, &**id))
                .collect();
            ensure!(
                ours == theirs && ours.len() == held.len(),
                "the agent has {held:?}, the kubelet {given:?}"
            );
            let holders: BTreeSet<String> = held.values().map(|slot| slot.pod.clone()).collect();
            ensure!(holders == pods, "they are held by {held:?}");
            Ok(held
                .into_iter()
                .map(|(slot, held)| (slot, held.pod))
                .collect())
        })
        .with_context(|| space.state())
        .with_context(|| self.home.log())
    }
}

/// Returns the offered resources in the agent's status.
pub fn resources(status: &Value) -> &[Value] {
    let all = status.pointer("/kubelet/resources");
    all.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Slot in the agent's status.
#[derive(Debug)]
struct Held {
    resource: String,
    device: String,
    pod: String,
}

fn held(status: &Value) -> Result<BTreeMap<String, Held>> {
    let slots = status.pointer("/kubelet/slots").and_then(Value::as_array);
    let mut held = BTreeMap::new();
    for slot in slots.into_iter().flatten() {
        let text = |name: &str| {
            let text = slot.get(name).and_then(Value::as_str).unwrap_or_default();
            text.to_owned()
        };
        let one = Held {
            resource: text("resource"),
            device: text("device"),
            pod: text("holder"),
        };
        let twice = held.insert(text("slot"), one);
        ensure!(twice.is_none(), "one slot is held twice: {slots:?}");
    }
    Ok(held)
}

/// Returns the slots in use, with their values in `deviceUsage`.
pub fn used_slots(status: &Value) -> BTreeMap<String, String> {
    let instances = status.get("instances").and_then(Value::as_array);
    let usages = instances
        .into_iter()
        .flatten()
        .filter_map(|instance| instance.pointer("/spec/deviceUsage")?.as_object());
    usages
        .flatten()
        .filter_map(|(slot, usage)| Some((slot.clone(), usage.as_str()?.to_owned())))
        .filter(|(_, usage)| !usage.is_empty())
        .collect()
}

/// Returns the value of a variable in a container's output.
pub fn variable(log: &str, name: &str) -> Option<String> {
    log.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
        .map(str::to_owned)
}
