//! Follows one object by its name. Does not depend on its use.

use std::collections::BTreeMap;

use kube::{Api, ResourceExt as _};

use crate::index::Index;
use crate::watch::Watch;

/// A watched object.
pub struct WatchedObject<K> {
    watch: Watch<K>,
    index: Index<BTreeMap<String, K>>,
    /// Name of the object in the log.
    what: &'static str,
}

impl<K> WatchedObject<K>
where
    K: kube::Resource + Clone + serde::de::DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    /// Follows the object with this name; the log calls it `what`.
    pub fn new(api: Api<K>, name: &str, what: &'static str) -> Self {
        Self {
            watch: Watch::new(api).fields(&format!("metadata.name={name}")),
            index: Index::default(),
            what,
        }
    }

    /// Returns true once the existence of the object is known.
    pub fn is_read(&self) -> bool {
        self.index.read().is_some()
    }

    /// Returns the object if it exists.
    pub fn object(&self) -> Option<&K> {
        self.index.read()?.values().next()
    }

    /// Waits for the next change. Dropping the future loses no change.
    pub async fn changed(&mut self) {
        loop {
            let event = self.watch.next_or_log(self.what).await;
            let read = |object, _: Option<&K>| Some(object);
            if self.index.take(event, K::name_any, read) {
                return;
            }
        }
    }
}
