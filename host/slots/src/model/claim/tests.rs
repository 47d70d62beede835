//! Slots that an allocation claims, and the answer for the container.

use super::*;
use crate::fixture::{Fixture, NODE, device_id, ids, instance, snapshot};
use crate::model::slot_table::SlotTable;
use leafhost_core::device::{Health, Mount as DeviceMount};
use leafhost_fakes::key;
use std::time::Duration;

type Alter = fn(&mut Fixture);

fn slot_table(fixture: &Fixture) -> SlotTable {
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    slot_table
}

fn choose_as(
    node: &str,
    fixture: &Fixture,
    resource: &str,
    asked: &[&str],
    reserved: BTreeSet<String>,
) -> Result<Vec<Chosen>, Refusal> {
    SlotContext {
        node,
        devices: &Arc::new(fixture.devices.clone()),
        instances: &fixture.instances,
        name_index: &fixture.name_index(),
        slot_table: &slot_table(fixture),
        new: &BTreeMap::new(),
        barred: &BTreeSet::new(),
        kubelet: None,
    }
    .choose(
        &format!("akri.sh/{resource}"),
        &ids(asked),
        reserved,
        &mut RoundRobin::new(),
    )
}

fn choose(fixture: &Fixture, resource: &str, asked: &[&str]) -> Result<Vec<Chosen>, Refusal> {
    choose_as(NODE, fixture, resource, asked, BTreeSet::new())
}

/// Formats each choice as `<id>=<slot> <value>`, in order.
fn shown(chosen: &[Chosen]) -> Vec<String> {
    let shown = |one: &Chosen| {
        let claim = one.claim.as_ref().map(ToString::to_string);
        format!(
            "{}={} {}",
            one.device_id.id,
            one.slot,
            claim.unwrap_or_default()
        )
    };
    chosen.iter().map(shown).collect()
}

fn cams(capacity: u32, usage: &[(u32, &str)]) -> Fixture {
    Fixture::new(&[("cams", &[instance("cams", "a", capacity, usage)])])
}

#[test]
fn an_instances_slots_are_claimed_for_the_node() {
    let fixture = cams(3, &[(1, "node-b"), (2, NODE)]);
    assert_eq!(
        shown(&choose(&fixture, "cams-a", &["cams-a-0"]).unwrap()),
        ["cams-a-0=cams-a-0 node-a"]
    );
    // A slot that this node has already needs no claim.
    let both = choose(&fixture, "cams-a", &["cams-a-0", "cams-a-2"]).unwrap();
    assert_eq!(
        shown(&both),
        ["cams-a-0=cams-a-0 node-a", "cams-a-2=cams-a-2 "]
    );
    assert_eq!(claims(&both).len(), 1);
}

#[test]
fn a_slot_beyond_a_lowered_capacity_is_given_while_the_capacity_leaves_one() {
    let fixture = cams(2, &[(3, "node-b")]);
    let given = choose(&fixture, "cams-a", &["cams-a-2"]).unwrap();
    assert_eq!(shown(&given), ["cams-a-2=cams-a-2 node-a"]);
    let fixture = cams(2, &[(3, "node-b"), (0, NODE)]);
    let refusal = choose(&fixture, "cams-a", &["cams-a-2"]).unwrap_err();
    assert!(refusal.to_string().contains("all 2 slots"), "{refusal}");
}

#[test]
fn what_cannot_be_given_is_refused_with_the_reason() {
    let fixture = cams(3, &[(1, "node-b"), (2, "C:cams-0:node-a")]);
    for (resource, id, why) in [
        ("cams-a", "cams-a-1", "used by node-b"),
        ("cams-a", "cams-a-2", "used by C:cams-0:node-a"),
        ("cams-a", "cams-a-1000", "has no device"),
        ("cams-a", "cams-b-0", "has no device"),
        ("cams-a", "cams-a-00", "has no device"),
        ("cams", "cams-a-0", "has no device"),
        ("cams", "other-0", "has no device"),
        ("nothing", "nothing-0", "has no device"),
    ] {
        let refusal = choose(&fixture, resource, &[id]).unwrap_err().to_string();
        assert!(refusal.contains(why), "{resource} {id}: {refusal}");
    }
    let wrong = Refusal::Unknown(String::new());
    let unknown = choose(&fixture, "nothing", &["nothing-0"]).unwrap_err();
    assert_eq!(
        std::mem::discriminant(&unknown),
        std::mem::discriminant(&wrong)
    );
}

#[test]
fn a_device_that_is_not_there_or_not_well_is_given_to_nobody() {
    let unhealthy = |fixture: &mut Fixture| {
        fixture.see(&key("cams"), "a", |device| {
            device.health = Health::Unhealthy("hot".into());
        });
    };
    let missing = |fixture: &mut Fixture| {
        fixture.view("cams", "a").missing_since = Some(jiff::Timestamp::UNIX_EPOCH);
    };
    let unreported = |fixture: &mut Fixture| fixture.view("cams", "a").device = None;
    let gone = |fixture: &mut Fixture| {
        fixture.devices.configurations.clear();
    };
    let cases: [(Alter, &str); 4] = [
        (unhealthy, "unhealthy: hot"),
        (missing, "no longer exists"),
        (unreported, "has not been seen since the agent started"),
        (gone, "no longer exists"),
    ];
    for (change, why) in cases {
        for usage in ["", NODE] {
            let mut fixture = cams(1, &[(0, usage)]);
            change(&mut fixture);
            let refusal = choose(&fixture, "cams-a", &["cams-a-0"]).unwrap_err();
            assert!(refusal.to_string().contains(why), "{usage}: {refusal}");
            if usage.is_empty() {
                assert!(choose(&fixture, "cams", &["cams-0"]).is_err(), "{why}");
            }
        }
    }
}

#[test]
fn one_id_that_cannot_be_had_refuses_all() {
    let fixture = cams(3, &[(1, "node-b")]);
    assert!(choose(&fixture, "cams-a", &["cams-a-0", "cams-a-1"]).is_err());
    assert!(choose(&fixture, "cams", &["cams-0", "cams-1"]).is_err());
}

#[test]
fn a_request_for_three_gets_three_instances() {
    let instances = ["a", "b", "c"].map(|hash| instance("cams", hash, 5, &[]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let chosen = choose(&fixture, "cams", &["cams-0", "cams-1", "cams-2"]).unwrap();
    let names: BTreeSet<&str> = chosen
        .iter()
        .map(|one| one.instance.metadata.name.as_str())
        .collect();
    assert_eq!(names.len(), 3);
    assert_eq!(
        claims(&chosen).len(),
        3,
        "one write an Instance: {chosen:?}"
    );
    let four = ["cams-0", "cams-1", "cams-2", "cams-3"];
    let refusal = choose(&fixture, "cams", &four).unwrap_err().to_string();
    assert!(
        refusal.contains("akri.sh/cams: no further Instance"),
        "{refusal}"
    );
}

#[test]
fn a_second_device_is_of_another_instance_than_the_one_that_is_asked_for_again() {
    let had = [(0, "C:cams-0:node-a")];
    let (a, b) = (
        instance("cams", "a", 9, &had),
        instance("cams", "b", 1, &[]),
    );
    let fixture = Fixture::new(&[("cams", &[a, b])]);
    assert_eq!(
        shown(&choose(&fixture, "cams", &["cams-0", "cams-1"]).unwrap()),
        ["cams-0=cams-a-0 ", "cams-1=cams-b-0 C:cams-1:node-a"]
    );
}

#[test]
fn the_instance_with_the_most_free_slots_comes_first() {
    let (a, b) = (
        instance("cams", "a", 3, &[(0, "node-b"), (1, "node-b")]),
        instance("cams", "b", 3, &[(0, "node-b")]),
    );
    let fixture = Fixture::new(&[("cams", &[a, b])]);
    let chosen = choose(&fixture, "cams", &["cams-0"]).unwrap();
    assert_eq!(chosen[0].instance.metadata.name, "cams-b");
    // Slots that other allocations are about to get count as used.
    let mut reserved = ids(&["cams-b-1", "cams-b-2"]);
    let choose = |resource: &str, id: &str, reserved: &BTreeSet<String>| {
        choose_as(NODE, &fixture, resource, &[id], reserved.clone())
    };
    let chosen = choose("cams", "cams-0", &reserved).unwrap();
    assert_eq!(chosen[0].slot, "cams-a-2");
    reserved.insert(chosen[0].slot.clone());
    assert!(choose("cams", "cams-1", &reserved).is_err());
    assert!(choose("cams-a", "cams-a-2", &reserved).is_err());
}

#[test]
fn two_nodes_that_race_meet_only_at_the_last_free_slot() {
    let nodes = ["node-a", "node-b"];
    for (count, capacity) in [(9, 1), (1, 9), (3, 2), (4, 3)] {
        let mut instances: Vec<_> = (0..count)
            .map(|number| instance("cams", &number.to_string(), capacity, &[]))
            .collect();
        for one in &mut instances {
            one.spec.nodes = nodes.map(str::to_owned).into();
        }
        let fixture = Fixture::new(&[("cams", &instances)]);
        let firsts = nodes.map(|node| {
            let chosen = choose_as(node, &fixture, "cams", &["cams-0"], BTreeSet::new());
            chosen.unwrap().remove(0).slot
        });
        let all: Vec<&String> = instances.iter().map(|one| &one.metadata.name).collect();
        let ends = |name: &String| all.iter().position(|one| *one == name).unwrap();
        let slots = firsts.map(|slot| {
            let (instance, number) = slot.rsplit_once('-').unwrap();
            (ends(&instance.to_owned()), number.parse::<u32>().unwrap())
        });
        let instances: BTreeSet<usize> = slots.iter().map(|(instance, _)| *instance).collect();
        assert_eq!(instances, BTreeSet::from([0, count - 1]), "{slots:?}");
        if count == 1 {
            let numbers: BTreeSet<u32> = slots.iter().map(|(_, number)| *number).collect();
            assert_eq!(numbers, BTreeSet::from([0, capacity - 1]));
        }
    }
    // Each of twenty nodes begins at an Instance of its own.
    let order = |place| in_order((0..50).collect(), place, 20)[0];
    let begun: BTreeSet<i32> = (0..20).map(order).collect();
    assert_eq!(begun.len(), 20);
}

#[test]
fn a_slot_that_a_namesake_or_the_kubelet_says_is_in_use_is_given_to_nobody() {
    let mut fixture = cams(2, &[]);
    fixture.created(&key("cams"), "2026-01-01T00:00:00Z");
    let mut other = instance("cams", "a", 2, &[(0, "C:cams-7:node-b")]);
    other.metadata.namespace = "second".into();
    fixture.put(other);
    let chosen = choose(&fixture, "cams", &["cams-0"]).unwrap();
    assert_eq!(chosen[0].slot, "cams-a-1");
    let refusal = choose(&fixture, "cams-a", &["cams-a-0"]).unwrap_err();
    assert!(refusal.to_string().contains("are used"), "{refusal}");
}

#[test]
fn each_time_another_of_equal_instances_is_chosen() {
    let hashes = ["a", "b", "c"];
    let instances = hashes.map(|hash| instance("cams", hash, 1, &[]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let mut round_robin = RoundRobin::new();
    // A choice among a single Instance does not advance the rotation.
    let mut choose = |taken: &[&str]| {
        let context = SlotContext {
            node: NODE,
            devices: &Arc::new(fixture.devices.clone()),
            instances: &fixture.instances,
            name_index: &fixture.name_index(),
            slot_table: &slot_table(&fixture),
            new: &BTreeMap::new(),
            barred: &BTreeSet::new(),
            kubelet: None,
        };
        let asked = ids(&["cams-0"]);
        let chosen = context.choose("akri.sh/cams", &asked, ids(taken), &mut round_robin);
        chosen.unwrap()[0].slot.clone()
    };
    let first = choose(&[]);
    let mut others = hashes.map(|hash| format!("cams-{hash}-0"));
    others.sort_by_key(|slot| *slot != first);
    assert_eq!(choose(&[&others[0], &others[1]]), others[2]);
    let next = [choose(&[]), choose(&[])];
    assert_eq!(
        ids(&[&first, &next[0], &next[1]]).len(),
        3,
        "{first} {next:?}"
    );
    assert_eq!(choose(&[]), first);
}

#[test]
fn slots_beyond_a_lowered_capacity_use_it_up() {
    // Capacity 1, then 5 with four used, then 2.
    let used = [(1, NODE), (2, NODE), (3, "node-b"), (4, NODE)];
    let fixture = cams(2, &used);
    let refusal = choose(&fixture, "cams-a", &["cams-a-0"]).unwrap_err();
    assert!(refusal.to_string().contains("all 2 slots"), "{refusal}");
    assert!(choose(&fixture, "cams", &["cams-0"]).is_err());
    // Used slots may be requested again.
    assert!(choose(&fixture, "cams-a", &["cams-a-4"]).is_ok());
    let fixture = cams(2, &used[..1]);
    assert!(choose(&fixture, "cams-a", &["cams-a-0"]).is_ok());
    assert!(choose(&fixture, "cams-a", &["cams-a-1"]).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_claimed_in_another_namespace_is_not_asked_for_again_here() {
    let mut fixture = cams(1, &[]);
    fixture.configure("second", "cams");
    let mut younger = instance("cams", "a", 1, &[(0, NODE)]);
    younger.metadata.namespace = "second".into();
    younger.metadata.creation_timestamp = Some("2026-02-01T00:00:00Z".into());
    fixture.put(younger);
    let refusal = choose(&fixture, "cams-a", &["cams-a-0"]).unwrap_err();
    assert!(
        refusal
            .to_string()
            .contains("belongs to Instance second/cams-a"),
        "{refusal}"
    );
}

#[tokio::test(start_paused = true)]
async fn what_was_made_anew_is_claimed_anew() {
    // Seen but not stored: the Instance has just been created again without its slots.
    let fixture = cams(1, &[]);
    let device_id = device_id("cams-a", "cams-a-0");
    let mut slot_table = SlotTable::default();
    let seen = snapshot(1, &[(&device_id, "p")]);
    slot_table.adopt(NODE, &fixture.name_index(), &seen);
    slot_table.observe(&seen, Duration::ZERO);
    assert!(
        slot_table.by_device_id[&device_id]
            .holder
            .describe()
            .is_some()
    );
    let context = SlotContext {
        node: NODE,
        devices: &Arc::new(fixture.devices.clone()),
        instances: &fixture.instances,
        name_index: &fixture.name_index(),
        slot_table: &slot_table,
        new: &BTreeMap::new(),
        barred: &BTreeSet::new(),
        kubelet: None,
    };
    let choose = |resource: &str, id: &str| {
        let mut round_robin = RoundRobin::new();
        context.choose(resource, &ids(&[id]), BTreeSet::new(), &mut round_robin)
    };
    let chosen = choose("akri.sh/cams-a", "cams-a-0").unwrap();
    assert_eq!(shown(&chosen), ["cams-a-0=cams-a-0 node-a"]);
    // No other id stands for the slot.
    assert!(choose("akri.sh/cams-a", "cams-a-1").is_err());
    assert!(choose("akri.sh/cams", "cams-0").is_err());
}

#[test]
fn a_container_gets_everything_of_all_its_devices_in_one_answer() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 1, &[]));
    let mut fixture = Fixture::new(&[("cams", &instances)]);
    for id in ["a", "b"] {
        fixture.see(&key("cams"), id, |device| {
            device.properties.insert("MODE".into(), "slow".into());
            device.mounts.push(DeviceMount {
                container_path: format!("/mnt/{id}"),
                host_path: "/srv".into(),
                read_only: true,
            });
        });
    }
    let chosen = choose(&fixture, "cams", &["cams-0", "cams-1"]).unwrap();
    let first = chosen[0].instance.hash().unwrap().to_owned();
    let given = answer(Some("cams"), &chosen);
    let paths: BTreeSet<&str> = given
        .devices
        .iter()
        .map(|node| node.container_path.as_str())
        .collect();
    assert_eq!(paths, BTreeSet::from(["/dev/a", "/dev/b"]));
    assert_eq!(given.mounts.len(), 2);
    assert!(given.mounts.iter().all(|mount| mount.read_only));
    // The variable without a suffix is that of the first id; properties of the Configuration win.
    assert_eq!(given.envs["ID"], first);
    assert_eq!(given.envs["ID_A"], "a");
    assert_eq!(given.envs["ID_B"], "b");
    assert_eq!(given.envs["MODE_B"], "fast");
    let pairs = format!("cams-0={} cams-1={}", chosen[0].slot, chosen[1].slot);
    assert_eq!(
        given.annotations.into_iter().collect::<Vec<_>>(),
        [("slots.leafhost.dev/cams".to_owned(), pairs)]
    );
    // The id of an Instance's own slot names the slot itself.
    let own = choose(&fixture, "cams-a", &["cams-a-0"]).unwrap();
    assert!(answer(None, &own).annotations.is_empty());
}

#[test]
fn a_claim_assumes_that_the_slot_is_free() {
    let fixture = cams(2, &[]);
    let chosen = choose(&fixture, "cams-a", &["cams-a-0", "cams-a-1"]).unwrap();
    let changes = claims(&chosen);
    let [Change::Update { uid, edits, .. }] = changes.as_slice() else {
        panic!("one write an Instance");
    };
    assert_eq!((uid.as_str(), edits.len()), ("uid-cams-a", 2));
    assert!(edits.iter().all(|edit| matches!(
        edit,
        Edit::Slot {
            held: DeviceUsage::Unused,
            ..
        }
    )));
}

#[test]
fn who_claims_a_slot_of_a_shared_instance_joins_its_nodes_with_the_same_write() {
    let usage = DeviceUsage::Node("node-a".into());
    for (shared, nodes, joins) in [
        (true, vec!["node-b"], true),
        (true, vec!["node-b", "node-a"], false),
        (false, vec![], false),
    ] {
        let mut instance = instance("cams", "a", 1, &[]);
        instance.spec.shared = shared;
        instance.spec.nodes = nodes.into_iter().map(str::to_owned).collect();
        let edits = take(&instance, "cams-a-0", &usage);
        let joined = matches!(&edits[0], Edit::AddNode(node) if node == "node-a");
        assert_eq!(joined, joins, "{edits:?}");
        assert!(matches!(edits.last(), Some(Edit::Slot { .. })));
    }
}
