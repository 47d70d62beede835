//! Admission of a container by the stand-in: device by device as in the real kubelet, its races included.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use leafhost_kubelet::proto::device_plugin::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, PreferredAllocationRequest,
};
use tonic::Status;

use super::life::{Endpoint, Life};
use super::model::{Asking, Choice, Ids, Refusal, Step};
use super::pods::{Container, Phase};
use super::world::{Answered, locked};

fn refused(call: &'static str) -> impl Fn(Status) -> Refusal {
    move |status| Refusal::Plugin {
        call,
        code: status.code(),
        message: status.message().to_owned(),
    }
}

impl Life {
    /// Allocates all that a container requests. Devices allocated before a refusal stay with the pod until it is swept.
    pub async fn admit(self: &Arc<Self>, uid: &str, container: &Container) -> Result<(), Refusal> {
        locked(&self.model).turn_to(uid);
        let mut swept = false;
        let mut allocated = false;
        for (resource, &count) in &container.requests {
            // The device manager ignores a resource that no plugin has offered yet; the pod starts without it.
            if !locked(&self.model).is_known(resource) {
                continue;
            }
            if !std::mem::replace(&mut swept, true) {
                self.sweep();
            }
            let asking = Asking {
                uid,
                container: &container.name,
                runs_already: !self.knows_pods.load(Relaxed)
                    && self
                        .world
                        .pods()
                        .get(uid)
                        .is_some_and(|pod| pod.running.contains(&container.name)),
            };
            allocated |= self.allocate(asking, resource, count).await?;
        }
        if allocated {
            self.save();
        }
        locked(&self.model).admitted(uid, &container.name, container.kind);
        self.world.notify();
        Ok(())
    }

    /// Allocates `count` of a resource; returns true if the plugin was asked.
    async fn allocate(
        self: &Arc<Self>,
        asking: Asking<'_>,
        resource: &str,
        count: usize,
    ) -> Result<bool, Refusal> {
        let step = locked(&self.model).begin(asking, resource, count)?;
        let ids = match step {
            Step::Nothing => return Ok(false),
            Step::Allocate(ids) => ids,
            Step::Choose(choice) => {
                let preferred = self.preferred(resource, &choice).await?;
                locked(&self.model).choose(resource, choice, &preferred)
            }
        };
        let answer = self.ask(resource, &ids).await;
        let refused = answer.as_ref().err().cloned();
        self.world.record(|record| {
            record.answers.push(Answered {
                uid: asking.uid.to_owned(),
                container: asking.container.to_owned(),
                resource: resource.to_owned(),
                ids: ids.clone(),
                refused,
            });
        });
        let answer = match answer {
            Ok(answer) => answer,
            Err(refusal) => {
                locked(&self.model).fail();
                return Err(refusal);
            }
        };
        // The real kubelet, too, leaves the devices marked as allocated here.
        let answer = answer.ok_or_else(|| Refusal::Plugin {
            call: "Allocate",
            code: tonic::Code::Ok,
            message: "no response for the container".to_owned(),
        })?;
        let released = self.world.faults.answer_released();
        self.until_the_end("Allocate", released).await?;
        let result = locked(&self.model).finish(asking, resource, &ids, answer);
        if let Err(Refusal::Crashed(why)) = &result {
            let why = why.clone();
            self.world.record(|record| record.crashes.push(why));
            self.end().await;
        }
        result.map(|()| true)
    }

    /// Awaits `doing`, but fails as soon as the kubelet is killed.
    async fn until_the_end<F: Future>(
        &self,
        call: &'static str,
        doing: F,
    ) -> Result<F::Output, Refusal> {
        tokio::select! {
            () = self.stop.cancelled() => Err(Refusal::Ended(call)),
            done = doing => Ok(done),
        }
    }

    fn endpoint(&self, resource: &str) -> Result<Endpoint, Refusal> {
        if !locked(&self.model).is_connected(resource) {
            return Err(Refusal::Stopped(resource.to_owned()));
        }
        locked(&self.endpoints)
            .get(resource)
            .cloned()
            .ok_or_else(|| Refusal::Stopped(resource.to_owned()))
    }

    async fn preferred(&self, resource: &str, choice: &Choice) -> Result<Ids, Refusal> {
        let mut endpoint = self.endpoint(resource)?;
        if !endpoint.options.get_preferred_allocation_available {
            return Ok(Ids::new());
        }
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: choice.available.union(&choice.taken).cloned().collect(),
            must_include_device_i_ds: choice.taken.iter().cloned().collect(),
            allocation_size: i32::try_from(choice.required).unwrap_or(i32::MAX),
        };
        let asking = endpoint
            .plugin
            .get_preferred_allocation(PreferredAllocationRequest {
                container_requests: vec![request],
            });
        let answer = self.until_the_end("GetPreferredAllocation", asking).await?;
        let answer = answer.map_err(refused("GetPreferredAllocation"))?;
        let first = answer.into_inner().container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|one| one.device_i_ds).collect())
    }

    async fn ask(
        &self,
        resource: &str,
        ids: &Ids,
    ) -> Result<Option<ContainerAllocateResponse>, Refusal> {
        let mut endpoint = self.endpoint(resource)?;
        let request = ContainerAllocateRequest {
            devices_ids: ids.iter().cloned().collect(),
        };
        // No deadline, as in the real kubelet.
        let asking = endpoint.plugin.allocate(AllocateRequest {
            container_requests: vec![request],
        });
        let answer = self.until_the_end("Allocate", asking).await?;
        let answer = answer.map_err(refused("Allocate"))?;
        Ok(answer.into_inner().container_responses.into_iter().next())
    }

    /// Admits all containers of a pod in order. The pod fails at the first refusal.
    pub async fn admit_pod(self: &Arc<Self>, uid: &str) -> Result<(), Refusal> {
        let containers = self
            .world
            .pods()
            .get(uid)
            .map(|pod| pod.spec.containers.clone());
        let containers = containers.ok_or_else(|| Refusal::Absent(format!("pod {uid}")))?;
        for container in &containers {
            if let Err(refusal) = self.admit(uid, container).await {
                if let Some(pod) = self.world.pods().get_mut(uid) {
                    pod.phase = Phase::Failed(format!("UnexpectedAdmissionError: {refusal}"));
                    pod.running = BTreeSet::new();
                }
                self.world.notify();
                return Err(refusal);
            }
        }
        Ok(())
    }
}
