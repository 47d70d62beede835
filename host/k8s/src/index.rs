//! Holds what watches show, by name, and shows all of it after each change. Knows nothing of what is made of it.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use crate::answers::Failure;
use crate::watch::{Event, Watch};

/// Holds what is kept of objects, by name.
pub trait Kept<N, V>: Default {
    /// Keeps a value, if it may.
    fn put(&mut self, name: N, value: V);
    /// Returns the value of a name.
    fn get(&self, name: &N) -> Option<&V>;
    /// Forgets the value of a name.
    fn drop_name(&mut self, name: &N);
}

impl<N: Ord, V> Kept<N, V> for BTreeMap<N, V> {
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

/// Holds what a watch shows.
#[derive(Debug, Default)]
pub struct Index<M> {
    held: M,
    /// Holds what a list that is not at its end has shown.
    listing: M,
    is_read: bool,
}

impl<M: Default> Index<M> {
    /// Takes an event in. `name` names an object; `read` makes of it what is kept, if anything is, and gets what is held of that name. Returns true if
    /// what is held may be another now.
    pub fn take<K, N, V>(
        &mut self,
        event: Event<K>,
        name: impl FnOnce(&K) -> N,
        read: impl FnOnce(K, Option<&V>) -> Option<V>,
    ) -> bool
    where
        M: Kept<N, V>,
    {
        match event {
            Event::Init => self.listing = M::default(),
            Event::InitApply(object) => {
                let name = name(&object);
                if let Some(value) = read(object, self.held.get(&name)) {
                    self.listing.put(name, value);
                }
            }
            Event::InitDone => {
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

    /// Returns all that is held; nothing before the first list has ended.
    pub fn read(&self) -> Option<&M> {
        self.is_read.then_some(&self.held)
    }
}

/// Says what a controller does while a watch does not work.
pub const TRIES_AGAIN: &str = "the controller tries again";

/// Follows all objects without end. `name` and `read` are those of [`Index::take`]; `publish` gets all that is kept after each change, once the
/// objects were listed. While the watch does not work, it is said of `what`, and what is done `meanwhile`.
pub async fn follow<K, N, V, M>(
    objects: impl Into<Watch<K>>,
    (what, meanwhile): (&str, &str),
    name: impl Fn(&K) -> N,
    read: impl Fn(K, Option<&V>) -> Option<V>,
    publish: impl Fn(&M),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Kept<N, V>,
{
    let mut watch = objects.into();
    let mut index = Index::<M>::default();
    loop {
        let take = |event: Result<Event<K>, Failure>| match event {
            Ok(event) => _ = index.take(event, &name, &read),
            Err(failure) => {
                let error = failure.message;
                tracing::warn!(error, "{what} cannot be watched; {meanwhile}");
            }
        };
        watch.take(take).await;
        if let Some(kept) = index.read() {
            publish(kept);
        }
    }
}
