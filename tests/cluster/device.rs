//! What the tests with devices share: an agent on a node, Configurations of made-up devices, what the node says it has.

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{Cluster, Node, TakenNode};
use leafhost_tests::wait::eventually;

/// A node of the cluster with an agent on it.
pub struct Site {
    /// The agent.
    pub home: Home,
    /// The node, for this test alone.
    pub taken: TakenNode<'static>,
    /// The same, for as long as the cluster runs.
    pub node: &'static Node,
    cluster: &'static Cluster,
}

impl Site {
    /// An agent with the debug-echo handler on a free node; it does not run yet.
    pub fn new(cluster: &'static Cluster) -> Result<Self> {
        let taken = cluster.take_node()?;
        let node = cluster
            .nodes()
            .iter()
            .find(|node| node.name() == taken.name())
            .context("the node that was taken is not in the cluster")?;
        let home = Home::on(node)?;
        home.add_handler("debug-echo")?;
        Ok(Self {
            home,
            taken,
            node,
            cluster,
        })
    }

    /// Writes a Configuration with these local devices, each with so many slots.
    pub fn configure(&self, name: &str, capacity: u32, devices: &[&str]) -> Result<()> {
        let text = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  capacity: {capacity}\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: |\n      {{shared: false, descriptions: [{}]}}\n",
            devices.join(", ")
        );
        self.home
            .write(&format!("configurations/{name}.yaml"), text)
    }

    /// How much of a resource the node says it has: (capacity, allocatable).
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

    /// Waits until the node says so.
    pub fn until_amounts(&self, resource: &str, capacity: u64, allocatable: u64) -> Result<()> {
        let what = format!("{resource} is {allocatable} of {capacity}");
        eventually(&what, || {
            let found = self.amounts(resource)?;
            ensure!(found == (capacity, allocatable), "it is {found:?}");
            Ok(())
        })
        .with_context(|| self.home.log())
    }

    /// The names of the Instances, once there are so many.
    pub fn instances(&self, count: usize) -> Result<Vec<String>> {
        let instances = self.home.instances(count)?;
        let name = |instance: &serde_json::Value| {
            let name = instance.pointer("/metadata/name")?.as_str()?;
            Some(name.to_owned())
        };
        Ok(instances.iter().filter_map(name).collect())
    }
}
