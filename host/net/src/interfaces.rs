//! The interfaces of the node with their addresses, followed live through netlink. Knows no grants.

mod kernel;
#[cfg(test)]
pub(crate) mod namespace;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use self::kernel::Events;
use crate::multicast::Groups;

/// How long after a change the interfaces are read again: changes often come together.
const SETTLE: Duration = Duration::from_millis(50);
/// The first and the last pause after netlink failed; each is twice the one before.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index, which is also the scope id of its link-local addresses.
    pub index: u32,
    /// Its addresses, each with the prefix length of its network; sorted.
    pub addresses: Vec<IpNet>,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Whether it can multicast.
    pub multicast: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
}

/// All interfaces at one moment, sorted by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// The interfaces.
    pub list: Vec<Interface>,
    /// The node's own addresses that no interface has: the other routes of type `local` in the table `local`.
    /// Sorted.
    pub local: Vec<IpNet>,
}

impl Interfaces {
    /// Whether that address is the node's.
    pub fn have(&self, address: IpAddr) -> bool {
        let mut addresses = self.list.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|net| net.addr() == address)
            || self.local.iter().any(|net| net.contains(&address))
    }
}

/// Why the network cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Netlink.
    #[error("cannot follow the network interfaces")]
    Netlink(#[source] std::io::Error),
    /// The task that follows the interfaces has ended, so the last ones may be wrong by now.
    #[error(
        "the agent no longer follows the network interfaces, since the task for that ended; this is a bug, see the log and restart the agent"
    )]
    Ended,
}

/// The node's network as it is now; cheap to clone.
#[derive(Debug, Clone)]
pub struct Network {
    interfaces: watch::Receiver<Arc<Interfaces>>,
    /// Absent where the caller follows them.
    follower: Option<Arc<Follower>>,
    groups: Arc<Groups>,
}

/// The task that follows the interfaces and holds the sender of them. It ends when this is dropped.
#[derive(Debug)]
struct Follower(JoinHandle<()>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Network {
    /// Follows the interfaces of the network namespace of the calling thread and of tokio's, which must run here, until the
    /// network and its clones are dropped. A change is seen after some 50 ms. While the kernel cannot be asked, its last answer
    /// stays.
    ///
    /// # Errors
    /// The first reading failed.
    pub fn start() -> Result<Self, NetworkError> {
        // Opened before the first reading: what changes during it is seen as a change.
        let events = Events::open().map_err(NetworkError::Netlink)?;
        let now = kernel::read().map_err(NetworkError::Netlink)?;
        let (sender, interfaces) = watch::channel(Arc::new(now));
        let follower = tokio::spawn(follow(events, sender));
        Ok(Self::followed(interfaces, follower))
    }

    /// Interfaces that the task follows, which holds their sender.
    pub(crate) fn followed(
        interfaces: watch::Receiver<Arc<Interfaces>>,
        follower: JoinHandle<()>,
    ) -> Self {
        Self {
            follower: Some(Arc::new(Follower(follower))),
            ..Self::fixed(interfaces)
        }
    }

    /// Interfaces that the caller follows: for tests.
    pub fn fixed(interfaces: watch::Receiver<Arc<Interfaces>>) -> Self {
        Self {
            interfaces,
            follower: None,
            groups: Arc::default(),
        }
    }

    /// The interfaces now.
    ///
    /// # Errors
    /// The task that follows them has ended.
    pub fn interfaces(&self) -> Result<Arc<Interfaces>, NetworkError> {
        if self.follower.is_some() && self.interfaces.has_changed().is_err() {
            return Err(NetworkError::Ended);
        }
        Ok(self.interfaces.borrow().clone())
    }

    /// The interfaces as they change; equal snapshots are not sent twice.
    pub fn changes(&self) -> watch::Receiver<Arc<Interfaces>> {
        self.interfaces.clone()
    }

    /// The multicast groups that are joined on it.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// Follows the kernel and never ends: what fails is tried again.
async fn follow(mut events: Events, sender: watch::Sender<Arc<Interfaces>>) {
    let (first, longest) = RETRY;
    let mut pause = first;
    loop {
        let error = match publish(&sender) {
            Ok(()) => {
                pause = first;
                let changed = next_change(&mut events).await;
                let Err(error) = changed else { continue };
                error
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "cannot follow the network interfaces; trying again in {pause:?}");
        sleep(pause).await;
        pause = (pause * 2).min(longest);
        match Events::open() {
            Ok(opened) => events = opened,
            Err(error) => tracing::debug!(%error, "no netlink socket"),
        }
    }
}

/// Waits for a change and those that come with it.
async fn next_change(events: &mut Events) -> io::Result<()> {
    events.next().await?;
    sleep(SETTLE).await;
    events.drain()
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
