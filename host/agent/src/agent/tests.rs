//! Tests of the whole agent, with fakes for the ports.

use std::collections::BTreeMap;
use std::path::Path;

use leafhost_core::device::Device;
use leafhost_core::ports::ConfigurationSet;
use leafhost_core::timeouts;
use leafhost_fakes::{
    FakeLoader, Files, Ledger, Store, complete, configuration_set, configured, file, wait_for,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::*;
use crate::status::Status;

struct Bench {
    configurations: watch::Sender<Arc<ConfigurationSet>>,
    files: Arc<Files>,
    loader: Arc<FakeLoader>,
    store: Arc<Store>,
    board: AgentState,
    address: std::net::SocketAddr,
    shutdown: CancellationToken,
    agent: tokio::task::JoinHandle<Result<(), Error>>,
    cdi: tempfile::TempDir,
}

/// Returns settings of standalone mode with the default times, CDI specs in `cdi` and no endpoint.
fn mk_config(node: &str, cdi: &Path) -> AgentConfig {
    AgentConfig {
        identity: Identity {
            node: node.to_owned(),
            version: "1.2.3".to_owned(),
            mode: "standalone".to_owned(),
            cdi_dir: Some(cdi.to_owned()),
            problems: Vec::new(),
        },
        cdi_readers: Readers::Everybody,
        kubelet: None,
        handler_eviction: timeouts::HANDLER_EVICTION,
        listener: None,
        socket: None,
        metrics_listener: None,
        lost_log_lines: || 0,
    }
}

async fn start(store: Arc<Store>) -> Bench {
    let configurations = configuration_set([configured("cams", "udev", "x")]);
    let (configurations, receiver) = watch::channel(configurations);
    let loader = Arc::new(FakeLoader::default());
    let files = Arc::new(Files::new(&[file("udev.wasm", "udev@1")]));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let cdi = tempfile::tempdir().unwrap();
    let config = AgentConfig {
        listener: Some(listener),
        ..mk_config("node-a", cdi.path())
    };
    let ports = Ports {
        configurations: receiver,
        handlers: Arc::<Files>::clone(&files),
        accepted: Arc::<Files>::clone(&files),
        loader: Arc::<FakeLoader>::clone(&loader),
        instances: Arc::<Store>::clone(&store),
        ledger: Arc::<Ledger>::default(),
        claims: None,
    };
    let agent = Agent::build(config, ports).unwrap();
    let board = agent.board.clone();
    let shutdown = CancellationToken::new();
    Bench {
        configurations,
        files,
        loader,
        store,
        board,
        address,
        agent: tokio::spawn(agent.run(shutdown.clone())),
        shutdown,
        cdi,
    }
}

#[tokio::test]
async fn a_second_agent_with_the_same_cdi_folder_is_refused_with_the_pid_of_the_first() {
    let bench = start(Arc::default()).await;
    let config = mk_config("node-b", bench.cdi.path());
    let files = Arc::new(Files::new(&[]));
    let ports = Ports {
        configurations: watch::channel(Arc::default()).1,
        handlers: Arc::<Files>::clone(&files),
        accepted: files,
        loader: Arc::<FakeLoader>::default(),
        instances: Arc::<Store>::default(),
        ledger: Arc::<Ledger>::default(),
        claims: None,
    };
    let text = Agent::build(config, ports).err().unwrap().to_string();
    let pid = format!("is in use by the agent with pid {}", std::process::id());
    assert!(text.contains(&pid) && text.contains("--cdi-dir"), "{text}");
    bench.shutdown.cancel();
    bench.agent.await.unwrap().unwrap();
}

impl Bench {
    async fn get(&self, path: &str) -> (u16, BTreeMap<String, String>, String) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        let code = lines
            .next()
            .unwrap()
            .split(' ')
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
            .collect();
        (code, headers, body.to_owned())
    }

    /// Makes the handler report devices, once its session is open.
    async fn sees(&self, devices: &[Device]) {
        loop {
            let handler = self
                .loader
                .handlers
                .lock()
                .unwrap()
                .get("udev.wasm")
                .cloned();
            if handler.is_some_and(|handler| handler.say("cams", complete(devices))) {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn instances(&self, count: usize) {
        wait_for(&self.store.subscribe(), |set| set.instances.len() == count).await;
    }

    async fn end(self) -> Arc<Store> {
        self.shutdown.cancel();
        self.agent.await.unwrap().unwrap();
        self.store
    }
}

fn camera(id: &str) -> Device {
    let mut device = Device::new(id, true);
    device.properties.insert("ID".to_owned(), id.to_owned());
    device
}

#[tokio::test]
async fn a_device_goes_all_the_way_and_is_seen_in_the_status() {
    let bench = start(Arc::default()).await;
    bench.sees(&[camera("foo0"), camera("foo1")]).await;
    bench.instances(2).await;
    assert_eq!(bench.store.names(), ["cams-8120fe", "cams-a19705"]);

    let status = loop {
        let (code, _, body) = bench.get("/status").await;
        assert_eq!(code, 200);
        let status: Status = serde_json::from_str(&body).unwrap();
        let cdi = status
            .configurations
            .iter()
            .any(|view| view.cdi_kind.is_some());
        let handler = status.handlers.first();
        let active =
            handler.is_some_and(|handler| handler.status == "Active" && handler.devices == 2);
        if cdi && active && status.instances.len() == 2 {
            break status;
        }
    };
    assert_eq!(
        (status.node.as_str(), status.version.as_str()),
        ("node-a", "1.2.3")
    );
    let [handler] = status.handlers.as_slice() else {
        panic!("{status:?}")
    };
    assert_eq!(
        (
            handler.name.as_str(),
            handler.status.as_str(),
            handler.devices
        ),
        ("udev", "Active", 2)
    );
    let [configuration] = status.configurations.as_slice() else {
        panic!("{status:?}")
    };
    assert_eq!(
        (configuration.name.as_str(), configuration.devices),
        ("cams", 2)
    );
    assert_eq!(configuration.problems, []);
    assert_eq!(configuration.cdi_kind.as_deref(), Some("akri.sh/cams"));

    assert_eq!(bench.get("/healthz").await.0, 200);
    assert_eq!(bench.get("/readyz").await.0, 200);
    let (_, headers, metrics) = bench.get("/metrics").await;
    assert_eq!(
        headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    for line in [
        r#"akri_instance_count{configuration="cams",is_shared="true"} 2"#,
        r#"akri_discovery_response_result{discovery_handler_name="udev",result="Success"} 1"#,
        r#"akri_discovery_response_time_count{configuration="cams"} 1"#,
        r#"leafhost_store_writes_total{kind="create",result="ok"} 2"#,
        r#"leafhost_problems{part="instances"} 0"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    let spec =
        std::fs::read_to_string(bench.cdi.path().join("akri.sh-cams_leafhost.json")).unwrap();
    assert!(spec.contains("ID_8120FE=foo0"), "{spec}");
    bench.end().await;
}

#[tokio::test]
async fn a_restart_touches_no_instance() {
    let bench = start(Arc::default()).await;
    bench.sees(&[camera("foo0"), camera("foo1")]).await;
    bench.instances(2).await;
    let store = bench.end().await;
    let (before, _) = (store.set(), store.take_writes());

    let bench = start(store).await;
    assert!(bench.board.clone().ready().await);
    bench.sees(&[camera("foo0"), camera("foo1")]).await;
    wait_for(&bench.board.devices, |snapshot| {
        let mut views = snapshot
            .configurations
            .values()
            .flat_map(|view| view.devices.values());
        views.any(|view| view.device.is_some())
    })
    .await;
    let store = bench.end().await;
    assert_eq!(store.take_writes(), Vec::<String>::new());
    assert_eq!(store.set(), before);
}

#[tokio::test]
async fn a_replaced_handler_that_sees_the_same_causes_no_write() {
    let bench = start(Arc::default()).await;
    bench.sees(&[camera("foo0")]).await;
    bench.instances(1).await;
    wait_for(&bench.board.offers, |offers| !offers.kinds.is_empty()).await;
    let (before, _) = (bench.store.set(), bench.store.take_writes());
    bench.files.put(&[file("udev.wasm", "udev@2")]);
    wait_for(&bench.board.handlers, |set| {
        let mut handlers = set
            .sources
            .values()
            .filter_map(|source| source.handler.as_ref());
        handlers.any(|handler| handler.facts().digest.0 == "udev@2")
    })
    .await;
    bench.sees(&[camera("foo0")]).await;
    let second = r#"leafhost_handler_calls_total{handler="udev"} 2"#;
    while !bench.get("/metrics").await.2.contains(second) {
        tokio::task::yield_now().await;
    }
    let store = bench.end().await;
    assert_eq!(store.take_writes(), Vec::<String>::new());
    assert_eq!(store.set(), before);
}

#[tokio::test]
async fn a_deleted_configuration_takes_instances_and_offers_along() {
    let bench = start(Arc::default()).await;
    bench.sees(&[camera("foo0"), camera("foo1")]).await;
    bench.instances(2).await;
    let offers = bench.board.offers.clone();
    wait_for(&offers, |offers| !offers.kinds.is_empty()).await;
    bench.configurations.send_replace(configuration_set([]));
    bench.instances(0).await;
    wait_for(&offers, |offers| offers.kinds.is_empty()).await;
    let left: Vec<_> = std::fs::read_dir(bench.cdi.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, [".akri.sh_leafhost.lock"]);
    let status = loop {
        let status = bench.board.status();
        if status.configurations.is_empty() && status.handlers[0].status == "Waiting" {
            break status;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(status.instances.len(), 0);
    bench.end().await;
}

#[tokio::test]
async fn the_status_is_handed_out_when_it_changes() {
    let bench = start(Arc::default()).await;
    bench.sees(&[camera("foo0")]).await;
    bench.instances(1).await;
    let mut version = String::new();
    let mut path = "/status".to_owned();
    // Until the last change of the first device has arrived.
    while let Ok((code, headers, _)) =
        tokio::time::timeout(Duration::from_secs(1), bench.get(&path)).await
    {
        assert_eq!(code, 200);
        version = headers[admin::VERSION_HEADER].clone();
        path = format!("/status?after={version}");
    }
    let both = [camera("foo0"), camera("foo1")];
    let (waiting, ()) = tokio::join!(bench.get(&path), bench.sees(&both));
    assert_eq!(waiting.0, 200);
    assert_ne!(waiting.1[admin::VERSION_HEADER], version);
    bench.end().await;
}

#[tokio::test]
async fn a_shutdown_answers_those_who_wait() {
    let bench = start(Arc::default()).await;
    bench.sees(&[]).await;
    let address = bench.address;
    let idle = TcpStream::connect(address).await.unwrap();
    wait_for(&bench.board.reconcile, |report| report.done_once).await;
    let started = std::time::Instant::now();
    bench.end().await;
    assert!(started.elapsed() < timeouts::DRAIN);
    drop(idle);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn a_source_that_ends_ends_the_agent_by_name() {
    let bench = start(Arc::default()).await;
    let Bench {
        configurations,
        agent,
        ..
    } = bench;
    drop(configurations);
    let error = agent.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            Error::Task(leafhost_core::tasks::Error::Ended {
                task: "discovery",
                ..
            })
        ),
        "{error}"
    );
}
