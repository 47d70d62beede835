//! Instances, devices and a fake kubelet for the tests of slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::configuration::Resources;
use leafhost_core::device::{Device, DeviceNode};
use leafhost_core::device_id::DeviceId;
use leafhost_core::device_view::{ConfigurationDevices, DeviceSnapshot, DeviceView};
use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::presence::Absent;
use leafhost_core::problem::Problem;
use leafhost_fakes::{configured_as, key};
use leafhost_kubelet::KubeletRun;
use tokio::sync::watch;
use tokio::time::Instant;

use super::model::name_index::NameIndex;
use super::model::snapshot::{Checked, Pod, Snapshot};
use super::records::Records;

/// Name of this node.
pub(crate) const NODE: &str = "node-a";

/// Returns the Instance `<configuration>-<hash>` of the device `hash`, which this node sees; `usage` is by slot number.
pub(crate) fn instance(
    configuration: &str,
    hash: &str,
    capacity: u32,
    usage: &[(u32, &str)],
) -> Instance {
    let name = format!("{configuration}-{hash}");
    let usage: BTreeMap<String, &str> = usage
        .iter()
        .map(|(slot, usage)| (format!("{name}-{slot}"), *usage))
        .collect();
    serde_json::from_value(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {
            "configurationName": configuration, "capacity": capacity, "shared": true, "nodes": [NODE],
            "deviceUsage": usage, "leafhost": {"id": hash},
        },
    }))
    .unwrap()
}

pub(crate) fn device_id(resource: &str, id: &str) -> DeviceId {
    DeviceId::new(format!("akri.sh/{resource}"), id)
}

pub(crate) fn ids(ids: &[&str]) -> BTreeSet<String> {
    ids.iter().map(|id| (*id).to_owned()).collect()
}

/// State of one node.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fixture {
    pub devices: DeviceSnapshot,
    pub instances: InstanceSet,
}

impl Fixture {
    /// Creates Configurations with their Instances; all devices are present.
    pub fn new(configurations: &[(&str, &[Instance])]) -> Self {
        let mut fixture = Self::default();
        fixture.devices.read = true;
        fixture.devices.absent = Absent::GONE;
        fixture.instances.complete = true;
        for (name, instances) in configurations {
            fixture.configure("default", name);
            for instance in *instances {
                fixture.put(instance.clone());
                fixture.see(&key(name), instance.device_id().unwrap(), |_| {});
            }
        }
        fixture
    }

    pub fn configure(&mut self, namespace: &str, name: &str) {
        let configured = configured_as(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": name, "namespace": namespace, "uid": "u"},
            "spec": {"discoveryHandler": {"name": "udev"}, "capacity": 1, "brokerProperties": {"MODE": "fast"}},
        }));
        let view = ConfigurationDevices {
            configured: Arc::new(configured),
            devices: BTreeMap::new(),
            absent: Absent::GONE,
        };
        let key = ConfigurationKey::new(namespace, name).unwrap();
        self.devices.configurations.insert(key, Arc::new(view));
    }

    /// Sets the creation time of a Configuration.
    pub fn created(&mut self, key: &ConfigurationKey, at: &str) {
        let view = Arc::make_mut(self.devices.configurations.get_mut(key).unwrap());
        Arc::make_mut(&mut view.configured).configuration.created = Some(at.to_owned());
    }

    /// Sets the `resources` of a Configuration.
    pub fn resources(&mut self, name: &str, resources: Resources) {
        let view = self.devices.configurations.get_mut(&key(name)).unwrap();
        let view = Arc::make_mut(view);
        Arc::make_mut(&mut view.configured).configuration.resources = resources;
    }

    pub fn put(&mut self, instance: Instance) {
        self.instances
            .instances
            .insert(instance.key(), Arc::new(instance));
    }

    /// Adds a device with a node and a property.
    pub fn see(&mut self, key: &ConfigurationKey, id: &str, change: impl FnOnce(&mut Device)) {
        let mut device = Device::new(id, true);
        device.properties.insert("ID".into(), id.into());
        device.nodes.push(DeviceNode {
            container_path: format!("/dev/{id}"),
            host_path: format!("/dev/{id}"),
            permissions: "rw".into(),
        });
        change(&mut device);
        let view = Arc::make_mut(self.devices.configurations.get_mut(key).unwrap());
        view.devices.insert(
            device.key(),
            DeviceView {
                device: Some(Arc::new(device)),
                missing_since: None,
            },
        );
    }

    /// Returns a Configuration's device, to be changed.
    pub fn view(&mut self, name: &str, id: &str) -> &mut DeviceView {
        let view = Arc::make_mut(self.devices.configurations.get_mut(&key(name)).unwrap());
        let key = Device::new(id, true).key();
        view.devices.get_mut(&key).unwrap()
    }

    pub fn name_index(&self) -> NameIndex {
        NameIndex::new(NODE, &self.devices, &self.instances)
    }
}

pub(crate) fn kubelet(number: u64) -> KubeletRun {
    KubeletRun {
        inode: number,
        created: 0,
    }
}

pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        name: Some(format!("default/{name}")),
        uid: Some(format!("uid-{name}")),
        container: "main".into(),
    }
}

/// Returns a snapshot in which both PodResources and the checkpoint give these device ids to these pods.
pub(crate) fn snapshot(number: u64, held: &[(&DeviceId, &str)]) -> Snapshot {
    let mut listed: BTreeMap<DeviceId, BTreeSet<Pod>> = BTreeMap::new();
    for (device_id, name) in held {
        listed
            .entry((*device_id).clone())
            .or_default()
            .insert(pod(name));
    }
    Snapshot {
        begun: Instant::now(),
        kubelet_run: Some(kubelet(number)),
        active: held
            .iter()
            .map(|(_, name)| format!("default/{name}"))
            .collect(),
        alive: held
            .iter()
            .map(|(_, name)| (format!("uid-{name}"), true))
            .collect(),
        is_silent: false,
        checkpoint: Some(Checked {
            entries: listed.clone(),
            slots: BTreeMap::new(),
            fresh: true,
            rewritten: true,
        }),
        listed: Some(listed),
        problems: Vec::new(),
    }
}

/// Fake kubelet whose state tests set.
#[derive(Debug)]
pub(crate) struct Kubelet {
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// Number of the kubelet that runs.
    pub number: Option<u64>,
    /// Holders by device id, with the slot if the answer named one.
    pub held: BTreeMap<DeviceId, (String, Option<String>)>,
    /// Pods whose folders exist.
    pub alive: BTreeSet<String>,
    /// True if PodResources returns no list.
    pub is_mute: bool,
    /// True if PodResources hangs.
    pub hangs: bool,
    /// Duration of a snapshot.
    pub slow: Duration,
    /// Number of snapshots taken.
    pub snapshots: usize,
}

impl Kubelet {
    pub fn new(number: Option<u64>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                number,
                ..State::default()
            }),
            changes: watch::Sender::new(0),
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sends an event.
    pub fn notify(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Adds a pod with these device ids, as the kubelet records it after an answer.
    pub fn run(&self, name: &str, device_ids: &[DeviceId]) {
        let mut state = self.state();
        state.alive.insert(name.to_owned());
        for device_id in device_ids {
            state
                .held
                .insert(device_id.clone(), (name.to_owned(), None));
        }
    }

    /// Ends a pod and removes its folder.
    pub fn end(&self, name: &str) {
        let mut state = self.state();
        state.alive.remove(name);
        state.held.retain(|_, (holder, _)| holder != name);
        drop(state);
        self.notify();
    }
}

#[async_trait]
impl Records for Kubelet {
    async fn read(&self, uids: BTreeSet<String>, _open: BTreeSet<DeviceId>) -> Snapshot {
        let (begun, slow) = (Instant::now(), self.state().slow);
        self.state().snapshots += 1;
        let state = self.state().clone();
        tokio::time::sleep(slow).await;
        let held: Vec<_> = state
            .held
            .iter()
            .map(|(device_id, (name, _))| (device_id, name.as_str()))
            .collect();
        let mut seen = snapshot(state.number.unwrap_or_default(), &held);
        seen.begun = begun;
        seen.kubelet_run = state.number.map(kubelet);
        seen.active = state
            .alive
            .iter()
            .map(|name| format!("default/{name}"))
            .collect();
        seen.alive = uids
            .into_iter()
            .map(|uid| {
                let alive = state.alive.iter().any(|name| uid == format!("uid-{name}"));
                (uid, alive)
            })
            .collect();
        if let Some(checked) = &mut seen.checkpoint {
            checked.slots = state
                .held
                .iter()
                .filter_map(|(device_id, (_, slot))| Some((device_id.clone(), slot.clone()?)))
                .collect();
        }
        if state.is_mute || state.number.is_none() {
            seen.listed = None;
            seen.problems
                .extend(state.number.map(|_| Problem::KubeletUnavailable {
                    error: "it is mute".to_owned(),
                }));
        }
        seen
    }

    async fn listed(&self) -> Option<BTreeMap<DeviceId, BTreeSet<Pod>>> {
        let state = self.state().clone();
        if state.hangs {
            std::future::pending::<()>().await;
        }
        let held = state.held.into_iter();
        (state.number.is_some() && !state.is_mute).then(|| {
            held.map(|(device_id, (name, _))| (device_id, BTreeSet::from([pod(&name)])))
                .collect()
        })
    }

    fn kubelet_run(&self) -> Option<KubeletRun> {
        self.state().number.map(kubelet)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}
