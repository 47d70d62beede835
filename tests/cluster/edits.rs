//! Configurations edited while pods have slots: the API server's log has exactly the writes that the edit needs.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::pair::{Pair, resource, used};

/// Ledger that compares the writes of Instances since the agents started with the expected number.
struct Ledger<'p> {
    pair: &'p Pair,
    expected: BTreeMap<String, usize>,
    /// Additional writes allowed by Instance: pods that start and end are recorded, with one or several in a write.
    named: BTreeMap<String, usize>,
}

impl Ledger<'_> {
    /// Waits until each of these Instances was written `count` times more, and no other.
    fn expect(&mut self, what: &str, writes: &[(&Value, usize)]) -> Result<()> {
        for (instance, count) in writes {
            let name = instance["metadata"]["name"].as_str().context("no name")?;
            *self.expected.entry(name.to_owned()).or_default() += count;
        }
        let most = |name: &String, count: &usize| {
            let named = self.named.get(name).copied().unwrap_or_default();
            *count..=*count + named
        };
        eventually(what, || {
            let written = self.pair.writes()?;
            let is_right = written.len() == self.expected.len()
                && self.expected.iter().all(|(name, count)| {
                    let written = written.get(name);
                    written.is_some_and(|written| most(name, count).contains(written))
                });
            ensure!(
                is_right,
                "written: {written:?}, expected: {:?}",
                self.expected
            );
            Ok(())
        })
    }

    /// Allows the writes for this number of pods that start or end.
    fn name_pods(&mut self, instance: &Value, pods: usize) -> Result<()> {
        let name = instance["metadata"]["name"].as_str().context("no name")?;
        *self.named.entry(name.to_owned()).or_default() += pods;
        Ok(())
    }
}

#[test]
fn an_edit_of_a_configuration_writes_each_instance_that_differs_once_and_leaves_pods_alone()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut pair = Pair::start(cluster, "edits", &[])?;
    let fast = "{MODE: fast, OLD: kept}";
    pair.configure(1, &["one", "two"], fast)?;
    let begun = pair.until("both nodes see both devices", &["one", "two"], |_| true)?;
    let (one, two) = (&begun["one"], &begun["two"]);
    pair.space.run(&pair.pod("a", 0, one)?)?;
    pair.space.run(&pair.pod("b", 1, two)?)?;
    let mut pods = BTreeMap::new();
    for pod in ["a", "b"] {
        pods.insert(pod, pair.space.container(pod)?);
    }

    // Nothing changes: the same object again, an annotation, restarted agents.
    pair.configure(1, &["one", "two"], fast)?;
    let namespace = pair.space.name().to_owned();
    let annotate = ["annotate", "configuration", "edits", "by=nobody"];
    cluster.kubectl(&[&annotate[..], &["--namespace", &namespace]].concat())?;
    for site in &mut pair.sites {
        site.home.stop(Signal::SIGTERM)?;
        site.home.start(&[])?;
        // A slot that another node holds is Unhealthy.
        let own = u64::from(site.node.name() == "node-a");
        site.until_amounts(&resource(one), 1, own)?;
        site.until_amounts(&resource(two), 1, 1 - own)?;
    }
    let expected = BTreeMap::new();
    let mut ledger = Ledger {
        pair: &pair,
        expected,
        named: BTreeMap::new(),
    };
    ledger.name_pods(one, 1)?;
    ledger.name_pods(two, 1)?;
    // One node creates, the other joins; a pod takes a slot.
    ledger.expect("nothing is written twice", &[(one, 3), (two, 3)])?;

    pair.configure(1, &["one", "two", "three", "four"], fast)?;
    let devices = ["one", "two", "three", "four"];
    let found = pair.until("devices are added", &devices, |_| true)?;
    let (three, four) = (&found["three"], &found["four"]);
    ledger.expect("only what is new is written", &[(three, 2), (four, 2)])?;

    let devices = ["one", "two", "three", "five"];
    pair.configure(1, &devices, fast)?;
    let found = pair.until("a device goes, another comes", &devices, |_| true)?;
    let five = &found["five"];
    // One node leaves and the other deletes the Instance; if both leave at the same moment, the last of them deletes it.
    let name = four["metadata"]["name"].as_str().context("no name")?;
    let left = eventually("the log has both writes", || {
        let left = pair.writes()?[name] - 2;
        ensure!((2..=3).contains(&left), "it was written {left} times");
        Ok(left)
    })?;
    ledger.expect("only these two are written", &[(four, left), (five, 2)])?;

    let all = |count| [(one, count), (two, count), (three, count), (five, count)];
    pair.configure(5, &devices, fast)?;
    pair.until("five slots", &devices, |one| one["spec"]["capacity"] == 5)?;
    let [first, second] = &pair.sites;
    first.until_amounts(&resource(one), 5, 5)?;
    second.until_amounts(&resource(one), 5, 4)?;
    ledger.expect("each is written once", &all(1))?;
    for (pod, node) in [("c", 0), ("d", 1), ("e", 1)] {
        pair.space.run(&pair.pod(pod, node, one)?)?;
        pods.insert(pod, pair.space.container(pod)?);
    }
    ledger.name_pods(one, 3)?;
    ledger.expect("each pod takes a slot", &[(one, 3)])?;

    // Four slots are in use and stay so; no pod gets one until fewer than two are in use.
    pair.configure(2, &devices, fast)?;
    let found = pair.until("two slots", &devices, |one| one["spec"]["capacity"] == 2)?;
    assert_eq!(used(&found["one"]).len(), 4, "{:#}", found["one"]);
    ledger.expect("each is written once", &all(1))?;
    for (pod, container) in &pods {
        assert_eq!(pair.space.container(pod)?, *container, "{pod}");
    }
    for (pod, left) in [("c", 3), ("d", 2)] {
        pair.space.delete(pod)?;
        pair.until("its slot is free", &devices, |instance| {
            instance["spec"]["leafhost"]["id"] != "one" || used(instance).len() == left
        })?;
    }
    first.until_amounts(&resource(one), 2, 1)?;
    pair.space.create(&pair.pod("late", 0, one)?)?;
    pair.space.wait_unschedulable("late")?;
    pair.space.delete("e")?;
    pair.space.wait_running("late")?;
    ledger.name_pods(one, 4)?;
    ledger.expect("three are freed, one is taken", &[(one, 4)])?;
    let name = one["metadata"]["name"].as_str().context("no name")?;
    let slots = pair.instances()?["one"].clone();
    assert_eq!(
        used(&slots).into_keys().collect::<Vec<_>>(),
        [format!("{name}-0"), format!("{name}-1")]
    );

    pair.configure(2, &devices, "{MODE: slow}")?;
    let found = pair.until("the properties", &devices, |one| {
        let properties = &one["spec"]["brokerProperties"];
        properties["MODE"] == "slow" && properties["OLD"].is_null()
    })?;
    ledger.expect("each is written once", &all(1))?;
    pair.space.run(&pair.pod("new", 1, three)?)?;
    let log = pair.space.wait_logs("new", "main", "MODE=slow")?;
    ensure!(!log.contains("OLD="), "{log}");
    ledger.name_pods(three, 1)?;
    ledger.expect("a pod takes a slot", &[(three, 1)])?;

    for (device, instance) in [("one", one), ("two", two), ("three", three)] {
        let uid = |one: &Value| one["metadata"]["uid"].clone();
        assert_eq!(uid(&found[device]), uid(instance), "{device}");
    }
    for pod in ["a", "b"] {
        assert_eq!(pair.space.container(pod)?, pods[pod], "{pod}");
    }
    Ok(())
}

#[test]
fn a_configuration_that_is_created_again_takes_over_the_instances_that_were_kept() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "again", &[])?;
    let space = ["--namespace", pair.space.name()];
    // A garbage collector that does not watch Instances yet, half a minute after they were defined, finds none to orphan and deletes them later.
    pair.configure(1, &["before"], "{}")?;
    pair.until("an Instance of another device", &["before"], |_| true)?;
    cluster.kubectl(&[&["delete", "configurations.akri.sh", "again"], &space[..]].concat())?;
    pair.until("the garbage collector deletes Instances", &[], |_| true)?;
    for capacity in [5, 4, 3] {
        pair.configure(capacity, &["one"], "{MODE: fast}")?;
    }
    let is_of = |generation: &str, capacity: u32| {
        let generation = generation.to_owned();
        move |one: &Value| {
            one["metadata"]["annotations"]["leafhost.dev/generation"] == generation
                && one["spec"]["capacity"] == capacity
        }
    };
    let before = pair.until("the third generation", &["one"], is_of("3", 3))?;
    let before = &before["one"];
    pair.space.run(&pair.pod("user", 0, before)?)?;
    let container = pair.space.container("user")?;
    let slots = pair.until("its slot", &["one"], |one| used(one).len() == 1)?;

    let delete = [
        "delete",
        "configurations.akri.sh",
        "again",
        "--cascade=orphan",
    ];
    cluster.kubectl(&[&delete[..], &space].concat())?;
    let orphan = pair.until("it has no owner", &["one"], |one| {
        one["metadata"]["ownerReferences"].is_null()
    })?;
    pair.configure(2, &["one"], "{MODE: slow}")?;
    let path = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations/again",
        pair.space.name()
    );
    let uid = cluster.get(&path)?["metadata"]["uid"].clone();
    let taken = pair.until("it is taken over", &["one"], |one| {
        is_of("1", 2)(one)
            && one["metadata"]["ownerReferences"][0]["uid"] == uid
            && one["spec"]["brokerProperties"]["MODE"] == "slow"
    })?;
    for later in [&orphan, &taken] {
        assert_eq!(later["one"]["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(used(&later["one"]), used(&slots["one"]));
    }
    pair.configure(3, &["one"], "{MODE: slow}")?;
    pair.until("the second generation", &["one"], is_of("2", 3))?;
    assert_eq!(pair.space.container("user")?, container);
    Ok(())
}
