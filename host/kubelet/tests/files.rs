//! Behaviour without free file descriptors. A process of its own: the limit applies to the whole process.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use leafhost_kubelet::{
    Allocation, Allocator, Device, DevicePluginsTask, Devices, Health, Offers, PluginConfig,
    Refusal, ResourceName,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct Nothing;

#[async_trait::async_trait]
impl Allocator for Nothing {
    async fn allocate(&self, _: &ResourceName, _: BTreeSet<String>) -> Result<Allocation, Refusal> {
        Ok(Allocation::default())
    }

    fn prefer(&self, _: &ResourceName, _: &BTreeSet<String>) -> Vec<String> {
        Vec::new()
    }
}

#[tokio::test]
async fn a_want_of_file_descriptors_is_named_and_passes() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("example-serial.sock");
    let (wanted, offered) = watch::channel(Arc::<Offers>::default());
    let mut config = PluginConfig::new(folder.path(), "example");
    config.times.register = Duration::from_millis(50);
    config.times.backoff = Duration::from_millis(10);
    config.times.backoff_other = Duration::from_millis(10);
    let (task, plugins) = DevicePluginsTask::new(config, offered, Arc::new(Nothing));
    let stop = CancellationToken::new();
    let running = tokio::spawn(task.run(stop.clone()));
    let mut report = plugins.report();
    let _kubelet = UnixListener::bind(folder.path().join("kubelet.sock")).unwrap();
    report
        .wait_for(|report| report.kubelet.is_some())
        .await
        .unwrap();
    // No process serves it, which cannot be found out without a descriptor.
    drop(UnixListener::bind(&socket).unwrap());

    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 128, most).unwrap();
    let mut offers = Offers::new();
    // For the first resource the kubelet is not yet connected.
    for (resource, what) in [
        ("example.com/first", "cannot connect to"),
        ("example.com/serial", "cannot create the socket"),
    ] {
        let open: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let healthy = Device {
            health: Health::Healthy,
            numa: None,
        };
        let devices = Devices::from([("a".to_owned(), healthy)]);
        let name = ResourceName::new(resource).unwrap();
        offers.insert(name.clone(), Arc::new(devices));
        wanted.send_replace(Arc::new(offers.clone()));
        let problem =
            |report: &leafhost_kubelet::Report| report.resources.get(&name)?.problem.clone();
        let named = report
            .wait_for(|report| problem(report).is_some())
            .await
            .unwrap();
        let said = problem(&named).unwrap();
        drop(named);
        assert!(said.starts_with(what), "{said}");
        assert!(said.contains("raise the limit of open files"), "{said}");

        drop(open);
        let late = report.wait_for(|report| {
            let said = problem(report).unwrap_or_default();
            said.contains("has not answered the registration")
        });
        tokio::time::timeout(Duration::from_mins(1), late)
            .await
            .unwrap()
            .unwrap();
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}
