//! Discovery handlers: description, registration and digest.

/// Maximum number of handlers loaded at a time: each needs one of the places for concurrent guests, and loading needs some of them, too.
pub const MOST_HANDLERS: usize = 100;

/// Description that a handler gives of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Name of the handler, its key in the registry.
    pub name: String,
    /// Version of the handler.
    pub version: String,
    /// Summary in one line.
    pub summary: String,
    /// Example of valid discovery details.
    pub example: String,
    /// Default of `shared` for its devices.
    pub shared: bool,
}

/// Facts about a loaded handler, which do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HandlerFacts {
    /// Description that the handler gives of itself.
    pub description: Description,
    /// Digest of the handler's bytes.
    pub digest: Digest,
    /// Endpoint of an external handler; `None` for a component.
    pub endpoint: Option<String>,
    /// Warnings for the operator that do not prevent loading, such as a grant that matches nothing.
    pub warnings: Vec<String>,
    /// True if the grants name the handler. It is then trusted with the secrets of its Configurations, even if another
    /// source owned the name before.
    pub is_named: bool,
    /// Maximum number of devices of one session.
    pub most_devices: usize,
    /// True if the handler uses udev's data on devices.
    pub uses_udev: bool,
}

/// Handler name that a source serves, and the order of the source among all that serve it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Registration {
    /// Name of the handler.
    pub handler: String,
    /// Order of acceptance: the source that was accepted first has the lowest number.
    pub number: u64,
}

impl Registration {
    /// Creates the registration of a source accepted for `handler` after those with the registrations `others`.
    pub fn after<'a>(others: impl Iterator<Item = &'a Self>, handler: &str) -> Self {
        let same = others.filter(|other| other.handler == handler);
        let last = same.map(|other| other.number).max();
        Self {
            handler: handler.to_owned(),
            number: last.map_or(0, |last| last.saturating_add(1)),
        }
    }
}

/// SHA-256 in lower-case hex: of the bytes of an uncompressed component, unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub String);

impl Digest {
    /// Returns the first twelve digits, for display.
    pub fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}
