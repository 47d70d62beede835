//! Register: one resource made known to one life of the kubelet.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OnceCell, Semaphore};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::proto::device_plugin as proto;
use crate::service;
use crate::sockets::lacks_files;
use crate::{Incarnation, ResourceName};

/// So many Registers are under way at once; more make a kubelet slower, not faster.
const AT_ONCE: usize = 16;
/// The kubelet's words are kept so far.
const MAX_WORDS: usize = 400;

/// Why the kubelet does not know a resource.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody answers on its socket. That is no failure: it is about to start or to end.
    #[error("nobody answers on {}: the kubelet is stopped or starting", .0.display())]
    NoAnswer(PathBuf),
    /// No more files may be open.
    #[error("cannot connect to {} ({source}): raise the limit of open files, in a unit LimitNOFILE=, in a shell ulimit -n", path.display())]
    Files {
        /// The kubelet's socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It said no.
    #[error("the kubelet refused the registration, {0}")]
    Refused(String),
    /// It said nothing.
    #[error(
        "the kubelet has not answered the registration within {} s: it is tried again; look at the kubelet's log",
        .0.as_secs()
    )]
    Late(Duration),
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Registers resources with whichever kubelet there is.
pub(crate) struct Registrar {
    socket: PathBuf,
    limit: Duration,
    places: Semaphore,
    /// One connection serves all, for as long as a kubelet lives.
    line: Mutex<Option<(Incarnation, Line)>>,
}

/// A connection, once it is made.
type Line = Arc<OnceCell<Channel>>;

impl Registrar {
    pub fn new(socket: PathBuf, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            places: Semaphore::new(AT_ONCE),
            line: Mutex::new(None),
        }
    }

    /// Connects to the kubelet, if it is not. One tries at a time; whoever waits for it has the same connection. A kubelet's
    /// socket is there before anybody listens on it, so this may fail for a moment.
    pub async fn connect(&self, kubelet: Incarnation) -> Result<Channel> {
        let line = self.line(kubelet);
        let channel = line.get_or_try_init(|| async {
            let path = self.socket.to_str().ok_or_else(|| self.no_answer())?;
            let endpoint =
                Endpoint::from_shared(format!("unix:{path}")).map_err(|_| self.no_answer())?;
            tokio::time::timeout(self.limit, endpoint.connect())
                .await
                .map_err(|_| Error::Late(self.limit))?
                .map_err(|error| match wanting_files(&error) {
                    Some(source) => Error::Files {
                        path: self.socket.clone(),
                        source,
                    },
                    None => self.no_answer(),
                })
        });
        channel.await.cloned()
    }

    /// Registers `resource`, which is served on the socket named `endpoint`, over a connection to `kubelet`. `sending` is
    /// called just before.
    pub async fn register(
        &self,
        (kubelet, channel): (Incarnation, Channel),
        resource: &ResourceName,
        endpoint: String,
        sending: impl FnOnce(),
    ) -> Result<()> {
        let Ok(_place) = self.places.acquire().await else {
            return Err(self.no_answer());
        };
        let request = proto::RegisterRequest {
            version: "v1beta1".into(),
            endpoint,
            resource_name: resource.to_string(),
            options: Some(service::options()),
        };
        sending();
        let mut client = proto::registration_client::RegistrationClient::new(channel);
        match tokio::time::timeout(self.limit, client.register(request)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(status)) if is_unreachable(&status) => {
                self.forget(kubelet);
                Err(self.no_answer())
            }
            Ok(Err(status)) => Err(Error::Refused(words(&status))),
            Err(_) => Err(Error::Late(self.limit)),
        }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer(self.socket.clone())
    }

    fn line(&self, kubelet: Incarnation) -> Line {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        match line.as_ref() {
            Some((known, line)) if *known == kubelet => Arc::clone(line),
            _ => {
                let new = Line::default();
                *line = Some((kubelet, Arc::clone(&new)));
                new
            }
        }
    }

    /// The connection broke: whether the kubelet is there is asked before anything is served for it again.
    fn forget(&self, kubelet: Incarnation) {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        line.take_if(|(known, _)| *known == kubelet);
    }
}

/// Whether the call never came to the kubelet, or its connection broke.
fn is_unreachable(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<tonic::transport::Error>() || error.is::<io::Error>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// What the system said, if it was that no more files may be open.
fn wanting_files(error: &tonic::transport::Error) -> Option<io::Error> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>()
            && lacks_files(error)
        {
            return error.raw_os_error().map(io::Error::from_raw_os_error);
        }
        cause = error.source();
    }
    None
}

/// What the kubelet said and what to do about it.
fn words(status: &Status) -> String {
    let said: String = status
        .message()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_WORDS)
        .collect();
    let remedy = match status.code() {
        Code::Unimplemented => {
            "this kubelet has no device-plugin API v1beta1: use Kubernetes 1.10 or newer"
        }
        _ => "look at the kubelet's log; it is tried again",
    };
    format!("it says {said:?}: {remedy}")
}

/// Waits between attempts, each twice as long as the one before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// The next wait, from `least` to `longest`.
    pub fn wait(&mut self, least: Duration, longest: Duration) -> Duration {
        let wait = self.next.max(least).min(longest);
        self.next = wait.saturating_mul(2);
        wait
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Times;

    #[test]
    fn waits_double_from_ten_milliseconds_or_the_least_to_the_longest() {
        let times = Times::default();
        let mut backoff = Backoff::new(times.backoff);
        let none = Duration::ZERO;
        for (least, longest, wait) in [
            (none, 30_000, 10),
            (none, 30_000, 20),
            (none, 30_000, 40),
            (times.quiet, 30_000, 1_000),
            (none, 30_000, 2_000),
            (times.quiet, 3_000, 3_000),
            (none, 300_000, 6_000),
        ] {
            let longest = Duration::from_millis(longest);
            let wait = Duration::from_millis(wait);
            assert_eq!(backoff.wait(least, longest), wait);
        }
        backoff.reset();
        assert_eq!(backoff.wait(none, Duration::MAX), times.backoff);
    }
}
