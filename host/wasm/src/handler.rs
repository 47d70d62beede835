//! A handler that is loaded: the port `Handler`, and the calls of its sessions.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::handler::{Description, Digest};
use leafhost_core::ports::Handler;
use leafhost_core::session::{CallStats, Outcome, Session, SessionSpec};
use leafhost_udev::Subsystems;
use tokio::sync::Semaphore;

use crate::bindings::DiscoveryHandlerPre;
use crate::bindings::leafhost::discovery::types;
use crate::bindings::leafhost::udev::types as udev_types;
use crate::call::{Call, Ended, Host, Work};
use crate::capabilities::log::{LogSink, Rate};
use crate::capabilities::udev::host_rule;
use crate::capabilities::{CallState, Capabilities};
use crate::grants::Grants;
use crate::output::{Bounds, resolve};
use crate::record::Record;
use crate::session::{Ask, Called, Caller, Listening, Next, Wakes, WakingSession, Why};
use crate::text::Secrets;

/// How many calls of one handler run at once; more wait.
const AT_ONCE: usize = 4;
/// How many problems of one answer are kept.
const MAX_PROBLEMS: usize = 100;
/// The longest text of a problem or of what is not available, in bytes.
const MAX_TEXT: usize = 1024;

/// Where device events come from; or why there are none.
pub(crate) type Events = Result<leafhost_udev::Monitor, String>;

/// A component that can be called.
pub(crate) struct Guest {
    pub(crate) host: Arc<Host>,
    pub(crate) pre: DiscoveryHandlerPre<CallState>,
    pub(crate) grants: Arc<Grants>,
    pub(crate) udev: Option<Arc<Subsystems>>,
    pub(crate) source: String,
    permits: Semaphore,
}

impl Guest {
    /// With its grants.
    pub(crate) fn new(
        host: Arc<Host>,
        pre: DiscoveryHandlerPre<CallState>,
        grants: Grants,
        source: String,
    ) -> Self {
        let udev = grants
            .udev
            .as_deref()
            .map(|globs| Arc::new(Subsystems::new(globs)));
        Self {
            host,
            pre,
            grants: Arc::new(grants),
            udev,
            source,
            permits: Semaphore::new(AT_ONCE),
        }
    }

    /// Who it is. `name` is what log lines call it meanwhile.
    pub(crate) async fn describe(&self, name: &str) -> Result<types::Description, Fault> {
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(handler.leafhost_discovery_handler().call_describe(store))
        });
        self.ask(name, work).await
    }

    /// What is wrong with `details`.
    pub(crate) async fn validate(
        &self,
        name: &str,
        details: &str,
    ) -> Result<Vec<FieldProblem>, Fault> {
        let details = details.to_owned();
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(async move {
                let handler = handler.leafhost_discovery_handler();
                handler.call_validate(store, &details).await
            })
        });
        let answer = self.ask(name, work).await?;
        Ok(answer
            .err()
            .map_or_else(Vec::new, |list| problems(list, &Secrets::default())))
    }

    /// A call without devices, properties and Configuration.
    async fn ask<T: Send + 'static>(&self, name: &str, work: Work<T>) -> Result<T, Fault> {
        let sink = Arc::new(LogSink {
            handler: name.to_owned(),
            source: self.source.clone(),
            configuration: String::new(),
            secrets: Arc::default(),
            rate: Rate::default(),
        });
        let capabilities = Capabilities {
            discovers: false,
            udev: None,
        };
        let record = Arc::new(Record::default());
        self.call(&capabilities, &sink, &record, work).await.answer
    }

    async fn call<T: Send + 'static>(
        &self,
        capabilities: &Capabilities,
        sink: &Arc<LogSink>,
        record: &Arc<Record>,
        work: Work<T>,
    ) -> Ended<T> {
        let _permit = self.permits.acquire().await;
        let limits = self.grants.limits.clone();
        let secrets = sink.secrets.clone();
        let state = CallState::new(capabilities, limits.memory, sink, &secrets, record);
        self.host
            .call(Call {
                pre: self.pre.clone(),
                state,
                limits,
                record: record.clone(),
                secrets,
                work,
            })
            .await
    }
}

/// A handler that is loaded.
pub(crate) struct LoadedHandler {
    pub(crate) guest: Arc<Guest>,
    pub(crate) description: Description,
    pub(crate) digest: Digest,
    pub(crate) warnings: Vec<String>,
    pub(crate) events: Arc<Events>,
}

impl std::fmt::Debug for LoadedHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedHandler")
            .field("source", &self.guest.source)
            .field("name", &self.description.name)
            .field("digest", &self.digest.short())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for LoadedHandler {
    fn description(&self) -> &Description {
        &self.description
    }

    fn digest(&self) -> &Digest {
        &self.digest
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, Fault> {
        self.guest.validate(&self.description.name, details).await
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let secrets = Arc::new(Secrets::new(&spec.properties));
        let opening = spec.opening;
        let sink = Arc::new(LogSink {
            handler: self.description.name.clone(),
            source: self.guest.source.clone(),
            configuration: spec.configuration.to_string(),
            secrets,
            rate: Rate::default(),
        });
        // Listening begins before the first call, so that nothing that happens meanwhile is missed.
        let listening = match (&self.guest.udev, self.events.as_ref()) {
            (Some(allowed), Ok(monitor)) => Some(Listening {
                events: monitor.subscribe(),
                allowed: allowed.clone(),
            }),
            _ => None,
        };
        let caller = GuestCaller {
            guest: self.guest.clone(),
            capabilities: Capabilities {
                discovers: true,
                udev: self.guest.udev.clone(),
            },
            no_events: match self.events.as_ref() {
                Ok(_) => None,
                Err(reason) => Some(reason.clone()),
            },
            shared: self.description.shared,
            spec,
            sink,
        };
        Box::new(WakingSession::new(Arc::new(caller), opening, listening))
    }
}

/// The calls of one session.
struct GuestCaller {
    guest: Arc<Guest>,
    capabilities: Capabilities,
    no_events: Option<String>,
    shared: bool,
    spec: SessionSpec,
    sink: Arc<LogSink>,
}

#[async_trait]
impl Caller for GuestCaller {
    async fn call(&self, ask: Ask) -> Called {
        let record = Arc::new(Record::default());
        let request = self.request(ask);
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(async move {
                let handler = handler.leafhost_discovery_handler();
                handler.call_discover(store, &request).await
            })
        });
        let ended = self
            .guest
            .call(&self.capabilities, &self.sink, &record, work)
            .await;
        let kept = record.take();
        let secrets = &self.sink.secrets;
        let (outcome, next) = match ended.answer {
            Ok(Ok(answer)) => self.discovered(answer, kept.nodes).await,
            Ok(Err(types::DiscoveryError::InvalidDetails(list))) => {
                (Outcome::InvalidDetails(problems(list, secrets)), None)
            }
            Ok(Err(types::DiscoveryError::Unavailable(what))) => {
                (Outcome::Unavailable(secrets.clean(&what, MAX_TEXT)), None)
            }
            Err(fault) => (Outcome::Faulted(fault), None),
        };
        Called {
            outcome,
            explained: kept.explained,
            explained_dropped: kept.explained_dropped,
            stats: CallStats {
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
    fn request(&self, ask: Ask) -> types::Request {
        let limits = &self.guest.grants.limits;
        let millis =
            |time: std::time::Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
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
            cursor: ask.cursor,
        }
    }

    /// Checks an answer away from the async threads: paths are looked up.
    async fn discovered(
        &self,
        answer: types::Discovery,
        udev_nodes: std::collections::BTreeSet<String>,
    ) -> (Outcome, Option<Next>) {
        let (grants, secrets) = (self.guest.grants.clone(), self.sink.secrets.clone());
        let shared = self.shared;
        let checked = tokio::task::spawn_blocking(move || {
            let bounds = Bounds {
                grants: &grants,
                shared,
                secrets: &secrets,
                udev_nodes: &udev_nodes,
                resolve: &resolve,
            };
            bounds.weigh(&answer)?;
            let discovery = bounds.discovery(answer.devices, answer.departed);
            Ok((discovery, answer.wake, answer.cursor))
        });
        match checked.await {
            Ok(Ok((discovery, wake, cursor))) => {
                let wakes = self.wakes(wake);
                (Outcome::Discovered(discovery), Some(Next { wakes, cursor }))
            }
            Ok(Err(fault)) => (Outcome::Faulted(fault), None),
            Err(error) => {
                let message = format!("the agent failed while it checked the answer: {error}");
                (
                    Outcome::Faulted(Fault::new(FaultReason::Host, message)),
                    None,
                )
            }
        }
    }

    /// The wakes that can be served, and why the others cannot.
    fn wakes(&self, list: Vec<types::Wake>) -> Wakes {
        let mut wakes = Wakes::default();
        for wake in list {
            match wake {
                types::Wake::After(millis) => {
                    let after = std::time::Duration::from_millis(millis.into());
                    wakes.after = Some(wakes.after.map_or(after, |other| other.min(after)));
                }
                types::Wake::Udev(rule) => self.udev_wake(rule, &mut wakes),
                types::Wake::Network => wakes
                    .refused
                    .push("network: this version has no network capability".to_owned()),
                types::Wake::Multicast(filter) => wakes.refused.push(self.sink.secrets.clean(
                    &format!(
                        "multicast {}:{}: this version has no network capability",
                        filter.group, filter.port
                    ),
                    MAX_TEXT,
                )),
            }
        }
        wakes
    }

    fn udev_wake(&self, rule: udev_types::Rule, wakes: &mut Wakes) {
        if self.capabilities.udev.is_none() {
            wakes
                .refused
                .push("udev: the grant `udev` is missing".to_owned());
            return;
        }
        match host_rule(rule) {
            Ok(_) if self.no_events.is_some() => {
                let reason = self.no_events.as_deref().unwrap_or_default();
                let instead = crate::session::INSTEAD_OF_EVENTS;
                wakes.after = Some(wakes.after.map_or(instead, |other| other.min(instead)));
                let refused = format!(
                    "udev: {reason}; called every {} s instead",
                    instead.as_secs()
                );
                if !wakes.refused.contains(&refused) {
                    wakes.refused.push(refused);
                }
            }
            Ok(rule) => wakes.udev.push(rule),
            Err(error) => {
                let text = format!("udev: {error}");
                wakes.refused.push(self.sink.secrets.clean(&text, MAX_TEXT));
            }
        }
    }
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
    }
}

/// The guest's problems, bounded. An empty list says nothing, so it says that.
fn problems(list: Vec<types::Problem>, secrets: &Secrets) -> Vec<FieldProblem> {
    if list.is_empty() {
        return vec![FieldProblem::new(
            "",
            "the handler refuses the details without saying why",
        )];
    }
    list.into_iter()
        .take(MAX_PROBLEMS)
        .map(|problem| {
            FieldProblem::new(
                secrets.clean(&problem.path, MAX_TEXT),
                secrets.clean(&problem.message, MAX_TEXT),
            )
        })
        .collect()
}
