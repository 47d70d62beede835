//! Answers the kubelet on the registration socket, and records the state of the registration.
//!
//! From 1.34 on, the kubelet keeps one connection to a driver open. A restart of the kubelet ends it, and the new kubelet registers the
//! driver again.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::{DraReport, Registration};
use crate::offered::{locked, publish};
use crate::proto::plugin_registration as proto;

/// Supported services, the best first: the kubelet uses the first of each kind that it knows.
const SERVICES: [&str; 4] = [
    "v1.DRAPlugin",
    "v1beta1.DRAPlugin",
    "v1.DRAResourceHealth",
    "v1alpha1.DRAResourceHealth",
];
/// Maximum number of characters shown of the kubelet's error.
const MAX_TEXT: usize = 512;

/// State of the registration, with the sender of its reports.
#[derive(Debug)]
pub struct RegistrationState {
    known: Mutex<Known>,
    report: watch::Sender<DraReport>,
}

#[derive(Debug, Default)]
struct Known {
    /// Last status from the kubelet.
    status: Option<Result<(), String>>,
    connections: usize,
    /// True if a connection was open at or after that status.
    was_connected: bool,
    problem: Option<String>,
}

impl Known {
    fn registration(&self) -> Registration {
        match &self.status {
            None => Registration::Awaited,
            Some(Err(why)) => Registration::Refused(why.clone()),
            Some(Ok(())) if self.connections == 0 && self.was_connected => Registration::Lost,
            Some(Ok(())) => Registration::Registered,
        }
    }
}

impl RegistrationState {
    pub fn new() -> (Self, watch::Receiver<DraReport>) {
        let (report, reported) = watch::channel(DraReport::default());
        let known = Mutex::default();
        (Self { known, report }, reported)
    }

    fn edit(&self, edit: impl FnOnce(&mut Known)) {
        let mut known = locked(&self.known);
        edit(&mut known);
        let report = DraReport {
            registration: known.registration(),
            problem: known.problem.clone(),
        };
        publish(&self.report, report);
    }

    /// Records the problem that keeps the sockets from being served; `None` clears it.
    pub fn problem(&self, problem: Option<String>) {
        self.edit(|known| known.problem = problem);
    }

    /// Counts a connection of the kubelet until the returned value is dropped.
    pub fn connected(self: &Arc<Self>) -> Arc<Open> {
        self.edit(|known| {
            known.connections += 1;
            known.was_connected = true;
        });
        Arc::new(Open(Arc::clone(self)))
    }

    fn set_status(&self, status: Result<(), String>) {
        self.edit(|known| {
            known.status = Some(status);
            known.was_connected = known.connections > 0;
        });
    }
}

/// Guard that counts an open connection of the kubelet.
pub struct Open(Arc<RegistrationState>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0
            .edit(|known| known.connections = known.connections.saturating_sub(1));
    }
}

/// Registration service of a driver.
pub struct Service {
    pub driver: String,
    /// Path of the socket on which the driver is called.
    pub endpoint: String,
    pub state: Arc<RegistrationState>,
}

#[async_trait]
impl proto::registration_server::Registration for Service {
    async fn get_info(
        &self,
        _request: Request<proto::InfoRequest>,
    ) -> Result<Response<proto::PluginInfo>, Status> {
        Ok(Response::new(proto::PluginInfo {
            r#type: "DRAPlugin".to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: SERVICES.map(str::to_owned).to_vec(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<proto::RegistrationStatus>,
    ) -> Result<Response<proto::RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let driver = &self.driver;
        if status.plugin_registered {
            tracing::info!(driver, "the kubelet has registered the driver");
            self.state.set_status(Ok(()));
        } else {
            let why: String = status.error.chars().take(MAX_TEXT).collect();
            tracing::warn!(driver, why, "the kubelet does not register the driver");
            self.state.set_status(Err(why));
        }
        Ok(Response::new(proto::RegistrationStatusResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registration_counts_while_the_kubelet_is_connected_or_has_not_been() {
        let (state, report) = RegistrationState::new();
        let state = Arc::new(state);
        let now = || report.borrow().registration.clone();
        assert_eq!(now(), Registration::Awaited);
        let early = state.connected();
        drop(early);
        assert_eq!(now(), Registration::Awaited, "somebody looked");
        state.set_status(Ok(()));
        assert_eq!(now(), Registration::Registered);
        let first = state.connected();
        let second = state.connected();
        drop(first);
        assert_eq!(now(), Registration::Registered);
        drop(second);
        assert_eq!(now(), Registration::Lost);
        let again = state.connected();
        assert_eq!(now(), Registration::Registered, "the same kubelet is back");
        drop(again);
        state.set_status(Ok(()));
        assert_eq!(now(), Registration::Registered, "a new kubelet");
        state.set_status(Err("no".to_owned()));
        assert_eq!(now(), Registration::Refused("no".to_owned()));
    }
}
