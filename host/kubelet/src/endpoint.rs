//! One resource with the kubelet: serves it, registers it, and does so again whenever the kubelet has lost it.
//!
//! One task does this for a resource, one step after the other, so nothing of it ever happens twice at a time.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::PluginConfig;
use crate::folder::Sight;
use crate::offered::Offered;
use crate::registration::{self, Backoff, Registrar};
use crate::service::{self, Service};
use crate::serving::Serving;
use crate::session::{Followed, Session};
use crate::sockets;
use crate::{Allocator, Incarnation, State};

/// The longest message the kubelet takes.
pub(crate) const MAX_LIST: usize = 4 << 20;

/// What all resources share.
pub(crate) struct Shared {
    pub config: PluginConfig,
    pub allocator: Arc<dyn Allocator>,
    pub allocations: TaskTracker,
    pub registrar: Registrar,
}

/// Until when the kubelet is left alone after a stream of the resource ended.
#[derive(Debug, Clone, Copy)]
struct Quiet {
    until: Instant,
    /// Whom that concerns; everybody, if nobody.
    kubelet: Option<Incarnation>,
}

/// One resource; its list and what must be remembered outlive the task.
pub(crate) struct Endpoint {
    pub offered: Arc<Offered>,
    pub shared: Arc<Shared>,
    quiet: Mutex<Option<Quiet>>,
}

/// How an attempt ended.
enum Attempt {
    /// The kubelet never learnt of it, or has lost it: by another life of the kubelet.
    Replaced,
    /// The kubelet ended the list's stream, after so long.
    Dropped(Duration),
    NoAnswer(String),
    Refused(String),
    /// The kubelet may have taken the registration, and does not follow.
    Deaf(String),
    Other(String),
}

impl Endpoint {
    pub fn new(offered: Arc<Offered>, shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            offered,
            shared,
            quiet: Mutex::new(None),
        })
    }

    /// Runs until the resource has ended or `over` is cancelled.
    pub async fn run(self: Arc<Self>, sight: watch::Receiver<Arc<Sight>>, over: CancellationToken) {
        let mut serving = None;
        tokio::select! {
            () = over.cancelled() => {}
            () = self.offered.keep_time() => {}
            () = self.tend(sight, &mut serving) => {}
        }
        if let Some((serving, kubelet)) = serving.take() {
            Box::pin(self.end(serving, kubelet)).await;
        }
        self.offered.tell(|report| {
            report.state = State::Waiting;
            report.problem = None;
        });
    }

    async fn tend(
        &self,
        mut sight: watch::Receiver<Arc<Sight>>,
        serving: &mut Option<(Serving, Incarnation)>,
    ) {
        let times = &self.shared.config.times;
        let mut backoff = Backoff::new(times.backoff);
        loop {
            let Some(kubelet) = self.kubelet(&mut sight).await else {
                return;
            };
            let attempt = self.attempt(kubelet, &mut sight, serving).await;
            if let Some((serving, kubelet)) = serving.take() {
                Box::pin(self.end(serving, kubelet)).await;
            }
            let (state, problem, least, longest) = match attempt {
                Attempt::Replaced => {
                    backoff.reset();
                    continue;
                }
                Attempt::Dropped(after) => {
                    if after >= times.backoff_other {
                        backoff.reset();
                    }
                    let problem =
                        "the kubelet has ended the list's stream, the resource is registered again"
                            .into();
                    (State::Waiting, problem, times.quiet, times.backoff_other)
                }
                Attempt::Deaf(problem) => {
                    (State::Failed, problem, times.quiet, times.backoff_other)
                }
                Attempt::NoAnswer(problem) => {
                    (State::Waiting, problem, Duration::ZERO, times.backoff_other)
                }
                Attempt::Other(problem) => {
                    (State::Failed, problem, Duration::ZERO, times.backoff_other)
                }
                Attempt::Refused(problem) => (
                    State::Failed,
                    problem,
                    Duration::ZERO,
                    times.backoff_refused,
                ),
            };
            let wait = backoff.wait(least, longest);
            let is_told = self.offered.report().problem.as_ref() == Some(&problem);
            if state == State::Failed && !is_told {
                tracing::warn!(resource = %self.offered.name, problem, "a resource is not known to the kubelet");
            }
            self.tell(state, Some(problem));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = another(&mut sight, kubelet) => backoff.reset(),
            }
        }
    }

    /// Waits for a kubelet.
    async fn kubelet(&self, sight: &mut watch::Receiver<Arc<Sight>>) -> Option<Incarnation> {
        loop {
            if let Some(kubelet) = sight.borrow_and_update().kubelet {
                return Some(kubelet);
            }
            self.tell(State::Waiting, None);
            sight.changed().await.ok()?;
        }
    }

    /// Serves, registers, and waits until that is over.
    async fn attempt(
        &self,
        kubelet: Incarnation,
        sight: &mut watch::Receiver<Arc<Sight>>,
        serving: &mut Option<(Serving, Incarnation)>,
    ) -> Attempt {
        let times = &self.shared.config.times;
        if let Some(problem) = self.too_long() {
            return Attempt::Other(problem);
        }
        let quiet = *self.quiet.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(quiet) = quiet.filter(|quiet| quiet.kubelet.is_none_or(|of| of == kubelet)) {
            tokio::select! {
                () = tokio::time::sleep_until(quiet.until) => {}
                () = another(sight, kubelet) => return Attempt::Replaced,
            }
        }
        // Boxed, because a resource spends its life behind this step.
        let mut followed = match Box::pin(self.begin(kubelet, sight, serving)).await {
            Ok(followed) => followed,
            Err(attempt) => return attempt,
        };
        let since = Instant::now();
        self.tell(State::Listed, None);
        tokio::select! {
            _ = followed.wait_for(|followed| *followed == Followed::Ended) => return Attempt::Dropped(since.elapsed()),
            () = another(sight, kubelet) => {}
        }
        // The streams of a kubelet that is gone end by themselves, and then there is nobody to be left alone.
        let ended = followed.wait_for(|followed| *followed == Followed::Ended);
        drop(tokio::time::timeout(times.quiet, ended).await);
        Attempt::Replaced
    }

    /// Serves and registers, until the kubelet follows the list.
    async fn begin(
        &self,
        kubelet: Incarnation,
        sight: &mut watch::Receiver<Arc<Sight>>,
        serving: &mut Option<(Serving, Incarnation)>,
    ) -> Result<watch::Receiver<Followed>, Attempt> {
        let times = &self.shared.config.times;
        // Before anything is served: while nobody answers no sockets come and go.
        let channel = tokio::select! {
            connected = self.shared.registrar.connect(kubelet) => connected.map_err(|error| unregistered(&error))?,
            () = another(sight, kubelet) => return Err(Attempt::Replaced),
        };
        let session = match self.serve().await {
            Ok(served) => {
                let session = Arc::clone(&served.session);
                *serving = Some((served, kubelet));
                session
            }
            Err(error) => return Err(Attempt::Other(error.to_string())),
        };
        let sending = || {
            session.await_stream();
        };
        let endpoint = self.offered.report().socket;
        let registered = tokio::select! {
            registered = self.shared.registrar.register((kubelet, channel), &self.offered.name, endpoint, sending) => registered,
            () = another(sight, kubelet) => return Err(Attempt::Replaced),
        };
        if !matches!(registered, Err(registration::Error::NoAnswer(_))) {
            self.offered
                .tell(|report| report.registrations = report.registrations.saturating_add(1));
        }
        if let Err(registration::Error::Refused(_)) = &registered {
            session.refused();
        }
        registered.map_err(|error| unregistered(&error))?;
        self.tell(State::Registered, None);
        let mut followed = session.followed();
        tokio::select! {
            _ = followed.wait_for(|followed| *followed != Followed::Awaited) => {}
            () = tokio::time::sleep(times.list) => {
                return Err(Attempt::Deaf(format!(
                    "the kubelet took the registration and has not asked for the list within {} s: look at its log; it is tried again",
                    times.list.as_secs()
                )));
            }
            () = another(sight, kubelet) => return Err(Attempt::Replaced),
        }
        Ok(followed)
    }

    async fn serve(&self) -> sockets::Result<Serving> {
        let path: PathBuf = self.shared.config.folder.join(self.offered.report().socket);
        let (listener, socket) = sockets::bind(path).await?;
        let service = Service {
            offered: Arc::clone(&self.offered),
            session: Session::new(),
            allocator: Arc::clone(&self.shared.allocator),
            allocations: self.shared.allocations.clone(),
            limit: self.shared.config.times.allocate,
        };
        let drain = self.shared.config.times.drain;
        Ok(Serving::start(listener, socket, service, drain))
    }

    /// Ends a session, and remembers whom to leave alone for a moment.
    async fn end(&self, serving: Serving, kubelet: Incarnation) {
        let is_known = serving.session.is_known();
        let ended_by_us = serving.session.is_open();
        serving.end().await;
        if !is_known {
            return;
        }
        let quiet = Quiet {
            until: Instant::now() + self.shared.config.times.quiet,
            kubelet: (!ended_by_us).then_some(kubelet),
        };
        *self.quiet.lock().unwrap_or_else(PoisonError::into_inner) = Some(quiet);
    }

    fn too_long(&self) -> Option<String> {
        let length = self
            .offered
            .lists()
            .borrow()
            .as_ref()
            .map_or(0, |list| service::message(list).encoded_len());
        (length > MAX_LIST).then(|| {
            format!(
                "the list of {} devices has {length} bytes, the kubelet takes {MAX_LIST}: offer fewer devices or slots",
                self.offered.listed()
            )
        })
    }

    fn tell(&self, state: State, problem: Option<String>) {
        self.offered.tell(|report| {
            report.state = state;
            report.problem = problem;
        });
    }
}

fn unregistered(error: &registration::Error) -> Attempt {
    let problem = error.to_string();
    match error {
        registration::Error::NoAnswer(_) => Attempt::NoAnswer(problem),
        registration::Error::Refused(_) => Attempt::Refused(problem),
        registration::Error::Late(_) => Attempt::Deaf(problem),
        registration::Error::Files { .. } => Attempt::Other(problem),
    }
}

/// Waits until there is a kubelet that is not `known`.
async fn another(sight: &mut watch::Receiver<Arc<Sight>>, known: Incarnation) {
    let is_another = |sight: &Arc<Sight>| sight.kubelet.is_some_and(|kubelet| kubelet != known);
    if sight.wait_for(is_another).await.is_err() {
        std::future::pending::<()>().await;
    }
}
