//! A stand-in for the kubelet: device manager, PodResources, checkpoint and pods' folders, and nothing else of a node. It produces states on demand
//! that a real kubelet cannot be made to enter. Otherwise it behaves as Kubernetes 1.37 does, faults included.
//!
//! Its folder has the layout of `/var/lib/kubelet`: `device-plugins/`, `pod-resources/kubelet.sock`, `pods/<uid>/`. It knows of a plugin only what
//! the plugin sends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use leafhost_kubelet::proto::device_plugin::{ContainerAllocateResponse, Device};
use tonic::transport::Channel;

mod admission;
pub mod checkpoint;
mod dial;
pub mod faults;
mod life;
mod lister;
pub mod model;
pub mod pods;
mod socket_server;
pub mod waiting;
mod world;

use faults::Faults;
use life::Life;
use model::{Ids, Refusal};
use pods::{Container, Phase, Pod, PodSpec};
pub use waiting::{Blocking, ClockHold};
pub use world::{Answered, Listing, Record, Registration};
use world::{World, locked};

/// Rule by which a kubelet keeps the plugins of one resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Plugins {
    /// Only the last one registered: up to 1.36. The end of any stream of the resource disconnects it.
    Newest,
    /// Each by the path of its socket: from 1.37 on. A path can be registered again only after the kubelet has seen the end of its plugin.
    #[default]
    ByPath,
}

/// Options of a restart of the kubelet.
#[derive(Debug, Clone, Copy, Default)]
pub struct Restart {
    /// True if the checkpoint is lost meanwhile.
    pub lose_checkpoint: bool,
    /// Pause after each socket that the kubelet removes before it listens.
    pub pause: Duration,
    /// True if the kubelet does not know its pods until [`Kubelet::learn_pods`].
    pub without_pods: bool,
}

/// Stand-in for the kubelet. Clones share their state.
#[derive(Debug, Clone)]
pub struct Kubelet {
    world: Arc<World>,
    life: Arc<Mutex<Option<Arc<Life>>>>,
    admission: Arc<tokio::sync::Mutex<()>>,
    made: Arc<Mutex<u64>>,
}

impl Kubelet {
    /// Creates a kubelet in a folder of its own; does not start it.
    pub fn new(root: &Path) -> Self {
        Self {
            world: Arc::new(World::new(root.to_owned())),
            life: Arc::default(),
            admission: Arc::default(),
            made: Arc::default(),
        }
    }

    /// Starts the kubelet: reads the checkpoint, removes the sockets in its folder, then listens.
    pub async fn start(&self) -> Result<()> {
        self.start_as(Restart::default()).await
    }

    async fn start_as(&self, how: Restart) -> Result<()> {
        if locked(&self.life).is_some() {
            bail!("the kubelet runs already");
        }
        let world = Arc::clone(&self.world);
        let life = Life::start(world, how.pause, !how.without_pods).await?;
        *locked(&self.life) = Some(life);
        self.world.notify();
        Ok(())
    }

    /// Ends the kubelet as a kill does: its connections end at once, the files of its sockets stay.
    pub async fn stop(&self) {
        let life = locked(&self.life).take();
        if let Some(life) = life {
            life.end().await;
        }
    }

    /// Ends and starts the kubelet. It does not admit active pods again until [`Self::readmit`].
    pub async fn restart(&self, how: Restart) -> Result<()> {
        self.stop().await;
        if how.lose_checkpoint {
            fs::remove_file(self.device_plugins().join(checkpoint::NAME))
                .context("cannot lose the checkpoint")?;
        }
        self.start_as(how).await
    }

    fn life(&self) -> Result<Arc<Life>, Refusal> {
        locked(&self.life)
            .clone()
            .ok_or_else(|| Refusal::Absent("kubelet runs".to_owned()))
    }

    /// Returns the folder, for `--kubelet-dir`.
    pub fn root(&self) -> &Path {
        &self.world.root
    }

    /// Returns the folder of plugins' sockets.
    pub fn device_plugins(&self) -> PathBuf {
        self.world.device_plugins()
    }

    /// Returns the path of the PodResources socket.
    pub fn pod_resources(&self) -> PathBuf {
        self.world.pod_resources()
    }

    /// Returns the faults that a test can request.
    pub fn faults(&self) -> &Faults {
        &self.world.faults
    }

    /// Returns a copy of the record of all calls.
    pub fn record(&self) -> Record {
        self.world.recorded()
    }

    /// Sets the seed of the order in which IDs are picked; a real kubelet has another order after each start.
    pub fn shuffle(&self, seed: u64) {
        *locked(&self.world.seed) = seed;
        if let Ok(life) = self.life() {
            locked(&life.model).seed = seed;
        }
    }

    /// Sets the rule for plugins from the next start on.
    pub fn know(&self, plugins: Plugins) {
        *locked(&self.world.plugins) = plugins;
    }

    /// Advances the kubelet's clock. The resource of a stopped plugin leaves the capacity after five minutes.
    pub fn pass(&self, time: Duration) {
        self.world.pass(time);
    }

    /// Returns the resource's capacity and allocatable in the current status of the node; `None` if the node does not have it.
    pub fn capacity(&self, resource: &str) -> Option<(usize, usize)> {
        self.capacities().remove(resource)
    }

    /// Returns capacity and allocatable of all resources.
    pub fn capacities(&self) -> BTreeMap<String, (usize, usize)> {
        let Ok(life) = self.life() else {
            return BTreeMap::new();
        };
        let now = self.world.now();
        let (counts, dropped) = locked(&life.model).capacity(now);
        if dropped {
            life.save();
        }
        counts
    }

    /// Returns the last list of a resource, by ID.
    pub fn devices(&self, resource: &str) -> BTreeMap<String, Device> {
        let life = self.life().ok();
        life.map(|life| locked(&life.model).listed(resource))
            .unwrap_or_default()
    }

    /// Returns the number of open ListAndWatch streams of a resource.
    pub fn streams(&self, resource: &str) -> usize {
        let life = self.life().ok();
        life.and_then(|life| locked(&life.streams).get(resource).copied())
            .unwrap_or(0)
    }

    /// Returns the IDs of a resource that a container holds by the device manager's records.
    pub fn held(&self, uid: &str, container: &str, resource: &str) -> Ids {
        self.given(uid, container, resource)
            .map(|given| given.ids())
            .unwrap_or_default()
    }

    /// Returns the IDs that active pods hold by the device manager's records.
    pub fn all_held(&self) -> Ids {
        let Ok(life) = self.life() else {
            return Ids::new();
        };
        let model = locked(&life.model);
        let active = self.world.active();
        let pods = model
            .all_given()
            .iter()
            .filter(|(uid, _)| active.contains(*uid));
        let containers = pods.flat_map(|(_, pod)| pod.values());
        containers
            .flat_map(|of| of.values().flat_map(model::Given::ids))
            .collect()
    }

    /// Clears the record of lists and answers; keeps registrations and crashes.
    pub fn forget_record(&self) {
        self.world.record(|record| {
            record.lists.clear();
            record.answers.clear();
        });
    }

    /// Returns the plugin's answer to the Allocate call for this container and resource.
    pub fn answer(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
    ) -> Option<ContainerAllocateResponse> {
        Some(self.given(uid, container, resource)?.answer)
    }

    fn given(&self, uid: &str, container: &str, resource: &str) -> Option<model::Given> {
        let life = self.life().ok()?;
        let model = locked(&life.model);
        model.given(uid, container, resource).cloned()
    }

    /// Returns a pod that has not been deleted.
    pub fn pod(&self, uid: &str) -> Option<Pod> {
        self.world.pods().get(uid).cloned()
    }

    /// Creates a pod and its folder without admitting a container, and returns its UID.
    pub fn make_pod(&self, spec: &PodSpec) -> Result<String> {
        let number = {
            let mut made = locked(&self.made);
            *made += 1;
            *made
        };
        let uid = format!("00000000-0000-4000-8000-{number:012}");
        self.world.make_folder(&uid)?;
        let pod = Pod {
            spec: spec.clone(),
            phase: Phase::Active,
            running: std::collections::BTreeSet::new(),
        };
        self.world.pods().insert(uid.clone(), pod);
        self.world.notify();
        Ok(uid)
    }

    /// Creates a pod and admits it. Returns its UID and the result of its admission. An admitted pod runs all but its init containers.
    pub async fn run_pod(&self, spec: &PodSpec) -> Result<(String, Result<(), Refusal>)> {
        let uid = self.make_pod(spec)?;
        let admitted = self.admit(&uid).await;
        Ok((uid, admitted))
    }

    /// Admits a pod; one at a time, as the kubelet does.
    pub async fn admit(&self, uid: &str) -> Result<(), Refusal> {
        let life = self.life()?;
        let result = {
            let _one_at_a_time = self.admission.lock().await;
            life.admit_pod(uid).await
        };
        self.bury(&result);
        result?;
        if let Some(pod) = self.world.pods().get_mut(uid) {
            let stay = pod
                .spec
                .containers
                .iter()
                .filter(|c| c.kind != pods::Kind::Init);
            pod.running = stay.map(|container| container.name.clone()).collect();
        }
        self.world.notify();
        Ok(())
    }

    /// Allocates one resource for one container only, even while other pods are admitted.
    pub async fn allocate(
        &self,
        uid: &str,
        container: &str,
        resource: &str,
        count: usize,
    ) -> Result<Ids, Refusal> {
        let life = self.life()?;
        let kind = self
            .pod(uid)
            .and_then(|pod| pod.container(container).map(|container| container.kind))
            .ok_or_else(|| Refusal::Absent(format!("container {container} in pod {uid}")))?;
        let asking = Container {
            name: container.to_owned(),
            kind,
            requests: [(resource.to_owned(), count)].into(),
        };
        let result = life.admit(uid, &asking).await;
        self.bury(&result);
        result?;
        Ok(self.held(uid, container, resource))
    }

    /// Starts a container again; allocates what the records do not have.
    pub async fn start_container(&self, uid: &str, container: &str) -> Result<(), Refusal> {
        let life = self.life()?;
        let pod = self.pod(uid);
        let asking = pod
            .as_ref()
            .and_then(|pod| pod.container(container))
            .ok_or_else(|| Refusal::Absent(format!("container {container} in pod {uid}")))?;
        let has_all = asking.requests.keys().all(|resource| {
            let model = locked(&life.model);
            !model.is_known(resource) || model.given(uid, container, resource).is_some()
        });
        if !has_all {
            let result = life.admit(uid, asking).await;
            self.bury(&result);
            result?;
        }
        if let Some(pod) = self.world.pods().get_mut(uid) {
            pod.running.insert(container.to_owned());
        }
        self.world.notify();
        Ok(())
    }

    /// Ends a container without starting it again.
    pub fn end_container(&self, uid: &str, container: &str) {
        if let Some(pod) = self.world.pods().get_mut(uid) {
            pod.running.remove(container);
        }
        self.world.notify();
    }

    /// Ends a pod successfully. The next allocation or List removes it from the records; its folder stays.
    pub fn end_pod(&self, uid: &str) {
        if let Some(pod) = self.world.pods().get_mut(uid) {
            pod.phase = Phase::Succeeded;
            pod.running.clear();
        }
        self.world.notify();
    }

    /// Deletes a pod from the API, then its folder.
    pub fn delete_pod(&self, uid: &str) -> Result<()> {
        self.forget_pod(uid);
        self.world.remove_folder(uid)
    }

    /// Deletes a pod from the API but keeps its folder, as when a volume cannot be unmounted.
    pub fn forget_pod(&self, uid: &str) {
        self.world.pods().remove(uid);
        self.world.notify();
    }

    /// Tells the kubelet its pods, as the API server does, after a start [without pods](Restart::without_pods).
    pub fn learn_pods(&self) -> Result<(), Refusal> {
        self.life()?.knows_pods.store(true, Relaxed);
        self.world.notify();
        Ok(())
    }

    /// Admits all active pods again, as after a restart before the API server has sent the kubelet all of them: running containers are left alone,
    /// others must find their devices healthy. Returns the rejected pods with the reasons.
    pub async fn readmit(&self) -> Result<BTreeMap<String, Refusal>, Refusal> {
        let life = self.life()?;
        let knew = life.knows_pods.swap(false, Relaxed);
        let mut rejected = BTreeMap::new();
        for uid in self.world.active() {
            let _one_at_a_time = self.admission.lock().await;
            if let Err(refusal) = life.admit_pod(&uid).await {
                self.bury(&Err(refusal.clone()));
                rejected.insert(uid, refusal);
            }
        }
        life.knows_pods.store(knew, Relaxed);
        Ok(rejected)
    }

    /// Ends the process if the admission crashed it.
    fn bury(&self, result: &Result<(), Refusal>) {
        if matches!(result, Err(Refusal::Crashed(_))) {
            locked(&self.life).take();
        }
    }

    /// Connects to the plugin that last registered a resource, for calls that the kubelet would not make: any IDs, a second ListAndWatch.
    pub async fn dial(&self, resource: &str) -> Result<DevicePluginClient<Channel>> {
        let record = self.record();
        let last = record.registrations.iter().rev();
        let endpoint = last
            .filter(|one| one.resource == resource && one.refused.is_none())
            .map(|one| &one.endpoint)
            .next()
            .with_context(|| format!("{resource} was never registered"))?;
        Ok(dial::dial(&self.device_plugins().join(endpoint)).await?)
    }
}
