//! Index of watched objects by name, which publishes all of them after each change. Knows nothing of the values computed from objects.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use crate::answers::Failure;
use crate::watch::{Event, Watch};

/// Container of values by object name.
pub trait ObjectMap<N, V>: Default {
    /// Keeps a value, if the container admits it.
    fn put(&mut self, name: N, value: V);
    /// Returns the value of a name.
    fn get(&self, name: &N) -> Option<&V>;
    /// Removes the value of a name.
    fn drop_name(&mut self, name: &N);
}

impl<N: Ord, V> ObjectMap<N, V> for BTreeMap<N, V> {
    fn put(&mut self, name: N, value: V) {
        self.insert(name, value);
    }

    fn get(&self, name: &N) -> Option<&V> {
        Self::get(self, name)
    }

    fn drop_name(&mut self, name: &N) {
        self.remove(name);
    }
}

/// Values of the objects that a watch shows.
#[derive(Debug, Default)]
pub struct Index<M> {
    held: M,
    /// Values of a list that has not ended yet.
    listing: M,
    is_read: bool,
}

impl<M: Default> Index<M> {
    /// Applies an event. `name` returns the name of an object; `read` converts an object and gets the value held for its name. Returns true
    /// if the held values may have changed.
    pub fn take<K, N, V>(
        &mut self,
        event: Event<K>,
        name: impl FnOnce(&K) -> N,
        read: impl FnOnce(K, Option<&V>) -> Option<V>,
    ) -> bool
    where
        M: ObjectMap<N, V>,
    {
        match event {
            Event::Init => self.listing = M::default(),
            Event::InitApply(object) => {
                let name = name(&object);
                if let Some(value) = read(object, self.held.get(&name)) {
                    self.listing.put(name, value);
                }
            }
            Event::InitDone(_) => {
                self.held = std::mem::take(&mut self.listing);
                self.is_read = true;
                return true;
            }
            Event::Apply(object) => {
                let name = name(&object);
                match read(object, self.held.get(&name)) {
                    Some(value) => self.held.put(name, value),
                    None => self.held.drop_name(&name),
                }
                return true;
            }
            Event::Delete(object) => {
                self.held.drop_name(&name(&object));
                return true;
            }
            Event::Resumed => {}
        }
        false
    }

    /// Returns all held values, or `None` before the first list has ended.
    pub fn read(&self) -> Option<&M> {
        self.is_read.then_some(&self.held)
    }
}

/// Follows all objects forever. `name` and `read` are those of [`Index::take`]; `publish` gets all held values after each change, once the
/// objects were listed. While the watch fails, the log names `what`.
pub async fn follow<K, N, V, M>(
    mut watch: Watch<K>,
    what: &str,
    name: impl Fn(&K) -> N,
    read: impl Fn(K, Option<&V>) -> Option<V>,
    publish: impl Fn(&M),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    M: ObjectMap<N, V>,
{
    let mut index = Index::<M>::default();
    loop {
        let take = |event: Result<Event<K>, Failure>| match event {
            Ok(event) => _ = index.take(event, &name, &read),
            Err(failure) => {
                let error = failure.message;
                tracing::warn!(error, "cannot watch {what}; the controller tries again");
            }
        };
        watch.take(take).await;
        if let Some(kept) = index.read() {
            publish(kept);
        }
    }
}
