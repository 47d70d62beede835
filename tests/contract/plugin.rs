//! Device plugin that a test controls, from the generated code alone.

use std::collections::BTreeSet;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as Connection;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _};
use leafhost_kubelet::proto::device_plugin::device_plugin_server::{
    DevicePlugin, DevicePluginServer,
};
use leafhost_kubelet::proto::device_plugin::registration_client::RegistrationClient;
use leafhost_kubelet::proto::device_plugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse,
    ContainerPreferredAllocationResponse, Device, DevicePluginOptions, Empty, ListAndWatchResponse,
    NumaNode, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse, RegisterRequest, TopologyInfo,
};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

/// Behaviour of the plugin, and the calls it got.
#[derive(Debug, Default)]
pub struct Script {
    /// True if `GetDevicePluginOptions` fails.
    pub no_options: bool,
    /// True if `GetPreferredAllocation` fails.
    pub no_preference: bool,
    /// True if `Allocate` fails.
    pub refuses: bool,
    /// IDs that the plugin prefers.
    pub preferred: Vec<String>,
    /// IDs of each Allocate.
    pub allocated: Vec<BTreeSet<String>>,
    /// Number of ListAndWatch calls.
    pub listed: usize,
}

/// Plugin of one resource.
#[derive(Clone)]
pub struct Plugin {
    resource: String,
    pub script: Arc<Mutex<Script>>,
    devices: watch::Sender<Vec<Device>>,
    /// Counter whose growth ends all open streams.
    cut: watch::Sender<u64>,
    connections: Arc<Mutex<Vec<Connection>>>,
}

pub fn device(id: &str, healthy: bool) -> Device {
    Device {
        id: id.to_owned(),
        health: if healthy { "Healthy" } else { "Unhealthy" }.to_owned(),
        topology: None,
    }
}

pub fn near(mut device: Device, nodes: &[i64]) -> Device {
    let nodes = nodes.iter().map(|&id| NumaNode { id }).collect();
    device.topology = Some(TopologyInfo { nodes });
    device
}

impl Plugin {
    /// Creates a plugin with healthy devices of these IDs.
    pub fn new(resource: &str, ids: &[&str]) -> Self {
        let devices = ids.iter().map(|id| device(id, true)).collect();
        Self {
            resource: resource.to_owned(),
            script: Arc::default(),
            devices: watch::Sender::new(devices),
            cut: watch::Sender::new(0),
            connections: Arc::default(),
        }
    }

    pub fn list(&self, devices: Vec<Device>) {
        self.devices.send_replace(devices);
    }

    /// Ends all streams; the connections stay.
    pub fn end_streams(&self) {
        self.cut.send_modify(|count| *count += 1);
    }

    /// Ends all connections, as a kill of the plugin does.
    pub fn kill(&self) {
        for connection in self.connections.lock().unwrap().drain(..) {
            drop(connection.shutdown(Shutdown::Both));
        }
    }

    /// Listens on a new socket of that name.
    pub fn serve(&self, folder: &Path, name: &str) -> Result<()> {
        let path = folder.join(name);
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(path)?;
        let known = Arc::clone(&self.connections);
        let incoming = futures::stream::unfold((listener, known), async |(listener, known)| {
            let stream = listener.accept().await.unwrap().0.into_std().unwrap();
            known.lock().unwrap().push(stream.try_clone().unwrap());
            Some((UnixStream::from_std(stream), (listener, known)))
        });
        let serving = tonic::transport::Server::builder()
            .add_service(DevicePluginServer::new(self.clone()))
            .serve_with_incoming(incoming);
        tokio::spawn(async { serving.await.unwrap() });
        Ok(())
    }

    /// Registers the socket of that name.
    pub async fn register(&self, folder: &Path, name: &str) -> Result<(), Status> {
        let socket = folder.join("kubelet.sock");
        let channel = Endpoint::from_shared(format!("unix://{}", socket.display()))
            .unwrap()
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        RegistrationClient::new(channel)
            .register(RegisterRequest {
                version: "v1beta1".to_owned(),
                endpoint: name.to_owned(),
                resource_name: self.resource.clone(),
                options: None,
            })
            .await
            .map(drop)
    }

    /// Serves `plugin.sock` and registers it.
    pub async fn appear(&self, folder: &Path) -> Result<()> {
        self.serve(folder, "plugin.sock")?;
        self.register(folder, "plugin.sock")
            .await
            .context("the registration was refused")
    }

    /// Returns the IDs of each Allocate so far.
    pub fn allocated(&self) -> Vec<BTreeSet<String>> {
        self.script.lock().unwrap().allocated.clone()
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        if self.script.lock().unwrap().no_options {
            return Err(Status::internal("no options"));
        }
        Ok(Response::new(DevicePluginOptions {
            pre_start_required: false,
            get_preferred_allocation_available: true,
        }))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.script.lock().unwrap().listed += 1;
        let (mut devices, mut cut) = (self.devices.subscribe(), self.cut.subscribe());
        devices.mark_changed();
        let lists = futures::stream::unfold(devices, async |mut devices| {
            devices.changed().await.ok()?;
            let list = devices.borrow_and_update().clone();
            Some((Ok(ListAndWatchResponse { devices: list }), devices))
        });
        let lists = lists.take_until(async move { drop(cut.changed().await) });
        Ok(Response::new(Box::pin(lists)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let script = self.script.lock().unwrap();
        if script.no_preference {
            return Err(Status::internal("no preference"));
        }
        let first = ContainerPreferredAllocationResponse {
            device_i_ds: script.preferred.clone(),
        };
        Ok(Response::new(PreferredAllocationResponse {
            container_responses: vec![first],
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let request = request.into_inner().container_requests;
        assert_eq!(request.len(), 1, "the kubelet asks for one container");
        let ids: BTreeSet<String> = request[0].devices_ids.iter().cloned().collect();
        let mut script = self.script.lock().unwrap();
        if script.refuses {
            return Err(Status::unavailable("not now"));
        }
        script.allocated.push(ids.clone());
        let first = ContainerAllocateResponse {
            annotations: ids.into_iter().map(|id| (id, "given".to_owned())).collect(),
            ..ContainerAllocateResponse::default()
        };
        Ok(Response::new(AllocateResponse {
            container_responses: vec![first],
        }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Err(Status::internal("was not asked for"))
    }
}
