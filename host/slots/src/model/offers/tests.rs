//! Offered resources and the health of their ids.

use leafhost_core::attribute::AttributeValue;
use leafhost_core::configuration::Resources;
use leafhost_core::device::Health as Condition;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_fakes::key;
use std::time::Duration;

use super::*;
use crate::fixture::{Fixture, NODE, device_id, ids, instance, snapshot};
use crate::model::slot_table::SlotTable;

const LIMITS: Limits = Limits {
    live: 256,
    ever: 1000,
};

type Alter = fn(&mut Fixture);

fn slot_table(fixture: &Fixture) -> SlotTable {
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    slot_table
}

fn offer(fixture: &Fixture, slot_table: &SlotTable) -> Offered {
    offer_with(fixture, slot_table, &BTreeSet::new(), LIMITS)
}

fn offer_with(
    fixture: &Fixture,
    slot_table: &SlotTable,
    known: &BTreeSet<String>,
    limits: Limits,
) -> Offered {
    again(
        &mut OfferBuilder::default(),
        fixture,
        slot_table,
        known,
        limits,
    )
}

fn again(
    maker: &mut OfferBuilder,
    fixture: &Fixture,
    slot_table: &SlotTable,
    known: &BTreeSet<String>,
    limits: Limits,
) -> Offered {
    let context = SlotContext {
        node: NODE,
        devices: &Arc::new(fixture.devices.clone()),
        instances: &fixture.instances,
        name_index: &fixture.name_index(),
        slot_table,
        new: &BTreeMap::new(),
        barred: &BTreeSet::new(),
        kubelet: None,
    };
    maker.offer(context, true, known, limits)
}

/// Formats a list: `<id>+` for healthy, `<id>-` for unhealthy.
fn list(offered: &Offered, name: &str) -> String {
    let name = ResourceName::new(resource(name)).unwrap();
    let list = offered.offers.get(&name);
    let shown = list.into_iter().flat_map(|list| list.iter());
    let shown = shown.map(|(id, device)| match device.health {
        Health::Healthy => format!("{id}+"),
        Health::Unhealthy => format!("{id}-"),
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn cams(capacity: u32, usage: &[(u32, &str)]) -> Fixture {
    Fixture::new(&[("cams", &[instance("cams", "a", capacity, usage)])])
}

#[test]
fn a_slot_is_healthy_where_it_is_free_or_this_nodes_own() {
    for (usage, own, through) in [
        ("", "cams-a-0+", "cams-0+"),
        (NODE, "cams-a-0+", "cams-0-"),
        ("node-b", "cams-a-0-", "cams-0-"),
        ("C:cams-0:node-a", "cams-a-0-", "cams-0+"),
        ("C:0:node-a", "cams-a-0-", "cams-0+"),
        ("C:cams-0:node-b", "cams-a-0-", "cams-0-"),
        ("no usage at all", "cams-a-0-", "cams-0-"),
    ] {
        let fixture = cams(1, &[(0, usage)]);
        let offered = offer(&fixture, &slot_table(&fixture));
        assert_eq!(list(&offered, "cams-a"), own, "{usage:?}");
        assert_eq!(list(&offered, "cams"), through, "{usage:?}");
    }
}

#[test]
fn a_configuration_has_one_free_id_an_instance_and_those_in_use() {
    let instances = [
        instance("cams", "a", 5, &[(2, "C:cams-1:node-a")]),
        instance("cams", "b", 5, &[(0, "C:cams-7:node-a")]),
        instance("cams", "c", 1, &[(0, "node-b")]),
    ];
    let fixture = Fixture::new(&[("cams", &instances), ("empty", &[])]);
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams"), "cams-0+ cams-1+ cams-2+ cams-7+");
    assert_eq!(list(&offered, "empty"), "");
    assert_eq!(offered.offers.len(), 4);
    assert_eq!(
        offered.new_names.into_iter().collect::<Vec<_>>(),
        ["cams-a", "cams-b", "cams-c"]
    );
}

#[test]
fn of_the_idle_ids_of_an_instance_one_is_healthy_and_stands_for_its_free_slots() {
    for (usage, own, through) in [
        (vec![(0, NODE)], "cams-a-0+ cams-a-1+ cams-a-2+", "cams-0+"),
        (
            vec![(0, "C:cams-4:node-a"), (1, "C:cams-7:node-a")],
            "cams-a-0- cams-a-1- cams-a-2+",
            "cams-4+ cams-7-",
        ),
    ] {
        let fixture = cams(3, &usage);
        let mut slot_table = slot_table(&fixture);
        let device_ids: Vec<_> = slot_table.by_device_id.keys().cloned().collect();
        slot_table.refused(device_ids.into_iter());
        let offered = offer(&fixture, &slot_table);
        assert_eq!(list(&offered, "cams-a"), own);
        assert_eq!(list(&offered, "cams"), through);
    }
}

#[test]
fn a_slot_whose_id_another_slot_has_is_listed_nowhere() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 1, &[(0, "C:cams-0:node-a")]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams"), "cams-0+");
    assert_eq!(offered.problems, BTreeSet::new());
}

#[test]
fn the_capacity_is_followed_and_slots_beyond_it_stay_until_they_are_released() {
    for (capacity, usage, shown) in [
        (1, vec![], "cams-a-0+"),
        (
            5,
            vec![(0, NODE), (3, NODE)],
            "cams-a-0+ cams-a-1+ cams-a-2+ cams-a-3+ cams-a-4+",
        ),
        // Used slots count against the capacity.
        (
            2,
            vec![(0, NODE), (3, NODE)],
            "cams-a-0+ cams-a-1- cams-a-3+",
        ),
        (
            2,
            vec![(3, NODE), (4, "node-b")],
            "cams-a-0- cams-a-1- cams-a-3+",
        ),
        (2, vec![(0, NODE)], "cams-a-0+ cams-a-1+"),
    ] {
        let fixture = cams(capacity, &usage);
        let offered = offer(&fixture, &slot_table(&fixture));
        assert_eq!(list(&offered, "cams-a"), shown, "{capacity} {usage:?}");
    }
    // One of two is left; the order of this node decides which.
    let fixture = cams(2, &[(3, NODE)]);
    let offered = offer(&fixture, &slot_table(&fixture));
    let shown = list(&offered, "cams-a");
    assert_eq!(shown.matches("cams-a-3+").count(), 1);
    assert_eq!(shown.matches('+').count(), 2, "{shown}");
}

#[test]
fn a_device_that_is_not_there_is_offered_to_nobody() {
    let missing = |fixture: &mut Fixture| {
        fixture.view("cams", "a").missing_since = Some(jiff::Timestamp::UNIX_EPOCH);
    };
    let unhealthy = |fixture: &mut Fixture| {
        fixture.see(&key("cams"), "a", |device| {
            device.health = Condition::Unhealthy("hot".into());
        });
    };
    let unreported = |fixture: &mut Fixture| fixture.view("cams", "a").device = None;
    let cases: [(Alter, &str); 3] = [
        (missing, "cams-a-0- cams-a-1-"),
        (unhealthy, "cams-a-0- cams-a-1-"),
        // An agent that has just started keeps used slots healthy.
        (unreported, "cams-a-0- cams-a-1+"),
    ];
    for (change, shown) in cases {
        let mut fixture = cams(2, &[(1, NODE)]);
        change(&mut fixture);
        let offered = offer(&fixture, &slot_table(&fixture));
        assert_eq!(list(&offered, "cams-a"), shown);
        assert_eq!(list(&offered, "cams"), "cams-0-");
    }
}

#[test]
fn an_agent_that_has_just_started_lists_what_is_used_before_it_knows_any_configuration() {
    let usage = [(0, NODE), (1, "C:cams-4:node-a")];
    let mut fixture = cams(3, &usage);
    fixture.devices = DeviceSnapshot::default();
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams-a"), "cams-a-0+");
    assert_eq!(list(&offered, "cams"), "cams-4+");
}

#[test]
fn a_configuration_offers_the_resources_that_it_says_and_what_containers_have_of_the_others() {
    let usage = [(0, NODE), (1, "C:cams-4:node-a")];
    for (resources, usage, own, through) in [
        (
            Resources::Both,
            &usage[..0],
            "cams-a-0+ cams-a-1+",
            "cams-0+",
        ),
        (Resources::Configuration, &usage[..0], "", "cams-0+"),
        (Resources::Instances, &usage[..0], "cams-a-0+ cams-a-1+", ""),
        (
            Resources::Configuration,
            &usage[..1],
            "cams-a-0+",
            "cams-0+",
        ),
        (
            Resources::Instances,
            &usage[1..],
            "cams-a-0+ cams-a-1-",
            "cams-4+",
        ),
    ] {
        let mut fixture = cams(2, usage);
        let mut maker = OfferBuilder::default();
        again(
            &mut maker,
            &fixture,
            &slot_table(&fixture),
            &BTreeSet::new(),
            LIMITS,
        );
        // The change counts as soon as the Configuration has it.
        fixture.resources("cams", resources);
        let offered = again(
            &mut maker,
            &fixture,
            &slot_table(&fixture),
            &BTreeSet::new(),
            LIMITS,
        );
        let shown = (list(&offered, "cams-a"), list(&offered, "cams"));
        let expected = (own.to_owned(), through.to_owned());
        assert_eq!(shown, expected, "{resources:?} {usage:?}");
    }
}

#[test]
fn an_instance_without_a_resource_uses_up_no_name_and_no_place_of_the_limits() {
    let instances = ["0", "1", "2"].map(|hash| instance("cams", hash, 1, &[]));
    let mut fixture = Fixture::new(&[("cams", &instances)]);
    fixture.resources("cams", Resources::Configuration);
    let limits = Limits { live: 1, ever: 1 };
    let offered = offer_with(&fixture, &slot_table(&fixture), &BTreeSet::new(), limits);
    assert_eq!(offered.new_names, BTreeSet::new());
    assert_eq!(offered.problems, BTreeSet::new());
    assert_eq!(list(&offered, "cams"), "cams-0+ cams-1+ cams-2+");
}

#[tokio::test(start_paused = true)]
async fn what_a_container_has_stays_listed_without_its_instance_and_without_its_record() {
    let usage = [(0, NODE), (1, "C:cams-4:node-a")];
    let mut fixture = cams(2, &usage);
    let mut slot_table = slot_table(&fixture);
    let (own, through) = (device_id("cams-a", "cams-a-0"), device_id("cams", "cams-4"));
    slot_table.observe(
        &snapshot(1, &[(&own, "p"), (&through, "p")]),
        Duration::ZERO,
    );
    let mut lost = snapshot(2, &[]);
    lost.alive.insert("uid-p".into(), true);
    lost.active.insert("default/p".into());
    let mut forgotten = slot_table.clone();
    forgotten.observe(&lost, Duration::ZERO);
    let offered = offer(&fixture, &forgotten);
    assert_eq!(list(&offered, "cams-a"), "cams-a-0- cams-a-1-");
    assert_eq!(list(&offered, "cams"), "cams-4-");

    fixture.instances.instances.clear();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let offered = offer(&fixture, &slot_table);
    assert_eq!(list(&offered, "cams-a"), "cams-a-0-");
    assert_eq!(list(&offered, "cams"), "cams-4-");
    fixture.devices.configurations.clear();
    let offered = offer(&fixture, &slot_table);
    assert_eq!(list(&offered, "cams"), "cams-4-");
}

#[test]
fn a_node_gets_so_many_instance_resources_and_the_used_ones_first() {
    let instances: Vec<_> = (0..10)
        .map(|number| {
            let usage: &[_] = if number == 9 { &[(0, NODE)] } else { &[] };
            instance("cams", &format!("{number}"), 1, usage)
        })
        .collect();
    let mut fixture = Fixture::new(&[("cams", &instances)]);
    let limits = Limits { live: 4, ever: 6 };
    let mut maker = OfferBuilder::default();
    let names = |offered: &Offered| {
        let names = offered.offers.keys().map(ToString::to_string);
        let names = names.filter_map(|name| Some(name.strip_prefix("akri.sh/cams-")?.to_owned()));
        names.collect::<Vec<_>>().join(" ")
    };
    let mut known = BTreeSet::new();
    let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
    assert_eq!(names(&offered), "0 1 2 9");
    assert_eq!(
        list(&offered, "cams").matches('+').count(),
        9,
        "all can be had"
    );
    let problem = offered.problems.first().unwrap().to_string();
    assert!(
        problem.starts_with("6 of 10 ") && problem.contains("--instance-resources"),
        "{problem}"
    );
    known.extend(offered.new_names);

    // Offered Instances stay, even if an older one appears.
    let mut older = instance("cams", "older", 1, &[]);
    older.metadata.creation_timestamp = Some("2020-01-01T00:00:00Z".into());
    fixture.put(older);
    fixture.see(&key("cams"), "older", |_| {});
    let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
    assert_eq!(names(&offered), "0 1 2 9");
    // Restarts of the agent keep them, too.
    let offered = offer_with(&fixture, &slot_table(&fixture), &known, limits);
    assert_eq!(names(&offered), "0 1 2 9");

    // Devices come and go: their names stay in the Node object.
    for round in 3..9 {
        let gone = instance("cams", &format!("{}", round - 3), 1, &[]).key();
        fixture.instances.instances.remove(&gone);
        let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
        known.extend(offered.new_names);
        assert!(known.len() <= 6, "{known:?}");
    }
    let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
    assert_eq!(known.len(), 6);
    assert!(
        offered
            .problems
            .iter()
            .any(|problem| problem.to_string().contains("offered 6 names already")),
        "{:?}",
        offered.problems
    );
}

#[test]
fn the_instances_of_one_namespace_take_no_resource_of_another() {
    let instances: Vec<_> = (0..10)
        .map(|number| instance("cams", &format!("{number}"), 1, &[]))
        .collect();
    let mut fixture = Fixture::new(&[("cams", &instances)]);
    let limits = Limits { live: 4, ever: 100 };
    let mut maker = OfferBuilder::default();
    let mut known = BTreeSet::new();
    let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
    known.extend(offered.new_names);
    assert_eq!(known.len(), 4);

    fixture.configure("zzz", "plc");
    let plc = ConfigurationKey::new("zzz", "plc").unwrap();
    for id in ["a", "b"] {
        let mut late = instance("plc", id, 1, &[]);
        late.metadata.namespace = "zzz".into();
        late.metadata.creation_timestamp = Some("2026-02-02T00:00:00Z".into());
        fixture.put(late);
        fixture.see(&plc, id, |_| {});
    }
    let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
    let names: Vec<_> = offered.offers.keys().map(ToString::to_string).collect();
    let expected = ["cams", "cams-0", "cams-1", "plc", "plc-a", "plc-b"];
    assert_eq!(names, expected.map(|name| format!("akri.sh/{name}")));
}

#[test]
fn while_some_names_are_left_the_oldest_instances_get_them() {
    let mut instances = ["0", "1", "2"].map(|hash| instance("cams", hash, 1, &[]));
    instances[2].metadata.creation_timestamp = Some("2020-01-01T00:00:00Z".into());
    let fixture = Fixture::new(&[("cams", &instances)]);
    let limits = Limits { live: 256, ever: 2 };
    let offered = offer_with(&fixture, &slot_table(&fixture), &BTreeSet::new(), limits);
    assert_eq!(offered.new_names, ids(&["cams-0", "cams-2"]));
}

#[test]
fn what_is_offered_goes_before_what_was_offered_once_and_is_older() {
    let known = ids(&["cams-a", "cams-b", "cams-c"]);
    let limits = Limits {
        live: 2,
        ever: 1000,
    };
    let mut maker = OfferBuilder::default();
    for (hashes, shown) in [
        (&["a", "b"][..], &["a", "b"][..]),
        (&["b"], &["b"]),
        (&["a", "b", "c"], &["b", "c"]),
    ] {
        let made = hashes.iter().map(|hash| {
            let mut one = instance("cams", hash, 1, &[]);
            if *hash == "c" {
                one.metadata.creation_timestamp = Some("2020-01-01T00:00:00Z".into());
            }
            one
        });
        let fixture = Fixture::new(&[("cams", &made.collect::<Vec<_>>())]);
        let offered = again(&mut maker, &fixture, &slot_table(&fixture), &known, limits);
        let is_shown = |hash: &&&str| !list(&offered, &format!("cams-{hash}")).is_empty();
        let listed: Vec<&str> = ["a", "b", "c"].iter().filter(is_shown).copied().collect();
        assert_eq!(listed, shown);
    }
}

#[test]
fn a_name_the_kubelet_refuses_is_named_and_the_rest_is_offered() {
    let long = "c".repeat(60);
    let fixture = Fixture::new(&[
        (&long, &[instance(&long, "abcdef", 1, &[])]),
        ("cams", &[instance("cams", "a", 1, &[])]),
    ]);
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, &long), format!("{long}-0+"));
    assert_eq!(list(&offered, "cams-a"), "cams-a-0+");
    assert_eq!(offered.offers.len(), 3);
    let problem = offered.problems.first().unwrap().to_string();
    assert!(
        problem.contains("at most 63") && problem.contains("shorter name"),
        "{problem}"
    );
}

#[test]
fn of_two_namespaces_with_one_name_the_older_is_offered() {
    let mut fixture = cams(2, &[]);
    fixture.configure("second", "cams");
    let mut younger = instance("cams", "a", 7, &[]);
    younger.metadata.namespace = "second".into();
    younger.metadata.creation_timestamp = Some("2026-02-01T00:00:00Z".into());
    fixture.put(younger);
    let second = ConfigurationKey::new("second", "cams").unwrap();
    fixture.see(&second, "a", |_| {});
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams-a"), "cams-a-0+ cams-a-1+");
    assert_eq!(list(&offered, "cams"), "cams-0+");
    let problems = fixture.name_index().problems;
    assert_eq!(problems.len(), 2);
    assert!(
        problems
            .iter()
            .map(ToString::to_string)
            .all(|problem| problem.contains("second/cams") && problem.contains("rename")),
        "{problems:?}"
    );
}

#[test]
fn of_two_namespaces_with_one_name_the_configuration_that_was_created_first_has_it_on_every_node() {
    let mut fixture = cams(2, &[]);
    fixture.configure("second", "cams");
    let second = ConfigurationKey::new("second", "cams").unwrap();
    fixture.created(&key("cams"), "2026-03-01T00:00:00Z");
    fixture.created(&second, "2026-02-01T00:00:00Z");
    // This node has no Instance of it yet.
    assert_eq!(fixture.name_index().configurations["cams"], second);
}

#[test]
fn a_configuration_that_is_named_like_an_instance_has_the_name() {
    let instances = [instance("cams", "a", 3, &[]), instance("cams", "b", 1, &[])];
    let inner = [instance("cams-a", "x", 1, &[])];
    let fixture = Fixture::new(&[("cams", &instances), ("cams-a", &inner)]);
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams-a"), "cams-a-0+");
    assert_eq!(list(&offered, "cams-a-x"), "cams-a-x-0+");
    assert_eq!(list(&offered, "cams"), "cams-0+");
    let problems = fixture.name_index().problems;
    assert!(
        problems
            .first()
            .unwrap()
            .to_string()
            .contains("Instance default/cams-a has the name of default/cams-a"),
        "{problems:?}"
    );
}

#[test]
fn an_instance_that_only_other_nodes_see_is_not_offered() {
    let mut fixture = cams(1, &[]);
    let mut other = instance("cams", "b", 1, &[]);
    other.spec.nodes = vec!["node-b".into()];
    fixture.put(other.clone());
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams-b"), "");
    // Unless this node has slots of it.
    other
        .spec
        .device_usage
        .insert("cams-b-0".into(), "C:cams-3:node-a".into());
    fixture.put(other);
    let offered = offer(&fixture, &slot_table(&fixture));
    assert_eq!(list(&offered, "cams-b"), "cams-b-0-");
}

#[test]
fn the_numa_node_comes_from_the_attribute() {
    for (value, numa) in [
        (AttributeValue::Int(1), Some(1)),
        (AttributeValue::Int(0), Some(0)),
        (AttributeValue::Int(-1), None),
        (AttributeValue::String("1".into()), None),
    ] {
        let mut fixture = cams(1, &[]);
        fixture.see(&key("cams"), "a", |device| {
            device.attributes.insert(NUMA_NODE.into(), value.clone());
        });
        let offered = offer(&fixture, &slot_table(&fixture));
        let name = ResourceName::new("akri.sh/cams-a").unwrap();
        assert_eq!(offered.offers[&name]["cams-a-0"].numa, numa, "{value:?}");
    }
}

#[test]
fn a_list_that_stays_the_same_stays_the_same_object() {
    let instances = [instance("cams", "a", 1, &[]), instance("cams", "b", 1, &[])];
    let mut fixture = Fixture::new(&[("cams", &instances)]);
    let mut maker = OfferBuilder::default();
    let known = BTreeSet::new();
    let before = again(&mut maker, &fixture, &slot_table(&fixture), &known, LIMITS);
    fixture.put(instance("cams", "a", 1, &[(0, "node-b")]));
    let after = again(&mut maker, &fixture, &slot_table(&fixture), &known, LIMITS);
    let same = |name: &str| {
        let name = ResourceName::new(resource(name)).unwrap();
        Arc::ptr_eq(&before.offers[&name], &after.offers[&name])
    };
    assert_eq!((same("cams-a"), same("cams-b")), (false, true));
    // Another object with the same content.
    fixture.put(instance("cams", "b", 1, &[]));
    let last = again(&mut maker, &fixture, &slot_table(&fixture), &known, LIMITS);
    let name = ResourceName::new("akri.sh/cams-b").unwrap();
    assert_eq!(last.offers[&name], after.offers[&name]);
}
