//! The tasks of a search and their outcomes.

use std::net::IpAddr;

use leafhost_sdk::net;

use crate::facts::Facts;
use crate::memory::Peer;
use crate::messages::{Application, List, Record};
use crate::url::Url;

/// A task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// Ask a server what it lists.
    Ask {
        /// Its index among the servers to ask.
        asked: usize,
        /// Its URL.
        url: Url,
        /// Whether its endpoints are wanted as well.
        facts: bool,
        /// Whether what it knows from the network is wanted, if it is a discovery server.
        records: bool,
        /// Whether it answered last time.
        known: bool,
        /// The application that its endpoints named, if they are known.
        told: Option<String>,
    },
    /// Look up a name.
    LookUp(String),
    /// Say hello.
    Confirm {
        /// Who is meant.
        peer: Peer,
        /// By which URL.
        url: Url,
        /// By which it is listed.
        listed: String,
        /// Where it leads.
        addresses: Vec<IpAddr>,
        /// Whether its endpoints are wanted as well.
        facts: bool,
        /// Whether it answered last time.
        known: bool,
    },
}

/// What came of a task.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Task::Ask`].
    Asked(usize, Answers),
    /// Of [`Task::LookUp`].
    LookedUp(String, Result<Vec<IpAddr>, net::Error>),
    /// Of [`Task::Confirm`]: what its endpoints say, or why it is as good as dead.
    Confirmed(Peer, Result<Told, String>),
}

/// What a server's endpoints say, or why nothing is known of them; nothing if that was not asked.
pub type Told = Option<Result<Facts, String>>;

/// What a server that was asked has said before it stopped.
#[derive(Debug, Default)]
pub struct Answers {
    /// Where its URL leads.
    pub addresses: Vec<IpAddr>,
    /// Whether it said hello.
    pub alive: bool,
    /// The applications it knows.
    pub servers: Option<List<Application>>,
    /// The same as a request without a URL gives them, if several have the URL that was asked.
    pub plain: Option<List<Application>>,
    /// The servers it knows from the network.
    pub records: Option<List<Record>>,
    /// What its endpoints say.
    pub facts: Told,
    /// Whether it refuses a channel without security, so that it cannot be asked anything.
    pub refused: bool,
    /// Why there is not more.
    pub error: Option<String>,
    /// Whether that is for a bound of ours: what it knows beyond is still there.
    pub cut: bool,
}
