//! Every version of every Instance of a namespace, and the invariants of all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use crate::cluster::{Api, Cluster};
use crate::stand_in_node::{instances_path, name_of};
use crate::wait::within;

/// Length of one watch, in seconds.
const WINDOW: u32 = 2;
/// Upper bound for the last version to arrive.
const LATE: Duration = Duration::from_mins(1);
/// Upper bound for an absence of the API server.
const AWAY: Duration = Duration::from_mins(2);
/// Path of the Instances of all namespaces.
const ALL: &str = "/apis/akri.sh/v0/instances";
/// Resource of the Instances in etcd.
const STORED: &str = "akri.sh/instances";

/// Node that holds a slot, by slot. Free slots are left out.
pub type Holders = BTreeMap<String, String>;

/// Returns the slots of an Instance that nodes hold.
pub fn holders(instance: &Value) -> Holders {
    let usage = instance
        .pointer("/spec/deviceUsage")
        .and_then(Value::as_object);
    let slots = usage.into_iter().flatten();
    slots
        .filter_map(|(slot, usage)| {
            // The node follows the last colon, in each form of the value.
            let node = usage.as_str()?.rsplit(':').next()?;
            (!node.is_empty()).then(|| (slot.clone(), node.to_owned()))
        })
        .collect()
}

/// Versions seen so far.
#[derive(Debug, Default)]
pub struct SlotHistory {
    /// True if Instances may be deleted.
    go: bool,
    /// UID and slot holders of each Instance, by name.
    now: BTreeMap<String, (String, Holders)>,
    /// Claim that holds a slot, by slot.
    claims: BTreeMap<String, String>,
    /// Node that held a slot last, by slot.
    last: Holders,
    /// Number of versions.
    pub versions: usize,
    /// Number of times a slot went from one node to another, and was free in between.
    pub passed_on: usize,
    /// Violations of the invariants.
    pub faults: Vec<String>,
}

impl SlotHistory {
    /// Records one version: `ADDED`, `MODIFIED` or `DELETED`.
    pub fn see(&mut self, kind: &str, object: &Value) {
        let text = |pointer: &str| {
            let text = object.pointer(pointer).and_then(Value::as_str);
            text.unwrap_or_default()
        };
        let (space, uid) = (text("/metadata/namespace"), text("/metadata/uid"));
        let name = format!("{space}/{}", name_of(object));
        self.versions += 1;
        if kind == "DELETED" {
            if !self.go {
                self.faults.push(format!("{name} was deleted: {object}"));
            }
            self.now.remove(&name);
            return;
        }
        let after = holders(object);
        let (known, before) = self
            .now
            .remove(&name)
            .unwrap_or_else(|| (uid.to_owned(), Holders::new()));
        if known != uid {
            self.faults.push(format!("{name} was made again: {object}"));
        }
        for (slot, node) in &after {
            let held = before.get(slot);
            if held.is_some_and(|held| held != node) {
                self.faults.push(format!(
                    "{slot} went from {held:?} to {node} without being free"
                ));
            }
            let last = self.last.insert(slot.clone(), node.clone());
            self.passed_on += usize::from(held.is_none() && last.is_some_and(|last| last != *node));
        }
        self.see_claims(object);
        self.now.insert(name, (uid.to_owned(), after));
    }

    /// Records the claims that hold slots. A slot must be free between two claims, even on the same node.
    fn see_claims(&mut self, object: &Value) {
        let usage = object.pointer("/spec/deviceUsage");
        for (slot, text) in usage.and_then(Value::as_object).into_iter().flatten() {
            let text = text.as_str().unwrap_or_default();
            let held = self.claims.remove(slot);
            if held
                .as_deref()
                .is_some_and(|held| held != text && !text.is_empty())
            {
                self.faults.push(format!(
                    "{slot} went from {held:?} to {text} without being free"
                ));
            }
            if text.starts_with("R:") {
                self.claims.insert(slot.clone(), text.to_owned());
            }
        }
    }

    /// Returns the node that holds each slot, by the last version of each Instance.
    pub fn holders(&self) -> Holders {
        let all = self.now.values().flat_map(|(_, holders)| holders.clone());
        all.collect()
    }

    /// Fails with the first violations, if there are any.
    pub fn judge(&self) -> Result<()> {
        let first: Vec<&String> = self.faults.iter().take(10).collect();
        ensure!(
            first.is_empty(),
            "{} faults, the first: {first:#?}",
            self.faults.len()
        );
        Ok(())
    }
}

/// Recorder that watches Instances in a thread of its own until [`Self::finish`].
pub struct Recorder {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Result<SlotHistory>>,
}

impl Recorder {
    /// Starts recording the Instances of a namespace, first those that exist.
    pub fn start(api: &Api, space: &str) -> Result<Self> {
        let path = instances_path(space);
        let (watched, of_space) = (api.clone(), path.clone());
        let changes = move |version: &mut String, history: &mut SlotHistory| {
            watched.changes(&of_space, version, WINDOW, |kind, object| {
                history.see(kind, object);
            })
        };
        Self::follow(api, path, SlotHistory::default(), changes)
    }

    /// Starts recording the Instances of all namespaces from etcd. Instances may be deleted and the API server may end.
    pub fn start_anywhere(cluster: &Cluster) -> Result<Self> {
        let stored = cluster.stored();
        let changes = move |version: &mut String, history: &mut SlotHistory| {
            let window = Duration::from_secs(WINDOW.into());
            within(AWAY, "etcd answers", || {
                stored.changes(STORED, version, window, |kind, object| {
                    history.see(kind, object);
                })
            })
        };
        let history = SlotHistory {
            go: true,
            ..SlotHistory::default()
        };
        Self::follow(cluster.api(), ALL.to_owned(), history, changes)
    }

    fn follow(
        api: &Api,
        path: String,
        mut history: SlotHistory,
        mut changes: impl FnMut(&mut String, &mut SlotHistory) -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let api = api.clone();
        let list = api.get(&path)?;
        let mut version = list
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .context("a list has no version")?
            .to_owned();
        for object in items(&list) {
            history.see("ADDED", object);
        }
        let is_over = Arc::<AtomicBool>::default();
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            while !over.load(Ordering::Acquire) {
                changes(&mut version, &mut history)?;
            }
            // The history must have all versions that were written until now.
            let list = api.get(&path)?;
            let end = Instant::now() + LATE;
            loop {
                let versions = items(&list).map(version_of);
                let newest = versions
                    .filter_map(|version| version.parse::<u64>().ok())
                    .max();
                if newest
                    .is_none_or(|newest| version.parse::<u64>().is_ok_and(|seen| seen >= newest))
                {
                    return Ok(history);
                }
                ensure!(
                    Instant::now() < end,
                    "the version {newest:?} does not arrive"
                );
                changes(&mut version, &mut history)?;
            }
        });
        Ok(Self { is_over, thread })
    }

    /// Waits for the last version and returns the history; fails if it has a violation.
    pub fn finish(self) -> Result<SlotHistory> {
        self.is_over.store(true, Ordering::Release);
        let history = self
            .thread
            .join()
            .map_err(|_| anyhow!("the recorder panicked"))??;
        history.judge()?;
        Ok(history)
    }
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    let all = list.get("items").and_then(Value::as_array);
    all.into_iter().flatten()
}

fn version_of(object: &Value) -> &str {
    let version = object
        .pointer("/metadata/resourceVersion")
        .and_then(Value::as_str);
    version.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn history(versions: &[(&str, &str, &str)]) -> SlotHistory {
        let mut history = SlotHistory::default();
        for (kind, uid, holder) in versions {
            let object = json!({"metadata": {"name": "a", "uid": uid}, "spec": {"deviceUsage": {"a-0": holder}}});
            history.see(kind, &object);
        }
        history
    }

    #[test]
    fn a_slot_may_pass_from_node_to_node_only_while_it_is_free() {
        let good = history(&[
            ("ADDED", "u", ""),
            ("MODIFIED", "u", "m"),
            ("MODIFIED", "u", ""),
            ("MODIFIED", "u", "C:x-0:n"),
        ]);
        assert_eq!(
            (good.faults.len(), good.passed_on, good.versions),
            (0, 1, 4)
        );
        assert_eq!(
            good.holders(),
            Holders::from([("a-0".to_owned(), "n".to_owned())])
        );
        for bad in [
            [("ADDED", "u", "m"), ("MODIFIED", "u", "n")],
            [("ADDED", "u", ""), ("ADDED", "v", "")],
            [("ADDED", "u", ""), ("DELETED", "u", "")],
        ] {
            assert_eq!(history(&bad).faults.len(), 1, "{bad:?}");
            assert!(history(&bad).judge().is_err());
        }
    }
}
