//! ResourceSlices: distribution of the devices of a pool over slices, such that few slices change when devices do.
//! Pure.
//!
//! The scheduler uses a pool only if the number of its slices of the highest generation equals the count they state.
//! Therefore empty slices are kept, and the generation rises only with the number of slices.
//!
//! Source: `resource.k8s.io/v1` `ResourcePool`, `ResourceSliceSpec`.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribute::{Attributes, Capacities};
use crate::names::digest;

/// Driver name of all our slices and claims.
pub const DRIVER: &str = "leafhost.dev";
/// Maximum number of devices of a slice: the limit for slices with a tainted device. Applied to all slices, so that a change of
/// health never splits one.
pub const MAX_DEVICES: usize = 64;
/// Taint of a device that does not work.
pub const UNHEALTHY: &str = "leafhost.dev/unhealthy";
/// Taint of a missing device during its grace period.
pub const MISSING: &str = "leafhost.dev/missing";

/// Nodes from which the devices of a slice can be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Single node, fixed for the slice.
    Node(String),
    /// Nodes with these values of the label `kubernetes.io/hostname`.
    Hostnames(BTreeSet<String>),
}

/// Taint of a device: keeps the scheduler from allocating it to further claims.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taint {
    /// Key of the taint, such as `leafhost.dev/unhealthy`.
    pub key: String,
    /// True if the taint also evicts pods that have the device (effect `NoExecute`).
    pub evicts: bool,
}

/// Device as the scheduler sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SliceDevice {
    /// Attributes that claims select by.
    pub attributes: Attributes,
    /// Amounts that the device provides.
    pub capacity: Capacities,
    /// Maximum number of claims that share the device at a time; `None` if a claim has the device alone.
    pub shares: Option<u32>,
    /// Taints that keep claims from getting the device.
    pub taints: BTreeSet<Taint>,
}

/// Devices by name.
pub type Devices = BTreeMap<String, SliceDevice>;

/// Slice of a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// Name of the pool.
    pub pool: String,
    /// Generation of the pool that the slice belongs to.
    pub generation: i64,
    /// Number of slices of the pool.
    pub count: i64,
    /// Nodes that may use the devices.
    pub reach: Reach,
    /// Devices by name.
    pub devices: Devices,
}

/// Returns the desired slices of a pool by object name, as close to `stored` as possible. Idempotent: if `stored` is an
/// earlier result for `wanted`, or a part of it, the result is the same again. A wanted node always has a slice, if only
/// an empty one, which shows that the node has the driver.
pub fn pack(
    pool: &str,
    wanted: &BTreeMap<Reach, Devices>,
    stored: &BTreeMap<String, Slice>,
) -> BTreeMap<String, Slice> {
    let mut unplaced = wanted.clone();
    let mut slices: BTreeMap<String, (Reach, Devices)> = BTreeMap::new();
    // Keep devices in the slices that already contain them.
    for (name, slice) in stored {
        let left = unplaced.get_mut(&slice.reach);
        let kept = left.map(|left| {
            let kept = slice.devices.keys().take(MAX_DEVICES);
            kept.filter_map(|device| left.remove_entry(device))
                .collect()
        });
        let kept: Devices = kept.unwrap_or_default();
        slices.insert(name.clone(), (slice.reach.clone(), kept));
    }
    for (reach, devices) in unplaced {
        let mut devices = devices.into_iter().peekable();
        let mut has_slice = false;
        for (_, held) in slices.values_mut().filter(|(own, _)| *own == reach) {
            has_slice = true;
            fill(held, &mut devices);
        }
        // Reuse an empty slice of other nodes; a slice of a single node cannot move.
        let empty = slices.values_mut().filter(|(own, held)| {
            held.is_empty() && matches!((own, &reach), (Reach::Hostnames(_), Reach::Hostnames(_)))
        });
        for (own, held) in empty {
            if devices.peek().is_some() {
                own.clone_from(&reach);
                fill(held, &mut devices);
            }
        }
        let mut is_lacking = matches!(reach, Reach::Node(_)) && !has_slice;
        while devices.peek().is_some() || is_lacking {
            is_lacking = false;
            let mut held = Devices::new();
            fill(&mut held, &mut devices);
            slices.insert(free_name(pool, &slices), (reach.clone(), held));
        }
    }
    let count = i64::try_from(slices.len()).unwrap_or(i64::MAX);
    let generation = generation(stored, count);
    let whole = slices.into_iter().map(|(name, (reach, devices))| {
        let slice = Slice {
            pool: pool.to_owned(),
            generation,
            count,
            reach,
            devices,
        };
        (name, slice)
    });
    whole.collect()
}

fn fill(held: &mut Devices, devices: &mut impl Iterator<Item = (String, SliceDevice)>) {
    let free = MAX_DEVICES.saturating_sub(held.len());
    held.extend(devices.take(free));
}

/// Returns the first object name that no slice of the pool has.
fn free_name<T>(pool: &str, taken: &BTreeMap<String, T>) -> String {
    let names = (0..=taken.len()).map(|number| name(pool, number));
    let mut free = names.filter(|name| !taken.contains_key(name));
    free.next().unwrap_or_else(|| name(pool, taken.len()))
}

/// Returns the object name of a slice: the beginning of the pool name, a digest of it, and the number.
fn name(pool: &str, number: usize) -> String {
    let head: String = pool.chars().take(40).collect();
    let head = head.replace(['/', '.'], "-");
    format!(
        "{DRIVER}-{}-{}-{number}",
        head.trim_matches('-'),
        digest(pool)
    )
}

/// Returns the generation of a pool with `count` slices: the highest stored one if all its slices state that count,
/// otherwise the next.
fn generation(stored: &BTreeMap<String, Slice>, count: i64) -> i64 {
    let highest = stored.values().map(|slice| slice.generation).max();
    let Some(highest) = highest else { return 1 };
    let mut newest = stored.values().filter(|slice| slice.generation == highest);
    if newest.all(|slice| slice.count == count) {
        highest
    } else {
        highest.saturating_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Reach {
        Reach::Node("node-a".to_owned())
    }

    fn hostnames(names: &[&str]) -> Reach {
        Reach::Hostnames(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn devices(names: impl IntoIterator<Item = usize>) -> Devices {
        let all = names
            .into_iter()
            .map(|n| (format!("d-{n:04}"), SliceDevice::default()));
        all.collect()
    }

    fn local(names: impl IntoIterator<Item = usize>) -> BTreeMap<Reach, Devices> {
        BTreeMap::from([(node(), devices(names))])
    }

    /// Returns the sizes of the slices in the order of their names, and all generations with their counts.
    fn shape(slices: &BTreeMap<String, Slice>) -> (Vec<usize>, BTreeSet<(i64, i64)>) {
        let sizes = slices.values().map(|slice| slice.devices.len()).collect();
        let pools = slices.values().map(|slice| (slice.generation, slice.count));
        (sizes, pools.collect())
    }

    fn changed(before: &BTreeMap<String, Slice>, after: &BTreeMap<String, Slice>) -> usize {
        let same = |(name, slice): &(&String, &Slice)| before.get(*name) == Some(slice);
        after.len() - after.iter().filter(same).count()
    }

    #[test]
    fn slices_are_filled_to_their_limit_and_named_alike() {
        let all = pack("node-a", &local(0..150), &BTreeMap::new());
        assert_eq!(shape(&all), (vec![64, 64, 22], [(1, 3)].into()));
        let names: Vec<&String> = all.keys().collect();
        assert!(names[0].starts_with("leafhost.dev-node-a-") && names[0].ends_with("-0"));
        let empty = pack("node-a", &local([]), &BTreeMap::new());
        assert_eq!(
            shape(&empty),
            (vec![0], [(1, 1)].into()),
            "it shows the driver"
        );
        assert_eq!(pack("node-a", &local([]), &empty), empty);
        assert!(pack("node-a", &BTreeMap::new(), &BTreeMap::new()).is_empty());
        let long = format!("{}/{}", "n".repeat(63), "c.".repeat(100));
        let [name]: [String; 1] = pack(&long, &local([1]), &BTreeMap::new())
            .into_keys()
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        assert!(
            crate::names::is_node_name(&name) && name.len() < 100,
            "{name}"
        );
    }

    #[test]
    fn a_device_that_comes_goes_or_changes_rewrites_its_own_slice_alone() {
        let all = pack("node-a", &local(0..150), &BTreeMap::new());
        let without = pack("node-a", &local((0..150).filter(|n| *n != 70)), &all);
        assert_eq!(shape(&without), (vec![64, 63, 22], [(1, 3)].into()));
        assert_eq!(changed(&all, &without), 1);
        let instead = pack("node-a", &local((0..151).filter(|n| *n != 70)), &without);
        assert_eq!(shape(&instead), (vec![64, 64, 22], [(1, 3)].into()));
        assert_eq!(changed(&without, &instead), 1);
        let mut tainted = local(0..150);
        let taint = Taint {
            key: "leafhost.dev/unhealthy".to_owned(),
            evicts: false,
        };
        let device = tainted.get_mut(&node()).unwrap().get_mut("d-0001").unwrap();
        device.taints.insert(taint);
        assert_eq!(changed(&all, &pack("node-a", &tainted, &all)), 1);
    }

    #[test]
    fn slices_that_get_empty_stay_and_the_generation_rises_with_their_number_alone() {
        let all = pack("node-a", &local(0..70), &BTreeMap::new());
        let none = pack("node-a", &local([]), &all);
        assert_eq!(shape(&none), (vec![0, 0], [(1, 2)].into()));
        let more = pack("node-a", &local(0..130), &none);
        assert_eq!(shape(&more), (vec![64, 64, 2], [(2, 3)].into()));
        assert_eq!(pack("node-a", &local(0..130), &more), more);
    }

    #[test]
    fn what_is_written_in_part_leads_to_the_same_whole() {
        let old = pack("node-a", &local(0..70), &BTreeMap::new());
        let wanted = local(0..130);
        let new = pack("node-a", &wanted, &old);
        // The three writes may happen in any order, and any of them may be missing.
        for made in 0..8_u32 {
            let mut stored = old.clone();
            for (bit, (name, slice)) in new.iter().enumerate() {
                if made & (1 << bit) != 0 {
                    stored.insert(name.clone(), slice.clone());
                }
            }
            assert_eq!(pack("node-a", &wanted, &stored), new, "{made:03b}");
        }
    }

    #[test]
    fn a_slice_that_somebody_deletes_comes_back_in_the_same_generation() {
        let all = pack("node-a", &local(0..130), &BTreeMap::new());
        for name in all.keys() {
            let mut stored = all.clone();
            stored.remove(name);
            let again = pack("node-a", &local(0..130), &stored);
            let (sizes, pools) = shape(&again);
            assert_eq!(
                (sizes.iter().sum(), pools),
                (130, [(1, 3)].into()),
                "{name}"
            );
            assert!(again.contains_key(name));
        }
    }

    #[test]
    fn a_slice_of_a_higher_generation_is_outdone() {
        let mut stored = pack("node-a", &local(0..3), &BTreeMap::new());
        let foreign = Slice {
            pool: "node-a".to_owned(),
            generation: 999,
            count: 1,
            reach: node(),
            devices: devices([7]),
        };
        stored.insert("foreign".to_owned(), foreign);
        let all = pack("node-a", &local(0..3), &stored);
        assert_eq!(shape(&all), (vec![0, 3], [(1000, 2)].into()));
        assert_eq!(pack("node-a", &local(0..3), &all), all);
    }

    #[test]
    fn a_device_that_other_nodes_see_moves_to_their_slice_and_none_is_twice() {
        let wanted = |both: &[usize], one: &[usize]| {
            BTreeMap::from([
                (hostnames(&["a", "b"]), devices(both.iter().copied())),
                (hostnames(&["a"]), devices(one.iter().copied())),
            ])
        };
        let all = pack("default/cams", &wanted(&[1, 2], &[3]), &BTreeMap::new());
        assert_eq!(all.len(), 2);
        let moved = pack("default/cams", &wanted(&[1], &[2, 3]), &all);
        assert_eq!(moved.len(), 2);
        let names: Vec<_> = moved
            .values()
            .flat_map(|slice| slice.devices.keys())
            .collect();
        assert_eq!(names.len(), 3);
        // Now one node sees all devices: the other slice is reused once it is needed.
        let alone = pack("default/cams", &wanted(&[], &[1, 2, 3]), &moved);
        assert_eq!(alone.len(), 2);
        let third = BTreeMap::from([
            (hostnames(&["a"]), devices([1, 2, 3])),
            (hostnames(&["c"]), devices([4])),
        ]);
        let third = pack("default/cams", &third, &alone);
        assert_eq!(third.len(), 2, "an empty slice changes its nodes");
        assert!(third.values().any(|slice| slice.reach == hostnames(&["c"])));
    }
}
