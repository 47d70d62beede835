//! The devices of all sessions of a Configuration, made one list.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use leafhost_core::device::DeviceKey;
use leafhost_core::device_view::DeviceView;

use super::{SessionDevices, Unseen};

/// How a source stands among those of its handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRank {
    /// Another source had the name before, and the grants do not name this one.
    pub newcomer: bool,
    /// The source that was accepted first has the lowest.
    pub number: u64,
}

/// What a session brings in.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The source.
    pub source: &'a str,
    /// Whether the source is still there. One that is gone only fills gaps.
    pub live: bool,
    /// How it stands among the sources.
    pub rank: SourceRank,
    /// Its devices.
    pub devices: &'a SessionDevices,
}

/// The devices of all sessions of a Configuration, by source: the first that has a device now wins, then the first that
/// had it. A newcomer only adds what no other has or had. Also says which source lost which device.
pub fn merge(
    mut parts: Vec<Part<'_>>,
    unseen: &Unseen,
) -> (BTreeMap<DeviceKey, DeviceView>, Vec<Lost>) {
    parts.sort_by_key(|part| (!part.live, part.rank, part.source));
    let mut merged: BTreeMap<DeviceKey, (&str, DeviceView)> = BTreeMap::new();
    let mut lost: BTreeMap<(&str, &str), (usize, String)> = BTreeMap::new();
    for part in parts {
        for (key, tracked) in &part.devices.tracked {
            let view = DeviceView {
                device: Some(Arc::clone(&tracked.device)),
                missing_since: tracked.missing_since,
            };
            match merged.entry(key.clone()) {
                Entry::Vacant(free) => {
                    free.insert((part.source, view));
                }
                Entry::Occupied(mut held) => {
                    let (winner, first) = held.get_mut();
                    match (first.missing_since, view.missing_since) {
                        (Some(_), None) if !part.rank.newcomer => {
                            (*winner, *first) = (part.source, view);
                        }
                        (_, None) if part.live => {
                            let entry = lost.entry((*winner, part.source));
                            entry.or_insert_with(|| (0, key.id.clone())).0 += 1;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    let mut devices: BTreeMap<DeviceKey, DeviceView> = merged
        .into_iter()
        .map(|(key, (_, view))| (key, view))
        .collect();
    for (key, missing_since) in &unseen.0 {
        devices.entry(key.clone()).or_insert(DeviceView {
            device: None,
            missing_since: *missing_since,
        });
    }
    let lost = lost
        .into_iter()
        .map(|((winner, loser), (devices, example))| Lost {
            winner: winner.to_owned(),
            loser: loser.to_owned(),
            devices,
            example,
        })
        .collect();
    (devices, lost)
}

/// A source whose devices another one has, too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The source whose devices count.
    pub winner: String,
    /// The source whose devices do not.
    pub loser: String,
    /// How many.
    pub devices: usize,
    /// The id of one.
    pub example: String,
}
