//! Follows all objects of a kind.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::Resource;
use serde::de::DeserializeOwned;

use crate::watch::{Event, Watch};

/// The most events that are taken in before what they come to is shown.
const TOGETHER: usize = 256;

/// What is kept of objects, by name.
pub trait Kept<N, V>: Default {
    /// Keeps a value, if it may.
    fn put(&mut self, name: N, value: V);
    /// Forgets the value of a name.
    fn drop_name(&mut self, name: &N);
}

impl<N: Ord, V> Kept<N, V> for BTreeMap<N, V> {
    fn put(&mut self, name: N, value: V) {
        self.insert(name, value);
    }

    fn drop_name(&mut self, name: &N) {
        self.remove(name);
    }
}

/// Follows all objects without end. `read` makes of an object what is kept of it, `publish` gets all of that after each change, once the
/// objects were listed.
pub async fn follow<K, N, V, M>(
    objects: impl Into<Watch<K>>,
    what: &str,
    name: impl Fn(&K) -> N,
    read: impl Fn(K) -> Option<V>,
    publish: impl Fn(&M),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    M: Kept<N, V>,
{
    let mut watch = objects.into();
    let (mut kept, mut listed) = (M::default(), M::default());
    let mut is_complete = false;
    let put = |map: &mut M, object: K| {
        let name = name(&object);
        match read(object) {
            Some(value) => map.put(name, value),
            None => map.drop_name(&name),
        }
    };
    loop {
        let mut next = Some(watch.next().await);
        for _ in 0..TOGETHER {
            match next {
                Some(Ok(Event::Init)) => listed = M::default(),
                Some(Ok(Event::InitApply(object))) => put(&mut listed, object),
                Some(Ok(Event::InitDone)) => {
                    kept = std::mem::take(&mut listed);
                    is_complete = true;
                }
                Some(Ok(Event::Apply(object))) => put(&mut kept, object),
                Some(Ok(Event::Delete(object))) => kept.drop_name(&name(&object)),
                Some(Ok(Event::Resumed)) => {}
                Some(Err(failure)) => {
                    let error = failure.message;
                    tracing::warn!(
                        error,
                        "{what} cannot be watched; the controller tries again"
                    );
                }
                None => break,
            }
            next = watch.try_next();
        }
        if is_complete {
            publish(&kept);
        }
    }
}
