//! Looking up host names: few at once, even if the caller does not wait for the answers.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::target::{check_name, is_peer};
use super::{HttpError, RequestPolicy};

/// Look-ups of one handler under way at once.
const AT_ONCE: usize = 4;
/// Look-ups of all handlers under way at once. Each has a thread; those of a name whose servers do not answer take half a minute.
const ALL_AT_ONCE: usize = 64;
/// Addresses of a name that are looked at.
const MAX_ADDRESSES: usize = 64;

type Resolve = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The look-ups of one handler: at most four at once, in all its calls, and 64 of all handlers. Cheap to clone; the clones
/// share its four.
#[derive(Clone)]
pub struct Names {
    permits: Arc<Semaphore>,
    all: Arc<Semaphore>,
    resolve: Arc<Resolve>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}

impl Default for Names {
    /// Asks this machine's resolver (`getaddrinfo`).
    fn default() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.collect()))
    }
}

impl Names {
    /// Asks `resolve`, which may block.
    pub fn with(
        resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            all: Arc::new(Semaphore::new(ALL_AT_ONCE)),
            resolve: Arc::new(resolve),
        }
    }

    /// Those of another handler: with four of its own, so that names that nobody answers for delay the look-ups of the handler
    /// that asks for them, and no other's.
    #[must_use]
    pub fn of_another(&self) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            ..self.clone()
        }
    }

    /// Look-ups that could begin at once.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        let all = self.all.available_permits();
        self.permits.available_permits().min(all)
    }

    /// The addresses of a name, in the resolver's order, each once, with port 0. IPv6 forms of IPv4 addresses come as
    /// the latter; addresses that can be no peer's are left out. None of them is granted by that.
    ///
    /// Takes as long as the resolver does. Dropped before, the look-up goes on and keeps its permit to its end: nobody
    /// can stop it.
    ///
    /// # Errors
    /// The gate denies the name, or it has no address.
    pub async fn look_up<G: RequestPolicy>(
        &self,
        gate: &G,
        name: &str,
    ) -> Result<Vec<SocketAddr>, HttpError> {
        let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        check_name(&name).map_err(|reason| HttpError::Request(format!("{name:?} {reason}")))?;
        gate.look_up(&name)
            .map_err(|denied| HttpError::Denied(vec![denied]))?;
        let failed = |source| HttpError::LookUp {
            name: name.clone(),
            source,
        };
        let turn = async |permits: &Arc<Semaphore>| {
            let permit = Arc::clone(permits).acquire_owned().await;
            permit.map_err(|error| failed(io::Error::other(error)))
        };
        // The own one first: whoever waits for it holds none of the others'.
        let permits = (turn(&self.permits).await?, turn(&self.all).await?);
        let resolve = Arc::clone(&self.resolve);
        let asked = name.clone();
        let work = tokio::task::spawn_blocking(move || {
            let found = resolve(&asked);
            drop(permits);
            found
        });
        let found = work
            .await
            .unwrap_or_else(|error| Err(io::Error::other(error)))
            .map_err(&failed)?;
        let mut addresses = Vec::new();
        for address in found.into_iter().map(plain).take(MAX_ADDRESSES) {
            if is_peer(address.ip()) && !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            let none = io::Error::new(io::ErrorKind::NotFound, "it has no address of a peer");
            return Err(failed(none));
        }
        Ok(addresses)
    }
}

fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, address.port()),
        IpAddr::V6(_) => address,
    }
}
