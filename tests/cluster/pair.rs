//! Shared by the tests of devices that two nodes see: an agent on each node whose objects are in the cluster, and a Configuration of debugEcho.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Namespace, Pod};
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::device::Site;

const INSTANCES: &str = "/apis/akri.sh/v0/instances";

/// Agents on two nodes, and a namespace; the Configuration's name is the one given to [`Pair::start`].
pub struct Pair {
    /// Namespace whose pods are deleted while the agents still run.
    pub space: Namespace<'static>,
    pub sites: [Site; 2],
    pub cluster: &'static Cluster,
    name: String,
    start: u64,
}

impl Pair {
    /// Starts both agents, which also take handlers from ConfigMaps of the namespace; creates no Configuration.
    pub fn start(cluster: &'static Cluster, name: &str, arguments: &[&str]) -> Result<Self> {
        let taken = cluster.take_nodes(2)?;
        // With the CRDs of the chart.
        cluster.define()?;
        eventually("the API server serves Instances", || cluster.get(INSTANCES))?;
        let space = cluster.namespace(name)?;
        let mut sites = Vec::new();
        for taken in taken {
            let mut site = Site::joined(cluster, taken, &space)?;
            let handlers = ["--handlers-namespace", space.name()];
            site.home.start(&[arguments, &handlers[..]].concat())?;
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

    /// Applies the Configuration with these shared devices and a grace of 0 s.
    pub fn configure(&self, capacity: u32, devices: &[&str], properties: &str) -> Result<()> {
        self.configure_with(capacity, devices, properties, "")
    }

    /// Applies the Configuration as [`Self::configure`] does, with an additional annotation.
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

    /// Returns the name of the Configuration.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the Instances by device.
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

    /// Waits until there are Instances of exactly these devices, each with both nodes and true for `is_so`; returns them.
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

    /// Returns a pod with a slot of a device, on one of the nodes.
    pub fn pod(&self, name: &str, node: usize, instance: &Value) -> Result<Pod> {
        let site = self.sites.get(node).context("no such node")?;
        let main = Container::new("main").device(&resource(instance), 1);
        Ok(Pod::new(name, &[main]).on(site.node))
    }

    /// Waits until the Instances' statuses record `count` pods that hold slots.
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

    /// Returns the number of writes of each Instance since the agents started, by name. Refused requests do not count.
    pub fn writes(&self) -> Result<BTreeMap<String, usize>> {
        let mut writes = BTreeMap::new();
        for (request, count) in self.cluster.audit().since(self.start)? {
            let is_ours =
                request.resource.starts_with("instances") && request.namespace == self.space.name();
            if is_ours && request.is_write() && request.code < 300 {
                // The name of a created object is in the body of the request.
                *writes.entry(request.name).or_default() += count;
            }
        }
        Ok(writes)
    }
}

/// Returns the resource of an Instance.
pub fn resource(instance: &Value) -> String {
    let name = instance["metadata"]["name"].as_str();
    format!("akri.sh/{}", name.unwrap_or_default())
}

/// Returns the slots in use, with their holders.
pub fn used(instance: &Value) -> BTreeMap<&str, &str> {
    let usage = instance["spec"]["deviceUsage"].as_object();
    let slots = usage.into_iter().flatten();
    slots
        .filter_map(|(slot, holder)| Some((slot.as_str(), holder.as_str()?)))
        .filter(|(_, holder)| !holder.is_empty())
        .collect()
}
