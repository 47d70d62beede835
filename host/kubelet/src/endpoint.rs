//! Serves one resource and registers it with the kubelet, again whenever the kubelet has lost it.
//!
//! Each resource has one task, which makes one step after the other, so that attempts never overlap.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::PluginConfig;
use crate::folder::FolderState;
use crate::offered::{Offered, locked};
use crate::registration::{Backoff, Error, Registrar};
use crate::service::{self, Service};
use crate::serving::{MAX_LIST, Serving};
use crate::session::{Followed, Session};
use crate::sockets;
use crate::{Allocator, KubeletRun, State};

/// Longest pause after the kubelet refused.
const BACKOFF_REFUSED: Duration = Duration::from_mins(5);

/// State shared by all resources.
pub(crate) struct Shared {
    pub config: PluginConfig,
    pub allocator: Arc<dyn Allocator>,
    /// Tasks of allocations, which outlive the call and the session.
    pub allocations: TaskTracker,
    pub registrar: Registrar,
}

/// Pause before the next Register, because a stream of the resource has ended.
#[derive(Debug, Clone, Copy)]
struct RegisterPause {
    until: Instant,
    /// Kubelet to which the pause applies; `None` for every kubelet.
    kubelet: Option<KubeletRun>,
}

/// Resource that is served and registered. Its list and the pause before the next Register outlive the task.
pub(crate) struct Endpoint {
    pub offered: Arc<Offered>,
    pub shared: Arc<Shared>,
    quiet: Mutex<Option<RegisterPause>>,
}

/// Outcome of an attempt to serve and register the resource.
enum Attempt {
    /// Another kubelet runs.
    Replaced,
    /// The kubelet ended the list's stream, which was open for this long.
    Dropped(Duration),
    Failed(Error),
}

impl From<Error> for Attempt {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
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
    pub async fn run(
        self: Arc<Self>,
        folder_state: watch::Receiver<Arc<FolderState>>,
        over: CancellationToken,
    ) {
        let mut serving = None;
        tokio::select! {
            () = over.cancelled() => {}
            () = self.offered.keep_time() => {}
            () = self.keep_registered(folder_state, &mut serving) => {}
        }
        if let Some((serving, kubelet)) = serving.take() {
            Box::pin(self.end(serving, kubelet)).await;
        }
        self.set_state(State::Waiting, None);
    }

    async fn keep_registered(
        &self,
        mut folder_state: watch::Receiver<Arc<FolderState>>,
        serving: &mut Option<(Serving, KubeletRun)>,
    ) {
        let times = &self.shared.config.times;
        let mut backoff = Backoff::new(times.backoff);
        loop {
            let Some(kubelet) = self.kubelet(&mut folder_state).await else {
                return;
            };
            let attempt = self.attempt(kubelet, &mut folder_state, serving).await;
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
                        "the kubelet has ended the list's stream; registering the resource again"
                            .into();
                    (State::Waiting, problem, times.quiet, times.backoff_other)
                }
                Attempt::Failed(Error::NotFollowed(problem)) => {
                    (State::Failed, problem, times.quiet, times.backoff_other)
                }
                Attempt::Failed(Error::NoAnswer(problem)) => {
                    (State::Waiting, problem, Duration::ZERO, times.backoff_other)
                }
                Attempt::Failed(Error::Other(problem)) => {
                    (State::Failed, problem, Duration::ZERO, times.backoff_other)
                }
                Attempt::Failed(Error::Refused(problem)) => {
                    (State::Failed, problem, Duration::ZERO, BACKOFF_REFUSED)
                }
            };
            let wait = backoff.wait(least, longest);
            let is_reported = self.offered.report().problem.as_ref() == Some(&problem);
            if state == State::Failed && !is_reported {
                tracing::warn!(resource = %self.offered.name, problem, "cannot register the resource with the kubelet");
            }
            self.set_state(state, Some(problem));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = another(&mut folder_state, kubelet) => backoff.reset(),
            }
        }
    }

    /// Waits until a kubelet runs.
    async fn kubelet(
        &self,
        folder_state: &mut watch::Receiver<Arc<FolderState>>,
    ) -> Option<KubeletRun> {
        loop {
            if let Some(kubelet) = folder_state.borrow_and_update().kubelet {
                return Some(kubelet);
            }
            self.set_state(State::Waiting, None);
            folder_state.changed().await.ok()?;
        }
    }

    /// Serves and registers the resource; returns when the attempt has ended.
    async fn attempt(
        &self,
        kubelet: KubeletRun,
        folder_state: &mut watch::Receiver<Arc<FolderState>>,
        serving: &mut Option<(Serving, KubeletRun)>,
    ) -> Attempt {
        let times = &self.shared.config.times;
        if let Some(problem) = self.too_long() {
            return Error::Other(problem).into();
        }
        let quiet = *locked(&self.quiet);
        if let Some(quiet) = quiet.filter(|quiet| quiet.kubelet.is_none_or(|of| of == kubelet)) {
            tokio::select! {
                () = tokio::time::sleep_until(quiet.until) => {}
                () = another(folder_state, kubelet) => return Attempt::Replaced,
            }
        }
        // Boxed, because the task is in the next step most of the time, and would keep the memory for this one.
        let mut followed = match Box::pin(self.begin(kubelet, folder_state, serving)).await {
            Ok(followed) => followed,
            Err(attempt) => return attempt,
        };
        let since = Instant::now();
        self.set_state(State::Listed, None);
        tokio::select! {
            _ = followed.wait_for(|followed| *followed == Followed::Ended) => return Attempt::Dropped(since.elapsed()),
            () = another(folder_state, kubelet) => {}
        }
        // The streams of a kubelet that has ended end by themselves. Then no pause is needed.
        let ended = followed.wait_for(|followed| *followed == Followed::Ended);
        drop(tokio::time::timeout(times.quiet, ended).await);
        Attempt::Replaced
    }

    /// Serves and registers the resource until the kubelet follows the list.
    async fn begin(
        &self,
        kubelet: KubeletRun,
        folder_state: &mut watch::Receiver<Arc<FolderState>>,
        serving: &mut Option<(Serving, KubeletRun)>,
    ) -> Result<watch::Receiver<Followed>, Attempt> {
        let times = &self.shared.config.times;
        // Connects before anything is served: while no kubelet answers, no sockets are created and removed.
        let channel = tokio::select! {
            connected = self.shared.registrar.connect(kubelet) => connected?,
            () = another(folder_state, kubelet) => return Err(Attempt::Replaced),
        };
        let served = self.serve().await.map_err(Error::Other)?;
        let (session, endpoint) = (Arc::clone(&served.session), served.socket.session.clone());
        *serving = Some((served, kubelet));
        let sending = || session.await_stream();
        let registered = tokio::select! {
            registered = self.shared.registrar.register((kubelet, channel), &self.offered.name, endpoint, sending) => registered,
            () = another(folder_state, kubelet) => return Err(Attempt::Replaced),
        };
        if !matches!(registered, Err(Error::NoAnswer(_))) {
            self.offered.update_report(|report| {
                report.registrations = report.registrations.saturating_add(1);
            });
        }
        if let Err(Error::Refused(_)) = &registered {
            session.refused();
        }
        registered?;
        self.set_state(State::Registered, None);
        let mut followed = session.followed();
        tokio::select! {
            _ = followed.wait_for(|followed| *followed != Followed::Awaited) => {}
            () = tokio::time::sleep(times.list) => {
                let problem = format!(
                    "the kubelet accepted the registration and has not asked for the list within {} s; see the kubelet's log; retrying",
                    times.list.as_secs()
                );
                return Err(Error::NotFollowed(problem).into());
            }
            () = another(folder_state, kubelet) => return Err(Attempt::Replaced),
        }
        Ok(followed)
    }

    async fn serve(&self) -> Result<Serving, String> {
        let path = self.shared.config.folder.join(self.offered.report().socket);
        let (listener, socket) = sockets::bind(&path).await?;
        let service = Service {
            offered: Arc::clone(&self.offered),
            session: Session::new(),
            allocator: Arc::clone(&self.shared.allocator),
            allocations: self.shared.allocations.clone(),
            limit: self.shared.config.times.allocate,
        };
        Ok(Serving::start(listener, socket, service))
    }

    /// Ends a session, and begins the pause before the next Register if the kubelet knew of the session.
    async fn end(&self, serving: Serving, kubelet: KubeletRun) {
        let is_known = serving.session.is_known();
        let ended_by_us = serving.session.is_open();
        serving.end().await;
        if !is_known {
            return;
        }
        let quiet = RegisterPause {
            until: Instant::now() + self.shared.config.times.quiet,
            kubelet: (!ended_by_us).then_some(kubelet),
        };
        *locked(&self.quiet) = Some(quiet);
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
                "the list of {} devices has {length} bytes, the kubelet accepts at most {MAX_LIST}; offer fewer devices or slots",
                self.offered.listed()
            )
        })
    }

    fn set_state(&self, state: State, problem: Option<String>) {
        self.offered.update_report(|report| {
            report.state = state;
            report.problem = problem;
        });
    }
}

/// Waits until a kubelet other than `known` runs.
async fn another(folder_state: &mut watch::Receiver<Arc<FolderState>>, known: KubeletRun) {
    let is_another = |folder_state: &Arc<FolderState>| {
        folder_state.kubelet.is_some_and(|kubelet| kubelet != known)
    };
    if folder_state.wait_for(is_another).await.is_err() {
        std::future::pending::<()>().await;
    }
}
