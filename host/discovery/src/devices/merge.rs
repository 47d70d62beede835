//! Merges the devices of all sessions of a Configuration into one list.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use leafhost_core::device::DeviceKey;
use leafhost_core::device_view::DeviceView;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;

use super::{SessionDevices, UnconfirmedDevices};

/// Rank of a source among the sources of its handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceRank {
    /// True if another source had the handler's name before this source, and the grants of this source do not name the handler.
    pub is_secondary: bool,
    /// Position in the order of acceptance; the first source has the lowest.
    pub number: u64,
}

/// Session to merge.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// True if the source still serves. A source that is gone only fills gaps.
    pub live: bool,
    /// Rank of the source.
    pub rank: SourceRank,
    /// Devices of the session.
    pub devices: &'a SessionDevices,
}

/// Merges the devices of all sessions. For each device, the first source that has it now wins, else the first that had it; a secondary
/// source only adds devices that no other source has or had. Also returns a problem for each source that lost devices to another.
pub fn merge(
    configuration: &ConfigurationKey,
    mut parts: Vec<Part<'_>>,
    unseen: &UnconfirmedDevices,
) -> (BTreeMap<DeviceKey, DeviceView>, Vec<Problem>) {
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
                        (Some(_), None) if !part.rank.is_secondary => {
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
        .map(
            |((winner, loser), (devices, example))| Problem::DevicesDuplicated {
                configuration: configuration.clone(),
                loser: loser.to_owned(),
                winner: winner.to_owned(),
                devices,
                example,
            },
        )
        .collect();
    (devices, lost)
}
