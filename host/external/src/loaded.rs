//! A registered handler as the agent sees it: an implementation of the port `Handler`.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest};
use leafhost_core::ports::Handler;
use leafhost_core::session::{Session, SessionSpec};

use crate::handler::ExternalHandler;
use crate::session::ExternalSession;

/// Implements `Handler`; its sessions share the [`ExternalHandler`].
#[derive(Debug)]
pub struct Loaded(pub Arc<ExternalHandler>);

#[async_trait]
impl Handler for Loaded {
    fn description(&self) -> &Description {
        &self.0.description
    }

    fn digest(&self) -> &Digest {
        &self.0.digest
    }

    fn endpoint(&self) -> Option<&str> {
        Some(&self.0.endpoint)
    }

    fn warnings(&self) -> &[String] {
        &self.0.warnings
    }

    fn is_named(&self) -> bool {
        self.0.grants.name.is_some()
    }

    fn most_devices(&self) -> usize {
        usize::try_from(self.0.grants.limits.devices).unwrap_or(usize::MAX)
    }

    async fn validate(&self, _details: &str) -> Result<Vec<FieldProblem>, Fault> {
        // Akri's handlers report invalid details only when they are asked for devices.
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let handler = Arc::clone(&self.0);
        Box::new(ExternalSession::new(handler, spec))
    }
}
