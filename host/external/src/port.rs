//! The port `Handler` of registered handlers.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest};
use leafhost_core::ports::Handler;
use leafhost_core::session::{Session, SessionSpec};

use crate::handler::ExternalHandler;
use crate::session::ExternalSession;

#[async_trait]
impl Handler for ExternalHandler {
    fn description(&self) -> &Description {
        &self.description
    }

    fn digest(&self) -> &Digest {
        &self.digest
    }

    fn endpoint(&self) -> Option<&str> {
        Some(&self.endpoint)
    }

    fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn is_named(&self) -> bool {
        self.grants.name.is_some()
    }

    fn most_devices(&self) -> usize {
        usize::try_from(self.grants.limits.devices).unwrap_or(usize::MAX)
    }

    async fn validate(&self, _details: &str) -> Result<Vec<FieldProblem>, Fault> {
        // Akri's handlers report invalid details only when they are asked for devices.
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        Box::new(ExternalSession::new(Arc::new(self.clone()), spec))
    }
}
