//! A registered handler as the agent sees it: the port `Handler`.

use std::sync::Arc;

use async_trait::async_trait;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::grants_file;
use leafhost_core::handler::{Description, Digest};
use leafhost_core::ports::{Handler, LoadError, SourceFile};
use leafhost_core::session::{Session, SessionSpec};
use leafhost_grants::Grants;
use leafhost_net::Policy;

use crate::Shared;
use crate::book::{Registered, SessionEvent, Source};
use crate::endpoint::{Connection, Error};
use crate::session::ExternalSession;
use crate::threads::Quota;

/// A handler that is registered.
pub struct ExternalHandler {
    pub target: Target,
    /// The endpoint, for people.
    endpoint: String,
    pub description: Description,
    digest: Digest,
    pub grants: Grants,
    warnings: Vec<String>,
}

impl std::fmt::Debug for ExternalHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalHandler")
            .field("source", &self.target.source)
            .field("digest", &self.digest.short())
            .finish_non_exhaustive()
    }
}

impl ExternalHandler {
    /// With the grants of its file. Blocks.
    pub fn load(
        shared: Arc<Shared>,
        source: &Source,
        file: &SourceFile,
    ) -> Result<Self, LoadError> {
        let registered = source.registered.clone();
        let grants_file = format!("{}{}", registered.name, grants_file::SUFFIX);
        let refused = |message, missing_grants| LoadError {
            source_name: file.name.clone(),
            message,
            missing_grants,
            transient: false,
        };
        let mut grants = Grants::read(file.grants.as_deref())
            .map_err(|why| refused(format!("its grants file {grants_file}: {why}"), Vec::new()))?;
        grants.devices.never = Arc::clone(&shared.config.never);
        if let Some(name) = grants
            .name
            .as_ref()
            .filter(|name| **name != registered.name)
        {
            let message = format!("{grants_file} has `name: {name}`; correct or remove that");
            return Err(refused(message, Vec::new()));
        }
        let policy = shared.config.policy(&grants);
        if let Err(error) = registered.endpoint.check(policy.as_ref()) {
            let missing = grants.network.is_none().then(|| "network".to_owned());
            let message = format!("{error}, {grants_file}");
            return Err(refused(message, missing.into_iter().collect()));
        }
        let mut warnings = Vec::new();
        if file.grants.is_none() {
            warnings.push(format!(
                "there is no {grants_file} with the handlers: its devices may give no variables, nodes and mounts to a workload"
            ));
        }
        if grants.devices.udev_nodes {
            warnings.push(format!(
                "`devices.nodes` in {grants_file} has `udev`, which names no node of a handler that is no component; write patterns"
            ));
        }
        Ok(Self {
            endpoint: registered.endpoint.to_string(),
            description: Description {
                name: registered.name.clone(),
                version: String::new(),
                summary: "an external handler".to_owned(),
                example: String::new(),
                shared: registered.shared,
            },
            digest: source.digest(),
            target: Target::new(shared, file.name.clone(), registered, &grants),
            grants,
            warnings,
        })
    }

    /// Something has happened to a session.
    pub fn tell(&self, event: SessionEvent) {
        let Target { shared, source, .. } = &self.target;
        shared.edit(|book, now| book.session(source, event, now));
    }
}

/// What is connected to.
pub struct Target {
    pub shared: Arc<Shared>,
    pub source: String,
    pub registered: Registered,
    /// Where it may serve in the network.
    policy: Option<Policy>,
    pub quota: Quota,
}

impl Target {
    /// A handler with these grants.
    pub fn new(
        shared: Arc<Shared>,
        source: String,
        registered: Registered,
        grants: &Grants,
    ) -> Self {
        Self {
            policy: shared.config.policy(grants),
            quota: shared.threads.of(&source),
            shared,
            source,
            registered,
        }
    }

    /// Connects, if that is still allowed.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let Registered { endpoint, user, .. } = &self.registered;
        let folder = &self.shared.config.folder;
        let policy = self.policy.as_ref();
        endpoint.connect(folder, *user, policy).await
    }
}

/// The port; sessions share the handler.
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
        // Akri's handlers say it when they are asked for devices.
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let handler = Arc::clone(&self.0);
        Box::new(ExternalSession::new(handler, spec))
    }
}
