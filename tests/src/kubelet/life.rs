//! One lifetime of the kubelet's process, from its start to its end: registration, its clients, and admission.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use leafhost_kubelet::ResourceName;
use leafhost_kubelet::proto::device_plugin::device_plugin_client::DevicePluginClient;
use leafhost_kubelet::proto::device_plugin::registration_server::{
    Registration as RegistrationService, RegistrationServer,
};
use leafhost_kubelet::proto::device_plugin::{DevicePluginOptions, Empty, RegisterRequest};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::Plugins;
use super::checkpoint;
use super::dial::dial;
use super::lister::Lister;
use super::model::Model;
use super::socket_server::SocketServer;
use super::world::{Listing, Registration, World, locked};

/// Plugin as the kubelet knows it.
#[derive(Debug, Clone)]
struct Client {
    /// Key under which the kubelet knows the plugin.
    key: String,
    closed: CancellationToken,
}

/// Client and options with which the kubelet allocates.
#[derive(Debug, Clone)]
pub(super) struct Endpoint {
    pub plugin: DevicePluginClient<Channel>,
    pub options: DevicePluginOptions,
}

#[derive(Debug)]
pub(super) struct Life {
    pub world: Arc<World>,
    pub model: Mutex<Model>,
    plugins: Plugins,
    /// Known clients by resource; up to 1.36 at most one each.
    clients: Mutex<BTreeMap<String, Vec<Client>>>,
    /// Endpoints whose end the kubelet has not seen, by resource and client key.
    connected: Mutex<BTreeMap<String, BTreeMap<String, Endpoint>>>,
    /// Endpoint that is asked, by resource.
    pub endpoints: Mutex<BTreeMap<String, Endpoint>>,
    /// True once the API server has sent the kubelet its pods.
    pub knows_pods: AtomicBool,
    /// Number of open streams by resource.
    pub streams: Mutex<BTreeMap<String, usize>>,
    writing: Mutex<()>,
    pub stop: CancellationToken,
    tasks: TaskTracker,
    doors: Mutex<Vec<SocketServer>>,
}

impl Life {
    /// Starts the kubelet: reads the checkpoint, removes the sockets of the folder one by one, then listens.
    pub async fn start(world: Arc<World>, pause: Duration, knows_pods: bool) -> Result<Arc<Self>> {
        let folder = world.device_plugins();
        fs::create_dir_all(&folder)?;
        fs::create_dir_all(world.root.join("pods"))?;
        fs::create_dir_all(world.root.join("pod-resources"))?;
        let (given, resources) = checkpoint::read(&folder)?;
        let mut model = Model::restored(given, resources, world.now());
        model.seed = *locked(&world.seed);
        let life = Arc::new(Self {
            world: Arc::clone(&world),
            model: Mutex::new(model),
            plugins: *locked(&world.plugins),
            clients: Mutex::default(),
            connected: Mutex::default(),
            endpoints: Mutex::default(),
            knows_pods: AtomicBool::new(knows_pods),
            streams: Mutex::default(),
            writing: Mutex::new(()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            doors: Mutex::default(),
        });
        world.record(|record| record.starts += 1);
        // The names are listed once: a socket created meanwhile under a listed name is removed, too.
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder)? {
            names.push(entry?.path());
        }
        names.sort();
        for path in names {
            if fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
                // The socket's owner may have removed it first.
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => {
                        return Err(error)
                            .with_context(|| format!("cannot remove {}", path.display()));
                    }
                    _ => {}
                }
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        }
        let registration = Routes::new(RegistrationServer::new(Desk(Arc::clone(&life))));
        let lister = Lister::routes(Arc::clone(&life));
        let socket = world.pod_resources();
        drop(fs::remove_file(&socket));
        let doors = vec![
            SocketServer::bind(&socket, lister)?,
            SocketServer::bind(&folder.join("kubelet.sock"), registration)?,
        ];
        *locked(&life.doors) = doors;
        world.notify();
        Ok(life)
    }

    /// Ends the kubelet as a kill does: closes all connections at once and leaves the sockets' files.
    pub async fn end(&self) {
        self.stop.cancel();
        let doors = std::mem::take(&mut *locked(&self.doors));
        for door in doors {
            door.kill().await;
        }
        self.tasks.close();
        self.tasks.wait().await;
        locked(&self.clients).clear();
        locked(&self.connected).clear();
        locked(&self.endpoints).clear();
        self.world.notify();
    }

    async fn register(self: &Arc<Self>, request: &RegisterRequest) -> Result<(), Status> {
        if let Some(status) = self.world.faults.register() {
            return Err(status);
        }
        if request.version != "v1beta1" {
            return Err(Status::unknown(format!(
                "version {:?} is not served, only v1beta1",
                request.version
            )));
        }
        let resource = &request.resource_name;
        ResourceName::new(resource.as_str()).map_err(|error| Status::unknown(error.to_string()))?;
        let client = Client {
            key: match self.plugins {
                Plugins::Newest => String::new(),
                Plugins::ByPath => request.endpoint.clone(),
            },
            closed: self.stop.child_token(),
        };
        {
            let mut clients = locked(&self.clients);
            let known = clients.entry(resource.clone()).or_default();
            if self.plugins == Plugins::Newest {
                // The connection of the client before stays open, and the kubelet forgets it.
                known.clear();
            }
            known.push(client.clone());
        }
        match self.connect(resource, request, &client).await {
            Ok(plugin) => {
                let life = Arc::clone(self);
                let resource = resource.clone();
                self.tasks
                    .spawn(async move { life.follow(resource, client, plugin).await });
                Ok(())
            }
            Err(status) => {
                self.forget(resource, &client.key);
                Err(status)
            }
        }
    }

    async fn connect(
        &self,
        resource: &str,
        request: &RegisterRequest,
        client: &Client,
    ) -> Result<DevicePluginClient<Channel>, Status> {
        let path = self.world.device_plugins().join(&request.endpoint);
        if self.world.faults.dial_fails() {
            return Err(Status::unknown(format!(
                "cannot dial {}: as was asked for",
                path.display()
            )));
        }
        let mut plugin = dial(&path).await?;
        let options = plugin
            .get_device_plugin_options(Empty {})
            .await
            .map_err(|status| Status::unknown(format!("cannot get the options: {status}")))?
            .into_inner();
        let endpoint = Endpoint {
            plugin: plugin.clone(),
            options,
        };
        let mut connected = locked(&self.connected);
        let known = connected.entry(resource.to_owned()).or_default();
        if self.plugins == Plugins::ByPath && known.contains_key(&client.key) {
            return Err(Status::unknown(format!(
                "device plugin already connected: {}",
                path.display()
            )));
        }
        known.insert(client.key.clone(), endpoint.clone());
        locked(&self.endpoints).insert(resource.to_owned(), endpoint);
        locked(&self.model).connect(resource);
        Ok(plugin)
    }

    /// Removes all clients of a resource with this key and returns the first of them.
    fn forget(&self, resource: &str, key: &str) -> Option<Client> {
        let mut clients = locked(&self.clients);
        let known = clients.get_mut(resource)?;
        let first = known.iter().find(|client| client.key == key).cloned();
        known.retain(|client| client.key != key);
        first
    }

    /// Reads the one ListAndWatch of a registration to its end. Then disconnects the first client with the same key, which may be another one.
    async fn follow(&self, resource: String, client: Client, plugin: DevicePluginClient<Channel>) {
        *locked(&self.streams).entry(resource.clone()).or_default() += 1;
        tokio::select! {
            () = client.closed.cancelled() => {}
            () = self.take_lists(&resource, plugin) => {}
        }
        if let Some(open) = locked(&self.streams).get_mut(&resource) {
            *open -= 1;
        }
        let current = self.forget(&resource, &client.key);
        if let Some(current) = current.filter(|_| !self.stop.is_cancelled()) {
            current.closed.cancel();
            self.disconnect(&resource, &current.key);
        }
        self.world.notify();
    }

    /// Disconnects an endpoint of a resource. Another connected plugin of the resource is asked from then on.
    fn disconnect(&self, resource: &str, key: &str) {
        let mut connected = locked(&self.connected);
        let Some(known) = connected.get_mut(resource) else {
            return;
        };
        if known.remove(key).is_none() {
            return;
        }
        match known.values().next() {
            Some(other) => {
                locked(&self.endpoints).insert(resource.to_owned(), other.clone());
            }
            None => locked(&self.model).disconnect(resource, self.world.now()),
        }
    }

    async fn take_lists(&self, resource: &str, mut plugin: DevicePluginClient<Channel>) {
        let Ok(stream) = plugin.list_and_watch(Empty {}).await else {
            return;
        };
        let mut stream = stream.into_inner();
        let (limit, mut cut) = self.world.faults.lists();
        let mut taken = 0;
        while limit.is_none_or(|limit| taken < limit) {
            let next = async {
                self.world.faults.readable().await;
                stream.message().await
            };
            let message = tokio::select! {
                message = next => message,
                _ = cut.changed() => return,
            };
            let Ok(Some(message)) = message else {
                return;
            };
            taken += 1;
            locked(&self.model).list(resource, &message.devices);
            self.save();
            let life = self.world.life();
            self.world.record(|record| {
                record.lists.push(Listing {
                    resource: resource.to_owned(),
                    devices: message.devices,
                    life,
                });
            });
        }
    }

    /// Writes the checkpoint.
    pub fn save(&self) {
        let _one_at_a_time = locked(&self.writing);
        let text = checkpoint::text(&locked(&self.model));
        let written = text.and_then(|text| checkpoint::write(&self.world.device_plugins(), &text));
        if let Err(error) = written {
            // The real kubelet logs the error and continues.
            eprintln!("kubelet stand-in: {error:#}");
        }
    }

    /// Frees the devices of pods that are not active. Does not write the checkpoint.
    pub fn sweep(&self) {
        if self.knows_pods.load(Relaxed) {
            let active = self.world.active();
            locked(&self.model).sweep(&active);
        }
    }
}

struct Desk(Arc<Life>);

#[tonic::async_trait]
impl RegistrationService for Desk {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        let result = tokio::select! {
            result = self.0.register(&request) => result,
            () = self.0.stop.cancelled() => Err(Status::unavailable("the kubelet ends")),
        };
        let refused = result.as_ref().err();
        let refused = refused.map(|status| (status.code(), status.message().to_owned()));
        let life = self.0.world.life();
        self.0.world.record(|record| {
            record.registrations.push(Registration {
                resource: request.resource_name,
                endpoint: request.endpoint,
                refused,
                life,
            });
        });
        result.map(|()| Response::new(Empty {}))
    }
}
