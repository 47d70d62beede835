//! A registered handler: its grants and its connection.

use std::sync::Arc;

use leafhost_core::handler::{Description, HandlerFacts};
use leafhost_core::ports::{LoadError, SourceFile};
use leafhost_grants::Grants;
use leafhost_net::Policy;
use tonic::transport::Channel;

use crate::Shared;
use crate::endpoint::{Connection, Error};
use crate::paced::paced;
use crate::registrations::{First, FirstConnection, Registered, SessionEvent, Source};
use crate::threads::Quota;
use crate::wire;

#[derive(Debug, Clone)]
pub struct ExternalHandler {
    pub target: Target,
    pub facts: HandlerFacts,
    pub grants: Grants,
}

impl ExternalHandler {
    /// Loads the handler with the grants of its file. Blocks.
    pub fn load(
        shared: Arc<Shared>,
        source: &Source,
        file: &SourceFile,
    ) -> Result<Self, LoadError> {
        let registered = source.registered.clone();
        let grants_file = registered.grants_file();
        let refused = |message, missing_grants| LoadError {
            source_name: file.name.clone(),
            message,
            missing_grants,
            transient: false,
        };
        let mut grants = Grants::read(file.grants.as_deref())
            .map_err(|why| refused(format!("its grants file {grants_file}: {why}"), Vec::new()))?;
        grants.devices.never = Arc::clone(&shared.never);
        if let Some(name) = grants
            .name
            .as_ref()
            .filter(|name| **name != registered.name)
        {
            let message = format!("{grants_file} has `name: {name}`; correct or remove that");
            return Err(refused(message, Vec::new()));
        }
        let policy = shared.policy(&grants);
        if let Err(error) = registered.endpoint.check(policy.as_ref()) {
            let missing = grants.network.is_none().then(|| "network".to_owned());
            let message = format!("{error}, {grants_file}");
            return Err(refused(message, missing.into_iter().collect()));
        }
        let mut warnings = Vec::new();
        if file.grants.is_none() {
            warnings.push(format!(
                "there is no {grants_file} where the handler files are: its devices may add no variables, nodes or mounts to a container"
            ));
        }
        if grants.devices.udev_nodes {
            warnings.push(format!(
                "`devices.nodes` in {grants_file} has `udev`, which names no node of a handler that is not a component; write patterns"
            ));
        }
        let facts = HandlerFacts {
            description: Description {
                name: registered.name.clone(),
                version: String::new(),
                summary: "an external handler".to_owned(),
                example: String::new(),
                shared: registered.shared,
            },
            digest: source.digest(),
            endpoint: Some(registered.endpoint.to_string()),
            warnings,
            is_named: grants.name.is_some(),
            most_devices: usize::try_from(grants.limits.devices).unwrap_or(usize::MAX),
            uses_udev: false,
        };
        Ok(Self {
            target: Target::new(shared, file.name.clone(), registered, &grants),
            facts,
            grants,
        })
    }

    /// Reports an event of a session to the registrations.
    pub fn send_event(&self, event: SessionEvent) {
        let Target { shared, source, .. } = &self.target;
        shared.edit(|registrations, now| registrations.session(source, event, now));
    }
}

/// Target of the agent's connections.
#[derive(Debug, Clone)]
pub struct Target {
    pub shared: Arc<Shared>,
    pub source: String,
    pub registered: Registered,
    /// Network policy from the grants; `None` if the handler may not serve in the network.
    policy: Option<Policy>,
    pub quota: Quota,
}

impl Target {
    pub fn new(
        shared: Arc<Shared>,
        source: String,
        registered: Registered,
        grants: &Grants,
    ) -> Self {
        Self {
            policy: shared.policy(grants),
            quota: shared.threads.of(&source),
            shared,
            source,
            registered,
        }
    }

    /// Connects if the policy still allows it.
    pub async fn connect(&self) -> Result<Connection, Error> {
        let Registered { endpoint, user, .. } = &self.registered;
        let folder = &self.shared.folder;
        let policy = self.policy.as_ref();
        endpoint.connect(folder, *user, policy).await
    }

    /// Returns the first connection of a handler in the network; makes it if that is still allowed.
    ///
    /// # Errors
    /// Returns an error if the connection has ended or cannot be made.
    pub async fn reach(&self) -> Result<Channel, Error> {
        let at = || self.registered.endpoint.to_string();
        let first = self
            .shared
            .registrations(|registrations, now| registrations.first_connection(&self.source, now));
        match first {
            First::Holds(first) => return Ok(first.channel),
            First::Ended => return Err(Error::NotTheFirst(at())),
            First::ToCome => {}
        }
        let connection = paced(self.connect().await?);
        let ended = connection.reader().ended();
        let channel = wire::channel(connection)
            .await
            .map_err(|error| Error::Unreachable {
                at: at(),
                source: std::io::Error::other(error),
            })?;
        let first = FirstConnection { channel, ended };
        let kept = self
            .shared
            .registrations(|registrations, _| registrations.connected(&self.source, first));
        let kept = kept.ok_or_else(|| Error::NotTheFirst(at()))?;
        Ok(kept.channel)
    }
}
