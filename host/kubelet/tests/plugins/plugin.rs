//! Running plugin with an allocator that tests can block.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use leafhost_kubelet::proto::device_plugin::{AllocateRequest, ContainerAllocateRequest};
use leafhost_kubelet::{
    Allocation, Allocator, Device, DevicePlugins, DevicePluginsTask, Devices, Health, Offers,
    PluginConfig, Refusal, Report, ResourceName, State,
};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const CAMERAS: &str = "akri.sh/cameras";

/// Allocator that answers with the requested ids when it may.
pub struct Answers {
    pub may: Semaphore,
    pub done: AtomicU32,
    pub asked: watch::Sender<Vec<BTreeSet<String>>>,
}

#[async_trait::async_trait]
impl Allocator for Answers {
    async fn allocate(
        &self,
        resource: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal> {
        self.asked.send_modify(|asked| asked.push(ids.clone()));
        drop(self.may.acquire().await);
        self.done.fetch_add(1, Relaxed);
        if ids.contains("taken") {
            return Err(Refusal::Unavailable("taken is used on node b".into()));
        }
        let ids: Vec<String> = ids.into_iter().collect();
        let envs = BTreeMap::from([(resource.to_string(), ids.join(","))]);
        Ok(Allocation {
            envs,
            ..Allocation::default()
        })
    }

    fn prefer(&self, _resource: &ResourceName, available: &BTreeSet<String>) -> Vec<String> {
        available.iter().rev().cloned().collect()
    }
}

pub struct Plugin {
    pub offers: watch::Sender<Arc<Offers>>,
    pub handle: DevicePlugins,
    pub answers: Arc<Answers>,
    pub shutdown: CancellationToken,
    pub task: JoinHandle<()>,
}

impl Plugin {
    pub fn start(folder: &Path, change: impl FnOnce(&mut PluginConfig)) -> Self {
        let mut config = PluginConfig::new(folder, "leafhost");
        change(&mut config);
        let offers = watch::Sender::<Arc<Offers>>::default();
        let answers = Arc::new(Answers {
            may: Semaphore::new(1),
            done: AtomicU32::new(0),
            asked: watch::Sender::default(),
        });
        let allocator: Arc<dyn Allocator> = Arc::<Answers>::clone(&answers);
        let (task, handle) = DevicePluginsTask::new(config, offers.subscribe(), allocator);
        let shutdown = CancellationToken::new();
        let token = shutdown.clone();
        let task = tokio::spawn(async move { task.run(token).await.unwrap() });
        Self {
            offers,
            handle,
            answers,
            shutdown,
            task,
        }
    }

    pub fn offer(&self, resource: &str, devices: &[(&str, Health)]) {
        let devices: Devices = devices
            .iter()
            .map(|(id, health)| {
                let device = Device {
                    health: *health,
                    numa: None,
                };
                (id.to_string(), device)
            })
            .collect();
        self.offers.send_modify(|offers| {
            Arc::make_mut(offers).insert(ResourceName::new(resource).unwrap(), Arc::new(devices));
        });
    }

    pub fn withdraw(&self, resource: &str) {
        self.offers.send_modify(|offers| {
            Arc::make_mut(offers).remove(&ResourceName::new(resource).unwrap());
        });
    }

    pub async fn reports(&self, what: impl Fn(&Report) -> bool) -> Arc<Report> {
        let mut reports = self.handle.report();
        let waiting = reports.wait_for(|report| what(report));
        let waited = tokio::time::timeout(Duration::from_mins(1), waiting).await;
        let Ok(report) = waited else {
            panic!("only {:?}", self.handle.report().borrow());
        };
        Arc::clone(&report.unwrap())
    }

    pub async fn is(&self, resource: &str, state: State) -> Arc<Report> {
        let name = ResourceName::new(resource).unwrap();
        self.reports(|report| {
            let resource = report.resources.get(&name);
            resource.is_some_and(|resource| resource.state == state)
        })
        .await
    }

    pub async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

pub fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Replaces the checkpoint as the kubelet does.
pub fn replace_checkpoint(folder: &Path) {
    let new = folder.join("new");
    std::fs::write(&new, "{}").unwrap();
    std::fs::rename(&new, folder.join("kubelet_internal_checkpoint")).unwrap();
}

pub fn allocate(ids: &[&str]) -> AllocateRequest {
    let devices_ids = ids.iter().map(ToString::to_string).collect();
    AllocateRequest {
        container_requests: vec![ContainerAllocateRequest { devices_ids }],
    }
}

pub fn problem(report: &Report, resource: &str) -> String {
    let name = ResourceName::new(resource).unwrap();
    report.resources[&name].problem.clone().unwrap_or_default()
}
