//! A stand-in for the kubelet: device manager, PodResources, checkpoint and pods' folders, and nothing else of a node. It
//! does on demand what a real kubelet cannot be made to do. Otherwise it does what Kubernetes 1.37 does, faults included.
//!
//! Its folder has the layout of `/var/lib/kubelet`: `device-plugins/`, `pod-resources/kubelet.sock`, `pods/<uid>/`. It
//! knows of a plugin only what the plugin sends.

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

/// Which plugins of a resource a kubelet knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Plugins {
    /// The one that has registered last: up to 1.36. The end of any stream of the resource disconnects it.
    Newest,
    /// Each by the path of its socket, which none may register before the kubelet has seen the end of the one before: from
    /// 1.37 on.
    #[default]
    ByPath,
}

/// How the kubelet is started again.
#[derive(Debug, Clone, Copy, Default)]
pub struct Restart {
    /// The checkpoint is lost meanwhile.
    pub lose_checkpoint: bool,
    /// The pause after each socket that it removes before it listens.
    pub pause: Duration,
    /// It does not know of its pods until [`Kubelet::learn_pods`].
    pub without_pods: bool,
}

/// The stand-in. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Kubelet {
    world: Arc<World>,
    life: Arc<Mutex<Option<Arc<Life>>>>,
    admission: Arc<tokio::sync::Mutex<()>>,
    made: Arc<Mutex<u64>>,
}

impl Kubelet {
    /// One in a folder of its own; it does not run yet.
    pub fn new(root: &Path) -> Self {
        Self {
            world: Arc::new(World::new(root.to_owned())),
            life: Arc::default(),
            admission: Arc::default(),
            made: Arc::default(),
        }
    }

    /// Starts it: the checkpoint is read, the sockets in its folder are removed, then it listens.
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
        self.world.tell();
        Ok(())
    }

    /// Ends it as a kill does: its connections end at once, the files of its sockets stay.
    pub async fn stop(&self) {
        let life = locked(&self.life).take();
        if let Some(life) = life {
            life.end().await;
        }
    }

    /// Ends and starts it. Pods that are active are not admitted again until [`Self::readmit`].
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

    /// The folder, for `--kubelet-dir`.
    pub fn root(&self) -> &Path {
        &self.world.root
    }

    /// The folder of plugins' sockets.
    pub fn device_plugins(&self) -> PathBuf {
        self.world.device_plugins()
    }

    /// The socket of PodResources.
    pub fn pod_resources(&self) -> PathBuf {
        self.world.pod_resources()
    }

    /// The faults that a test can ask for.
    pub fn faults(&self) -> &Faults {
        &self.world.faults
    }

    /// What happened.
    pub fn record(&self) -> Record {
        self.world.recorded()
    }

    /// Picks ids in another order from the next start on, as a real one does each time.
    pub fn shuffle(&self, seed: u64) {
        *locked(&self.world.seed) = seed;
        if let Ok(life) = self.life() {
            locked(&life.model).seed = seed;
        }
    }

    /// Knows these plugins from the next start on.
    pub fn know(&self, plugins: Plugins) {
        *locked(&self.world.plugins) = plugins;
    }

    /// Lets its clock run ahead: a stopped plugin's resource leaves the capacity after five minutes.
    pub fn pass(&self, time: Duration) {
        self.world.pass(time);
    }

    /// Capacity and allocatable as the node's status says now; `None` for a resource it does not have.
    pub fn capacity(&self, resource: &str) -> Option<(usize, usize)> {
        self.capacities().remove(resource)
    }

    /// The same for all.
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

    /// The last list of a resource, by id.
    pub fn devices(&self, resource: &str) -> BTreeMap<String, Device> {
        let life = self.life().ok();
        life.map(|life| locked(&life.model).listed(resource))
            .unwrap_or_default()
    }

    /// How many ListAndWatch of a resource are open.
    pub fn streams(&self, resource: &str) -> usize {
        let life = self.life().ok();
        life.and_then(|life| locked(&life.streams).get(resource).copied())
            .unwrap_or(0)
    }

    /// What a container has of a resource by the device manager's records.
    pub fn held(&self, uid: &str, container: &str, resource: &str) -> Ids {
        self.given(uid, container, resource)
            .map(|given| given.ids())
            .unwrap_or_default()
    }

    /// The ids that pods have by the device manager's records.
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

    /// Forgets what was recorded, but for crashes.
    pub fn forget_record(&self) {
        self.world.record(|record| {
            record.lists.clear();
            record.answers.clear();
        });
    }

    /// What the plugin answered for it.
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

    /// A pod, if it has not been deleted.
    pub fn pod(&self, uid: &str) -> Option<Pod> {
        self.world.pods().get(uid).cloned()
    }

    /// Makes a pod and its folder, and admits none of its containers. Its uid.
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
        self.world.tell();
        Ok(uid)
    }

    /// Makes a pod and admits it: its uid, and why it was rejected if it was. All that are not init containers run then.
    pub async fn run_pod(&self, spec: &PodSpec) -> Result<(String, Result<(), Refusal>)> {
        let uid = self.make_pod(spec)?;
        let admitted = self.admit(&uid).await;
        Ok((uid, admitted))
    }

    /// Admits a pod. One pod at a time, as the kubelet does.
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
        self.world.tell();
        Ok(())
    }

    /// Admits one container for one resource only, while others may be admitted.
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

    /// Starts a container again: what the records don't have is allocated anew.
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
        self.world.tell();
        Ok(())
    }

    /// A container ends and is not started again yet.
    pub fn end_container(&self, uid: &str, container: &str) {
        if let Some(pod) = self.world.pods().get_mut(uid) {
            pod.running.remove(container);
        }
        self.world.tell();
    }

    /// Ends a pod well: it is swept from the records at the next allocation or List, its folder stays.
    pub fn end_pod(&self, uid: &str) {
        if let Some(pod) = self.world.pods().get_mut(uid) {
            pod.phase = Phase::Succeeded;
            pod.running.clear();
        }
        self.world.tell();
    }

    /// Deletes a pod: it leaves the API, then its folder goes.
    pub fn delete_pod(&self, uid: &str) -> Result<()> {
        self.forget_pod(uid);
        self.world.remove_folder(uid)
    }

    /// Deletes a pod whose folder stays, as when a volume can't be unmounted.
    pub fn forget_pod(&self, uid: &str) {
        self.world.pods().remove(uid);
        self.world.tell();
    }

    /// The API server tells a kubelet of its pods that was started without.
    pub fn learn_pods(&self) -> Result<(), Refusal> {
        self.life()?.knows_pods.store(true, Relaxed);
        self.world.tell();
        Ok(())
    }

    /// Admits all active pods again, as after a restart before the API server has told of all: containers that run are let
    /// be, others must find their devices healthy. Who was rejected, and why.
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

    /// A crashed one does not run.
    fn bury(&self, result: &Result<(), Refusal>) {
        if matches!(result, Err(Refusal::Crashed(_))) {
            locked(&self.life).take();
        }
    }

    /// A connection of its own to the plugin that last registered a resource, for calls the kubelet would not make: any
    /// ids, a second ListAndWatch.
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
