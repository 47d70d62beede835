//! Turns the reports of a session into the full sets that the protocol sends.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::Device;
use leafhost_core::session::{Devices, Discovery, Outcome, Session};
use tokio::sync::watch;
use tonic::Status;

use super::Ended;
use crate::proto::{self, DeviceSpec, DiscoverResponse, Mount};

pub struct Discovering {
    session: Box<dyn Session>,
    is_available: watch::Receiver<bool>,
    devices: BTreeMap<String, Device>,
    /// True once the session has reported its devices for the first time.
    known: bool,
    ended: bool,
    /// Notified when the stream is dropped.
    ends: Arc<Ended>,
}

impl Drop for Discovering {
    fn drop(&mut self) {
        let ends = if self.ended {
            &self.ends.by_itself
        } else {
            &self.ends.by_agent
        };
        ends.notify_one();
    }
}

impl Discovering {
    /// Creates the stream of a session; the sets are empty while `is_available` is false.
    pub fn new(
        session: Box<dyn Session>,
        is_available: watch::Receiver<bool>,
        ends: Arc<Ended>,
    ) -> Self {
        Self {
            session,
            is_available,
            devices: BTreeMap::new(),
            known: false,
            ended: false,
            ends,
        }
    }

    /// Returns the next set, or the status that ends the stream. A failure after the first set withdraws no device.
    pub async fn next(&mut self) -> Option<Result<DiscoverResponse, Status>> {
        while !self.ended {
            let outcome = tokio::select! {
                report = self.session.next() => report.outcome,
                // After the sender is dropped the value no longer changes.
                Ok(()) = self.is_available.changed() => {
                    if self.known {
                        return Some(Ok(self.set()));
                    }
                    continue;
                }
            };
            let status = match outcome {
                Outcome::Discovered(discovery) => {
                    if self.take(discovery) {
                        return Some(Ok(self.set()));
                    }
                    continue;
                }
                Outcome::InvalidDetails(problems) => {
                    self.ended = true;
                    return Some(Err(Status::invalid_argument(lines(&problems))));
                }
                Outcome::Unavailable(why) => Status::unavailable(why),
                Outcome::Faulted(fault) => Status::internal(fault.to_string()),
            };
            tracing::warn!(why = status.message(), "the handler has no answer");
            if !self.known {
                self.ended = true;
                return Some(Err(status));
            }
        }
        None
    }

    /// Applies a discovery; returns true if the set has changed.
    fn take(&mut self, discovery: Discovery) -> bool {
        let Discovery {
            devices,
            departed,
            left_out,
        } = discovery;
        let before = self.known.then(|| self.devices.clone());
        let is_complete = matches!(devices, Devices::Complete(_));
        match devices {
            Devices::Unchanged => {}
            Devices::Complete(all) | Devices::Partial(all) => {
                if is_complete {
                    // A device that could not be read this time may still exist.
                    self.devices.retain(|id, _| left_out.ids.contains(id));
                }
                let all = all.into_iter().map(|device| (device.id.clone(), device));
                self.devices.extend(all);
            }
        }
        for id in departed {
            self.devices.remove(&id);
        }
        self.known = true;
        before.is_none_or(|before| before != self.devices)
    }

    fn set(&mut self) -> DiscoverResponse {
        let is_available = *self.is_available.borrow_and_update();
        let devices = self.devices.values().filter(|_| is_available);
        DiscoverResponse {
            devices: devices.cloned().map(raw).collect(),
        }
    }
}

/// Joins the problems of details into one text.
pub fn lines(problems: &[FieldProblem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("; ")
}

fn raw(device: Device) -> proto::Device {
    let mounts = device.mounts.into_iter().map(|mount| Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        read_only: mount.read_only,
    });
    let nodes = device.nodes.into_iter().map(|node| DeviceSpec {
        container_path: node.container_path,
        host_path: node.host_path,
        permissions: node.permissions,
    });
    proto::Device {
        id: device.id,
        properties: device.properties,
        mounts: mounts.collect(),
        device_specs: nodes.collect(),
    }
}
