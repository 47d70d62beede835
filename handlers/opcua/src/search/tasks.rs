//! Tasks of a search, and their outcomes.

use std::net::IpAddr;

use leafhost_sdk::net;

use crate::memory::Peer;
use crate::messages::{Application, List, Record};
use crate::security_settings::SecuritySettings;
use crate::url::Url;

/// Request to a server or a name server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Ask a server for the servers it lists.
    Ask {
        /// Index among the servers to ask.
        asked: usize,
        /// URL of the server.
        url: Url,
        /// True if its endpoints are requested as well.
        settings: bool,
        /// True if a discovery server is also asked for the servers that it knows from the network.
        records: bool,
        /// True if it answered last time.
        known: bool,
        /// Application that its endpoints named, if they are known.
        known_application: Option<String>,
    },
    /// Look up a name.
    LookUp(String),
    /// Exchange Hello with a listed server.
    Confirm {
        /// Host and port of the server.
        peer: Peer,
        /// URL to use.
        url: Url,
        /// URL in the list.
        listed: String,
        /// Addresses of the URL.
        addresses: Vec<IpAddr>,
        /// True if its endpoints are requested as well.
        settings: bool,
        /// True if it answered last time.
        known: bool,
    },
}

/// Outcome of a task.
#[derive(Debug)]
pub enum Outcome {
    /// Outcome of [`Task::Ask`].
    Asked(usize, Answers),
    /// Outcome of [`Task::LookUp`].
    LookedUp(String, Result<Vec<IpAddr>, net::Error>),
    /// Outcome of [`Task::Confirm`]: the endpoints, or the reason to treat the server as dead.
    Confirmed(Peer, Result<SettingsResult, String>),
}

/// Settings of a server's endpoints, or the reason why they are unknown; `None` if they were not requested.
pub type SettingsResult = Option<Result<SecuritySettings, String>>;

/// Answers of a server until its conversation ended.
#[derive(Debug, Default)]
pub struct Answers {
    /// Addresses of its URL.
    pub addresses: Vec<IpAddr>,
    /// True if it answered Hello.
    pub alive: bool,
    /// Applications that it lists.
    pub servers: Option<List<Application>>,
    /// Applications listed for a request without a URL, requested if several have the URL that was asked.
    pub plain: Option<List<Application>>,
    /// Servers that it knows from the network.
    pub records: Option<List<Record>>,
    /// Settings of its endpoints.
    pub settings: SettingsResult,
    /// True if it refuses a channel without security, so that it cannot be asked.
    pub refused: bool,
    /// Reason why answers are missing.
    pub error: Option<String>,
    /// True if one of the handler's limits caused `error`; the servers beyond the limit still exist.
    pub cut: bool,
}
