//! Looking up host names: few at once, even if the caller does not wait for the answers.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::target::{check_name, is_peer};
use super::{Gate, HttpError};

/// Look-ups of one handler under way at once.
const AT_ONCE: usize = 4;
/// Addresses of a name that are looked at.
const MAX_ADDRESSES: usize = 64;

type Resolve = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// The look-ups of one handler: at most four at once, in all its calls. Cheap to clone, one for each handler.
#[derive(Clone)]
pub struct Names {
    places: Arc<Semaphore>,
    resolve: Arc<Resolve>,
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Names")
            .field("places", &self.places)
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
            places: Arc::new(Semaphore::new(AT_ONCE)),
            resolve: Arc::new(resolve),
        }
    }

    /// Look-ups that could begin at once.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        self.places.available_permits()
    }

    /// The addresses of a name, in the resolver's order, each once, with port 0. IPv6 forms of IPv4 addresses come as
    /// the latter; addresses that can be no peer's are left out. None of them is granted by that.
    ///
    /// Takes as long as the resolver does. Dropped before, the look-up goes on and keeps its place to its end: nobody
    /// can stop it.
    ///
    /// # Errors
    /// The gate denies the name, or it has no address.
    pub async fn look_up<G: Gate>(
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
        let place = Arc::clone(&self.places)
            .acquire_owned()
            .await
            .map_err(|error| failed(io::Error::other(error)))?;
        let resolve = Arc::clone(&self.resolve);
        let asked = name.clone();
        let work = tokio::task::spawn_blocking(move || {
            let found = resolve(&asked);
            drop(place);
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
