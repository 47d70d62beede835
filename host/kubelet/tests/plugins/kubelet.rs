//! Fake kubelet with the behaviour that a plugin sees: it clears the folder, serves Register, and opens one list stream for each resource.
//! Up to 1.36 it disconnects the newest client when a stream of an earlier one ends; from 1.37 on it may refuse a path for ever that is
//! registered twice.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use leafhost_kubelet::proto::device_plugin as proto;
use proto::device_plugin_client::DevicePluginClient;
use proto::registration_server::{Registration, RegistrationServer};
use tokio::net::{UnixListener, UnixSocket};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// Health by resource and device id.
pub type Lists = BTreeMap<String, BTreeMap<String, String>>;

#[derive(Default)]
pub struct State {
    clients: Mutex<BTreeMap<String, Client>>,
    pub lists: watch::Sender<Lists>,
    pub registered: watch::Sender<BTreeMap<String, u32>>,
    paths: Mutex<BTreeSet<String>>,
    /// Answer to Register, if it refuses.
    pub refusal: Mutex<Option<Status>>,
    /// Accepts registrations and does not request lists.
    pub asks_no_lists: std::sync::atomic::AtomicBool,
    number: std::sync::atomic::AtomicU64,
}

struct Client {
    number: u64,
    api: DevicePluginClient<Channel>,
    run: Option<AbortHandle>,
}

pub struct Kubelet {
    pub state: Arc<State>,
    server: JoinHandle<()>,
}

impl Kubelet {
    /// Clears the folder of sockets, name by name, then listens.
    pub async fn start(folder: &Path) -> Self {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_socket() {
                // A plugin may remove its own first.
                drop(std::fs::remove_file(entry.path()));
            }
            tokio::task::yield_now().await;
        }
        let listener = UnixListener::bind(folder.join("kubelet.sock")).unwrap();
        Self::serve(folder, listener)
    }

    fn serve(folder: &Path, listener: UnixListener) -> Self {
        let incoming = futures::stream::unfold(listener, |listener| async {
            let stream = listener.accept().await.map(|(stream, _)| stream);
            Some((stream, listener))
        });
        let state = Arc::new(State::default());
        let service = RegistrationServer::new(Service {
            folder: folder.to_owned(),
            state: Arc::clone(&state),
        });
        let server = async {
            let server = Server::builder().add_service(service);
            server.serve_with_incoming(incoming).await.unwrap();
        };
        Self {
            state,
            server: tokio::spawn(server),
        }
    }

    /// Kills it; its socket file stays.
    pub async fn kill(self) {
        self.server.abort();
        drop(self.server.await);
        for (_, client) in std::mem::take(&mut *self.state.clients.lock().unwrap()) {
            client.run.inspect(AbortHandle::abort);
        }
    }

    /// Ends the stream of a resource, and with it the connection.
    pub fn drop_stream(&self, resource: &str) {
        let client = self.state.clients.lock().unwrap().remove(resource);
        client.unwrap().run.inspect(AbortHandle::abort);
    }

    pub fn api(&self, resource: &str) -> DevicePluginClient<Channel> {
        self.state.clients.lock().unwrap()[resource].api.clone()
    }

    pub async fn allocate(
        &self,
        resource: &str,
        ids: &[&str],
    ) -> Result<proto::AllocateResponse, Status> {
        let request = crate::plugin::allocate(ids);
        let answer = self.api(resource).allocate(request).await;
        answer.map(Response::into_inner)
    }

    /// Waits until a resource has this list.
    pub async fn listed(&self, resource: &str, wanted: &[(&str, &str)]) {
        let wanted: BTreeMap<String, String> = wanted
            .iter()
            .map(|(id, health)| (id.to_string(), health.to_string()))
            .collect();
        let mut lists = self.state.lists.subscribe();
        let listed = lists.wait_for(|lists| lists.get(resource) == Some(&wanted));
        let listed = tokio::time::timeout(std::time::Duration::from_mins(1), listed).await;
        let is_listed = listed.is_ok();
        drop(listed);
        assert!(
            is_listed,
            "{:?} instead of {wanted:?}",
            self.state.lists.borrow()
        );
    }

    pub fn registrations(&self, resource: &str) -> u32 {
        let registered = self.state.registered.borrow();
        registered.get(resource).copied().unwrap_or(0)
    }
}

/// Kubelet that has created its socket and does not listen yet.
pub struct NotListening {
    folder: PathBuf,
    socket: UnixSocket,
}

impl NotListening {
    pub fn bind(folder: &Path) -> Self {
        let socket = UnixSocket::new_stream().unwrap();
        socket.bind(folder.join("kubelet.sock")).unwrap();
        Self {
            folder: folder.to_owned(),
            socket,
        }
    }

    pub fn listen(self) -> Kubelet {
        let listener = self.socket.listen(128).unwrap();
        Kubelet::serve(&self.folder, listener)
    }
}

struct Service {
    folder: PathBuf,
    state: Arc<State>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::Empty>, Status> {
        let request = request.into_inner();
        let resource = request.resource_name;
        self.state
            .registered
            .send_modify(|counts| *counts.entry(resource.clone()).or_default() += 1);
        let is_new = self
            .state
            .paths
            .lock()
            .unwrap()
            .insert(request.endpoint.clone());
        assert!(is_new, "{} is registered twice", request.endpoint);
        if let Some(refusal) = self.state.refusal.lock().unwrap().clone() {
            return Err(refusal);
        }
        assert_eq!(request.version, "v1beta1");
        let path = self.folder.join(&request.endpoint);
        let channel = Endpoint::from_shared(format!("unix:{}", path.display()))
            .unwrap()
            .connect()
            .await
            .map_err(|error| Status::unknown(format!("failed to dial: {error}")))?;
        let mut api = DevicePluginClient::new(channel);
        let options = api.get_device_plugin_options(proto::Empty {}).await?;
        assert!(options.into_inner().get_preferred_allocation_available);
        let state = &self.state;
        let number = state
            .number
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let asks_no_lists = state
            .asks_no_lists
            .load(std::sync::atomic::Ordering::Relaxed);
        let mut clients = state.clients.lock().unwrap();
        let run = (!asks_no_lists).then(|| {
            let run = run(Arc::clone(state), resource.clone(), number, api.clone());
            tokio::spawn(run).abort_handle()
        });
        // The stream of the previous client continues.
        let client = Client { number, api, run };
        clients.insert(resource, client);
        Ok(Response::new(proto::Empty {}))
    }
}

async fn run(
    state: Arc<State>,
    resource: String,
    number: u64,
    mut api: DevicePluginClient<Channel>,
) {
    if let Ok(stream) = api.list_and_watch(proto::Empty {}).await {
        let mut stream = stream.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            assert!(!message.devices.is_empty(), "an empty list was sent");
            let devices = message.devices.into_iter();
            let list = devices.map(|device| (device.id, device.health)).collect();
            state.lists.send_modify(|lists| {
                lists.insert(resource.clone(), list);
            });
        }
    }
    let current = state.clients.lock().unwrap().remove(&resource);
    if let Some(current) = current {
        if current.number != number {
            current.run.inspect(AbortHandle::abort);
        }
        state.lists.send_modify(|lists| {
            lists.remove(&resource);
        });
    }
}
