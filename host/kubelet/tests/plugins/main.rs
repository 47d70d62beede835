//! The device-plugin side against a kubelet, over real sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leafhost_kubelet::{
    Allocation, Allocator, Device, DevicePlugins, DevicePluginsTask, Devices, Health, Offers,
    PluginConfig, Refusal, Report, ResourceName, State,
};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

mod kubelet;
use kubelet::Kubelet;

const CAMERAS: &str = "akri.sh/cameras";

/// Answers with the ids it was asked for, when it is let.
struct Answers {
    may: Semaphore,
    asked: watch::Sender<Vec<BTreeSet<String>>>,
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

struct Plugin {
    offers: watch::Sender<Arc<Offers>>,
    handle: DevicePlugins,
    answers: Arc<Answers>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Plugin {
    fn start(folder: &Path, change: impl FnOnce(&mut PluginConfig)) -> Self {
        let mut config = PluginConfig::new(folder, "leafhost");
        change(&mut config);
        let offers = watch::Sender::<Arc<Offers>>::default();
        let answers = Arc::new(Answers {
            may: Semaphore::new(1),
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

    fn offer(&self, resource: &str, devices: &[(&str, Health)]) {
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

    async fn reports(&self, what: impl Fn(&Report) -> bool) -> Arc<Report> {
        let mut reports = self.handle.report();
        let waiting = reports.wait_for(|report| what(report));
        match tokio::time::timeout(Duration::from_secs(60), waiting).await {
            Ok(report) => Arc::clone(&report.unwrap()),
            Err(_) => panic!("only {:?}", self.handle.report().borrow()),
        }
    }

    async fn is(&self, resource: &str, state: State) -> Arc<Report> {
        let name = ResourceName::new(resource).unwrap();
        self.reports(|report| {
            let resource = report.resources.get(&name);
            resource.is_some_and(|resource| resource.state == state)
        })
        .await
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

fn problem(report: &Report, resource: &str) -> String {
    let name = ResourceName::new(resource).unwrap();
    report.resources[&name].problem.clone().unwrap_or_default()
}

#[tokio::test]
async fn a_resource_is_registered_once_and_its_list_followed() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Unhealthy)]);
    kubelet
        .listed(CAMERAS, &[("a", "Healthy"), ("b", "Unhealthy")])
        .await;
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Healthy)]);
    kubelet
        .listed(CAMERAS, &[("a", "Healthy"), ("b", "Healthy")])
        .await;
    let answer = kubelet.allocate(CAMERAS, &["a", "b"]).await.unwrap();
    assert_eq!(answer.container_responses[0].envs[CAMERAS], "a,b");
    plugin.is(CAMERAS, State::Listed).await;
    assert_eq!(kubelet.registrations(CAMERAS), 1);
    plugin.stop().await;
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}
