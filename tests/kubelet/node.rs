//! Node of the tests: the stand-in of a kubelet, and an agent that serves it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::proto::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateRequest,
};
use leafhost_tests::agent::Home;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::kubelet::{Blocking, Kubelet, Plugins};
use leafhost_tests::wait::eventually;
use serde_json::Value;
use tempfile::TempDir;
use tonic::Status;

/// With this grace: a slot that no pod has is soon freed, but not within five seconds of its allocation.
pub const SOON: [&str; 2] = ["--slot-grace", "2s"];

pub struct Node {
    pub home: Home,
    pub kubelet: Blocking,
    _folder: TempDir,
}

/// Returns a Configuration of the handler `debugEcho`; its devices are local, so a device that is no longer described disappears at once.
pub fn configuration(name: &str, capacity: usize, descriptions: &[&str]) -> String {
    format!(
        r#"apiVersion: akri.sh/v0
kind: Configuration
metadata: {{name: "{name}"}}
spec:
  discoveryHandler:
    name: debugEcho
    discoveryDetails: |
      {{shared: false, descriptions: {descriptions:?}}}
  capacity: {capacity}
"#
    )
}

pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    value
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// Returns the holder of each slot, of all Instances.
pub fn usage_of(status: &Value) -> BTreeMap<String, String> {
    let instances = list(status, "/instances").iter();
    instances
        .filter_map(|instance| instance.pointer("/spec/deviceUsage")?.as_object())
        .flatten()
        .map(|(slot, usage)| (slot.clone(), usage.as_str().unwrap_or_default().to_owned()))
        .collect()
}

pub fn used(usage: &BTreeMap<String, String>) -> BTreeSet<String> {
    let used = usage.iter().filter(|(_, usage)| !usage.is_empty());
    used.map(|(slot, _)| slot.clone()).collect()
}

pub fn resource(name: &str) -> String {
    format!("akri.sh/{name}")
}

pub fn ids<const N: usize>(ids: [&str; N]) -> BTreeSet<String> {
    ids.map(str::to_owned).into()
}

impl Node {
    /// Starts a kubelet and prepares an agent, which does not run yet.
    pub fn new() -> Result<Self> {
        Self::knowing(Plugins::default())
    }

    /// Starts a kubelet with this rule for plugins and prepares an agent.
    pub fn knowing(plugins: Plugins) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let kubelet = Blocking::start_knowing(folder.path(), plugins)?;
        let mut home = Home::new()?;
        home.add_handler("debug-echo")?;
        home.serve_kubelet(folder.path());
        Ok(Self {
            home,
            kubelet,
            _folder: folder,
        })
    }

    /// Starts both with a Configuration `echo` and waits until the kubelet follows all lists.
    pub fn with(capacity: usize, descriptions: &[&str], arguments: &[&str]) -> Result<Self> {
        Self::new()?.begin(capacity, descriptions, arguments)
    }

    /// Starts the agent with a Configuration `echo` and waits until the kubelet follows all lists.
    pub fn begin(
        mut self,
        capacity: usize,
        descriptions: &[&str],
        arguments: &[&str],
    ) -> Result<Self> {
        self.echo(capacity, descriptions)?;
        self.home.start(arguments)?;
        self.until_listed(descriptions.len() + 1)?;
        Ok(self)
    }

    /// Writes the Configuration `echo`.
    pub fn echo(&self, capacity: usize, descriptions: &[&str]) -> Result<()> {
        let text = configuration("echo", capacity, descriptions);
        self.home.write("configurations/echo.yaml", text)
    }

    /// Waits until there are `count` resources and the kubelet follows the lists of all.
    pub fn until_listed(&self, count: usize) -> Result<()> {
        self.home
            .until("the kubelet follows all lists", |status| {
                let resources = list(status, "/kubelet/resources");
                resources.len() == count
                    && resources
                        .iter()
                        .all(|resource| text(resource, "/state") == "listed")
            })
            .map(drop)?;
        self.until("the lists have come", |kubelet| {
            let now = kubelet.capacities();
            let have = now.values().filter(|(capacity, _)| *capacity > 0).count();
            ensure!(have >= count, "{now:?}");
            Ok(())
        })
    }

    /// Waits until `check` succeeds on the stand-in.
    pub fn until<T>(&self, what: &str, check: impl FnMut(&Kubelet) -> Result<T>) -> Result<T> {
        self.kubelet
            .wait(self.kubelet.until(what, check))
            .with_context(|| {
                let status = self.home.status().unwrap_or_default();
                format!("{status:#}\n{}", self.home.log())
            })
    }

    /// Waits until an ID of a resource is listed with this health.
    pub fn until_health(&self, resource: &str, id: &str, health: &str) -> Result<()> {
        self.until(&format!("{id} of {resource} is {health}"), |kubelet| {
            let devices = kubelet.devices(resource);
            let now = devices.get(id).map(|device| device.health.as_str());
            ensure!(now == Some(health), "{devices:?}");
            Ok(())
        })
    }

    /// Waits for the Instance with this description and returns its name.
    pub fn instance(&self, description: &str) -> Result<String> {
        eventually("the Instance is there", || {
            let status = self.home.status()?;
            list(&status, "/instances")
                .iter()
                .find(|instance| {
                    let of = "/spec/brokerProperties/DEBUG_ECHO_DESCRIPTION";
                    text(instance, of) == description
                })
                .map(|instance| text(instance, "/metadata/name").to_owned())
                .with_context(|| format!("no {description} in {status:#}"))
        })
    }

    /// Returns the holder of each slot.
    pub fn usage(&self) -> Result<BTreeMap<String, String>> {
        Ok(usage_of(&self.home.status()?))
    }

    /// Waits until these slots are in use and no others.
    pub fn until_used(&self, slots: &BTreeSet<String>) -> Result<()> {
        self.home
            .until(&format!("{slots:?} are used and no others"), |status| {
                used(&usage_of(status)) == *slots
            })
            .map(drop)
    }

    /// Returns a resource of the agent's status.
    pub fn resource(&self, name: &str) -> Result<Value> {
        let status = self.home.status()?;
        list(&status, "/kubelet/resources")
            .iter()
            .find(|resource| text(resource, "/name") == name)
            .cloned()
            .with_context(|| format!("no {name} in {status:#}"))
    }

    /// Waits until a problem of a resource has these words.
    pub fn until_problem(&self, name: &str, words: &str) -> Result<()> {
        eventually(&format!("{name} says {words:?}"), || {
            let resource = self.resource(name)?;
            ensure!(text(&resource, "/problem").contains(words), "{resource:#}");
            Ok(())
        })
    }

    /// Waits until a problem of the kubelet as a whole has these words; returns the status.
    pub fn until_trouble(&self, words: &str) -> Result<Value> {
        self.home
            .until(&format!("the kubelet's part says {words:?}"), |status| {
                list(status, "/kubelet/problems")
                    .iter()
                    .any(|problem| text(problem, "/message").contains(words))
            })
    }

    /// Waits until the status has no problem of the kubelet as a whole.
    pub fn until_no_trouble(&self) -> Result<()> {
        self.home
            .until("nothing is wrong with the kubelet", |status| {
                list(status, "/kubelet/problems").is_empty()
            })
            .map(drop)
    }

    /// Runs a pod with a container `main` that must be admitted; returns its UID.
    pub fn run(&self, name: &str, resource: &str, count: usize) -> Result<String> {
        let spec = PodSpec::asking(name, resource, count);
        let (uid, admitted) = self.kubelet.wait(self.kubelet.run_pod(&spec))?;
        admitted.with_context(|| self.home.log())?;
        Ok(uid)
    }

    /// Returns the devices that `main` of a pod holds.
    pub fn held(&self, uid: &str, resource: &str) -> BTreeSet<String> {
        self.kubelet.held(uid, "main", resource)
    }

    /// Ends and deletes a pod.
    pub fn delete(&self, uid: &str) -> Result<()> {
        self.kubelet.end_pod(uid);
        self.kubelet.delete_pod(uid)
    }

    /// Sends an Allocate that no kubelet would send, with one container per list of IDs.
    pub fn ask(
        &self,
        resource: &str,
        containers: &[Vec<String>],
    ) -> Result<Result<AllocateResponse, Status>> {
        self.kubelet.wait(async {
            let mut plugin = self.kubelet.dial(resource).await?;
            let container_requests = containers.iter().cloned();
            let container_requests = container_requests
                .map(|devices_ids| ContainerAllocateRequest { devices_ids })
                .collect();
            let answer = plugin.allocate(AllocateRequest { container_requests });
            Ok(answer.await.map(tonic::Response::into_inner))
        })
    }

    /// Returns the value of one of the agent's metrics.
    pub fn metric(&self, name: &str) -> Result<u64> {
        let metrics = self.home.get("/metrics")?;
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .with_context(|| format!("no {name} in\n{metrics}"))?;
        Ok(value.parse()?)
    }

    /// Counts the Register calls of a resource by start of the kubelet.
    pub fn registers(&self, resource: &str) -> BTreeMap<usize, usize> {
        let mut counts = BTreeMap::new();
        for one in self.kubelet.record().registrations {
            if one.resource == resource {
                *counts.entry(one.life).or_default() += 1;
            }
        }
        counts
    }
}
