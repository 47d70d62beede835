//! Datagrams to multicast groups: one socket per group and interface for all handlers that want it.
//!
//! ```text
//! interfaces, grants ─► Listener ─ wants ─► Groups ─ opens, shares ─► GroupSocket ─ datagrams ─► Mailbox ─► Listener
//! ```
//!
//! The datagrams read are bounded per socket, the queued ones per listener.

mod group_socket;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, sleep_until};

use self::group_socket::{GroupSocket, Mailbox, Membership, Subscription};
use crate::{Interface, Interfaces, Network, Policy};

/// Maximum number of datagrams queued for one listener.
const QUEUE: usize = 256;
/// Maximum number of memberships of one listener: groups times interfaces.
const MEMBERSHIPS: usize = 128;
/// Pause before a failed join is retried, unless the interfaces change before: another program may hold the port.
const RETRY: Duration = Duration::from_secs(30);

/// Address of a multicast group and a UDP port; an IPv6 one has no scope.
pub type Group = SocketAddr;

/// A datagram of a group, from another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Destination of the datagram.
    pub group: Group,
    /// Sender, unauthenticated; an IPv6 link-local address has its scope id.
    pub source: SocketAddr,
    /// Index of the interface that received the datagram.
    pub interface: u32,
    /// Payload, at most 4 KiB.
    pub payload: Vec<u8>,
}

/// An item that a listener receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// A datagram.
    Datagram(Arc<Datagram>),
    /// Datagrams were dropped, or may have been: too long (over 4 KiB), too fast (over 2,000 a second on an interface, 256 at once), or more
    /// than the 256 that are queued for this listener.
    Lost,
}

/// Groups joined on one network, for all listeners.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    sockets: Mutex<HashMap<Membership, Weak<GroupSocket>>>,
}

impl Groups {
    fn subscribe(
        &self,
        membership: Membership,
        network: &Network,
        mailbox: &Arc<Mailbox>,
    ) -> io::Result<Subscription> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.retain(|_, group_socket| group_socket.strong_count() > 0);
        let shared = sockets.get(&membership).and_then(Weak::upgrade);
        let group_socket =
            if let Some(group_socket) = shared.filter(|group_socket| group_socket.is_read()) {
                group_socket
            } else {
                let group_socket = Arc::new(GroupSocket::open(membership, network.clone())?);
                sockets.insert(membership, Arc::downgrade(&group_socket));
                group_socket
            };
        Ok(Subscription::new(group_socket, mailbox.clone()))
    }
}

/// Receives from the granted groups of a handler, on its granted interfaces.
#[derive(Debug)]
pub struct Listener {
    policy: Policy,
    groups: Vec<Group>,
    changes: watch::Receiver<Arc<Interfaces>>,
    /// True while more changes can come.
    is_followed: bool,
    mailbox: Arc<Mailbox>,
    datagrams: mpsc::Receiver<Arc<Datagram>>,
    joined: BTreeMap<Membership, Subscription>,
    problems: Vec<String>,
    /// `Instant` of the next attempt to join groups that could not be joined.
    retry: Option<Instant>,
}

impl Listener {
    /// Joins all groups of the grants, on every granted interface that has an address of the group's family. Must be called within a tokio
    /// runtime.
    pub fn new(policy: &Policy) -> Self {
        let groups = policy.grants().multicast.iter().filter_map(|entry| {
            let address = entry.net?.addr();
            let port = entry.ports.first;
            policy.listen(address, port).ok()?;
            Some(Group::new(address, port))
        });
        let (sender, datagrams) = mpsc::channel(QUEUE);
        let lost = Notify::new();
        let mut listener = Self {
            policy: policy.clone(),
            groups: groups.collect(),
            changes: policy.network().changes(),
            is_followed: true,
            mailbox: Arc::new(Mailbox { sender, lost }),
            datagrams,
            joined: BTreeMap::new(),
            problems: Vec::new(),
            retry: None,
        };
        listener.changes.mark_unchanged();
        listener.join();
        listener
    }

    /// Waits for the next datagram or loss. Meanwhile joins the groups on new interfaces, leaves those of removed interfaces, and retries
    /// failed joins. Cancel safe.
    pub async fn next(&mut self) -> Received {
        loop {
            tokio::select! {
                biased;
                changed = self.changes.changed(), if self.is_followed => {
                    self.is_followed = changed.is_ok();
                    self.join();
                }
                () = sleep_until(self.retry.unwrap_or_else(Instant::now)), if self.retry.is_some() => self.join(),
                () = self.mailbox.lost.notified() => return Received::Lost,
                Some(datagram) = self.datagrams.recv() => {
                    // This listener may have left the group since.
                    if self.joined.contains_key(&(datagram.group, datagram.interface)) {
                        return Received::Datagram(datagram);
                    }
                }
            }
        }
    }

    /// Returns the groups that could not be joined, with interface and reason; one line each.
    pub fn problems(&self) -> Vec<String> {
        self.problems.clone()
    }

    fn join(&mut self) {
        let interfaces = self.policy.interfaces();
        let memberships: Vec<(Membership, &Interface)> = self
            .groups
            .iter()
            .flat_map(|group| {
                let fits = |interface: &&Interface| is_of_family(interface, group.ip());
                let fitting = interfaces.iter().filter(fits);
                fitting.map(|interface| ((*group, interface.index), interface))
            })
            .collect();
        self.joined
            .retain(|at, _| memberships.iter().any(|(membership, _)| membership == at));
        self.problems.clear();
        let ended = self.policy.network().interfaces().err();
        self.problems.extend(ended.map(|error| error.to_string()));
        for (membership, interface) in memberships {
            if self.joined.contains_key(&membership) {
                continue;
            }
            let joined = if self.joined.len() < MEMBERSHIPS {
                let network = self.policy.network();
                network
                    .groups()
                    .subscribe(membership, network, &self.mailbox)
            } else {
                Err(io::Error::other(format!(
                    "more than {MEMBERSHIPS} groups times interfaces; `network.interfaces` can name fewer"
                )))
            };
            match joined {
                Ok(subscription) => drop(self.joined.insert(membership, subscription)),
                Err(error) => {
                    let (group, _) = membership;
                    let (port, name) = (group.port(), &interface.name);
                    let why = match error.kind() {
                        io::ErrorKind::AddrInUse => {
                            format!("another program of this node uses port {port} exclusively")
                        }
                        _ => error.to_string(),
                    };
                    self.problems
                        .push(format!("cannot join {group} on {name}: {why}"));
                }
            }
        }
        self.retry = (!self.problems.is_empty()).then(|| Instant::now() + RETRY);
    }
}

fn is_of_family(interface: &Interface, group: IpAddr) -> bool {
    let mut addresses = interface.addresses.iter();
    addresses.any(|net| net.addr().is_ipv4() == group.is_ipv4())
}
