//! A loaded handler: the port `Handler`, and the calls of its sessions.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::handler::HandlerFacts;
use leafhost_core::ports::Handler;
use leafhost_core::session::{Explanation, Session, SessionSpec};
use leafhost_grants::{Grants, Secrets};
use leafhost_net::http::Names;
use leafhost_net::{Listener, Network, Policy};
use leafhost_udev::Subsystems;

use crate::admission::{HandlerQuota, OF_HANDLER};
use crate::bindings::DiscoveryHandlerPre;
use crate::bindings::leafhost::discovery::types;
use crate::call::{Call, Finished, Host, Work};
use crate::capabilities::log::{LogSink, Rate};
use crate::capabilities::{CallState, Capabilities};
use crate::limits::while_loading;
use crate::record::Record;
use crate::session::{DeviceSubscription, NetworkSubscription, Subscriptions, WakingSession};
use crate::threads::BlockingQuota;

mod caller;
mod wake_sources;

use caller::GuestCaller;
use wake_sources::{DeviceEvents, WakeSources};

/// Maximum number of problems kept of one answer.
const MAX_PROBLEMS: usize = 100;
/// Maximum length of the text of a problem or of an unavailability, in bytes.
const MAX_TEXT: usize = 1024;

/// Source of device events, or the reason why there is none.
pub(crate) type Events = Result<leafhost_udev::Monitor, String>;

/// A component that can be called.
pub(crate) struct Guest {
    pub(crate) host: Arc<Host>,
    pub(crate) pre: DiscoveryHandlerPre<CallState>,
    pub(crate) grants: Arc<Grants>,
    /// Capabilities of a call of `discover`.
    capabilities: Capabilities,
    pub(crate) source: String,
    /// Log rate shared by all sessions: more Configurations must not give a handler more lines.
    rate: Arc<Rate>,
    quota: HandlerQuota,
}

impl Guest {
    pub(crate) fn new(
        host: Arc<Host>,
        pre: DiscoveryHandlerPre<CallState>,
        grants: Grants,
        network: &Result<Network, String>,
        names: Names,
        source: String,
    ) -> Self {
        let udev = grants
            .udev
            .as_deref()
            .map(|globs| Arc::new(Subsystems::new(globs)))
            .ok_or("the grant `udev` is missing");
        let network = match (&grants.network, network) {
            (None, _) => Err("the grant `network` is missing".to_owned()),
            (Some(_), Err(reason)) => Err(reason.clone()),
            (Some(granted), Ok(network)) => {
                Ok(Policy::new(Arc::new(granted.clone()), network.clone()))
            }
        };
        Self {
            quota: HandlerQuota::new(&host.admission),
            capabilities: Capabilities {
                udev,
                blocking: BlockingQuota::new(&host.threads, OF_HANDLER),
                network,
                names,
            },
            host,
            pre,
            grants: Arc::new(grants),
            source,
            rate: Arc::default(),
        }
    }

    /// Calls `describe` while the handler is loaded. `name` identifies the handler in log lines until its description is known.
    pub(crate) async fn describe(&self, name: &str) -> Result<types::Description, Fault> {
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(handler.leafhost_discovery_handler().call_describe(store))
        });
        self.ask(name, Some("describe"), work).await.0
    }

    /// Calls `validate`; returns the problems of `details` and the explanations about them. `loading` is as in [`Call`].
    pub(crate) async fn look_at(
        &self,
        name: &str,
        details: &str,
        loading: Option<&'static str>,
    ) -> Result<(Vec<FieldProblem>, Vec<Explanation>), Fault> {
        let details = details.to_owned();
        let work: Work<_> = Box::new(|handler, store| {
            Box::pin(async move {
                let handler = handler.leafhost_discovery_handler();
                handler.call_validate(store, &details).await
            })
        });
        let (answer, record) = self.ask(name, loading, work).await;
        let answer = answer?;
        let wrong = answer
            .err()
            .map_or_else(Vec::new, |list| problems(list, &Secrets::default()));
        Ok((wrong, record.take().explained))
    }

    /// Makes a call without devices, network, properties and Configuration; returns the answer and the record of the call.
    async fn ask<T: Send + 'static>(
        &self,
        name: &str,
        loading: Option<&'static str>,
        work: Work<T>,
    ) -> (Result<T, Fault>, Arc<Record>) {
        let sink = self.sink(name, String::new(), Arc::default());
        let capabilities = Capabilities {
            udev: Err("devices are shown to `discover` only"),
            network: Err("only `discover` may use the network".to_owned()),
            ..self.capabilities.clone()
        };
        let finish = |answer, _: &Record| Ok(answer);
        let called = self.call(&capabilities, &sink, loading, work, finish);
        let (ended, record) = called.await;
        (ended.answer, record)
    }

    /// Creates the destination of the log lines of calls.
    fn sink(&self, handler: &str, configuration: String, secrets: Arc<Secrets>) -> Arc<LogSink> {
        Arc::new(LogSink {
            handler: handler.to_owned(),
            source: self.source.clone(),
            configuration,
            secrets,
            rate: Arc::clone(&self.rate),
        })
    }

    /// Makes a call as soon as it is admitted; returns its result and its record.
    async fn call<T: Send + 'static, U: Send + 'static>(
        &self,
        capabilities: &Capabilities,
        sink: &Arc<LogSink>,
        loading: Option<&'static str>,
        work: Work<T>,
        finish: impl FnOnce(T, &Record) -> Result<U, Fault> + Send + 'static,
    ) -> (Finished<U>, Arc<Record>) {
        let asked = tokio::time::Instant::now();
        let admitted = self.quota.admit().await;
        let granted = &self.grants.limits;
        let limits = loading.map_or_else(|| granted.clone(), |_| while_loading(granted));
        let record = Arc::new(Record::new(sink.secrets.clone()));
        let state = CallState::new(capabilities, &limits, sink, &record);
        let call = Call {
            pre: self.pre.clone(),
            state,
            limits,
            loading,
            record: record.clone(),
            work,
            admitted,
            asked,
        };
        (self.host.call(call, finish).await, record)
    }
}

pub(crate) struct LoadedHandler {
    pub(crate) guest: Arc<Guest>,
    pub(crate) facts: HandlerFacts,
    pub(crate) events: Arc<Events>,
}

impl std::fmt::Debug for LoadedHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadedHandler")
            .field("source", &self.guest.source)
            .field("name", &self.facts.description.name)
            .field("digest", &self.facts.digest.short())
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl Handler for LoadedHandler {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, Fault> {
        let name = &self.facts.description.name;
        let looked = self.guest.look_at(name, details, None);
        Ok(looked.await?.0)
    }

    async fn remarks(&self, details: &str) -> Vec<Explanation> {
        let name = &self.facts.description.name;
        let looked = self.guest.look_at(name, details, None);
        looked.await.map_or_else(|_| Vec::new(), |(_, told)| told)
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let secrets = Arc::new(Secrets::new(&spec.properties));
        let opening = spec.opening;
        let sink = self.guest.sink(
            &self.facts.description.name,
            spec.configuration.to_string(),
            secrets,
        );
        // Subscribes before the first call, so that no event is missed during the call. Groups on a new interface are joined after it.
        let mut subscriptions = Subscriptions::default();
        let Capabilities { udev, network, .. } = &self.guest.capabilities;
        if let (Ok(allowed), Ok(monitor)) = (udev, self.events.as_ref()) {
            subscriptions.devices = Some(DeviceSubscription {
                events: monitor.subscribe(),
                allowed: allowed.clone(),
            });
        }
        if let Ok(policy) = network {
            subscriptions.network = Some(NetworkSubscription::new(policy.clone()));
            if !policy.grants().multicast.is_empty() {
                subscriptions.groups = Some(Box::new(Listener::new(policy)));
            }
        }
        let caller = GuestCaller {
            guest: self.guest.clone(),
            sources: WakeSources {
                devices: match (udev, self.events.as_ref()) {
                    (Err(_), _) => DeviceEvents::NotGranted,
                    (Ok(_), Ok(_)) => DeviceEvents::Available,
                    (Ok(_), Err(reason)) => DeviceEvents::Unavailable(reason.clone()),
                },
                network: network.clone(),
            },
            shared: self.facts.description.shared,
            spec,
            sink,
        };
        let cursors = Arc::clone(&self.guest.host.cursors);
        Box::new(WakingSession::new(
            Arc::new(caller),
            opening,
            subscriptions,
            cursors,
        ))
    }
}

/// Converts the guest's problems, within bounds. Replaces an empty list with a problem that says that the handler gives no reason.
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
