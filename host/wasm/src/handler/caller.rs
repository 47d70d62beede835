//! The calls of one session: what the guest is asked, and what is made of its answer.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::session::{CallStats, Outcome, SessionSpec};

use super::wakes::WakeSources;
use super::{Guest, MAX_TEXT, problems};
use crate::bindings::leafhost::discovery::types;
use crate::bindings::leafhost::udev::types as udev_types;
use crate::call::Work;
use crate::capabilities::Capabilities;
use crate::capabilities::log::LogSink;
use crate::output::{Bounds, of_wakes, resolve, text, weigh_error};
use crate::record::Record;
use crate::session::{Ask, Called, Caller, Next, Why};

/// So many devices, departed ones and wakes of an answer are checked where tasks run…
const SMALL: usize = 64;
/// …if they have no more bytes of text.
const SMALL_TEXT: usize = 64 << 10;

/// The calls of one session.
pub(super) struct GuestCaller {
    pub(super) guest: Arc<Guest>,
    pub(super) capabilities: Capabilities,
    pub(super) sources: WakeSources,
    pub(super) shared: bool,
    pub(super) spec: SessionSpec,
    pub(super) sink: Arc<LogSink>,
}

#[async_trait]
impl Caller for GuestCaller {
    async fn call(&self, ask: Ask) -> Called {
        let record = Arc::new(Record::new(self.sink.secrets.clone()));
        let cursor = ask.cursor.clone();
        let mut request = self.request(ask);
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(async move {
                // Only now: calls that wait for their turn have no copy.
                request.cursor = cursor.map(|cursor| cursor.to_vec());
                let handler = handler.leafhost_discovery_handler();
                handler.call_discover(store, &request).await
            })
        });
        let ended = self
            .guest
            .call(&self.capabilities, &self.sink, &record, None, work)
            .await;
        let kept = record.take();
        let (outcome, next) = match ended.answer {
            Ok(Ok(answer)) => self.discovered(answer, kept.nodes).await,
            Ok(Err(error)) => (self.refused(error), None),
            Err(fault) => (Outcome::Faulted(fault), None),
        };
        Called {
            outcome,
            explained: kept.explained,
            explained_dropped: kept.explained_dropped,
            stats: CallStats {
                late: ended.queued,
                wall: ended.wall,
                cpu: record.cpu.used(),
                memory: record.memory.peak(),
                denied: kept.denied.into_iter().collect(),
                log_dropped: kept.log_dropped,
                ..CallStats::default()
            },
            next,
        }
    }
}

impl GuestCaller {
    /// All but the cursor.
    fn request(&self, ask: Ask) -> types::Request {
        let limits = &self.guest.grants.limits;
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let properties = self.spec.properties.iter().map(|property| types::Property {
            name: property.name.clone(),
            value: property.value.as_deref().map(<[u8]>::to_vec),
            secret: property.secret,
        });
        types::Request {
            node: self.spec.node.clone(),
            configuration: self.spec.configuration.to_string(),
            details: self.spec.details.clone(),
            properties: properties.collect(),
            events: ask.events.into_iter().map(guest_event).collect(),
            events_lost: ask.events_lost,
            budget: types::Budget {
                wall_ms: millis(limits.wall),
                cpu_ms: millis(limits.cpu),
                memory_bytes: limits.memory,
                devices: limits.devices,
                answer_bytes: limits.answer,
            },
            cursor: None,
        }
    }

    /// What an error says, within the bounds of an answer.
    fn refused(&self, error: types::DiscoveryError) -> Outcome {
        let secrets = &self.sink.secrets;
        if let Err(fault) = weigh_error(&error, &self.guest.grants.limits) {
            return Outcome::Faulted(fault);
        }
        match error {
            types::DiscoveryError::InvalidDetails(list) => {
                Outcome::InvalidDetails(problems(list, secrets))
            }
            types::DiscoveryError::Unavailable(what) => {
                Outcome::Unavailable(secrets.clean(&what, MAX_TEXT))
            }
        }
    }

    /// Checks an answer: at once if it is small, else away from the async threads.
    async fn discovered(
        &self,
        answer: types::Discovery,
        udev_nodes: BTreeSet<String>,
    ) -> (Outcome, Option<Next>) {
        let (grants, secrets) = (self.guest.grants.clone(), self.sink.secrets.clone());
        let (shared, sources) = (self.shared, self.sources.clone());
        let small = is_small(&answer);
        let check = move || {
            let mounts = OnceLock::new();
            let bounds = Bounds {
                grants: &grants,
                shared,
                secrets: &secrets,
                udev_nodes: &udev_nodes,
                resolve: &|path| resolve(path, &mounts),
            };
            bounds.weigh(&answer)?;
            let discovery = bounds.discovery(answer.devices, answer.departed);
            let next = Next {
                wakes: sources.wakes(answer.wake, &secrets),
                cursor: answer.cursor,
            };
            Ok((discovery, next))
        };
        let checked = if small {
            Ok(check())
        } else {
            self.guest.blocking.run(check).await
        };
        match checked {
            Ok(Ok((discovery, next))) => (Outcome::Discovered(discovery), Some(next)),
            Ok(Err(fault)) => (Outcome::Faulted(fault), None),
            Err(why) => {
                let message = format!("its answer could not be checked: {why}");
                (
                    Outcome::Faulted(Fault::new(FaultReason::Host, message)),
                    None,
                )
            }
        }
    }
}

/// Whether an answer is checked in no time: it is short, no path of it has to be looked up, and no pattern compiled.
fn is_small(answer: &types::Discovery) -> bool {
    let devices = match &answer.devices {
        types::Devices::Unchanged => &[][..],
        types::Devices::Complete(list) | types::Devices::Partial(list) => list,
    };
    let is_udev = |wake: &types::Wake| matches!(wake, types::Wake::Udev(_));
    let has_paths =
        |device: &types::Device| !device.mounts.is_empty() || !device.device_nodes.is_empty();
    devices.len() + answer.departed.len() + answer.wake.len() <= SMALL
        && !answer.wake.iter().any(is_udev)
        && !devices.iter().any(has_paths)
        && devices.iter().map(text).sum::<usize>() + of_wakes(&answer.wake) <= SMALL_TEXT
}

fn guest_event(why: Why) -> types::Event {
    match why {
        Why::First => types::Event::First,
        Why::Changed => types::Event::Changed,
        Why::Timer => types::Event::Timer,
        Why::Udev(event) => types::Event::Udev(udev_types::Event {
            action: event.action.clone(),
            devpath: event.devpath.clone(),
            subsystem: event.subsystem.clone(),
            devnode: event.devnode.clone(),
        }),
        Why::Network => types::Event::Network,
        Why::Multicast(spelled, datagram) => types::Event::Multicast(types::Datagram {
            group: spelled.to_string(),
            port: datagram.group.port,
            source: datagram.source.to_string(),
            interface: datagram.interface,
            payload: datagram.payload.clone(),
        }),
    }
}
