//! World for the tests of claims, whose parts can fail, and an agent in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::claim::{Allocated, AllocatedClaim};
use leafhost_core::device::{Device, Health};
use leafhost_core::device_view::{ConfigurationDevices, DeviceView};
use leafhost_core::edits::Edits;
use leafhost_core::instance::Instance;
use leafhost_core::presence::Absent;
use leafhost_fakes::{Store, configured_as, key};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::*;
use leafhost_core::claim::ports::{ReadError, Records};

pub const NODE: &str = "node-a";

/// API server with claims, disk with records, and folder with CDI specs. Each can fail.
#[derive(Default)]
pub struct World {
    pub claims: Mutex<BTreeMap<String, AllocatedClaim>>,
    /// Number of reads of claims that fail with a transient error.
    pub failures: Mutex<u32>,
    pub records: Mutex<BTreeMap<String, Record>>,
    pub unreadable: Mutex<BTreeMap<String, String>>,
    pub specs: Mutex<BTreeMap<String, BTreeMap<String, Edits>>>,
    pub broken: Mutex<Option<&'static str>>,
    /// Claims that containers use, if that is known.
    pub used: Mutex<Option<BTreeSet<(String, String)>>>,
}

impl World {
    pub fn check(&self, part: &str) -> Result<(), String> {
        match *self.broken.lock().unwrap() {
            Some(broken) if broken == part => Err(format!("{part} cannot be written")),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ClaimReader for World {
    async fn read(&self, namespace: &str, name: &str) -> Result<Option<AllocatedClaim>, ReadError> {
        let mut failures = self.failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(ReadError {
                message: "busy".to_owned(),
                is_transient: true,
            });
        }
        let claims = self.claims.lock().unwrap();
        Ok(claims.get(&format!("{namespace}/{name}")).cloned())
    }
}

#[async_trait]
impl ClaimUsers for World {
    async fn used(&self) -> Option<BTreeSet<(String, String)>> {
        self.used.lock().unwrap().clone()
    }
}

#[async_trait]
impl ClaimRecords for World {
    async fn all(&self) -> Result<Records, String> {
        self.check("folder")?;
        let records = self.records.lock().unwrap().clone();
        Ok((records, self.unreadable.lock().unwrap().clone()))
    }

    async fn save(&self, uid: &str, record: &Record) -> Result<(), String> {
        self.check("record")?;
        self.records
            .lock()
            .unwrap()
            .insert(uid.to_owned(), record.clone());
        Ok(())
    }

    async fn remove(&self, uid: &str) -> Result<(), String> {
        self.records.lock().unwrap().remove(uid);
        self.unreadable.lock().unwrap().remove(uid);
        Ok(())
    }
}

#[async_trait]
impl ClaimSpecs for World {
    async fn write(
        &self,
        uid: &str,
        devices: &BTreeMap<String, Edits>,
    ) -> Result<BTreeMap<String, String>, String> {
        self.check("spec")?;
        self.specs
            .lock()
            .unwrap()
            .insert(uid.to_owned(), devices.clone());
        let named = |name: &String| (name.clone(), format!("k8s.leafhost.dev/claim-{uid}={name}"));
        Ok(devices.keys().map(named).collect())
    }

    async fn remove(&self, uid: &str) -> Result<(), String> {
        self.specs.lock().unwrap().remove(uid);
        Ok(())
    }

    async fn all(&self) -> Result<Vec<String>, String> {
        Ok(self.specs.lock().unwrap().keys().cloned().collect())
    }
}

pub struct Bench {
    pub world: Arc<World>,
    pub store: Arc<Store>,
    pub devices: watch::Sender<Arc<DeviceSnapshot>>,
    pub claims: Claims,
    pub report: watch::Receiver<Arc<ClaimReport>>,
    pub running: AbortOnDropHandle<()>,
}

pub fn mk_instance(hash: &str, capacity: u32) -> Instance {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": format!("gpu-{hash}"), "namespace": "default", "uid": format!("uid-{hash}")},
        "spec": {"configurationName": "gpu", "capacity": capacity, "nodes": [NODE], "leafhost": {"id": hash}},
    }))
    .unwrap()
}

pub fn mk_devices(hashes: &[&str], health: &Health) -> Arc<DeviceSnapshot> {
    let configured = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "gpu", "namespace": "default", "uid": "u"},
        "spec": {"discoveryHandler": {"name": "mock-gpu"}, "capacity": 1, "brokerProperties": {"MODE": "fast"}},
    }));
    let seen = hashes.iter().map(|hash| {
        let mut device = Device::new(*hash, false);
        device
            .properties
            .insert("ID".to_owned(), (*hash).to_owned());
        device.health = health.clone();
        let view = DeviceView {
            device: Some(Arc::new(device.clone())),
            missing_since: None,
        };
        (device.key(), view)
    });
    let view = ConfigurationDevices {
        configured: Arc::new(configured),
        devices: seen.collect(),
        absent: Absent::GONE,
    };
    let mut snapshot = DeviceSnapshot {
        read: true,
        absent: Absent::GONE,
        ..DeviceSnapshot::default()
    };
    snapshot.configurations.insert(key("gpu"), Arc::new(view));
    Arc::new(snapshot)
}

pub fn mk_allocated(device: &str, share: Option<&str>) -> Allocated {
    Allocated {
        request: "gpu".to_owned(),
        alternative: "gpu".to_owned(),
        pool: NODE.to_owned(),
        device: device.to_owned(),
        share: share.map(str::to_owned),
        slots: 1,
        is_admin: false,
    }
}

pub fn mk_ref(name: &str) -> ClaimRef {
    ClaimRef {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("{name}-uid"),
    }
}

pub fn mk_bench(instances: &[Instance]) -> Bench {
    let store = Arc::new(Store::default());
    store.edit(|set| {
        for instance in instances {
            set.instances
                .insert(instance.key(), Arc::new(instance.clone()));
        }
    });
    let world = Arc::<World>::default();
    let hashes: Vec<&str> = instances.iter().filter_map(Instance::device_id).collect();
    let (devices, _) = watch::channel(mk_devices(&hashes, &Health::Healthy));
    mk_agent(world, store, devices)
}

/// Starts an agent.
pub fn mk_agent(
    world: Arc<World>,
    store: Arc<Store>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
) -> Bench {
    let ports = ClaimPorts {
        reader: world.clone(),
        store: store.clone(),
        devices: devices.subscribe(),
        specs: world.clone(),
        records: world.clone(),
        users: world.clone(),
    };
    let (claims, report) = Claims::new(NODE, ports, Arc::default());
    let runs = claims.clone();
    let runs = async move { runs.run(CancellationToken::new()).await };
    Bench {
        world,
        store,
        devices,
        claims,
        report,
        running: AbortOnDropHandle::new(tokio::spawn(runs)),
    }
}

impl Bench {
    /// Kills the agent; returns the rest of its world.
    pub fn kill(self) -> (Arc<World>, Arc<Store>, watch::Sender<Arc<DeviceSnapshot>>) {
        drop(self.running);
        (self.world, self.store, self.devices)
    }

    pub fn allocate(&self, name: &str, results: &[Allocated]) {
        let claim = AllocatedClaim {
            uid: mk_ref(name).uid,
            results: results.to_vec(),
            parameters: Vec::new(),
        };
        let mut claims = self.world.claims.lock().unwrap();
        claims.insert(format!("default/{name}"), claim);
    }

    pub async fn prepare(&self, name: &str) -> Result<Vec<PreparedDevice>, String> {
        self.claims.prepare(mk_ref(name)).await
    }

    /// Returns the slots that are in use.
    pub fn held(&self) -> Vec<String> {
        let set = self.store.set();
        let all = set
            .instances
            .values()
            .flat_map(|one| &one.spec.device_usage);
        let held = all.filter(|(_, usage)| !usage.is_empty());
        held.map(|(slot, usage)| format!("{slot}={usage}"))
            .collect()
    }

    pub async fn until(&self, what: impl Fn(&Self) -> bool) {
        let wait = async {
            while !what(self) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(Duration::from_mins(10), wait)
            .await
            .expect("it does not come");
    }
}
