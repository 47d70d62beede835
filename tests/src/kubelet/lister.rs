//! The stand-in's PodResources.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use leafhost_kubelet::proto::pod_resources::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use leafhost_kubelet::proto::pod_resources::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use super::faults::Trouble;
use super::life::Life;
use super::model::Model;
use super::pods::{Kind, Phase, Pod};
use super::world::locked;

pub(super) struct Lister(Arc<Life>);

impl Lister {
    pub fn routes(life: Arc<Life>) -> Routes {
        Routes::new(PodResourcesListerServer::new(Self(life)))
    }
}

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        match self.0.world.faults.pod_resources() {
            None => {}
            Some(Trouble::Error(code, message)) => return Err(Status::new(code, message)),
            Some(Trouble::Slow(wait)) => tokio::time::sleep(wait).await,
            Some(Trouble::Silent) => pending().await,
        }
        self.0.sweep();
        let mut pod_resources = Vec::new();
        // A kubelet that has just started lists nothing.
        if self.0.knows_pods.load(Relaxed) {
            let pods = self.0.world.pods();
            let model = locked(&self.0.model);
            let active = pods.iter().filter(|(_, pod)| pod.phase == Phase::Active);
            pod_resources.extend(active.map(|(uid, pod)| resources(&model, uid, pod)));
        }
        Ok(Response::new(ListPodResourcesResponse { pod_resources }))
    }
}

fn resources(model: &Model, uid: &str, pod: &Pod) -> PodResources {
    let of_container = |name: &String| {
        let given = model.all_given().get(uid).and_then(|pod| pod.get(name));
        let devices = given.into_iter().flatten().flat_map(|(resource, given)| {
            // Each ID is listed alone, as the real kubelet does.
            given.ids().into_iter().map(|id| ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![id],
            })
        });
        ContainerResources {
            name: name.clone(),
            devices: devices.collect(),
            ..ContainerResources::default()
        }
    };
    PodResources {
        name: pod.spec.name.clone(),
        namespace: pod.spec.namespace.clone(),
        containers: pod
            .spec
            .containers
            .iter()
            .filter(|container| container.kind != Kind::Init)
            .map(|container| of_container(&container.name))
            .collect(),
    }
}
