//! A DRA driver against a kubelet, over real sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_kubelet::dra::{
    ClaimPreparer, ClaimRef, DeviceHealth, DraConfig, DraReport, DraTask, HealthList,
    PreparedDevice, Registration,
};
use leafhost_kubelet::proto::dra::dra_plugin_client::DraPluginClient;
use leafhost_kubelet::proto::dra::{
    Claim, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest,
};
use leafhost_kubelet::proto::dra_health::dra_resource_health_client::DraResourceHealthClient;
use leafhost_kubelet::proto::dra_health::{HealthStatus, NodeWatchResourcesRequest};
use leafhost_kubelet::proto::plugin_registration::registration_client::RegistrationClient;
use leafhost_kubelet::proto::plugin_registration::{InfoRequest, RegistrationStatus};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{Request, Uri};
use tonic::transport::{Channel, Endpoint};
use tower::util::MapRequest;

const DRIVER: &str = "devices.example.com";

/// Prepares each claim as one device; fails for claims named `bad`.
#[derive(Default)]
struct Preparer {
    prepared: Mutex<Vec<String>>,
}

#[async_trait]
impl ClaimPreparer for Preparer {
    async fn prepare(&self, claim: ClaimRef) -> Result<Vec<PreparedDevice>, String> {
        if claim.name == "bad" {
            return Err("no such device".to_owned());
        }
        self.prepared.lock().unwrap().push(claim.uid.clone());
        Ok(vec![PreparedDevice {
            requests: vec!["camera".to_owned()],
            pool: "node-a".to_owned(),
            device: claim.name,
            cdi: vec![format!("example.com/claim={}", claim.uid)],
            share: Some("s1".to_owned()),
        }])
    }

    async fn unprepare(&self, claim: ClaimRef) -> Result<(), String> {
        let mut prepared = self.prepared.lock().unwrap();
        prepared.retain(|uid| *uid != claim.uid);
        Ok(())
    }
}

struct Driver {
    config: DraConfig,
    preparer: Arc<Preparer>,
    health: watch::Sender<Arc<HealthList>>,
    report: watch::Receiver<DraReport>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Driver {
    fn start(folder: &Path) -> Self {
        let config = DraConfig {
            driver: DRIVER.to_owned(),
            kubelet_dir: folder.to_owned(),
            drain: Duration::from_secs(5),
        };
        let preparer = Arc::<Preparer>::default();
        let (health, healths) = watch::channel(Arc::default());
        let (task, report) = DraTask::new(config.clone(), preparer.clone(), healths);
        let stop = CancellationToken::new();
        Self {
            config,
            preparer,
            health,
            report,
            task: tokio::spawn(task.run(stop.clone())),
            stop,
        }
    }

    async fn until(&mut self, what: impl Fn(&DraReport) -> bool) {
        let found = self.report.wait_for(|report| what(report));
        let found = tokio::time::timeout(Duration::from_secs(20), found).await;
        drop(found.expect("the report does not come").unwrap());
    }

    async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(Duration::from_secs(20), self.task)
            .await
            .unwrap()
            .unwrap();
    }
}

/// Connects as soon as the socket exists.
async fn connect(socket: &Path) -> Channel {
    let path = format!("unix:{}", socket.display());
    let connected = async {
        loop {
            if let Ok(channel) = Endpoint::try_from(path.clone()).unwrap().connect().await {
                return channel;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), connected)
        .await
        .expect("nobody serves the socket")
}

/// Calls the services in the versions before the current ones.
fn before(
    channel: Channel,
) -> MapRequest<Channel, impl FnMut(Request<Body>) -> Request<Body> + Clone> {
    MapRequest::new(channel, |mut call: Request<Body>| {
        let path = call.uri().path();
        let path = path
            .replace("/v1.", "/v1alpha1.")
            .replace(".v1.", ".v1beta1.");
        let mut parts = call.uri().clone().into_parts();
        parts.path_and_query = Some(path.parse().unwrap());
        *call.uri_mut() = Uri::from_parts(parts).unwrap();
        call
    })
}

fn mk_kubelet() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("plugins_registry")).unwrap();
    folder
}

fn mk_claim(name: &str) -> Claim {
    Claim {
        namespace: "default".to_owned(),
        uid: format!("uid-{name}"),
        name: name.to_owned(),
    }
}

#[tokio::test]
async fn a_driver_is_registered_and_called_in_both_versions() {
    let folder = mk_kubelet();
    let mut driver = Driver::start(folder.path());
    let registry = connect(&driver.config.registration_socket()).await;
    let mut registry = RegistrationClient::new(registry);
    let info = registry
        .get_info(InfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (&*info.r#type, &*info.name),
        ("DRAPlugin", "devices.example.com")
    );
    assert_eq!(
        info.supported_versions,
        [
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth"
        ]
    );
    assert_eq!(Path::new(&info.endpoint), driver.config.plugin_socket());
    let told = |plugin_registered, error: &str| RegistrationStatus {
        plugin_registered,
        error: error.to_owned(),
    };
    let refused = registry.notify_registration_status(told(false, "too old"));
    refused.await.unwrap();
    driver
        .until(|report| report.registration == Registration::Refused("too old".to_owned()))
        .await;
    let taken = registry.notify_registration_status(told(true, ""));
    taken.await.unwrap();
    driver
        .until(|report| report.registration == Registration::Registered)
        .await;

    let channel = connect(Path::new(&info.endpoint)).await;
    let mut today = DraPluginClient::new(channel.clone());
    let mut before = DraPluginClient::new(before(channel.clone()));
    let asked = NodePrepareResourcesRequest {
        claims: vec![mk_claim("one"), mk_claim("bad")],
    };
    let answer = today.node_prepare_resources(asked.clone()).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.claims["uid-one"].devices[0].device_name, "one");
    assert_eq!(
        answer.claims["uid-one"].devices[0].share_id.as_deref(),
        Some("s1")
    );
    assert_eq!(answer.claims["uid-bad"].error, "no such device");
    let same = before.node_prepare_resources(asked).await.unwrap();
    assert_eq!(same.into_inner(), answer);
    let given = NodeUnprepareResourcesRequest {
        claims: vec![mk_claim("one")],
    };
    let given = before.node_unprepare_resources(given).await.unwrap();
    assert_eq!(given.into_inner().claims["uid-one"].error, "");
    assert!(driver.preparer.prepared.lock().unwrap().is_empty());

    drop((today, before, channel));
    driver
        .until(|report| report.registration == Registration::Lost)
        .await;
    driver.stop().await;
    let left = std::fs::read_dir(folder.path().join("plugins_registry"));
    assert_eq!(left.unwrap().count(), 0);
}

#[tokio::test]
async fn a_kubelet_whose_calls_broke_off_registers_the_driver_when_it_calls_again() {
    let folder = mk_kubelet();
    let mut driver = Driver::start(folder.path());
    let socket = driver.config.registration_socket();
    connect(&socket).await;
    // The kubelet hangs up in the middle of its preface.
    let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    drop(stream);
    // The kubelet gives GetInfo up before the answer, and never sends the status.
    let mut registry = RegistrationClient::new(connect(&socket).await);
    let call = registry.get_info(InfoRequest {});
    tokio::select! {
        biased;
        () = async {} => {}
        _ = call => {}
    }
    drop(registry);
    // The kubelet accepts the driver, and hangs up before it gets the answer.
    let registered = RegistrationStatus {
        plugin_registered: true,
        error: String::new(),
    };
    let mut registry = RegistrationClient::new(connect(&socket).await);
    registry.get_info(InfoRequest {}).await.unwrap();
    assert_eq!(driver.report.borrow().registration, Registration::Awaited);
    let channel = registry.clone();
    tokio::select! {
        _ = registry.notify_registration_status(registered.clone()) => {}
        () = tokio::time::sleep(Duration::from_millis(1)) => {}
    }
    drop((registry, channel));
    // The kubelet calls again from the start.
    let mut registry = RegistrationClient::new(connect(&socket).await);
    let info = registry.get_info(InfoRequest {}).await.unwrap();
    assert_eq!(info.into_inner().name, DRIVER);
    let told = registry.notify_registration_status(registered);
    told.await.unwrap();
    driver
        .until(|report| report.registration == Registration::Registered)
        .await;
    driver.stop().await;
}

#[tokio::test]
async fn the_health_of_all_devices_is_told_at_once_and_with_each_change() {
    let folder = mk_kubelet();
    let driver = Driver::start(folder.path());
    let list = |is_healthy, message: &str| {
        let health = DeviceHealth {
            is_healthy,
            message: message.to_owned(),
        };
        let named = |name: &str| (("node-a".to_owned(), name.to_owned()), health.clone());
        Arc::new(BTreeMap::from([named("a"), named("b")]))
    };
    driver.health.send_replace(list(true, ""));
    let channel = connect(&driver.config.plugin_socket()).await;
    let mut today = DraResourceHealthClient::new(channel.clone());
    let mut before = DraResourceHealthClient::new(before(channel));
    let today = today.node_watch_resources(NodeWatchResourcesRequest {});
    let before = before.node_watch_resources(NodeWatchResourcesRequest {});
    for mut stream in [
        today.await.unwrap().into_inner(),
        before.await.unwrap().into_inner(),
    ] {
        driver.health.send_replace(list(true, ""));
        let first = stream.message().await.unwrap().unwrap();
        assert_eq!(first.devices.len(), 2);
        assert_eq!(first.devices[0].health(), HealthStatus::Healthy);
        // The longest text ends between two characters.
        driver.health.send_replace(list(false, &"ä".repeat(600)));
        let changed = loop {
            let message = stream.message().await.unwrap().unwrap();
            if message.devices[1].health() == HealthStatus::Unhealthy {
                break message;
            }
        };
        assert_eq!(changed.devices[1].message.len(), 1024);
        assert!(changed.devices[1].last_updated_time > 0);
    }
    driver.stop().await;
}

#[tokio::test]
async fn sockets_that_are_left_are_replaced_and_those_that_vanish_are_made_again() {
    let folder = mk_kubelet();
    let mut driver = Driver::start(folder.path());
    drop(connect(&driver.config.registration_socket()).await);
    // As a second agent of the node would find it.
    let mut second = Driver::start(folder.path());
    second
        .until(|report| {
            report
                .problem
                .as_ref()
                .is_some_and(|why| why.contains("stop that process"))
        })
        .await;
    second.stop().await;
    let (registry, plugin) = (
        driver.config.registration_socket(),
        driver.config.plugin_socket(),
    );
    for socket in [&registry, &plugin] {
        std::fs::remove_file(socket).unwrap();
        drop(connect(&registry).await);
        drop(connect(&plugin).await);
    }
    // As after a kill: no process listens.
    driver.task.abort();
    let _ = (&mut driver.task).await;
    for socket in [&registry, &plugin] {
        drop(std::os::unix::net::UnixListener::bind(socket));
    }
    let third = Driver::start(folder.path());
    drop(connect(&registry).await);
    drop(connect(&plugin).await);
    third.stop().await;
    assert!(!registry.exists() && !plugin.exists());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_without_a_folder_of_plugins_is_told_until_it_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut driver = Driver::start(folder.path());
    driver
        .until(|report| {
            report
                .problem
                .as_ref()
                .is_some_and(|why| why.contains("--kubelet-dir"))
        })
        .await;
    std::fs::create_dir(folder.path().join("plugins_registry")).unwrap();
    driver.until(|report| report.problem.is_none()).await;
    driver.stop().await;
}
