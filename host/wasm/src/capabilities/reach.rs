//! Network access of one call, and its budget. Every operation that sends or receives asks here first; a denial is recorded with its
//! reason.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leafhost_net::grants::{NetPorts, Tls};
use leafhost_net::http::{HttpError, Names, RequestPolicy};
use leafhost_net::{Denied, Policy};
use tokio::time::Instant;

use crate::record::Record;

/// Maximum number of datagrams per call.
const SENDS: u32 = 4096;
/// Maximum number of connection attempts per call, including those for requests.
const CONNECTS: u32 = 4096;
/// Maximum number of names that sockets of one call may look up.
const LOOK_UPS: u32 = 64;
/// Maximum number of names that sockets and requests of one call may look up.
const ALL_LOOK_UPS: u32 = 1024;
/// Maximum number of addresses from which answers are awaited.
const ASKED: usize = 1024;
/// Maximum number of denied senders that are recorded: any host on the network can send.
const NAMED: usize = 8;
/// Maximum number of denied datagrams read per [`UNASKED_TIME`]: the host reads them outside of the guest's budget.
const UNASKED: u32 = 64;
/// Period of the limit [`UNASKED`].
const UNASKED_TIME: Duration = Duration::from_millis(10);

pub(crate) struct NetworkAccess {
    policy: Result<Policy, String>,
    pub(super) names: Names,
    record: Arc<Record>,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    sent: u32,
    connected: u32,
    looked_up: u32,
    all_looked_up: u32,
    /// True once an IPv4 datagram socket is bound to the unspecified address. The check of a datagram cannot tell which socket sends it.
    unbound: bool,
    /// Addresses that the call has sent to.
    asked: Vec<SocketAddr>,
    /// Senders that were reported as denied.
    named: Vec<IpAddr>,
    /// `Instant` until which the denied datagrams read so far use up their permitted rate.
    unasked_until: Option<Instant>,
}

impl NetworkAccess {
    /// Creates the access of one call; `policy` may be the reason why it may reach nothing.
    pub(super) fn new(policy: Result<Policy, String>, names: Names, record: Arc<Record>) -> Self {
        Self {
            policy,
            names,
            record,
            used: Mutex::default(),
        }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the policy, or a denial with the reason why there is none.
    pub(super) fn policy(&self, asked: &str) -> Result<&Policy, Denied> {
        self.policy
            .as_ref()
            .map_err(|reason| self.deny(&format!("{asked}: {reason}")))
    }

    /// Returns true if the call has a policy.
    pub(super) fn is_open(&self) -> bool {
        self.policy.is_ok()
    }

    pub(super) fn deny(&self, what: &str) -> Denied {
        self.record.deny(what);
        Denied(what.to_owned())
    }

    /// Asks the policy; records a denial.
    pub(super) fn ask(
        &self,
        what: &str,
        question: impl FnOnce(&Policy) -> Result<(), Denied>,
    ) -> Result<(), Denied> {
        question(self.policy(what)?).map_err(|denied| self.deny(&denied.0))
    }

    /// Checks that a datagram socket may be bound to the address.
    pub(super) fn bind_udp(&self, address: SocketAddr) -> Result<(), Denied> {
        self.ask("bind a socket", |policy| policy.bind(address))?;
        if address.is_ipv4() && address.ip().is_unspecified() {
            self.used().unbound = true;
        }
        Ok(())
    }

    /// Checks that a datagram may be sent to the address.
    pub(super) fn send(&self, address: SocketAddr) -> Result<(), Denied> {
        let unbound = self.used().unbound;
        self.ask("send a datagram", |policy| {
            policy.send(address)?;
            if unbound {
                policy.send_unbound(address)?;
            }
            count(&mut self.used().sent, SENDS, "send", "datagrams")
        })?;
        let mut used = self.used();
        if used.asked.len() < ASKED && !used.asked.contains(&address) {
            used.asked.push(address);
        }
        Ok(())
    }

    /// Checks that a connection to the address may be made.
    pub(super) fn connect(&self, address: SocketAddr) -> Result<(), Denied> {
        self.ask("connect", |policy| {
            policy.connect(address)?;
            self.count_connection()
        })
    }

    fn count_connection(&self) -> Result<(), Denied> {
        let mut used = self.used();
        count(&mut used.connected, CONNECTS, "begin", "connections")
    }

    /// Checks that a datagram from the address may be given to the guest. Pauses after too many denied ones.
    pub(super) async fn receive(&self, address: SocketAddr) -> Result<(), Denied> {
        let policy = self.policy("receive a datagram")?;
        let answer = policy.receive(address, &self.used().asked);
        if let Err(denied) = &answer {
            let pause = self.unasked(address.ip(), denied);
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        answer
    }

    /// Counts a denied datagram; returns the time for which no more are read.
    fn unasked(&self, source: IpAddr, denied: &Denied) -> Duration {
        let now = Instant::now();
        let mut used = self.used();
        if used.named.len() < NAMED && !used.named.contains(&source) {
            used.named.push(source);
            self.deny(&denied.0);
        }
        let until = used.unasked_until.map_or(now, |until| until.max(now));
        let until = until + UNASKED_TIME / UNASKED;
        used.unasked_until = Some(until);
        let ahead = until.duration_since(now);
        if ahead > UNASKED_TIME {
            ahead
        } else {
            Duration::ZERO
        }
    }

    /// Returns the addresses of a name that an entry of the grants allows the guest's sockets to reach; records the others as denials.
    ///
    /// # Errors
    /// Returns an error if the name may not be looked up, has no address, or none of its addresses may be reached.
    pub(super) async fn addresses(&self, name: &str) -> Result<Vec<IpAddr>, HttpError> {
        let found = if let Ok(ip) = name.parse() {
            vec![SocketAddr::new(ip, 0)]
        } else {
            let looked_up = match self.count_look_up(name) {
                Ok(()) => self.names.look_up(self, name).await,
                Err(denied) => Err(HttpError::Denied(vec![denied])),
            };
            looked_up.inspect_err(|error| {
                if let HttpError::Denied(list) = error {
                    self.deny_all(list);
                }
            })?
        };
        let policy = self
            .policy("look up a name")
            .map_err(|denied| HttpError::Denied(vec![denied]))?;
        let mut kept = Vec::new();
        let mut denied = Vec::new();
        for ip in found.iter().map(|address| address.ip().to_canonical()) {
            if kept.contains(&ip) {
                continue;
            }
            match reaches(policy, ip) {
                Ok(()) => kept.push(ip),
                Err(why) => denied.push(self.deny(&format!("reach {name} at {ip}: {why}"))),
            }
        }
        if kept.is_empty() {
            return Err(HttpError::Denied(denied));
        }
        Ok(kept)
    }

    fn count_look_up(&self, name: &str) -> Result<(), Denied> {
        self.policy(&format!("look up {name}"))?.look_up(name)?;
        let mut used = self.used();
        count(&mut used.looked_up, LOOK_UPS, "look up", "names")
    }

    pub(super) fn deny_all(&self, list: &[Denied]) {
        for denied in list {
            self.deny(&denied.0);
        }
    }
}

/// Counts one more use, or denies it at the limit.
fn count(used: &mut u32, most: u32, does: &str, what: &str) -> Result<(), Denied> {
    if *used >= most {
        return Err(Denied(format!(
            "{does} more than {most} {what} in one call"
        )));
    }
    *used += 1;
    Ok(())
}

/// Checks that a socket may reach the address at some port. Tries the first port of each entry: an entry that allows a port allows its first.
fn reaches(policy: &Policy, ip: IpAddr) -> Result<(), String> {
    let grants = policy.grants();
    let at = |entry: &NetPorts| SocketAddr::new(ip, entry.ports.first);
    let tcp = grants.tcp.iter().map(|entry| policy.connect(at(entry)));
    let udp = grants.udp.iter().map(|entry| policy.send(at(entry)));
    let mut why = "neither `network.udp` nor `network.tcp` has entries".to_owned();
    for answer in tcp.chain(udp) {
        match answer {
            Ok(()) => return Ok(()),
            Err(denied) => why = denied.0,
        }
    }
    Err(why)
}

impl RequestPolicy for NetworkAccess {
    fn look_up(&self, name: &str) -> Result<(), Denied> {
        let asked = format!("look up {name}");
        self.policy(&asked)?.look_up(name)?;
        let mut used = self.used();
        count(&mut used.all_looked_up, ALL_LOOK_UPS, "look up", "names")
    }

    fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        let asked = format!("send a request to {host}");
        self.policy(&asked)?.request(host, address)?;
        self.count_connection()
    }

    fn tls(&self) -> &Tls {
        self.policy
            .as_ref()
            .map_or(&Tls::Verify, |policy| &policy.grants().tls)
    }
}

#[cfg(test)]
mod tests;
