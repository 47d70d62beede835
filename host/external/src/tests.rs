//! Handlers built from the protocol, over real sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::task::JoinSet;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use leafhost_core::fault::FaultReason;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{GrantsFile, SourceProblem};
use leafhost_core::session::{
    Devices, Discovery, Opening, Outcome, Property, Report, Session, SessionSpec,
};
use leafhost_core::tasks::Tasks;
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tonic::transport::{Endpoint, Server};
use tonic::{Code, Request, Response, Status};

use super::*;
use crate::proto::discovery_handler_server::{DiscoveryHandler, DiscoveryHandlerServer};
use crate::proto::register_discovery_handler_request::EndpointType;
use crate::proto::registration_client::RegistrationClient;
use crate::proto::{Device, DiscoverRequest, DiscoverResponse, RegisterDiscoveryHandlerRequest};

mod hostile;
mod network;
mod served;
mod sockets;

/// Maximum wait in the tests.
const LIMIT: Duration = Duration::from_secs(30);

/// Answer of a handler to a call.
type Answer = Result<BoxStream<'static, Result<DiscoverResponse, Status>>, Status>;
type Answers = dyn Fn(DiscoverRequest) -> Answer + Send + Sync;

/// Answers as soon as the gate is open.
struct Served(Arc<Answers>, watch::Receiver<bool>);

#[tonic::async_trait]
impl DiscoveryHandler for Served {
    type DiscoverStream = BoxStream<'static, Result<DiscoverResponse, Status>>;

    async fn discover(
        &self,
        request: Request<DiscoverRequest>,
    ) -> Result<Response<Self::DiscoverStream>, Status> {
        drop(self.1.clone().wait_for(|is_open| *is_open).await);
        self.0(request.into_inner()).map(Response::new)
    }
}

/// A handler that serves on a socket until it is dropped.
struct Fake {
    _task: JoinSet<()>,
}

impl Fake {
    fn serve(
        path: &Path,
        answers: impl Fn(DiscoverRequest) -> Answer + Send + Sync + 'static,
    ) -> Self {
        Self::serve_behind(watch::channel(true).1, path, answers)
    }

    fn serve_behind(
        gate: watch::Receiver<bool>,
        path: &Path,
        answers: impl Fn(DiscoverRequest) -> Answer + Send + Sync + 'static,
    ) -> Self {
        drop(std::fs::remove_file(path));
        let listener = UnixListener::bind(path).unwrap();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let connections = futures::stream::unfold(listener, async |listener| {
                let accepted = listener.accept().await.map(|(stream, _)| stream);
                Some((accepted, listener))
            });
            let service = DiscoveryHandlerServer::new(Served(Arc::new(answers), gate));
            // Connections are tasks of their own; dropped ones end with the runtime of the test.
            drop(
                Server::builder()
                    .serve_with_incoming(service, connections)
                    .await,
            );
        });
        Self { _task: task }
    }
}

/// A handler whose sets the test sends; also holds the requests it received.
struct Sets {
    _fake: Fake,
    sender: mpsc::UnboundedSender<Result<DiscoverResponse, Status>>,
    asked: mpsc::UnboundedReceiver<DiscoverRequest>,
}

impl Sets {
    fn serve(path: &Path) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let (asking, asked) = mpsc::unbounded_channel();
        let once = Mutex::new(Some(receiver));
        let fake = Fake::serve(path, move |request| {
            asking.send(request).unwrap();
            let receiver = once.lock().unwrap().take();
            let receiver = receiver.ok_or_else(|| Status::unavailable("once only"))?;
            let sets = futures::stream::unfold(receiver, async |mut receiver| {
                Some((receiver.recv().await?, receiver))
            });
            Ok(sets.boxed())
        });
        Self {
            _fake: fake,
            sender,
            asked,
        }
    }

    fn send(&self, ids: &[&str]) {
        self.sender.send(Ok(set(ids))).unwrap();
    }
}

fn set(ids: &[&str]) -> DiscoverResponse {
    let device = |id: &&str| Device {
        id: (*id).to_owned(),
        ..Device::default()
    };
    DiscoverResponse {
        devices: ids.iter().map(device).collect(),
    }
}

/// Sends the same set to each caller, then nothing more.
fn always(ids: &[&str]) -> impl Fn(DiscoverRequest) -> Answer + Send + Sync + 'static {
    let set = set(ids);
    move |_| {
        let first = futures::stream::once(std::future::ready(Ok(set.clone())));
        Ok(first.chain(futures::stream::pending()).boxed())
    }
}

/// Source of components; empty unless a test fills it.
struct Components(watch::Sender<Arc<SourceSet>>);

impl HandlerSource for Components {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.0.subscribe()
    }

    fn read(&self, name: &str, _: &SourceVersion) -> Result<SourceFile, LoadError> {
        Err(changed(name))
    }
}

#[async_trait]
impl Loader for Components {
    async fn load(&self, file: &SourceFile) -> Result<Arc<dyn Handler>, LoadError> {
        Err(changed(&format!("component {}", file.name)))
    }
}

/// The agent's side, as far as handlers are concerned.
struct Node {
    dir: Arc<tempfile::TempDir>,
    components: Arc<Components>,
    external: Arc<External>,
    set: watch::Receiver<Arc<SourceSet>>,
    _tasks: Tasks,
}

impl Node {
    fn start() -> Self {
        Self::start_in(Arc::new(tempfile::tempdir().unwrap()))
    }

    fn start_in(dir: Arc<tempfile::TempDir>) -> Self {
        Self::start_with(dir, Err("not in this test".to_owned()))
    }

    fn start_with(
        dir: Arc<tempfile::TempDir>,
        network: Result<leafhost_net::Network, String>,
    ) -> Self {
        let empty = SourceSet {
            complete: true,
            ..SourceSet::default()
        };
        let components = Arc::new(Components(watch::Sender::new(Arc::new(empty))));
        let config = Config {
            folder: dir.path().join("akri"),
            state_dir: dir.path().to_owned(),
            own_folders: Vec::new(),
            network,
        };
        let mut tasks = Tasks::default();
        let external = External::start(config, components.clone(), components.clone(), &mut tasks);
        Self {
            dir,
            components,
            set: external.handlers(),
            external,
            _tasks: tasks,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("akri").join(name)
    }

    /// Publishes these grants files.
    fn grant(&self, grants: &[(&str, &str)]) {
        let grants = grants.iter().map(|(name, text)| {
            let orphaned = SourceProblem::new(*name, "orphaned");
            let file = GrantsFile {
                text: Arc::from(*text),
                orphaned: Some(orphaned),
            };
            ((*name).to_owned(), file)
        });
        let grants: BTreeMap<_, _> = grants.collect();
        let problems = grants.values().filter_map(|file| file.orphaned.clone());
        self.components.0.send_replace(Arc::new(SourceSet {
            complete: true,
            problems: problems.collect(),
            grants,
            ..SourceSet::default()
        }));
    }

    async fn register(&self, name: &str, endpoint: &str, kind: EndpointType) -> Result<(), Status> {
        let socket = self.path(SOCKET);
        let connector = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
            }
        });
        let endpoint_of_agent = Endpoint::from_static("http://localhost");
        let connected = async {
            loop {
                match endpoint_of_agent
                    .connect_with_connector(connector.clone())
                    .await
                {
                    Ok(channel) => return channel,
                    // The agent does not listen yet.
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        let channel = tokio::time::timeout(LIMIT, connected).await.unwrap();
        let request = RegisterDiscoveryHandlerRequest {
            name: name.to_owned(),
            endpoint: endpoint.to_owned(),
            endpoint_type: kind.into(),
            shared: true,
        };
        let mut client = RegistrationClient::new(channel);
        client.register_discovery_handler(request).await.map(drop)
    }

    async fn register_socket(&self, name: &str, socket: &str) -> Result<(), Status> {
        let path = self.path(socket);
        self.register(name, path.to_str().unwrap(), EndpointType::Uds)
            .await
    }

    /// Returns the source set as soon as it `fits`.
    async fn sources(&mut self, fits: impl Fn(&SourceSet) -> bool) -> Arc<SourceSet> {
        let found = tokio::time::timeout(LIMIT, self.set.wait_for(|set| fits(set))).await;
        Arc::clone(
            &found
                .expect("the set of sources does not become so")
                .unwrap(),
        )
    }

    async fn load(&mut self, source: &str) -> Result<Arc<dyn Handler>, LoadError> {
        let set = self.sources(|set| set.files.contains_key(source)).await;
        let version = set.files[source].clone().unwrap();
        let file = self.external.read(source, &version).unwrap();
        self.external.load(&file).await
    }

    async fn open(&mut self, source: &str) -> Box<dyn Session> {
        self.open_with(source, Vec::new()).await
    }

    async fn open_with(&mut self, source: &str, properties: Vec<Property>) -> Box<dyn Session> {
        let handler = self.load(source).await.unwrap();
        handler.open(SessionSpec {
            node: "n".to_owned(),
            configuration: ConfigurationKey::new("default", "c").unwrap(),
            details: "find: everything".to_owned(),
            properties,
            opening: Opening::First,
        })
    }
}

async fn next(session: &mut Box<dyn Session>) -> Report {
    tokio::time::timeout(LIMIT, session.next())
        .await
        .expect("no report comes")
}

async fn discovered(session: &mut Box<dyn Session>) -> Discovery {
    match next(session).await.outcome {
        Outcome::Discovered(discovery) => discovery,
        other => panic!("{other:?}"),
    }
}

async fn ids(session: &mut Box<dyn Session>) -> Vec<String> {
    match discovered(session).await.devices {
        Devices::Complete(devices) => devices.into_iter().map(|device| device.id).collect(),
        other => panic!("{other:?}"),
    }
}

async fn fault(session: &mut Box<dyn Session>) -> leafhost_core::fault::Fault {
    match next(session).await.outcome {
        Outcome::Faulted(fault) => fault,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_handler_registers_is_asked_as_akri_does_and_each_set_is_all_there_is() {
    let mut node = Node::start();
    let mut sets = Sets::serve(&node.path("a.sock"));
    node.register_socket("a", "a.sock").await.unwrap();
    let handler = node.load("a@a.sock").await.unwrap();
    let path = node.path("a.sock").canonicalize().unwrap();
    assert_eq!(handler.facts().endpoint.as_deref(), path.to_str());
    assert!(handler.facts().description.shared);
    let properties = [("user", "admin", false), ("password", "hunter2", true)];
    let properties = properties.map(|(name, value, secret)| Property {
        name: name.to_owned(),
        value: Some(value.as_bytes().into()),
        secret,
    });
    let mut session = node.open_with("a@a.sock", properties.to_vec()).await;
    sets.send(&["one", "two"]);
    assert_eq!(ids(&mut session).await, ["one", "two"]);
    let asked = sets.asked.recv().await.unwrap();
    assert_eq!(asked.discovery_details, "find: everything");
    let value = |name: &str| asked.discovery_properties[name].vec.clone().unwrap();
    assert_eq!(
        (value("user"), value("password")),
        (b"admin".into(), b"hunter2".into())
    );
    sets.send(&["two"]);
    assert_eq!(ids(&mut session).await, ["two"]);
    sets.send(&[]);
    assert!(ids(&mut session).await.is_empty());
}

#[tokio::test]
async fn what_a_device_brings_along_needs_the_handlers_grants_file() {
    let mut node = Node::start();
    let device = Device {
        id: "d".to_owned(),
        properties: [("A_B".to_owned(), "x".to_owned())].into(),
        ..Device::default()
    };
    let set = DiscoverResponse {
        devices: vec![device],
    };
    let _fake = Fake::serve(&node.path("a.sock"), move |_| {
        let first = futures::stream::once(std::future::ready(Ok(set.clone())));
        Ok(first.chain(futures::stream::pending()).boxed())
    });
    node.register_socket("a", "a.sock").await.unwrap();
    let handler = node.load("a@a.sock").await.unwrap();
    let warnings = &handler.facts().warnings;
    assert!(warnings[0].contains("a.grants.yaml"), "{warnings:?}");
    let mut session = node.open("a@a.sock").await;
    let left_out = discovered(&mut session).await.left_out.shown;
    assert!(
        left_out[0].reason.contains("A_B is not granted"),
        "{left_out:?}"
    );

    node.grant(&[
        ("a.grants.yaml", "devices: {env: ['A_*']}"),
        ("b.grants.yaml", ""),
    ]);
    let set = node.sources(|set| !set.grants.is_empty()).await;
    let told: Vec<&str> = set.problems.iter().map(|one| one.source.as_str()).collect();
    assert_eq!(told, ["b.grants.yaml"], "a's is used");
    let mut session = node.open("a@a.sock").await;
    assert_eq!(ids(&mut session).await, ["d"]);
    let handler = node.load("a@a.sock").await.unwrap();
    let facts = handler.facts();
    assert!(facts.warnings.is_empty() && !facts.is_named, "{facts:?}");

    node.grant(&[("a.grants.yaml", "name: a\nlimits: {devices: 5000}")]);
    node.sources(|set| set.grants.len() == 1).await;
    let handler = node.load("a@a.sock").await.unwrap();
    let facts = handler.facts();
    assert_eq!((facts.is_named, facts.most_devices), (true, 5000));

    for (grants, words) in [("devises: {}", "devises"), ("name: b", "name: b")] {
        node.grant(&[("a.grants.yaml", grants)]);
        let is_it = |set: &SourceSet| &*set.grants["a.grants.yaml"].text == grants;
        node.sources(is_it).await;
        let error = node.load("a@a.sock").await.unwrap_err();
        assert!(error.message.contains(words), "{error}");
        assert!(error.message.contains("a.grants.yaml"), "{error}");
    }
}

#[tokio::test]
async fn refused_details_are_not_asked_again_and_other_words_are_unavailability() {
    let mut node = Node::start();
    for (code, message) in [
        (Code::InvalidArgument, "no such rule"),
        (Code::Unavailable, "the bus is down"),
    ] {
        let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let _fake = Fake::serve(&node.path("a.sock"), move |_| {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Err(Status::new(code, message))
        });
        node.register_socket("a", "a.sock").await.unwrap();
        let mut session = node.open("a@a.sock").await;
        match next(&mut session).await.outcome {
            Outcome::InvalidDetails(problems) if code == Code::InvalidArgument => {
                assert_eq!(problems[0].message, message);
                let more = tokio::time::timeout(Duration::from_secs(2), session.next()).await;
                assert!(more.is_err(), "{more:?}");
                assert_eq!(asked.load(std::sync::atomic::Ordering::Relaxed), 1);
            }
            Outcome::Unavailable(what) => {
                assert!(what.contains(message), "{what}");
                assert!(matches!(
                    next(&mut session).await.outcome,
                    Outcome::Unavailable(_)
                ));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_handler_that_ends_is_asked_again_and_when_it_registers_the_agent_begins_anew() {
    let mut node = Node::start();
    let sets = Sets::serve(&node.path("a.sock"));
    node.register_socket("a", "a.sock").await.unwrap();
    let mut session = node.open("a@a.sock").await;
    sets.send(&["one"]);
    assert_eq!(ids(&mut session).await, ["one"]);
    drop(sets);
    let lost = fault(&mut session).await;
    assert_eq!(lost.reason, FaultReason::ConnectionLost, "{lost}");
    let before = node.sources(|set| set.files.len() == 1).await.files.clone();

    let _fake = Fake::serve(&node.path("a.sock"), always(&["two"]));
    assert_eq!(ids(&mut session).await, ["two"], "without registering");
    drop(session);
    tokio::time::sleep(timeouts::REGISTER_SPACING).await;
    node.register_socket("a", "a.sock").await.unwrap();
    node.sources(|set| set.files.len() == 1 && set.files != before)
        .await;
    let mut session = node.open("a@a.sock").await;
    assert_eq!(ids(&mut session).await, ["two"]);
}

#[tokio::test]
async fn registrations_outlive_the_agent_and_who_is_gone_is_looked_for() {
    let mut node = Node::start();
    let _fake = Fake::serve(&node.path("a.sock"), always(&["one"]));
    let other = Fake::serve(&node.path("b.sock"), always(&["two"]));
    for socket in ["a.sock", "b.sock"] {
        node.register_socket("a", socket).await.unwrap();
    }
    node.sources(|set| set.files.len() == 2).await;
    let dir = Arc::clone(&node.dir);
    let kept = dir.path().join(KEPT);
    let written = async {
        while !std::fs::read_to_string(&kept).is_ok_and(|text| text.contains("b.sock")) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, written).await.unwrap();
    drop((node, other));
    std::fs::remove_file(dir.path().join("akri/b.sock")).unwrap();

    let mut node = Node::start_in(dir);
    node.sources(|set| set.files.len() == 2).await;
    node.sources(|set| set.files.len() == 1).await;
    let mut session = node.open("a@a.sock").await;
    assert_eq!(ids(&mut session).await, ["one"]);

    let _other = Fake::serve(&node.path("b.sock"), always(&["two"]));
    tokio::time::pause();
    let looked = node.set.wait_for(|set| set.files.len() == 2);
    let looked = tokio::time::timeout(timeouts::LOOK + LIMIT, looked);
    assert!(looked.await.is_ok(), "nobody looks");
    tokio::time::resume();
    let mut session = node.open("a@b.sock").await;
    assert_eq!(ids(&mut session).await, ["two"]);
}
