//! Serves the kubelet's calls for one resource. Each request is checked before the allocator gets it.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::Stream;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status};

use crate::listing::List;
use crate::offered::{InFlight, Offered};
use crate::proto::device_plugin as proto;
use crate::session::Session;
use crate::{Allocation, Allocator, Refusal};

/// Maximum number of ids for one container.
const MAX_IDS: usize = 4096;
/// Maximum number of containers in one call. The kubelet sends one.
const MAX_CONTAINERS: usize = 16;

/// Service of one resource in one session.
pub(crate) struct Service {
    pub offered: Arc<Offered>,
    pub session: Arc<Session>,
    pub allocator: Arc<dyn Allocator>,
    /// Tasks of allocations, which outlive the call and the session.
    pub allocations: TaskTracker,
    pub limit: Duration,
}

#[async_trait]
impl proto::device_plugin_server::DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _request: Request<proto::Empty>,
    ) -> Result<Response<proto::DevicePluginOptions>, Status> {
        Ok(Response::new(options()))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<proto::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _request: Request<proto::Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut lists = self.offered.lists();
        lists.mark_changed();
        let following = (lists, Arc::clone(&self.session), self.session.open());
        // Holds only the latest list, however slowly the client reads.
        let stream = futures::stream::unfold(following, async |(mut lists, session, open)| {
            tokio::select! {
                biased;
                () = session.end.cancelled() => return None,
                changed = lists.changed() => changed.ok()?,
            }
            let message = lists.borrow_and_update().as_ref().map(message)?;
            Some((Ok(message), (lists, session, open)))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<proto::PreferredAllocationRequest>,
    ) -> Result<Response<proto::PreferredAllocationResponse>, Status> {
        let containers = request.into_inner().container_requests;
        let containers = containers.into_iter().take(MAX_CONTAINERS);
        let container_responses = containers.map(|container| self.prefer(container)).collect();
        Ok(Response::new(proto::PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<proto::AllocateRequest>,
    ) -> Result<Response<proto::AllocateResponse>, Status> {
        let limit = self.limit;
        let containers = checked(request.into_inner())?;
        // All ids are checked before the allocator gets the first, so that one unknown id refuses the whole call.
        let flights = containers
            .iter()
            .map(|ids| self.offered.asked(ids.clone()))
            .collect::<Result<Vec<InFlight>, _>>()
            .map_err(|error| Status::not_found(error.to_string()))?;
        let flights = Arc::new(flights);
        let work = {
            let (allocator, flights) = (Arc::clone(&self.allocator), Arc::clone(&flights));
            let offered = Arc::clone(&self.offered);
            async move {
                let mut answers = Vec::with_capacity(containers.len());
                for ids in containers {
                    let answer = allocator.allocate(&offered.name, ids).await;
                    answers.push(answer?);
                }
                drop(flights);
                Ok::<_, Refusal>(answers)
            }
        };
        let work = self.allocations.spawn(work);
        let answers = match tokio::time::timeout(limit, work).await {
            Ok(Ok(Ok(answers))) => answers,
            Ok(Ok(Err(refusal))) => return Err(refused(&refusal)),
            Ok(Err(_)) => {
                return Err(Status::internal("the allocation ended without an answer"));
            }
            Err(_) => {
                return Err(Status::deadline_exceeded(format!(
                    "the allocation has not ended within {} s",
                    limit.as_secs()
                )));
            }
        };
        let container_responses = answers.into_iter().map(response).collect();
        Ok(Response::new(proto::AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        _request: Request<proto::PreStartContainerRequest>,
    ) -> Result<Response<proto::PreStartContainerResponse>, Status> {
        Ok(Response::new(proto::PreStartContainerResponse {}))
    }
}

impl Service {
    /// Returns the ids that must be included, then those that the allocator prefers, then the others.
    fn prefer(
        &self,
        request: proto::ContainerPreferredAllocationRequest,
    ) -> proto::ContainerPreferredAllocationResponse {
        let size = usize::try_from(request.allocation_size).unwrap_or(0);
        let available: BTreeSet<String> = request.available_device_i_ds.into_iter().collect();
        let preferred = self.allocator.prefer(&self.offered.name, &available);
        let preferred = preferred.into_iter().filter(|id| available.contains(id));
        let mut chosen = BTreeSet::new();
        let device_i_ds = request
            .must_include_device_i_ds
            .into_iter()
            .chain(preferred)
            .chain(available.iter().cloned())
            .filter(|id| chosen.insert(id.clone()))
            .take(size)
            .collect();
        proto::ContainerPreferredAllocationResponse { device_i_ds }
    }
}

/// Returns the plugin's options for the kubelet.
pub(crate) fn options() -> proto::DevicePluginOptions {
    proto::DevicePluginOptions {
        pre_start_required: false,
        get_preferred_allocation_available: true,
    }
}

/// Converts a list to a message.
pub(crate) fn message(list: &List) -> proto::ListAndWatchResponse {
    let device = |(id, device): (&String, &crate::Device)| proto::Device {
        id: id.clone(),
        health: device.health.as_str().to_owned(),
        topology: device.numa.map(|id| proto::TopologyInfo {
            nodes: vec![proto::NumaNode { id }],
        }),
    };
    proto::ListAndWatchResponse {
        devices: list.devices().iter().map(device).collect(),
    }
}

fn checked(request: proto::AllocateRequest) -> Result<Vec<BTreeSet<String>>, Status> {
    let containers = request.container_requests;
    if containers.is_empty() || containers.len() > MAX_CONTAINERS {
        return Err(Status::invalid_argument(format!(
            "an Allocate must be for 1 to {MAX_CONTAINERS} containers, this one is for {}",
            containers.len()
        )));
    }
    let ids = |container: proto::ContainerAllocateRequest| {
        let ids = container.devices_ids;
        if ids.is_empty() || ids.len() > MAX_IDS {
            return Err(Status::invalid_argument(format!(
                "an Allocate must name 1 to {MAX_IDS} devices, this one names {}",
                ids.len()
            )));
        }
        Ok(ids.into_iter().collect())
    };
    containers.into_iter().map(ids).collect()
}

fn refused(refusal: &Refusal) -> Status {
    match refusal {
        Refusal::Unknown(why) => Status::not_found(why),
        Refusal::Unavailable(why) => Status::resource_exhausted(why),
    }
}

fn response(allocation: Allocation) -> proto::ContainerAllocateResponse {
    proto::ContainerAllocateResponse {
        envs: allocation.envs,
        mounts: allocation.mounts,
        devices: allocation.devices,
        annotations: allocation.annotations,
        cdi_devices: Vec::new(),
    }
}
