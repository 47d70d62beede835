//! Shared by the tests of devices that two nodes see: an agent on each node whose objects are in the cluster, and a
//! Configuration of debugEcho.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Pod};
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::device::Site;

const INSTANCES: &str = "/apis/akri.sh/v0/instances";

/// Agents on two nodes and a namespace, in which the Configuration has the namespace's first name.
pub struct Pair {
    /// Its pods are deleted while the agents still run.
    pub space: Namespace<'static>,
    pub sites: [Site; 2],
    pub cluster: &'static Cluster,
    name: String,
    start: u64,
}

impl Pair {
    /// Both agents run, and take handlers from ConfigMaps of the namespace, too; there is no Configuration yet.
    pub fn start(cluster: &'static Cluster, name: &str, arguments: &[&str]) -> Result<Self> {
        let taken = cluster.take_nodes(2)?;
        // As the chart has them.
        cluster.define()?;
        eventually("the API server serves Instances", || cluster.get(INSTANCES))?;
        let space = cluster.namespace(name)?;
        let mut sites = Vec::new();
        for taken in taken {
            let mut site = Site::on(cluster, taken)?;
            site.home.add_handler("debug-echo")?;
            site.home.join(cluster.kubeconfig());
            let handlers = ["--handlers-namespace", space.name()];
            site.home.start(&[arguments, &handlers[..]].concat())?;
            space.show_log(&site.home.log_file());
            sites.push(site);
        }
        Ok(Self {
            space,
            sites: sites.try_into().ok().context("not two nodes")?,
            cluster,
            name: name.to_owned(),
            start: cluster.audit().now()?,
        })
    }

    /// Applies the Configuration of these shared devices. One that is gone has no grace.
    pub fn configure(&self, capacity: u32, devices: &[&str], properties: &str) -> Result<()> {
        self.configure_with(capacity, devices, properties, "")
    }

    /// The same with another annotation.
    pub fn configure_with(
        &self,
        capacity: u32,
        devices: &[&str],
        properties: &str,
        annotation: &str,
    ) -> Result<()> {
        let manifest = format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata:\n  name: {}\n  namespace: {}\n  annotations: {{leafhost.dev/grace: 0s, {annotation}}}\nspec:\n  \
             discoveryHandler:\n    name: debugEcho\n    discoveryDetails: |\n      {{shared: true, descriptions: [{}]}}\n  capacity: {capacity}\n  \
             brokerProperties: {properties}\n",
            self.name,
            self.space.name(),
            devices.join(", ")
        );
        self.cluster.apply(&manifest).map(drop)
    }

    /// The name of the Configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The Instances by device.
    pub fn instances(&self) -> Result<BTreeMap<String, Value>> {
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/instances",
            self.space.name()
        );
        let list = self.cluster.get(&path)?;
        let all = list["items"].as_array().context("no items")?;
        let device = |one: &Value| Some(one["spec"]["leafhost"]["id"].as_str()?.to_owned());
        Ok(all
            .iter()
            .filter_map(|one| Some((device(one)?, one.clone())))
            .collect())
    }

    /// The Instances, once they are of exactly these devices, have both nodes, and are as they should be.
    pub fn until(
        &self,
        what: &str,
        devices: &[&str],
        is_so: impl Fn(&Value) -> bool,
    ) -> Result<BTreeMap<String, Value>> {
        let devices: BTreeSet<&str> = devices.iter().copied().collect();
        let is_seen = |one: &Value| one["spec"]["nodes"].as_array().map(Vec::len) == Some(2);
        eventually(what, || {
            let found = self.instances()?;
            ensure!(
                found.keys().map(String::as_str).eq(devices.iter().copied())
                    && found.values().all(|one| is_seen(one) && is_so(one)),
                "{found:#?}"
            );
            Ok(found)
        })
        .with_context(|| self.space.state())
    }

    /// A pod with a slot of a device, on one of the nodes.
    pub fn pod(&self, name: &str, node: usize, instance: &Value) -> Result<Pod> {
        let site = self.sites.get(node).context("no such node")?;
        let main = Container::new("main").device(&resource(instance), 1);
        Ok(Pod::new(name, &[main]).on(site.node))
    }

    /// Waits until the Instances name so many pods that have slots.
    pub fn until_holders(&self, count: usize) -> Result<()> {
        eventually("the pods that have slots are named", || {
            let all = self.instances()?;
            let nodes = all
                .values()
                .filter_map(|one| one["status"]["nodes"].as_object());
            let entries = nodes.flat_map(|nodes| nodes.values());
            let named = entries.filter_map(|entry| Some(entry["holders"].as_object()?.len()));
            let named: usize = named.sum();
            ensure!(named == count, "{named} are named: {all:#?}");
            Ok(())
        })
    }

    /// How often each Instance was written since the agents started, by name. Requests that were refused do not count.
    pub fn writes(&self) -> Result<BTreeMap<String, usize>> {
        let mut writes = BTreeMap::new();
        for (request, count) in self.cluster.audit().since(self.start)? {
            let is_ours =
                request.resource.starts_with("instances") && request.namespace == self.space.name();
            if is_ours && request.is_write() && request.code < 300 {
                // The name of what is created is in its body.
                *writes.entry(request.name).or_default() += count;
            }
        }
        Ok(writes)
    }
}

/// The resource of an Instance.
pub fn resource(instance: &Value) -> String {
    let name = instance["metadata"]["name"].as_str();
    format!("akri.sh/{}", name.unwrap_or_default())
}

/// The slots that nodes have, with who has them.
pub fn used(instance: &Value) -> BTreeMap<&str, &str> {
    let usage = instance["spec"]["deviceUsage"].as_object();
    let slots = usage.into_iter().flatten();
    slots
        .filter_map(|(slot, holder)| Some((slot.as_str(), holder.as_str()?)))
        .filter(|(_, holder)| !holder.is_empty())
        .collect()
}
