//! Looks up host names: few at once, even if the caller does not wait for the answers.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::target::check_name;
use super::{HttpError, RequestPolicy};
use crate::policy::{canonical, is_peer};

/// Maximum number of concurrent look-ups per handler.
const AT_ONCE: usize = 4;
/// Maximum number of concurrent look-ups of all handlers. Each has a thread; a look-up takes half a minute if the servers do not answer.
const ALL_AT_ONCE: usize = 64;
/// Maximum number of addresses per name that are considered.
const MAX_ADDRESSES: usize = 64;

type Resolve = dyn Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync;

/// Resolver of one handler: at most four concurrent look-ups in all its calls, and 64 of all handlers. Cheap to clone; clones share the
/// four.
#[derive(Clone)]
pub struct Names {
    permits: Arc<Semaphore>,
    all: Arc<Semaphore>,
    resolve: Arc<Resolve>,
}

impl Default for Names {
    /// Uses this machine's resolver (`getaddrinfo`).
    fn default() -> Self {
        Self::with(|name| Ok((name, 0).to_socket_addrs()?.collect()))
    }
}

impl Names {
    /// Uses `resolve`, which may block.
    pub fn with(
        resolve: impl Fn(&str) -> io::Result<Vec<SocketAddr>> + Send + Sync + 'static,
    ) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            all: Arc::new(Semaphore::new(ALL_AT_ONCE)),
            resolve: Arc::new(resolve),
        }
    }

    /// Returns the resolver of another handler, with four look-ups of its own: names whose servers do not answer then delay only the handler
    /// that asks for them.
    #[must_use]
    pub fn of_another(&self) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(AT_ONCE)),
            ..self.clone()
        }
    }

    /// Returns the number of look-ups that could begin now.
    #[cfg(test)]
    pub(super) fn free(&self) -> usize {
        let all = self.all.available_permits();
        self.permits.available_permits().min(all)
    }

    /// Returns the addresses of a name in the resolver's order, without duplicates, with port 0. IPv6 forms of IPv4 addresses are converted;
    /// addresses that cannot be a peer are left out. The result grants no address.
    ///
    /// Takes as long as the resolver does. If the future is dropped, the look-up continues and keeps its permit to its end, because it cannot
    /// be stopped.
    ///
    /// # Errors
    /// Returns an error if the gate denies the name, or the name has no address.
    pub async fn look_up(
        &self,
        gate: &impl RequestPolicy,
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
        // The handler's own permit first: while waiting for it, the look-up holds none of the shared permits.
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
        for address in found.into_iter().map(canonical).take(MAX_ADDRESSES) {
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
