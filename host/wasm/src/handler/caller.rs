//! The calls of one session: builds the request and converts the answer.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::fault::Fault;
use leafhost_core::session::{CallStats, Outcome, Report, SessionSpec};
use leafhost_grants::{Bounds, resolve};

use super::wake_sources::WakeSources;
use super::{Guest, MAX_TEXT, problems};
use crate::bindings::leafhost::discovery::types;
use crate::bindings::leafhost::udev::types as udev_types;
use crate::call::Work;
use crate::capabilities::log::LogSink;
use crate::output::{discovery, weigh, weigh_error};
use crate::record::Record;
use crate::session::{CallInput, CallReason, CallResult, Caller, NextCall};

/// Calls the handler for one session.
pub(super) struct GuestCaller {
    pub(super) guest: Arc<Guest>,
    pub(super) sources: WakeSources,
    pub(super) shared: bool,
    pub(super) spec: SessionSpec,
    pub(super) sink: Arc<LogSink>,
}

#[async_trait]
impl Caller for GuestCaller {
    async fn call(self: Arc<Self>, ask: CallInput) -> CallResult {
        let cursor = ask.cursor.clone();
        let mut request = self.request(ask);
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(async move {
                // Copied only here: calls that wait for their turn hold no copy.
                request.cursor = cursor.map(|cursor| cursor.bytes.to_vec());
                let handler = handler.leafhost_discovery_handler();
                handler.call_discover(store, &request).await
            })
        });
        let this = Arc::clone(&self);
        let finish = move |answer, record: &Record| match answer {
            Ok(answer) => this.discovered(answer, record),
            Err(error) => Ok((this.refused(error)?, None)),
        };
        let guest = &self.guest;
        let called = guest.call(&guest.capabilities, &self.sink, None, work, finish);
        let (ended, record) = called.await;
        let kept = record.take();
        let (outcome, next) = match ended.answer {
            Ok((outcome, next)) => (outcome, next),
            Err(fault) => (Outcome::Faulted(fault), None),
        };
        let call = CallStats {
            late: ended.queued,
            wall: ended.wall,
            // The two clocks differ by some microseconds.
            cpu: record.cpu.used().min(ended.wall),
            memory: record.memory.peak(),
            denied: kept.denied.into_iter().collect(),
            log_dropped: kept.log_dropped,
            ..CallStats::default()
        };
        let report = Report {
            outcome,
            explained: kept.explained,
            explained_dropped: kept.explained_dropped,
            call,
        };
        CallResult { report, next }
    }
}

impl GuestCaller {
    /// Builds the request without the cursor.
    fn request(&self, ask: CallInput) -> types::Request {
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

    /// Converts an error, within the bounds of an answer.
    fn refused(&self, error: types::DiscoveryError) -> Result<Outcome, Fault> {
        weigh_error(&error, &self.guest.grants.limits)?;
        Ok(match error {
            types::DiscoveryError::InvalidDetails(list) => {
                Outcome::InvalidDetails(problems(list, &self.sink.secrets))
            }
            types::DiscoveryError::Unavailable(what) => {
                Outcome::Unavailable(self.sink.secrets.clean(&what, MAX_TEXT))
            }
        })
    }

    /// Checks and converts an answer. Blocks if it has paths.
    fn discovered(
        &self,
        answer: types::Discovery,
        record: &Record,
    ) -> Result<(Outcome, Option<NextCall>), Fault> {
        let secrets = &self.sink.secrets;
        let mounts = OnceLock::new();
        let bounds = Bounds {
            grants: &self.guest.grants,
            shared: self.shared,
            secrets,
            udev_nodes: &std::mem::take(&mut record.kept().nodes),
            resolve: &|path| resolve(path, &mounts),
        };
        weigh(&answer, &self.guest.grants.limits)?;
        let discovery = discovery(answer.devices, answer.departed, &bounds)?;
        let next = NextCall {
            wakes: self.sources.wakes(answer.wake, secrets),
            cursor: answer.cursor,
        };
        Ok((Outcome::Discovered(discovery), Some(next)))
    }
}

fn guest_event(why: CallReason) -> types::Event {
    match why {
        CallReason::First => types::Event::First,
        CallReason::Changed => types::Event::Changed,
        CallReason::Timer => types::Event::Timer,
        CallReason::Udev(event) => types::Event::Udev(udev_types::Event {
            action: event.action.clone(),
            devpath: event.devpath.clone(),
            subsystem: event.subsystem.clone(),
            devnode: event.devnode.clone(),
        }),
        CallReason::Network => types::Event::Network,
        CallReason::Multicast(spelled, datagram) => types::Event::Multicast(types::Datagram {
            group: spelled.to_string(),
            port: datagram.group.port(),
            source: datagram.source.to_string(),
            interface: datagram.interface,
            payload: datagram.payload.clone(),
        }),
    }
}
