//! Follows all objects of a kind.

use std::collections::BTreeMap;
use std::fmt::Debug;

use kube::{Api, Resource};
use serde::de::DeserializeOwned;

use crate::watch::{Event, Watch};

/// The most events that are taken in before what they come to is shown.
const TOGETHER: usize = 256;

/// Follows all objects without end. `read` makes of an object what is kept of it, `publish` gets all of that after each change, once the
/// objects were listed.
pub async fn follow<K, N, V>(
    api: Api<K>,
    what: &str,
    name: impl Fn(&K) -> N,
    read: impl Fn(K) -> Option<V>,
    publish: impl Fn(&BTreeMap<N, V>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    N: Ord,
{
    let mut watch = Watch::new(api);
    let (mut kept, mut listed) = (BTreeMap::new(), BTreeMap::new());
    let mut is_complete = false;
    let put = |map: &mut BTreeMap<N, V>, object: K| {
        let name = name(&object);
        match read(object) {
            Some(value) => map.insert(name, value),
            None => map.remove(&name),
        };
    };
    loop {
        let mut next = Some(watch.next().await);
        for _ in 0..TOGETHER {
            match next {
                Some(Ok(Event::Init)) => listed.clear(),
                Some(Ok(Event::InitApply(object))) => put(&mut listed, object),
                Some(Ok(Event::InitDone)) => {
                    kept = std::mem::take(&mut listed);
                    is_complete = true;
                }
                Some(Ok(Event::Apply(object))) => put(&mut kept, object),
                Some(Ok(Event::Delete(object))) => drop(kept.remove(&name(&object))),
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
