//! Register: one resource made known to one life of the kubelet.

use std::error::Error as _;
use std::io;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::proto::device_plugin as proto;
use crate::service;
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
    channel: Mutex<Option<(Incarnation, Channel)>>,
}

impl Registrar {
    pub fn new(socket: PathBuf, limit: Duration) -> Self {
        Self {
            socket,
            limit,
            places: Semaphore::new(AT_ONCE),
            channel: Mutex::new(None),
        }
    }

    /// Registers `resource`, which is served on the socket named `endpoint`. `sending` is called just before.
    pub async fn register(
        &self,
        kubelet: Incarnation,
        resource: &ResourceName,
        endpoint: String,
        sending: impl FnOnce(),
    ) -> Result<()> {
        let Ok(_place) = self.places.acquire().await else {
            return Err(self.no_answer());
        };
        let channel = self.channel(kubelet)?;
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
            Ok(Err(status)) if is_unreachable(&status) => Err(self.no_answer()),
            Ok(Err(status)) => Err(Error::Refused(words(&status))),
            Err(_) => Err(Error::Late(self.limit)),
        }
    }

    fn no_answer(&self) -> Error {
        Error::NoAnswer(self.socket.clone())
    }

    fn channel(&self, kubelet: Incarnation) -> Result<Channel> {
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, channel)) = channel.as_ref()
            && *known == kubelet
        {
            return Ok(channel.clone());
        }
        let path = self.socket.to_str().ok_or_else(|| self.no_answer())?;
        let endpoint =
            Endpoint::from_shared(format!("unix:{path}")).map_err(|_| self.no_answer())?;
        let made = endpoint.connect_lazy();
        *channel = Some((kubelet, made.clone()));
        Ok(made)
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

    /// The next wait, at most `longest`.
    pub fn wait(&mut self, longest: Duration) -> Duration {
        let wait = self.next.min(longest);
        self.next = wait * 2;
        wait
    }

    pub fn reset(&mut self) {
        self.next = self.first;
    }
}
