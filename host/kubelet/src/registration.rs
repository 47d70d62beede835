//! Registers a resource with one run of the kubelet.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leafhost_uds::{MORE_FILES, lacks_files};
use tokio::sync::{OnceCell, Semaphore};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::causes::{causes, io_cause};
use crate::offered::locked;
use crate::proto::device_plugin as proto;
use crate::service;
use crate::{KubeletRun, ResourceName};

/// Maximum number of concurrent Register calls. More make a kubelet slower, not faster.
const AT_ONCE: usize = 16;
/// Maximum number of characters kept of the kubelet's message.
const MAX_MESSAGE: usize = 400;

/// Reason why a resource is not registered, for the operator.
#[derive(Debug)]
pub(crate) enum Error {
    /// No process answers on the kubelet's socket. That is not a failure: the kubelet is about to start or to end.
    NoAnswer(String),
    /// The kubelet refused the registration.
    Refused(String),
    /// The kubelet may have accepted the registration, and did not request the list.
    NotFollowed(String),
    /// Any other reason.
    Other(String),
}

/// Registers resources with the current kubelet.
pub(crate) struct Registrar {
    socket: PathBuf,
    limit: Duration,
    permits: Semaphore,
    /// Connection for all resources, for one run of the kubelet.
    connection: Mutex<Option<(KubeletRun, Connection)>>,
}

/// Connection, once it is open.
type Connection = Arc<OnceCell<Channel>>;

impl Registrar {
    pub fn new(socket: PathBuf, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            permits: Semaphore::new(AT_ONCE),
            connection: Mutex::new(None),
        }
    }

    /// Connects to the kubelet, unless a connection exists. One task connects at a time; the others wait for its connection. A kubelet
    /// creates its socket before it listens on it, so this may fail for a moment.
    pub async fn connect(&self, kubelet: KubeletRun) -> Result<Channel, Error> {
        let connection = self.connection(kubelet);
        let channel = connection.get_or_try_init(|| async {
            let path = self.socket.to_str().ok_or_else(|| self.no_answer())?;
            let endpoint =
                Endpoint::from_shared(format!("unix:{path}")).map_err(|_| self.no_answer())?;
            tokio::time::timeout(self.limit, endpoint.connect())
                .await
                .map_err(|_| self.late())?
                .map_err(
                    |error| match io_cause(&error).filter(|cause| lacks_files(cause)) {
                        Some(cause) => Error::Other(format!(
                            "cannot connect to {} ({cause}): {MORE_FILES}",
                            self.socket.display()
                        )),
                        None => self.no_answer(),
                    },
                )
        });
        channel.await.cloned()
    }

    /// Registers `resource`, which is served on the socket named `endpoint`, over a connection to `kubelet`. Calls `sending` just before it
    /// sends the request.
    pub async fn register(
        &self,
        (kubelet, channel): (KubeletRun, Channel),
        resource: &ResourceName,
        endpoint: String,
        sending: impl FnOnce(),
    ) -> Result<(), Error> {
        let Ok(_permit) = self.permits.acquire().await else {
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
            Err(_) => Err(self.late()),
        }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer(format!(
            "no process answers on {}: the kubelet is stopped or starting",
            self.socket.display()
        ))
    }

    fn late(&self) -> Error {
        Error::NotFollowed(format!(
            "the kubelet has not answered the registration within {} s; see the kubelet's log; retrying",
            self.limit.as_secs()
        ))
    }

    fn connection(&self, kubelet: KubeletRun) -> Connection {
        let mut held = locked(&self.connection);
        match held.as_ref() {
            Some((known, connection)) if *known == kubelet => Arc::clone(connection),
            _ => {
                let new = Connection::default();
                *held = Some((kubelet, Arc::clone(&new)));
                new
            }
        }
    }

    /// Drops a broken connection, so that a resource connects again before it serves anything for that kubelet.
    fn forget(&self, kubelet: KubeletRun) {
        locked(&self.connection).take_if(|(known, _)| *known == kubelet);
    }
}

/// Returns true if the call never reached the kubelet, or its connection broke.
fn is_unreachable(status: &Status) -> bool {
    causes(status).any(|cause| cause.is::<tonic::transport::Error>() || cause.is::<io::Error>())
}

/// Returns the kubelet's message with a remedy.
fn words(status: &Status) -> String {
    let said: String = status
        .message()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(MAX_MESSAGE)
        .collect();
    let remedy = match status.code() {
        Code::Unimplemented => {
            "this kubelet has no device-plugin API v1beta1; use Kubernetes 1.10 or newer"
        }
        _ => "see the kubelet's log; retrying",
    };
    format!("the kubelet refused the registration: {said:?}; {remedy}")
}

/// Pauses between attempts, each twice as long as the one before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backoff {
    first: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(first: Duration) -> Self {
        Self { first, next: first }
    }

    /// Returns the next pause, from `least` to `longest`.
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
