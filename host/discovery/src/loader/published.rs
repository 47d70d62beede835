//! What the loader task publishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::handler::Registration;
use leafhost_core::node_report::ObjectName;
use leafhost_core::ports::{Handler, LoadError, SourceProblem};

/// All sources of handlers and what each serves.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HandlerSet {
    /// Whether every file has been tried once. Until then an absent handler says nothing.
    pub complete: bool,
    /// By source name.
    pub sources: BTreeMap<String, LoadedSource>,
    /// Which source is trusted with what Configurations keep secret, by handler name.
    pub trusted: BTreeMap<String, TrustedSource>,
    /// The objects that have the sources, as in [`SourceSet`](leafhost_core::ports::SourceSet).
    pub objects: BTreeMap<String, ObjectName>,
    /// What cannot be read, sorted.
    pub problems: Vec<SourceProblem>,
}

impl HandlerSet {
    /// The handlers that serve, by name. Of several sources of one it is the first by its own name.
    pub fn by_name(&self) -> BTreeMap<&str, &Arc<dyn Handler>> {
        // Of those with one name the last stays in the map.
        let sources = self.sources.values().rev();
        let handlers = sources.filter_map(|source| source.handler.as_ref());
        handlers
            .map(|handler| (handler.description().name.as_str(), handler))
            .collect()
    }
}

/// The source that is trusted with what Configurations keep secret, beside those that their grants name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedSource {
    /// Its name.
    pub source: String,
    /// Whether it is there.
    pub is_there: bool,
}

/// A source.
#[derive(Debug, Clone, Default)]
pub struct LoadedSource {
    /// What serves, perhaps an earlier version.
    pub handler: Option<Arc<dyn Handler>>,
    /// Why the newest version does not serve, if it does not.
    pub error: Option<LoadError>,
    /// Which handler the accepted version is, loaded or not, and its place among the sources of that handler.
    pub registration: Option<Registration>,
    /// Whether it is not tried any more, since the agent has died of it.
    pub given_up: bool,
}

impl PartialEq for LoadedSource {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.handler, &other.handler) {
            (Some(one), Some(two)) => Arc::ptr_eq(one, two),
            (None, None) => true,
            _ => false,
        };
        same && self.error == other.error
            && self.registration == other.registration
            && self.given_up == other.given_up
    }
}
