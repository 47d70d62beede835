//! Checks whether an earlier run has left objects of a kind that this run may not need at all.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use tokio::time::sleep;

use crate::answers::{self, Kind};
use crate::backoff;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(5);

/// Returns true if objects of an earlier run exist. Retries while a failure may be temporary.
pub async fn has_some<K>(api: &Api<K>, ours: &ListParams) -> bool
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut failures = 0;
    loop {
        match answers::within(REQUEST, api.list_metadata(ours)).await {
            Ok(found) => return !found.items.is_empty(),
            Err(failure) if matches!(failure.kind, Kind::Undefined | Kind::Denied) => return false,
            Err(_) => {
                failures += 1;
                sleep(backoff(failures)).await;
            }
        }
    }
}
