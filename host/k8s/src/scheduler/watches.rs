//! Watches of an extender. Each event is passed on separately, so no unchanged objects are compared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{self, Node};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, Object, PartialObjectMeta};
use kube::core::DeserializeGuard;
use leafhost_core::scheduling::{Observer, Pod, PodKey, PodSpec, PodStatus};

use crate::instance::{InstanceObject, key, read};
use crate::node_lock;
use crate::watch::{Event, Watch};

/// Pod object with the fields that are read.
pub type PodObject = Object<PodSpec, PodStatus>;

/// Returns the API resource of pods.
pub fn pods() -> ApiResource {
    ApiResource::erase::<v1::Pod>(&())
}

/// Watches Instances without end. Objects that cannot be parsed were not written by an agent and count as gone.
pub async fn instances(api: Api<DeserializeGuard<InstanceObject>>, observer: Arc<dyn Observer>) {
    let mut watch = Watch::new(api);
    let mut listing = BTreeSet::new();
    loop {
        match watch.next_or_log("Instances").await {
            Event::Init => listing.clear(),
            Event::InitApply(object) => {
                if let Some(instance) = read(object) {
                    listing.insert(instance.key());
                    // Passes on each object at once: the whole list would need several times the memory of the kept data.
                    observer.listed(instance);
                }
            }
            Event::InitDone(_) => observer.instances(std::mem::take(&mut listing)),
            Event::Apply(object) => {
                let key = key(&object);
                match read(object) {
                    Some(instance) => observer.instance(instance),
                    None => observer.instance_gone(&key),
                }
            }
            Event::Delete(object) => observer.instance_gone(&key(&object)),
            Event::Resumed => {}
        }
    }
}

/// Watches the pods that ask for devices, without end.
pub async fn follow_pods(api: Api<PodObject>, observer: Arc<dyn Observer>) {
    let mut watch = Watch::new(api);
    let mut listing = Vec::new();
    loop {
        match watch.next_or_log("pods").await {
            Event::Init => listing.clear(),
            Event::InitApply(object) => listing.extend(asking(object)),
            Event::InitDone(_) => observer.pods(std::mem::take(&mut listing)),
            Event::Apply(object) => {
                if let Some(pod) = asking(object) {
                    observer.pod(pod);
                }
            }
            Event::Delete(object) => observer.pod_gone(&pod_key(&object)),
            Event::Resumed => {}
        }
    }
}

/// Watches the locks of Nodes without end.
pub async fn nodes(api: Api<PartialObjectMeta<Node>>, observer: Arc<dyn Observer>) {
    let mut watch = Watch::new(api);
    let mut listing = BTreeMap::new();
    loop {
        match watch.next_or_log("Nodes").await {
            Event::Init => listing.clear(),
            Event::InitApply(node) => {
                listing.insert(node.name_any(), node_lock::seen(&node.metadata));
            }
            Event::InitDone(_) => observer.nodes(std::mem::take(&mut listing)),
            Event::Apply(node) => {
                observer.node(node.name_any(), node_lock::seen(&node.metadata));
            }
            Event::Delete(node) => observer.node_gone(&node.name_any()),
            Event::Resumed => {}
        }
    }
}

fn pod_key(object: &PodObject) -> PodKey {
    PodKey {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
    }
}

/// Returns a pod if it asks for devices. A pod that asks cannot stop asking.
fn asking(object: PodObject) -> Option<Pod> {
    Some(pod(object)).filter(Pod::asks)
}

/// Returns a pod even if it asks for no devices.
pub fn pod(object: PodObject) -> Pod {
    let name = pod_key(&object);
    let uid = object.metadata.uid.unwrap_or_default();
    let annotations = object.metadata.annotations.unwrap_or_default();
    let status = object.status.unwrap_or_default();
    Pod::read((name, uid), &annotations, object.spec, status)
}
