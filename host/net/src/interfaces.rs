//! The interfaces of the node with their addresses, followed live through netlink. Does not know grants.

mod kernel;
#[cfg(test)]
pub(crate) mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use self::kernel::Events;
use crate::multicast::Groups;

/// Delay between a change and the next reading: changes often come together.
const SETTLE: Duration = Duration::from_millis(50);
/// Pause after netlink failed.
const RETRY: Duration = Duration::from_secs(1);

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Name of the interface, such as `eth0`.
    pub name: String,
    /// Index of the interface, which is also the scope id of its link-local addresses.
    pub index: u32,
    /// Addresses, each with the prefix length of its network; sorted.
    pub addresses: Vec<IpNet>,
    /// True if the interface is up and has a carrier.
    pub up: bool,
    /// True if the interface can multicast.
    pub multicast: bool,
    /// True for the loopback interface.
    pub loopback: bool,
}

/// Snapshot of all interfaces, sorted by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// List of the interfaces.
    pub list: Vec<Interface>,
    /// Node's own addresses that no interface has: the other routes of type `local` in the table `local`. Sorted.
    pub local: Vec<IpNet>,
}

impl Interfaces {
    /// Returns true if the address belongs to the node.
    pub fn have(&self, address: IpAddr) -> bool {
        let mut addresses = self.list.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|net| net.addr() == address)
            || self.local.iter().any(|net| net.contains(&address))
    }
}

/// Reason why the network cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A netlink operation failed.
    #[error("cannot watch the network interfaces")]
    Netlink(#[source] std::io::Error),
    /// The task that follows the interfaces has ended, so the last snapshot may be out of date.
    #[error(
        "the agent no longer follows the network interfaces, since the task for that ended; this is a bug, see the log and restart the agent"
    )]
    Ended,
}

/// Node's network, always current; cheap to clone.
#[derive(Debug, Clone)]
pub struct Network {
    interfaces: watch::Receiver<Arc<Interfaces>>,
    /// Task that follows the interfaces and holds the sender of snapshots; `None` if the caller follows them.
    follower: Option<Arc<AbortOnDropHandle<()>>>,
    groups: Arc<Groups>,
}

impl Network {
    /// Follows the interfaces until the network and its clones are dropped. Must be called within a tokio runtime whose threads are in the
    /// network namespace of the calling thread. A change is visible after about 50 ms. If the kernel cannot be asked, its last answer
    /// stays.
    ///
    /// # Errors
    /// Returns an error if the first reading failed.
    pub fn start() -> Result<Self, NetworkError> {
        // Opened before the first reading, so that a change during it is not missed.
        let events = Events::open().map_err(NetworkError::Netlink)?;
        let now = kernel::read().map_err(NetworkError::Netlink)?;
        let (sender, interfaces) = watch::channel(Arc::new(now));
        let follower = tokio::spawn(follow(events, sender));
        Ok(Self::followed(interfaces, follower))
    }

    /// Creates a network from snapshots of `follower`, which holds their sender.
    pub(crate) fn followed(
        interfaces: watch::Receiver<Arc<Interfaces>>,
        follower: JoinHandle<()>,
    ) -> Self {
        Self {
            follower: Some(Arc::new(AbortOnDropHandle::new(follower))),
            ..Self::fixed(interfaces)
        }
    }

    /// Creates a network from snapshots that the caller provides: for tests.
    pub fn fixed(interfaces: watch::Receiver<Arc<Interfaces>>) -> Self {
        Self {
            interfaces,
            follower: None,
            groups: Arc::default(),
        }
    }

    /// Returns the current interfaces.
    ///
    /// # Errors
    /// Returns an error if the task that follows them has ended.
    pub fn interfaces(&self) -> Result<Arc<Interfaces>, NetworkError> {
        if self.follower.is_some() && self.interfaces.has_changed().is_err() {
            return Err(NetworkError::Ended);
        }
        Ok(self.interfaces.borrow().clone())
    }

    /// Returns a receiver of the interfaces; equal snapshots are not sent twice.
    pub fn changes(&self) -> watch::Receiver<Arc<Interfaces>> {
        self.interfaces.clone()
    }

    /// Returns the multicast groups joined on this network.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// Follows the kernel for ever; retries after a failure.
async fn follow(mut events: Events, sender: watch::Sender<Arc<Interfaces>>) {
    let mut failures = 0_u32;
    loop {
        match publish_and_wait(&mut events, &sender).await {
            Ok(()) => failures = 0,
            Err(error) => {
                failures = failures.saturating_add(1);
                if failures.is_power_of_two() {
                    tracing::warn!(%error, "cannot watch the network interfaces; retrying in {RETRY:?}");
                }
                sleep(RETRY).await;
            }
        }
        // A new socket has none of the events that came before the next reading.
        match Events::open() {
            Ok(opened) => events = opened,
            Err(error) => tracing::debug!(%error, "no netlink socket"),
        }
    }
}

/// Publishes the interfaces, and waits for a change and those that come with it.
async fn publish_and_wait(
    events: &mut Events,
    sender: &watch::Sender<Arc<Interfaces>>,
) -> io::Result<()> {
    publish(sender)?;
    events.next().await?;
    sleep(SETTLE).await;
    Ok(())
}

fn publish(sender: &watch::Sender<Arc<Interfaces>>) -> io::Result<()> {
    let now = kernel::read()?;
    sender.send_if_modified(|last| {
        let changed = **last != now;
        if changed {
            *last = Arc::new(now);
        }
        changed
    });
    Ok(())
}
