//! Lists and grants agree, in random states from seeds.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use leafhost_core::device::Health as Condition;
use leafhost_core::device_id::{DeviceId, resource};
use leafhost_core::device_view::ConfigurationDevices;
use leafhost_core::instance::Instance;
use leafhost_core::presence::Absent;
use leafhost_fakes::key;
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::*;
use crate::fixture::{device_id, kubelet, snapshot};
use crate::model::claim::RoundRobin;
use crate::model::context::SlotContext;
use crate::model::offers::{Limits, OfferBuilder};
use crate::model::snapshot::Snapshot;

const SEEDS: u64 = 3000;
const HASHES: [&str; 4] = ["a", "b", "c", "d"];
const LIMITS: Limits = Limits {
    live: 256,
    ever: 1000,
};

/// Node, the pods of its kubelet, and the agent's state.
struct World {
    fixture: Fixture,
    slot_table: SlotTable,
    offer_builder: OfferBuilder,
    /// Device ids that containers have.
    held: BTreeSet<DeviceId>,
}

impl World {
    fn new(rng: &mut SmallRng) -> Self {
        let instances: Vec<Instance> = HASHES.map(|hash| made(hash, rng)).into();
        let mut fixture = Fixture::new(&[("cams", &instances)]);
        for hash in HASHES {
            change_device(&mut fixture, hash, rng);
        }
        if rng.random_bool(0.1) {
            // The agent has just started and has read no Configuration.
            fixture.devices = DeviceSnapshot::default();
        }
        // Kubelet that an earlier agent has served.
        let earlier = [None, Some(kubelet(1)), Some(kubelet(2))];
        let mut slot_table = SlotTable::new(*earlier.iter().choose(rng).unwrap(), false);
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        let held: BTreeSet<DeviceId> = slot_table
            .by_device_id
            .keys()
            .filter(|device_id| !device_id.resource.is_empty() && rng.random_bool(0.5))
            .cloned()
            .collect();
        Self {
            fixture,
            slot_table,
            offer_builder: OfferBuilder::default(),
            held,
        }
    }

    /// Records a snapshot; released slots are free then, unless the release cannot be written.
    fn see(&mut self, snapshot: &Snapshot, is_written: bool) {
        let back = self.slot_table.observe(snapshot, GRACE);
        for (device_id, _) in back.into_iter().filter(|_| is_written) {
            let state = self.slot_table.by_device_id.remove(&device_id).unwrap();
            if let Some(key) = state.stored {
                let instance = self.fixture.instances.instances.get_mut(&key).unwrap();
                let spec = &mut Arc::make_mut(instance).spec;
                spec.device_usage.insert(state.slot, String::new());
            }
        }
        let name_index = self.fixture.name_index();
        self.slot_table
            .update(NODE, &name_index, &self.fixture.instances);
    }

    /// Returns the ids of each resource that a kubelet takes for free and healthy.
    fn free(&mut self) -> BTreeMap<String, Vec<String>> {
        let devices = Arc::new(self.fixture.devices.clone());
        let name_index = self.fixture.name_index();
        let context = SlotContext {
            node: NODE,
            devices: &devices,
            instances: &self.fixture.instances,
            name_index: &name_index,
            slot_table: &self.slot_table,
            new: &BTreeMap::new(),
            barred: &BTreeSet::new(),
            kubelet: Some(kubelet(1)),
        };
        let offered = self
            .offer_builder
            .offer(context, true, &BTreeSet::new(), LIMITS);
        let mut free = BTreeMap::new();
        for (name, list) in offered.offers {
            let healthy = list
                .iter()
                .filter(|(_, device)| device.health == Health::Healthy)
                .map(|(id, _)| id.clone());
            let resource = name.to_string();
            let is_free = |id: &String| {
                let (resource, id) = (resource.clone(), id.clone());
                !self.held.contains(&DeviceId { resource, id })
            };
            let ids: Vec<String> = healthy.filter(is_free).collect();
            if !ids.is_empty() {
                free.insert(resource, ids);
            }
        }
        free
    }

    fn ask(&self, resource: &str, ids: &BTreeSet<String>) -> Result<(), Refusal> {
        let devices = Arc::new(self.fixture.devices.clone());
        let context = SlotContext {
            node: NODE,
            devices: &devices,
            instances: &self.fixture.instances,
            name_index: &self.fixture.name_index(),
            slot_table: &self.slot_table,
            new: &BTreeMap::new(),
            barred: &BTreeSet::new(),
            kubelet: Some(kubelet(1)),
        };
        context
            .choose(resource, ids, BTreeSet::new(), &mut RoundRobin::new())
            .map(drop)
    }
}

/// Returns an Instance with randomly used slots.
fn made(hash: &str, rng: &mut SmallRng) -> Instance {
    let usages = [
        "",
        NODE,
        "node-b",
        "C:cams-0:node-a",
        "C:cams-1:node-a",
        "C:cams-5:node-a",
        "C:cams-0:node-b",
        "no usage at all",
    ];
    let mut used: Vec<(u32, &str)> = Vec::new();
    for slot in 0..5 {
        if rng.random_bool(0.5) {
            used.push((slot, usages.iter().choose(rng).unwrap()));
        }
    }
    instance("cams", hash, rng.random_range(0..5), &used)
}

fn change_device(fixture: &mut Fixture, hash: &str, rng: &mut SmallRng) {
    match rng.random_range(0..8) {
        0 => fixture.view("cams", hash).missing_since = Some(jiff::Timestamp::UNIX_EPOCH),
        1 => fixture.see(&key("cams"), hash, |device| {
            device.health = Condition::Unhealthy("hot".into());
        }),
        // Not reported since the agent started.
        2 | 3 => fixture.view("cams", hash).device = None,
        4 => {
            let view: &mut ConfigurationDevices = Arc::make_mut(
                fixture
                    .devices
                    .configurations
                    .get_mut(&key("cams"))
                    .unwrap(),
            );
            view.absent = if rng.random_bool(0.5) {
                Absent::GONE
            } else {
                Absent::UNKNOWN
            };
            let device = leafhost_core::device::Device::new(hash, true).key();
            view.devices.remove(&device);
        }
        _ => {}
    }
}

/// Returns random ids of a random resource.
fn some(
    free: &BTreeMap<String, Vec<String>>,
    rng: &mut SmallRng,
) -> Option<(String, BTreeSet<String>)> {
    let (resource, all) = free.iter().choose(rng)?;
    let count = rng.random_range(1..=all.len().min(3));
    let ids = all.iter().cloned().sample(rng, count).into_iter().collect();
    Some((resource.clone(), ids))
}

#[tokio::test(start_paused = true)]
async fn no_id_that_is_listed_healthy_is_refused_for_a_reason_known_when_it_was_listed() {
    let mut granted = 0;
    for seed in 0..SEEDS {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(&mut rng);
        let held: Vec<(&DeviceId, &str)> = world
            .held
            .iter()
            .map(|device_id| (device_id, "p"))
            .collect();
        let seen = snapshot(1, &held);
        let is_written = rng.random_bool(0.5);
        world.see(&seen, is_written);
        let free = world.free();
        for _ in 0..5 {
            let Some((resource, ids)) = some(&free, &mut rng) else {
                break;
            };
            let answer = world.ask(&resource, &ids);
            assert_eq!(answer, Ok(()), "seed {seed}: {resource} {ids:?}");
            granted += 1;
        }
    }
    assert!(granted > 1000, "{granted}");
}

#[tokio::test(start_paused = true)]
async fn where_the_books_cannot_be_read_each_held_id_is_refused_at_most_once() {
    let mut refused = 0;
    for seed in 0..SEEDS {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut world = World::new(&mut rng);
        let mut mute = snapshot(1, &[]);
        mute.listed = None;
        world.see(&mute, true);
        let mut in_vain: BTreeSet<DeviceId> = BTreeSet::new();
        for _ in 0..20 {
            let Some((resource, ids)) = some(&world.free(), &mut rng) else {
                break;
            };
            if world.ask(&resource, &ids).is_ok() {
                continue;
            }
            refused += 1;
            let device_ids = ids.into_iter().map(|id| DeviceId {
                resource: resource.clone(),
                id,
            });
            let device_ids: BTreeSet<DeviceId> = device_ids.collect();
            assert!(
                !device_ids.is_subset(&in_vain),
                "seed {seed}: {device_ids:?} again"
            );
            world.slot_table.refused(device_ids.iter().cloned());
            in_vain.extend(device_ids);
        }
    }
    assert!(refused > 100, "{refused}");
}

#[tokio::test(start_paused = true)]
async fn what_a_container_has_stays_healthy_while_its_device_has_not_been_seen_yet() {
    let (own, through) = (device_id("cams-a", "cams-a-0"), device_id("cams", "cams-3"));
    let usage = [
        (0, NODE),
        (1, "C:cams-3:node-a"),
        (2, NODE),
        (3, "C:cams-4:node-a"),
    ];
    let mut fixture = Fixture::new(&[("cams", &[instance("cams", "a", 5, &usage)])]);
    fixture.view("cams", "a").device = None;
    let kubelet = Kubelet::new(Some(1));
    kubelet.run("p", &[own.clone(), through.clone()]);
    let rig = Rig::new(&fixture, kubelet);
    idle().await;
    // Slots that pods had before the agent started, and none has now, wait for the device like the free one.
    assert_eq!(
        rig.listed("cams-a"),
        "cams-a-0+ cams-a-1- cams-a-2- cams-a-3- cams-a-4-"
    );
    assert_eq!(rig.listed("cams"), "cams-3+ cams-4-");
    let seen = Fixture::new(&[("cams", &[instance("cams", "a", 5, &usage)])]);
    rig.devices.send_replace(Arc::new(seen.devices));
    idle().await;
    assert_eq!(
        rig.listed("cams-a"),
        "cams-a-0+ cams-a-1- cams-a-2+ cams-a-3- cams-a-4+"
    );
    assert_eq!(rig.listed("cams"), "cams-3+ cams-4+");
    assert_eq!(resource("cams"), through.resource);
}
