//! Tests of the reconcile task on paused time.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::device::Device;
use leafhost_core::device_view::{ConfigurationDevices, DeviceView};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::presence::Absent;
use leafhost_fakes::{HANGS, Store, Trouble, configured, idle, key, wait_for};
use rand::rngs::SmallRng;
use rand::seq::IteratorRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::task::AbortOnDropHandle;

use super::*;

struct Bench {
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    store: Arc<Store>,
    report: watch::Receiver<ReconcileReport>,
    metrics: Arc<Metrics>,
    _task: AbortOnDropHandle<Result<(), SourceEnded>>,
}

fn start() -> Bench {
    start_on("node-a", Arc::new(Store::default()))
}

fn start_on(node: &str, store: Arc<Store>) -> Bench {
    let (devices, seen) = watch::channel(Arc::default());
    let metrics = Arc::new(Metrics::default());
    let port: Arc<dyn InstanceStore> = Arc::<Store>::clone(&store);
    let held = watch::channel(Arc::default()).1;
    let (task, report) = ReconcileTask::new(node.into(), port, seen, held, Arc::clone(&metrics));
    let task = tokio::spawn(task.run(CancellationToken::new()));
    Bench {
        devices,
        store,
        report,
        metrics,
        _task: AbortOnDropHandle::new(task),
    }
}

fn snapshot(ids: &[&str], shared: bool) -> Arc<DeviceSnapshot> {
    let view = |id: &&str| {
        let device = Arc::new(Device::new(*id, shared));
        let key = device.key();
        (
            key,
            DeviceView {
                device: Some(device),
                missing_since: None,
            },
        )
    };
    let view = ConfigurationDevices {
        configured: Arc::new(configured("cams", "udev", "")),
        devices: ids.iter().map(view).collect(),
        absent: Absent::GONE,
    };
    Arc::new(DeviceSnapshot {
        read: true,
        boot: None,
        names: Arc::default(),
        absent: Absent::GONE,
        configurations: BTreeMap::from([(key("cams"), Arc::new(view))]),
    })
}

impl Bench {
    fn see(&self, ids: &[&str]) {
        self.devices.send_replace(snapshot(ids, true));
    }

    async fn instances(&self, names: &[&str]) {
        wait_for(&self.store.subscribe(), |set| {
            set.instances
                .keys()
                .map(|key| key.name.as_str())
                .eq(names.iter().copied())
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn instances_follow_the_devices_and_nothing_new_writes_nothing() {
    let bench = start();
    idle().await;
    assert!(
        !bench.report.borrow().done_once,
        "nothing has been read yet"
    );
    bench.see(&["foo0", "foo1"]);
    bench.instances(&["cams-8120fe", "cams-a19705"]).await;
    wait_for(&bench.report, |report| report.done_once).await;
    assert_eq!(bench.store.calls(), 1, "one batch");
    assert!(
        bench
            .metrics
            .render()
            .contains(r#"akri_instance_count{configuration="cams",is_shared="true"} 2"#)
    );
    bench.store.take_writes();
    for _ in 0..10 {
        bench.see(&["foo0", "foo1"]);
        idle().await;
    }
    assert_eq!(bench.store.calls(), 1);
    bench.see(&["foo0"]);
    bench.instances(&["cams-8120fe"]).await;
    assert_eq!(bench.store.take_writes(), ["delete cams-a19705"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_somebody_deleted_is_made_again() {
    let bench = start();
    bench.see(&["foo0"]);
    bench.instances(&["cams-8120fe"]).await;
    let instance = Arc::clone(bench.store.set().instances.values().next().unwrap());
    let delete = Change::Delete {
        key: instance.key(),
        uid: instance.metadata.uid.clone(),
        resource_version: instance.metadata.resource_version.clone(),
    };
    bench.store.apply(vec![delete]).await;
    bench.instances(&["cams-8120fe"]).await;
}

/// Removes the node like the controller does if the Node object is deleted.
#[tokio::test(start_paused = true)]
async fn a_node_that_somebody_takes_out_each_time_enters_once_a_minute_in_the_end() {
    for shared in [true, false] {
        let bench = start();
        bench.devices.send_replace(snapshot(&["foo0"], shared));
        let begun = Instant::now();
        let mut entered = 0;
        while begun.elapsed() < Duration::from_mins(10) {
            let has_node = |set: &Arc<InstanceSet>| {
                let mut all = set.instances.values();
                all.any(|instance| instance.spec.nodes == ["node-a"])
            };
            let mut shown = bench.store.subscribe();
            shown.wait_for(has_node).await.unwrap();
            entered += 1;
            bench.store.edit(|set| {
                let Some((key, mut instance)) = set.instances.pop_first() else {
                    return;
                };
                let left = Arc::make_mut(&mut instance);
                left.spec.nodes.clear();
                left.status.nodes.clear();
                // A local Instance goes with its node.
                if shared {
                    set.instances.insert(key, instance);
                }
            });
        }
        assert!((12..=15).contains(&entered), "{entered}");
        assert_eq!(bench.report.borrow().problems, []);
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_met_by_looking_again() {
    let bench = start();
    *bench.store.conflicts.lock().unwrap() = 2;
    bench.see(&["foo0"]);
    // No time passes: the backoff is not involved.
    idle().await;
    assert_eq!(bench.store.names(), ["cams-8120fe"]);
    assert_eq!(bench.store.calls(), 3);
    assert_eq!(bench.report.borrow().problems, []);
}

#[tokio::test(start_paused = true)]
async fn conflicts_without_end_are_no_busy_loop() {
    let bench = start();
    *bench.store.conflicts.lock().unwrap() = usize::MAX;
    bench.see(&["foo0"]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(bench.store.calls() < 100, "{}", bench.store.calls());
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_is_left_alone_for_a_while_whatever_else_changes() {
    let bench = start();
    *bench.store.broken.lock().unwrap() = true;
    bench.see(&["foo0"]);
    wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    for number in 0..50 {
        bench.store.edit(|set| {
            let other = serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": "other", "namespace": "default", "uid": "other", "resourceVersion": number.to_string()},
                "spec": {"configurationName": "cams", "nodes": ["node-b"]},
            });
            let other: Arc<Instance> = Arc::new(serde_json::from_value(other).unwrap());
            set.instances.insert(other.key(), other);
        });
        idle().await;
    }
    assert_eq!(bench.store.calls(), 1);
    assert_eq!(bench.report.borrow().problems.len(), 1);
    // A new Instance is tried at once, alone.
    bench.see(&["foo0", "foo1"]);
    idle().await;
    assert_eq!(bench.store.calls(), 2);
    let told = bench.report.borrow().problems[0].to_string();
    assert!(told.ends_with("(and 1 more)"), "{told}");
    // An Instance that is no longer wanted is not a problem.
    bench.see(&[]);
    wait_for(&bench.report, |report| report.problems.is_empty()).await;
    assert_eq!(bench.store.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_cannot_be_written_is_shown_and_tried_again_with_backoff() {
    let bench = start();
    *bench.store.broken.lock().unwrap() = true;
    bench.see(&["foo0", "foo1"]);
    let report = wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    assert_eq!(
        report.problems[0].to_string(),
        "cannot write Instance default/cams-8120fe: the folder is read-only; make it writable (and 1 more)"
    );
    assert!(!report.done_once);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let calls = bench.store.calls();
    assert!((20..32).contains(&calls), "{calls}");
    *bench.store.broken.lock().unwrap() = false;
    tokio::time::sleep(TRY_AGAIN).await;
    bench.instances(&["cams-8120fe", "cams-a19705"]).await;
    let report = wait_for(&bench.report, |report| report.problems.is_empty()).await;
    assert!(report.done_once);
    let retries = r#"leafhost_store_writes_total{kind="create",result="unavailable"}"#;
    assert!(bench.metrics.render().contains(retries));
}

#[tokio::test(start_paused = true)]
async fn a_local_device_whose_name_is_taken_elsewhere_gets_a_longer_one() {
    let bench = start();
    let foreign = serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "x", "namespace": "default"},
        "spec": {"configurationName": "cams", "nodes": ["node-b"]},
    });
    *bench.store.foreign.lock().unwrap() = Some(Arc::new(serde_json::from_value(foreign).unwrap()));
    *bench.store.conflicts.lock().unwrap() = 1;
    bench.devices.send_replace(snapshot(&["foo0"], false));
    let long = leafhost_core::names::device_hash(
        "foo0",
        Some("node-a"),
        leafhost_core::names::DigestLength::Five,
    );
    bench.instances(&[&format!("cams-{long}")]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_little_waits_for_no_more_than_a_piece_of_what_is_much() {
    let bench = start();
    *bench.store.slow.lock().unwrap() = Duration::from_secs(1);
    let batch = bench.store.batch();
    let ids: Vec<String> = (0..4 * batch).map(|id| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let much = snapshot(&ids, true);
    bench.devices.send_replace(Arc::clone(&much));
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut both = DeviceSnapshot::clone(&much);
    let little = snapshot(&["front"], true).configurations[&key("cams")].clone();
    let little = ConfigurationDevices {
        configured: Arc::new(configured("doors", "udev", "")),
        ..ConfigurationDevices::clone(&little)
    };
    both.configurations.insert(key("doors"), Arc::new(little));
    bench.devices.send_replace(Arc::new(both));
    tokio::time::sleep(Duration::from_secs(2)).await;
    let names = bench.store.names();
    assert!(names.iter().any(|name| name.starts_with("doors-")));
    assert_eq!(names.len(), 2 * batch);
    assert!(!bench.report.borrow().done_once, "half is missing");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.store.names().len(), ids.len() + 1);
    assert!(bench.report.borrow().done_once);
}

#[tokio::test(start_paused = true)]
async fn many_configurations_of_one_namespace_delay_none_of_another() {
    let bench = start();
    *bench.store.slow.lock().unwrap() = Duration::from_secs(1);
    let batch = bench.store.batch();
    let mut all = DeviceSnapshot::clone(&snapshot(&[], true));
    all.configurations.clear();
    let many = (0..batch).map(|number| ("aaa", format!("cams{number}")));
    for (namespace, name) in many.chain([("zzz", "doors".to_owned())]) {
        let seen = snapshot(&["front"], true).configurations[&key("cams")].clone();
        let mut configured = configured(&name, "udev", "");
        let key = ConfigurationKey::new(namespace, &name).unwrap();
        configured.configuration.key = key.clone();
        let seen = ConfigurationDevices {
            configured: Arc::new(configured),
            ..ConfigurationDevices::clone(&seen)
        };
        all.configurations.insert(key, Arc::new(seen));
    }
    bench.devices.send_replace(Arc::new(all));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let names = bench.store.names();
    assert!(names.iter().any(|name| name.starts_with("doors-")));
    assert_eq!(names.len(), batch);
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_no_more_than_a_piece() {
    let (devices, seen) = watch::channel(Arc::default());
    let store = Arc::new(Store::default());
    *store.slow.lock().unwrap() = Duration::from_secs(1);
    let port: Arc<dyn InstanceStore> = Arc::<Store>::clone(&store);
    let held = watch::channel(Arc::default()).1;
    let (task, _report) = ReconcileTask::new("node-a".into(), port, seen, held, Arc::default());
    let stop = CancellationToken::new();
    let task = tokio::spawn(task.run(stop.clone()));
    let batch = store.batch();
    let ids: Vec<String> = (0..4 * batch).map(|id| id.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    devices.send_replace(snapshot(&ids, true));
    tokio::time::sleep(Duration::from_millis(1500)).await;
    stop.cancel();
    task.await.unwrap().unwrap();
    assert_eq!(store.names().len(), 2 * batch);
}

#[tokio::test(start_paused = true)]
async fn a_create_whose_answer_was_lost_makes_no_second_instance() {
    let bench = start();
    *bench.store.unknown.lock().unwrap() = 1;
    *bench.store.is_hidden.lock().unwrap() = true;
    bench.devices.send_replace(snapshot(&["foo0"], false));
    tokio::time::sleep(Duration::from_mins(1)).await;
    bench.store.show();
    idle().await;
    let name = bench.store.names().remove(0);
    assert_eq!(bench.store.take_writes(), [format!("create {name}")]);
    assert!(bench.report.borrow().done_once);
}

/// Lets two nodes see shared devices come and go, on a store that loses answers, is busy and is slow.
#[tokio::test(start_paused = true)]
async fn whatever_the_store_does_each_device_ends_with_one_instance_that_names_the_nodes_that_see_it()
 {
    const IDS: [&str; 5] = ["foo0", "foo1", "foo2", "foo3", "foo4"];
    for seed in 0..100 {
        let mut random = SmallRng::seed_from_u64(seed);
        let store = Arc::new(Store::seeded(seed));
        let nodes = ["node-a", "node-b"];
        let benches = nodes.map(|node| start_on(node, Arc::clone(&store)));
        let mut seen = [Vec::new(), Vec::new()];
        for _ in 0..30 {
            *store.trouble.lock().unwrap() = Trouble {
                lost: random.random_range(0..30),
                busy: random.random_range(0..30),
                slow: random.random_range(0..50),
            };
            let which = random.random_range(0..2);
            let count = random.random_range(0..=IDS.len());
            seen[which] = IDS.into_iter().sample(&mut random, count);
            benches[which].see(&seen[which]);
            let wait = random.random_range(0..20_000);
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
        *store.trouble.lock().unwrap() = Trouble::default();
        tokio::time::sleep(Duration::from_mins(20)).await;
        let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (node, ids) in nodes.into_iter().zip(&seen) {
            for id in ids {
                wanted.entry(id).or_default().insert(node);
            }
        }
        let mut server = store.server();
        // If the answer to the last node that left was lost, no node knows that it was the last.
        server.retain(|_, instance| !instance.spec.nodes.is_empty());
        let found: BTreeMap<&str, BTreeSet<&str>> = server
            .values()
            .map(|instance| {
                let nodes = instance.spec.nodes.iter().map(String::as_str).collect();
                (instance.device_id().unwrap(), nodes)
            })
            .collect();
        assert_eq!(found, wanted, "seed {seed}");
        assert_eq!(server.len(), wanted.len(), "seed {seed}");
        store.take_writes();
        tokio::time::sleep(Duration::from_mins(20)).await;
        assert_eq!(
            store.take_writes(),
            [""; 0],
            "seed {seed}: nothing has changed"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_all_nodes_leave_at_once_is_removed_by_the_last() {
    let store = Arc::new(Store::default());
    let benches = ["node-a", "node-b"].map(|node| start_on(node, Arc::clone(&store)));
    for bench in &benches {
        bench.see(&["foo0"]);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let all = store.server();
    assert_eq!(
        all.values().next().unwrap().spec.nodes,
        ["node-a", "node-b"]
    );
    *store.slow.lock().unwrap() = Duration::from_millis(10);
    for bench in &benches {
        bench.see(&[]);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(store.server().is_empty());
    let removed = store.take_writes();
    assert_eq!(removed.last().unwrap(), "delete cams-8120fe");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joins_while_another_leaves_does_not_lose_the_instance() {
    let store = Arc::new(Store::default());
    let (a, b) = (
        start_on("node-a", Arc::clone(&store)),
        start_on("node-b", Arc::clone(&store)),
    );
    a.see(&["foo0"]);
    a.instances(&["cams-8120fe"]).await;
    // Both write at once: the deletion names the version before the other has joined.
    *store.slow.lock().unwrap() = Duration::from_millis(10);
    b.see(&["foo0"]);
    a.see(&[]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let server = store.server();
    let instance = server.values().next().unwrap();
    assert_eq!(instance.spec.nodes, ["node-b"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_be_written_delays_no_other_and_keeps_the_agent_from_nothing() {
    let bench = start();
    bench
        .store
        .denied
        .lock()
        .unwrap()
        .insert("cams-8120fe".into());
    bench.see(&["foo0"]);
    let report = wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    assert!(report.done_once, "one alone");
    tokio::time::sleep(Duration::from_mins(10)).await;
    // Another one fails once: it is tried again after a second, not together with the first.
    bench
        .store
        .denied
        .lock()
        .unwrap()
        .insert("cams-a19705".into());
    bench.see(&["foo0", "foo1"]);
    idle().await;
    bench.store.denied.lock().unwrap().remove("cams-a19705");
    let begun = Instant::now();
    bench.instances(&["cams-a19705"]).await;
    assert!(
        begun.elapsed() <= Duration::from_secs(1),
        "{:?}",
        begun.elapsed()
    );
    // An Instance whose write hangs is written after the others.
    bench
        .store
        .hanging
        .lock()
        .unwrap()
        .insert("cams-8120fe".into());
    for _ in 0..3 {
        let begun = Instant::now();
        bench.see(&["foo0", "foo1", "foo2"]);
        wait_for(&bench.store.subscribe(), |set| set.instances.len() == 2).await;
        assert!(begun.elapsed() <= HANGS, "{:?}", begun.elapsed());
        bench.see(&["foo0", "foo1"]);
        wait_for(&bench.store.subscribe(), |set| set.instances.len() == 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_failed_is_tried_again_though_devices_change_all_the_time() {
    let bench = start();
    let store = &bench.store;
    store.denied.lock().unwrap().insert("cams-8120fe".into());
    bench.see(&["foo0"]);
    wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    store.denied.lock().unwrap().clear();
    *store.slow.lock().unwrap() = Duration::from_secs(1);
    for round in 0..10 {
        let many = (0..2 * store.batch()).map(|number| format!("bar-{round}-{number}"));
        let ids: Vec<String> = many.chain(["foo0".to_owned()]).collect();
        bench.see(&ids.iter().map(String::as_str).collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(900)).await;
    }
    let names = store.names();
    assert!(names.iter().any(|name| name == "cams-8120fe"));
}

#[tokio::test(start_paused = true)]
async fn the_agent_is_not_ready_while_all_that_it_writes_is_denied() {
    let bench = start();
    let names = ["cams-8120fe", "cams-a19705"];
    bench
        .store
        .denied
        .lock()
        .unwrap()
        .extend(names.map(str::to_owned));
    bench.see(&["foo0", "foo1"]);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(!bench.report.borrow().done_once);
    bench.see(&["foo0", "foo1", "foo2"]);
    wait_for(&bench.report, |report| report.done_once).await;
}
