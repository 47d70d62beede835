//! A socket for one group on one interface, read for all its listeners. Does not know grants.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use socket2::{Domain, InterfaceIndexOrAddress, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;

use super::{Datagram, Group};
use crate::policy::is_peer;
use crate::{Interfaces, Network};

/// Maximum size of a datagram, in bytes.
const MOST: usize = 4096;
/// Time that each datagram accounts for: 2,000 datagrams per second.
const EACH: Duration = Duration::from_micros(500);
/// Maximum lead over that pace: 256 datagrams are read at once after a quiet time.
const AHEAD: Duration = Duration::from_millis(128);
/// Pause once the lead is used up: waking for each datagram would cost more than reading it.
const REST: Duration = Duration::from_millis(32);
/// Pause after a failed read.
const RETRY: Duration = Duration::from_secs(1);

/// A group on the interface with that index.
pub(super) type Membership = (Group, u32);

/// Receives the datagrams of all memberships of one listener.
#[derive(Debug)]
pub(super) struct Mailbox {
    /// Queue of datagrams; while it is full, datagrams are lost.
    pub(super) sender: mpsc::Sender<Arc<Datagram>>,
    /// Notified once for all datagrams lost since the listener last waited.
    pub(super) lost: Notify,
}

type Mailboxes = Mutex<Vec<Arc<Mailbox>>>;

/// A socket and the mailboxes of its listeners; closed with the last of them.
#[derive(Debug)]
pub(super) struct GroupSocket {
    mailboxes: Arc<Mailboxes>,
    task: AbortOnDropHandle<()>,
}

impl GroupSocket {
    /// Joins the group. Must be called within a tokio runtime.
    pub(super) fn open(membership: Membership, network: Network) -> io::Result<Self> {
        let socket = join(membership)?;
        let mailboxes = Arc::<Mailboxes>::default();
        let task = tokio::spawn(read(socket, membership, network, mailboxes.clone()));
        let task = AbortOnDropHandle::new(task);
        Ok(Self { mailboxes, task })
    }

    /// Returns false once the reading task has ended: with its runtime, or with the task that follows the interfaces.
    pub(super) fn is_read(&self) -> bool {
        !self.task.is_finished()
    }
}

/// Share of one listener in a socket.
#[derive(Debug)]
pub(super) struct Subscription {
    group_socket: Arc<GroupSocket>,
    mailbox: Arc<Mailbox>,
}

impl Subscription {
    pub(super) fn new(group_socket: Arc<GroupSocket>, mailbox: Arc<Mailbox>) -> Self {
        lock(&group_socket.mailboxes).push(mailbox.clone());
        Self {
            group_socket,
            mailbox,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        lock(&self.group_socket.mailboxes).retain(|mailbox| !Arc::ptr_eq(mailbox, &self.mailbox));
    }
}

fn lock(mailboxes: &Mailboxes) -> std::sync::MutexGuard<'_, Vec<Arc<Mailbox>>> {
    mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a socket that receives only datagrams to the group on that interface. Other programs may join the same group; this socket does
/// not take their unicast datagrams.
fn join((group, interface): Membership) -> io::Result<UdpSocket> {
    let index = NonZeroU32::new(interface)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no interface has the index 0"))?;
    let socket = Socket::new(
        Domain::for_address(group),
        Type::DGRAM.nonblocking().cloexec(),
        Some(Protocol::UDP),
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    // Datagrams of other interfaces are not delivered. Since Linux 5.7 this needs no privilege.
    match group.ip() {
        IpAddr::V4(address) => {
            socket.bind_device_by_index_v4(Some(index))?;
            socket.bind(&group.into())?;
            let interface = InterfaceIndexOrAddress::Index(interface);
            socket.join_multicast_v4_n(&address, &interface)?;
        }
        IpAddr::V6(address) => {
            socket.set_only_v6(true)?;
            socket.bind_device_by_index_v6(Some(index))?;
            let local = SocketAddrV6::new(address, group.port(), 0, interface);
            socket.bind(&local.into())?;
            socket.join_multicast_v6(&address, interface)?;
        }
    }
    UdpSocket::from_std(socket.into())
}

async fn read(
    socket: UdpSocket,
    membership: Membership,
    network: Network,
    mailboxes: Arc<Mailboxes>,
) {
    // `Instant` until which the datagrams read so far use up the pace.
    let mut until = Instant::now();
    // One byte more shows that a datagram is too long.
    let mut buffer = vec![0; MOST + 1];
    loop {
        if until >= Instant::now() + AHEAD {
            // The kernel queues some datagrams and drops the rest without an error.
            for mailbox in lock(&mailboxes).iter() {
                mailbox.lost.notify_one();
            }
            sleep(REST).await;
            continue;
        }
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                until = until.max(Instant::now()) + EACH;
                // Without the node's addresses, datagrams of other hosts cannot be distinguished from its own.
                let Ok(interfaces) = network.interfaces() else {
                    return;
                };
                if is_foreign(source, &interfaces) {
                    let payload = buffer.get(..length).filter(|_| length <= MOST);
                    deliver(membership, source, payload, &lock(&mailboxes));
                }
            }
            Err(error) => {
                let (group, interface) = membership;
                tracing::debug!(%error, %group, interface, "cannot read a group's socket");
                sleep(RETRY).await;
            }
        }
    }
}

/// Returns true if the address can belong to another host: a host also receives what it sends to a group itself.
fn is_foreign(source: SocketAddr, interfaces: &Interfaces) -> bool {
    let address = source.ip().to_canonical();
    let is_other = is_peer(address) && !address.is_loopback() && !interfaces.have(address);
    is_other && source.port() != 0
}

/// Puts a datagram into the mailboxes; `payload` is `None` if it is too long.
fn deliver(
    (group, interface): Membership,
    source: SocketAddr,
    payload: Option<&[u8]>,
    mailboxes: &[Arc<Mailbox>],
) {
    let datagram = payload.map(|payload| {
        Arc::new(Datagram {
            group,
            source,
            interface,
            payload: payload.to_vec(),
        })
    });
    for mailbox in mailboxes {
        let kept = datagram
            .as_ref()
            .is_some_and(|datagram| mailbox.sender.try_send(datagram.clone()).is_ok());
        if !kept {
            mailbox.lost.notify_one();
        }
    }
}
