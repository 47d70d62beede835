//! What is known of a discovery handler: its description, its sources, its status.

use serde::Serialize;

/// The most handlers that are loaded at a time: each has a place of its own among the guests that run at once, and loading needs some,
/// too.
pub const MOST_HANDLERS: usize = 100;

/// What a handler says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Description {
    /// The registry key.
    pub name: String,
    /// The handler's own version.
    pub version: String,
    /// One line.
    pub summary: String,
    /// Working details.
    pub example: String,
    /// The default for its devices.
    pub shared: bool,
}

/// The name that a source serves, and its place among those that do.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registration {
    /// The handler's name.
    pub handler: String,
    /// The source that was accepted first has the lowest number.
    pub number: u64,
}

impl Registration {
    /// Of a source that is accepted as `handler` after those with the `others`.
    pub fn after<'a>(others: impl Iterator<Item = &'a Self>, handler: &str) -> Self {
        let same = others.filter(|other| other.handler == handler);
        let last = same.map(|other| other.number).max();
        Self {
            handler: handler.to_owned(),
            number: last.map_or(0, |last| last.saturating_add(1)),
        }
    }
}

/// The status of a handler's source in the registry, named as in the Akri agent's document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
pub enum HandlerStatus {
    /// Registered, and no Configuration uses it. The first answer of a session makes it Active, a first failure
    /// of all its sessions Offline.
    Waiting,
    /// At least one session gets answers. The last Configuration deleted makes it Waiting, failure of
    /// all sessions Offline.
    Active,
    /// Every session has failed since then, or the source is gone. An answer makes it Active, five minutes end in its
    /// removal from the registry.
    Offline(jiff::Timestamp),
}

impl HandlerStatus {
    /// `Waiting`, `Active` or `Offline`.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// A sha256 in lower-case hex: of a component's bytes, unpacked, unless something else is said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Digest(pub String);

impl Digest {
    /// The first twelve digits, for people.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}
