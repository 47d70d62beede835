//! The port `Handler` of registered handlers.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::handler::HandlerFacts;
use leafhost_core::ports::Handler;
use leafhost_core::session::{Session, SessionSpec};

use crate::handler::ExternalHandler;
use crate::session::ExternalSession;

#[async_trait]
impl Handler for ExternalHandler {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, _details: &str) -> Result<Vec<FieldProblem>, Fault> {
        // Akri's handlers report invalid details only when they are asked for devices.
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        Box::new(ExternalSession::new(Arc::new(self.clone()), spec))
    }
}
