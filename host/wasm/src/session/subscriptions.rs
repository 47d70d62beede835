//! Subscriptions of a session: device events, network changes, datagrams. Each keeps its events, within bounds, while a call runs.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::wait;
use leafhost_net::{Interface, Interfaces, Listener, Policy, Received};
use leafhost_udev::{Event, Subsystems};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};

use super::WakeConditions;

#[derive(Debug, Clone)]
pub(super) enum SessionEvent {
    /// A device event, or [`Event::lost`] if some were lost.
    Device(Arc<Event>),
    /// The granted interfaces changed.
    Network,
    /// A datagram of a granted group, or the news that some were lost.
    Group(Received),
}

#[derive(Default)]
pub(crate) struct Subscriptions {
    pub(crate) devices: Option<DeviceSubscription>,
    pub(crate) network: Option<NetworkSubscription>,
    /// Datagrams of the granted groups.
    pub(crate) groups: Option<Box<dyn GroupSubscription>>,
}

impl Subscriptions {
    /// Returns the reasons why a session may wait for these wakes in vain.
    pub(super) fn problems(&self, wakes: &WakeConditions) -> Vec<String> {
        match &self.groups {
            Some(groups) if !wakes.multicast.is_empty() => groups.problems(),
            _ => Vec::new(),
        }
    }

    /// Returns the next event; waits for ever without a subscription. Cancel safe.
    pub(super) async fn next(&mut self) -> SessionEvent {
        let Self {
            devices,
            network,
            groups,
        } = self;
        tokio::select! {
            event = device(devices) => event,
            Some(()) = async {
                network.as_mut()?.next().await;
                Some(())
            } => SessionEvent::Network,
            Some(event) = async { Some(groups.as_mut()?.next().await) } => SessionEvent::Group(event),
        }
    }
}

/// Stream of device events, with the subsystems that the handler may see.
pub(crate) struct DeviceSubscription {
    pub(crate) events: broadcast::Receiver<Arc<Event>>,
    pub(crate) allowed: Arc<Subsystems>,
}

async fn device(subscription: &mut Option<DeviceSubscription>) -> SessionEvent {
    let Some(open) = subscription else {
        return std::future::pending().await;
    };
    SessionEvent::Device(match open.events.recv().await {
        Ok(event) => event,
        Err(error) => {
            if error == RecvError::Closed {
                *subscription = None;
            }
            Arc::new(Event::lost(None))
        }
    })
}

/// Reports changes of the interfaces that a handler may use.
pub(crate) struct NetworkSubscription {
    changes: watch::Receiver<Arc<Interfaces>>,
    policy: Policy,
    known: Vec<Interface>,
}

impl NetworkSubscription {
    /// Subscribes to changes from now on.
    pub(crate) fn new(policy: Policy) -> Self {
        Self {
            changes: policy.network().changes(),
            known: policy.interfaces(),
            policy,
        }
    }

    async fn next(&mut self) {
        loop {
            wait::changed(&mut self.changes).await;
            let now = self.policy.interfaces();
            if now != self.known {
                self.known = now;
                return;
            }
        }
    }
}

/// Stream of the datagrams of groups.
#[async_trait]
pub(crate) trait GroupSubscription: Send {
    /// Waits for the next datagram, or for the news that some were lost. Cancel safe.
    async fn next(&mut self) -> Received;

    /// Returns descriptions of the groups that cannot be received, with the reasons.
    fn problems(&self) -> Vec<String>;
}

#[async_trait]
impl GroupSubscription for Listener {
    async fn next(&mut self) -> Received {
        Self::next(self).await
    }

    fn problems(&self) -> Vec<String> {
        Self::problems(self)
    }
}
