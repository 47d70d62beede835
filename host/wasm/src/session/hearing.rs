//! What a session hears: device events, changes of the network, datagrams; and what of it is kept while a call runs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leafhost_net::{Datagram, Interface, Interfaces, Listener, Policy};
use leafhost_udev::{Event, Subsystems};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::Wakes;
use crate::threads::Aside;

/// How many device events are kept while a call runs, for its answer to say which of them matter.
pub(super) const MAX_EVENTS: usize = 4096;
/// How many datagrams; each has at most 4 KiB.
const MAX_DATAGRAMS: usize = 256;
/// A change of the network is looked at so long after it began: a link brings its addresses one after the other.
const NETWORK_SETTLE: Duration = Duration::from_millis(200);

/// Something that was heard.
#[derive(Debug, Clone)]
pub(super) enum Sound {
    /// A device event.
    Device(Arc<Event>),
    /// Device events were lost, or there will be no more.
    DevicesLost,
    /// The granted interfaces changed.
    Network,
    /// A datagram of a granted group.
    Datagram(Arc<Datagram>),
    /// Datagrams were lost.
    DatagramsLost,
}

/// What a session listens to.
#[derive(Default)]
pub(crate) struct Listening {
    /// Device events.
    pub(crate) devices: Option<DeviceEar>,
    /// Changes of the network.
    pub(crate) network: Option<NetworkEar>,
    /// Datagrams of the granted groups.
    pub(crate) groups: Option<Box<dyn GroupEar>>,
}

impl Listening {
    /// Why a session that waits for these wakes may wait in vain.
    pub(super) fn problems(&self, wakes: &Wakes) -> Vec<String> {
        match &self.groups {
            Some(groups) if !wakes.multicast.is_empty() => groups.problems(),
            _ => Vec::new(),
        }
    }

    /// What is heard next. Waits for ever where nobody listens. Cancel-safe.
    pub(super) async fn next(&mut self) -> Sound {
        let Self {
            devices,
            network,
            groups,
        } = self;
        tokio::select! {
            sound = device(devices) => sound,
            () = changed(network) => Sound::Network,
            sound = datagram(groups) => sound,
        }
    }
}

/// Device events as they come, and which of them the handler may see.
pub(crate) struct DeviceEar {
    pub(crate) events: broadcast::Receiver<Arc<Event>>,
    pub(crate) allowed: Arc<Subsystems>,
    /// Where events are compared with the wakes.
    pub(crate) comparisons: Aside,
}

async fn device(ear: &mut Option<DeviceEar>) -> Sound {
    let Some(open) = ear else {
        return std::future::pending().await;
    };
    match open.events.recv().await {
        Ok(event) => return Sound::Device(event),
        Err(RecvError::Lagged(_)) => {}
        Err(RecvError::Closed) => *ear = None,
    }
    Sound::DevicesLost
}

/// Hears when the interfaces that a handler may use change.
pub(crate) struct NetworkEar {
    changes: watch::Receiver<Arc<Interfaces>>,
    policy: Policy,
    known: Vec<Interface>,
    /// When to look, after something changed.
    look_at: Option<Instant>,
}

impl NetworkEar {
    /// From now on.
    pub(crate) fn new(changes: watch::Receiver<Arc<Interfaces>>, policy: Policy) -> Self {
        let known = policy.interfaces();
        Self {
            changes,
            policy,
            known,
            look_at: None,
        }
    }

    async fn next(&mut self) {
        loop {
            let Some(at) = self.look_at else {
                if self.changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
                self.look_at = Some(Instant::now() + NETWORK_SETTLE);
                continue;
            };
            tokio::time::sleep_until(at).await;
            self.look_at = None;
            let now = self.policy.interfaces();
            if now != self.known {
                self.known = now;
                return;
            }
        }
    }
}

async fn changed(ear: &mut Option<NetworkEar>) {
    match ear {
        Some(ear) => ear.next().await,
        None => std::future::pending().await,
    }
}

/// Hears the datagrams of groups.
#[async_trait]
pub(crate) trait GroupEar: Send {
    /// What is heard next; never ends. Cancel-safe.
    async fn next(&mut self) -> leafhost_net::Heard;

    /// What cannot be heard, and why.
    fn problems(&self) -> Vec<String>;
}

#[async_trait]
impl GroupEar for Listener {
    async fn next(&mut self) -> leafhost_net::Heard {
        Self::next(self).await
    }

    fn problems(&self) -> Vec<String> {
        Self::problems(self)
    }
}

async fn datagram(ear: &mut Option<Box<dyn GroupEar>>) -> Sound {
    let Some(ear) = ear else {
        return std::future::pending().await;
    };
    match ear.next().await {
        leafhost_net::Heard::Datagram(datagram) => Sound::Datagram(datagram),
        leafhost_net::Heard::Lost => Sound::DatagramsLost,
    }
}

/// What was heard while a call ran, in the order it came.
#[derive(Debug, Default)]
pub(super) struct Heard {
    sounds: Vec<Sound>,
    events: usize,
    datagrams: usize,
    network: bool,
    events_lost: bool,
    datagrams_lost: bool,
}

impl Heard {
    /// What was kept.
    pub(super) fn into_sounds(self) -> Vec<Sound> {
        self.sounds
    }

    /// Keeps it, within the bounds.
    pub(super) fn push(&mut self, sound: Sound) {
        let sound = match sound {
            Sound::Device(_) if self.events >= MAX_EVENTS => Sound::DevicesLost,
            Sound::Datagram(_) if self.datagrams >= MAX_DATAGRAMS => Sound::DatagramsLost,
            sound => sound,
        };
        let known = match &sound {
            Sound::Device(_) => {
                self.events += 1;
                false
            }
            Sound::Datagram(_) => {
                self.datagrams += 1;
                false
            }
            Sound::DevicesLost => std::mem::replace(&mut self.events_lost, true),
            Sound::DatagramsLost => std::mem::replace(&mut self.datagrams_lost, true),
            Sound::Network => std::mem::replace(&mut self.network, true),
        };
        if !known {
            self.sounds.push(sound);
        }
    }
}
