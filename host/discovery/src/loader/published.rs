//! Published state of the loader task.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::handler::Registration;
use leafhost_core::node_report::ObjectName;
use leafhost_core::ports::{Handler, LoadError, SourceProblem};

/// All sources of handlers and their handlers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HandlerSet {
    /// True once every file has been tried. Until then, a missing handler proves nothing.
    pub complete: bool,
    /// Sources by name.
    pub sources: BTreeMap<String, LoadedSource>,
    /// Sources that are trusted with the secrets of Configurations, by handler name.
    pub trusted: BTreeMap<String, TrustedSource>,
    /// Objects of the sources, as in [`SourceSet`](leafhost_core::ports::SourceSet).
    pub objects: BTreeMap<String, ObjectName>,
    /// Problems of sources and of the store, sorted.
    pub problems: Vec<SourceProblem>,
    /// Notes about files that are not read, sorted.
    pub warnings: Vec<SourceProblem>,
}

impl HandlerSet {
    /// Returns the handlers that serve, by name. If several sources serve one handler, returns that of the first source by name.
    pub fn by_name(&self) -> BTreeMap<&str, &Arc<dyn Handler>> {
        // The last entry of a name stays in the map.
        let sources = self.sources.values().rev();
        let handlers = sources.filter_map(|source| source.handler.as_ref());
        handlers
            .map(|handler| (handler.facts().description.name.as_str(), handler))
            .collect()
    }
}

/// Source that gets the secrets of Configurations, in addition to sources whose grants name the handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedSource {
    /// Name of the source.
    pub source: String,
    /// True if the source exists.
    pub is_there: bool,
}

/// State of a source.
#[derive(Debug, Clone, Default)]
pub struct LoadedSource {
    /// Handler that serves, possibly of an earlier version.
    pub handler: Option<Arc<dyn Handler>>,
    /// Reason why the newest version does not serve.
    pub error: Option<LoadError>,
    /// Handler of the accepted version, loaded or not, and its position among the sources of that handler.
    pub registration: Option<Registration>,
    /// True if the source is no longer loaded because the agent has died while loading it.
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
