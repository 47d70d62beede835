//! Tests of the extender against a simulated cluster.

use std::sync::atomic::Ordering;

use leafhost_core::device::Health;
use leafhost_core::instance::NodeStatus;
use leafhost_core::resource_names::Reservation as NameReservation;
use leafhost_core::scheduling::{Container, ContainerKind};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::*;

mod locks;
mod played;
mod unanswered;
mod waiting;

use played::{Ends, Played};

/// Returns a GPU that `nodes` see as healthy.
fn gpu(name: &str, nodes: &[&str], index: i64) -> Instance {
    let mut instance: Instance = serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "namespace": "lab", "uid": format!("uid-{name}")},
        "spec": {"configurationName": "gpu", "capacity": 1, "shared": nodes.len() > 1, "nodes": nodes, "deviceUsage": {},
            "leafhost": {"id": name, "attributes": {"index": {"int": index}}}},
    }))
    .unwrap();
    for node in nodes {
        let status = NodeStatus::new(Health::Healthy);
        instance.status.nodes.insert((*node).to_owned(), status);
    }
    instance
}

fn pod(name: &str, devices: &str) -> Pod {
    Pod {
        key: PodKey {
            namespace: "default".to_owned(),
            name: name.to_owned(),
        },
        uid: format!("uid-{name}"),
        devices: devices.to_owned(),
        containers: vec![Container {
            name: "main".to_owned(),
            kind: ContainerKind::App,
            asks: true,
        }],
        is_refused: true,
        ..Pod::default()
    }
}

const ONE: &str = "{main: {requests: [{name: a, exactly: {deviceClassName: gpu.akri.sh}}]}}";

fn with(expression: &str) -> String {
    let cel = json!({"main": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu",
        "selectors": [{"cel": {"expression": expression}}]}}]}});
    cel.to_string()
}

struct Bench {
    played: Arc<Played>,
    scheduler: Arc<Scheduler>,
}

impl Bench {
    fn new(instances: &[Instance]) -> Self {
        let played = Arc::new(Played::default());
        for instance in instances {
            played.put(instance.clone());
        }
        Self::on(played)
    }

    /// Starts another extender that sees the same cluster.
    fn on(played: Arc<Played>) -> Self {
        let scheduler = Scheduler::new(Arc::clone(&played) as _, Arc::default(), false);
        Self::of(played, scheduler)
    }

    fn of(played: Arc<Played>, scheduler: Scheduler) -> Self {
        let bench = Self {
            played,
            scheduler: Arc::new(scheduler),
        };
        bench.sees();
        bench
    }

    /// Shows the extender the current objects, as the watches would.
    fn sees(&self) {
        let instances = self.played.instances.lock().unwrap();
        for instance in instances.values() {
            self.scheduler.listed(Arc::clone(instance));
        }
        let listed = instances.values().map(|one| one.key()).collect();
        self.scheduler.instances(listed);
        let pods = self.played.pods.lock().unwrap().values().cloned().collect();
        self.scheduler.pods(pods);
        let nodes = self.played.nodes.lock().unwrap().clone();
        self.scheduler.nodes(nodes);
    }

    fn creates(&self, pod: &Pod) {
        let mut pods = self.played.pods.lock().unwrap();
        pods.insert(pod.key.clone(), pod.clone());
        drop(pods);
        self.sees();
    }

    fn args(pod: &Pod, nodes: &[&str]) -> Args {
        let containers: Vec<Value> = pod
            .containers
            .iter()
            .map(|one| json!({"name": one.name, "resources": {"limits": {"leafhost.dev/devices": "1"}}}))
            .collect();
        let args = json!({
            "Pod": {"metadata": {"name": pod.key.name, "namespace": pod.key.namespace, "uid": pod.uid,
                "annotations": {"leafhost.dev/devices": pod.devices}}, "spec": {"containers": containers}},
            "Nodes": null, "NodeNames": nodes,
        });
        serde_json::from_value(args).unwrap()
    }

    fn filter(&self, pod: &Pod, nodes: &[&str]) -> FilterResult {
        self.scheduler.filter(Self::args(pod, nodes))
    }

    async fn bind(&self, pod: &Pod, node: &str) -> String {
        let args = BindingArgs {
            pod_name: pod.key.name.clone(),
            pod_namespace: pod.key.namespace.clone(),
            uid: pod.uid.clone(),
            node: node.to_owned(),
        };
        Arc::clone(&self.scheduler).bind(args).await.error
    }

    async fn schedules(&self, pod: &Pod, node: &str) -> String {
        self.creates(pod);
        assert_eq!(self.filter(pod, &[node]).node_names, [node], "{}", pod.key);
        self.bind(pod, node).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_goes_where_its_devices_are_and_the_others_say_why_not() {
    let mut sick = gpu("gpu-c3", &["c"], 2);
    let status = NodeStatus::new(Health::Unhealthy("hot".to_owned()));
    sick.status.nodes.insert("c".to_owned(), status);
    let mut used = gpu("gpu-d4", &["d"], 0);
    let slots = &mut used.spec.device_usage;
    slots.insert("gpu-d4-0".to_owned(), "d".to_owned());
    let bench = Bench::new(&[
        gpu("gpu-a1", &["a"], 0),
        gpu("gpu-b2", &["b"], 1),
        sick,
        used,
    ]);
    let first = pod(
        "first",
        &with(r#"device.attributes["leafhost.dev"].index == 0"#),
    );
    bench.creates(&first);
    let found = bench.filter(&first, &["a", "b", "c", "d", "e"]);
    assert_eq!(found.node_names, ["a"]);
    let why = |node: &str| found.failed_and_unresolvable_nodes[node].clone();
    assert_eq!(why("b"), "not enough devices satisfy request main/a");
    assert_eq!(
        why("c"),
        "no device of Configuration gpu for request main/a"
    );
    assert_eq!(why("d"), "devices for request main/a are in use");
    assert_eq!(why("e"), why("c"));
    assert_eq!(bench.bind(&first, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    let instance = bench.played.get("gpu-a1");
    let reserved = instance.reserved("gpu-a1-0").unwrap();
    assert_eq!(reserved.pod, "default/first");
    let [one] = &reserved.uses[..] else {
        panic!("{reserved:?}");
    };
    assert_eq!((&*one.container, &*one.request, one.of), ("main", "a", 1));
    let binds = bench.played.binds.lock().unwrap().clone();
    assert_eq!(binds[0]["main"], ["gpu-a1"]);
    tokio::task::yield_now().await;
    let told = bench.played.told.lock().unwrap().clone();
    assert_eq!(told, ["DevicesReserved: main gets gpu-a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_passed_takes_its_devices_from_the_next_one_until_it_is_bound_elsewhere() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["b"], 1)]);
    let (first, second) = (pod("first", ONE), pod("second", ONE));
    bench.creates(&first);
    bench.creates(&second);
    assert_eq!(bench.filter(&first, &["a"]).node_names, ["a"]);
    assert_eq!(bench.filter(&second, &["a", "b"]).node_names, ["b"]);
    // Where nothing else is left, the pod competes instead of waiting for what may never come free.
    let third = pod("third", ONE);
    bench.creates(&third);
    assert_eq!(bench.filter(&third, &["a"]).node_names, ["a"]);
    assert_eq!(bench.bind(&first, "a").await, "");
    let late = bench.bind(&third, "a").await;
    assert!(late.contains("are in use"), "{late}");
    assert_eq!(bench.bind(&second, "b").await, "");
    assert_eq!(bench.played.binds.lock().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_another_scheduler_has_taken_meanwhile_is_replaced_by_another_one() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    let other = ("gpu-a1".to_owned(), "P:uid-other:a".to_owned());
    *bench.played.meanwhile.lock().unwrap() = Some(other);
    let watching = Bench {
        played: Arc::clone(&bench.played),
        scheduler: Arc::clone(&bench.scheduler),
    };
    let watch = tokio::spawn(async move {
        sleep(Duration::from_millis(50)).await;
        watching.sees();
    });
    assert_eq!(bench.schedules(&pod("first", ONE), "a").await, "");
    watch.await.unwrap();
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-other:a");
    assert_eq!(bench.played.usage("gpu-b2"), "P:uid-first:a");
}

#[tokio::test(start_paused = true)]
async fn what_was_reserved_is_given_back_if_the_pod_surely_is_not_bound() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    let ends = |ends: Ends| *bench.played.ends.lock().unwrap() = ends;
    ends(Ends::Refused);
    let refused = bench.schedules(&pod("first", ONE), "a").await;
    assert!(refused.contains("it is bound already"), "{refused}");
    assert_eq!(bench.played.usage("gpu-a1"), "");
    ends(Ends::Unheard);
    assert_eq!(bench.schedules(&pod("second", ONE), "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-second:a");
}

#[tokio::test(start_paused = true)]
async fn nothing_more_is_reserved_for_a_pod_whose_earlier_slots_cannot_be_given_back() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["b"], 1)]);
    *bench.played.ends.lock().unwrap() = Ends::Lost;
    let first = pod("first", ONE);
    bench.schedules(&first, "a").await;
    *bench.played.ends.lock().unwrap() = Ends::Well;
    bench.played.refused.store(1, Ordering::Relaxed);
    let error = bench.schedules(&first, "b").await;
    assert!(error.contains("cannot release the slots"), "{error}");
    let usages = ["gpu-a1", "gpu-b2"].map(|name| bench.played.usage(name));
    assert_eq!(usages, ["P:uid-first:a", ""]);
    assert_eq!(bench.schedules(&first, "b").await, "");
    let usages = ["gpu-a1", "gpu-b2"].map(|name| bench.played.usage(name));
    assert_eq!(usages, ["", "P:uid-first:b"]);
}

#[tokio::test(start_paused = true)]
async fn an_extender_that_starts_anew_goes_on_with_what_the_one_before_has_reserved() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    let first = pod("first", ONE);
    *bench.played.ends.lock().unwrap() = Ends::Lost;
    bench.schedules(&first, "a").await;
    *bench.played.ends.lock().unwrap() = Ends::Well;
    let next = Bench::on(Arc::clone(&bench.played));
    let unknown = next.bind(&first, "a").await;
    assert!(unknown.contains("has not passed Filter"), "{unknown}");
    assert_eq!(next.schedules(&first, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    assert_eq!(bench.played.usage("gpu-b2"), "");
    let given = bench.played.binds.lock().unwrap()[0].clone();
    assert_eq!(given["main"], ["gpu-a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_wishes_otherwise_meanwhile_gets_what_it_wishes_then() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    let wish = |index: i64| {
        let text = format!("device.attributes[\"leafhost.dev\"].index == {index}");
        pod("first", &with(&text))
    };
    *bench.played.ends.lock().unwrap() = Ends::Lost;
    bench.schedules(&wish(0), "a").await;
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    *bench.played.ends.lock().unwrap() = Ends::Well;
    assert_eq!(bench.schedules(&wish(1), "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "");
    assert_eq!(bench.played.usage("gpu-b2"), "P:uid-first:a");
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_the_same_name_frees_what_the_one_before_had() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    assert_eq!(bench.schedules(&pod("first", ONE), "a").await, "");
    let again = Pod {
        uid: "uid-again".to_owned(),
        ..pod("first", ONE)
    };
    assert_eq!(bench.schedules(&again, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-again:a");
    assert_eq!(bench.played.usage("gpu-b2"), "");
}

/// Returns a reservation of a pod on node a.
fn reservation(is_held: bool) -> crate::world::Reservation {
    crate::world::Reservation {
        device: gpu("gpu-a1", &["a"], 0).key(),
        slot: "gpu-a1-0".to_owned(),
        uid: "uid-first".to_owned(),
        node: "a".to_owned(),
        pod: PodKey::read("default/first").unwrap(),
        is_held,
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_reserved_is_over_with_its_pod_and_never_by_age_alone() {
    use crate::release::Verdict::{Over, Stays, StaysUntil};
    let since = Instant::now();
    let one = reservation(false);
    let judge = |pod: Option<&Pod>, seconds: u64, has_own: bool| {
        let now = since + Duration::from_secs(seconds);
        one.judge(pod, since, now, |_| has_own)
    };
    let bound = Pod {
        node: "a".to_owned(),
        ..pod("first", ONE)
    };
    assert_eq!(judge(Some(&bound), 100_000, false), Stays);
    let waits = pod("first", ONE);
    let until = since + Duration::from_secs(30);
    assert_eq!(judge(Some(&waits), 29, false), StaysUntil(until));
    assert_eq!(judge(Some(&waits), 30, false), Over("unbound"));
    let change = |change: fn(&mut Pod)| {
        let mut pod = bound.clone();
        change(&mut pod);
        pod
    };
    let ended = change(|pod| pod.has_ended = true);
    assert_eq!(judge(Some(&ended), 0, false), Over("ended"));
    let elsewhere = change(|pod| pod.node = "b".to_owned());
    assert_eq!(judge(Some(&elsewhere), 0, false), Over("elsewhere"));
    let shown = since + Duration::from_secs(2);
    assert_eq!(
        judge(None, 0, false),
        StaysUntil(shown),
        "a container may have it"
    );
    assert_eq!(judge(None, 2, false), Over("gone"));
    // Another pod of the same name, which may have got the devices.
    let other = change(|pod| pod.uid = "uid-other".to_owned());
    assert_eq!(judge(Some(&other), 0, false), Stays);
    assert_eq!(judge(Some(&other), 0, true), StaysUntil(shown));
    assert_eq!(judge(Some(&other), 2, true), Over("replaced"));
    let away = change(|pod| {
        pod.uid = "uid-other".to_owned();
        pod.node = "b".to_owned();
    });
    assert_eq!(judge(Some(&away), 0, false), StaysUntil(shown));
    assert_eq!(judge(Some(&away), 2, false), Over("replaced"));
}

#[tokio::test(start_paused = true)]
async fn a_bind_of_a_pod_that_is_bound_already_gives_back_nothing_of_it() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["b"], 1)]);
    let first = pod("first", ONE);
    assert_eq!(bench.schedules(&first, "a").await, "");
    // A scheduler that has not seen the binding asks again.
    for (node, expected) in [("b", "the pod is bound to node a already"), ("a", "")] {
        assert_eq!(bench.filter(&first, &[node]).node_names, [node]);
        assert_eq!(bench.bind(&first, node).await, expected);
        assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
        assert_eq!(bench.played.usage("gpu-b2"), "");
        // Longer than reservations are reused.
        sleep(Duration::from_secs(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn before_the_pods_are_read_nothing_is_offered() {
    let played = Arc::new(Played::default());
    let scheduler = Scheduler::new(Arc::clone(&played) as _, Arc::default(), false);
    let instance = played.put(gpu("gpu-a1", &["a"], 0));
    let key = instance.key();
    scheduler.listed(instance);
    scheduler.instances([key].into());
    let first = pod("first", ONE);
    let error = scheduler.filter(Bench::args(&first, &["a"])).error;
    assert_eq!(error, "Instances and pods are not read yet; retrying");
    scheduler.pods(Vec::new());
    assert_eq!(scheduler.filter(Bench::args(&first, &["a"])).error, "");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_gone_is_forgotten_though_an_old_answer_shows_it() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-a2", &["a"], 1)]);
    let gone = bench.played.get("gpu-a1");
    bench.played.instances.lock().unwrap().remove(&gone.key());
    let first = pod("first", ONE);
    bench.creates(&first);
    bench.scheduler.update_instance(gone);
    assert_eq!(bench.filter(&first, &["a"]).node_names, ["a"]);
    assert_eq!(bench.bind(&first, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a2"), "P:uid-first:a");
}

#[tokio::test(start_paused = true)]
async fn slots_of_pods_that_are_gone_come_back_and_an_old_cache_frees_none() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    let (first, second) = (pod("first", ONE), pod("second", ONE));
    assert_eq!(bench.schedules(&first, "a").await, "");
    assert_eq!(bench.schedules(&second, "a").await, "");
    bench.sees();
    // The watch shows that the pod is gone, the API server that it exists.
    bench.scheduler.pod_gone(&first.key);
    bench.scheduler.release_over().await;
    sleep(Duration::from_secs(3)).await;
    bench.scheduler.release_over().await;
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    bench.played.pods.lock().unwrap().remove(&first.key);
    bench.scheduler.release_over().await;
    assert_eq!(bench.played.usage("gpu-a1"), "");
    // A container has the slot, so the agent knows when it is free.
    let mut held = Instance::clone(&bench.played.get("gpu-b2"));
    let status = held.status.nodes.get_mut("a").unwrap();
    let holder = ("gpu-b2-0".to_owned(), "default/second".to_owned());
    status.holders.extend([holder]);
    bench.played.put(held);
    bench.played.pods.lock().unwrap().remove(&second.key);
    bench.sees();
    bench.scheduler.release_over().await;
    assert_eq!(bench.played.usage("gpu-b2"), "P:uid-second:a");
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_that_is_gone_had_comes_back_once_no_container_has_it() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    let first = pod("first", ONE);
    assert_eq!(bench.schedules(&first, "a").await, "");
    let mut held = Instance::clone(&bench.played.get("gpu-a1"));
    let status = held.status.nodes.get_mut("a").unwrap();
    let holder = ("gpu-a1-0".to_owned(), first.key.to_string());
    status.holders.extend([holder]);
    bench.played.put(held.clone());
    bench.sees();
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&bench.scheduler).run(stop.clone()));
    bench.played.pods.lock().unwrap().remove(&first.key);
    bench.scheduler.pod_gone(&first.key);
    sleep(Duration::from_mins(1)).await;
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    let status = held.status.nodes.get_mut("a").unwrap();
    status.holders.clear();
    bench.scheduler.instance(bench.played.put(held));
    sleep(Duration::from_secs(3)).await;
    assert_eq!(bench.played.usage("gpu-a1"), "");
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_configuration_of_a_namespace_that_has_not_its_name_serves_nobody() {
    let mut other = gpu("gpu-b2", &["b"], 0);
    other.metadata.namespace = "other".to_owned();
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), other]);
    let first = pod("first", ONE);
    bench.creates(&first);
    assert!(
        bench.filter(&first, &["a", "b"]).node_names.is_empty(),
        "two have the name"
    );
    let reserved = |namespace: &str| {
        let reservation = NameReservation {
            namespace: namespace.to_owned(),
            created: None,
        };
        Arc::new([("gpu".to_owned(), reservation)].into_iter().collect())
    };
    bench.scheduler.names(reserved("other"));
    assert_eq!(bench.filter(&first, &["a", "b"]).node_names, ["b"]);
    bench.scheduler.names(reserved("lab"));
    assert_eq!(bench.filter(&first, &["a", "b"]).node_names, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn questions_that_cannot_be_answered_say_what_to_do() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    let routes = crate::routes(Arc::clone(&bench.scheduler));
    let ask = async |body: String| {
        let request = axum::http::Request::post("/filter")
            .header("content-type", "application/json")
            .body(axum::body::Body::from(body))
            .unwrap();
        let answer = routes.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let bytes = axum::body::to_bytes(answer.into_body(), 1 << 20)
            .await
            .unwrap();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    };
    let metadata = r#"{"name": "p", "namespace": "d", "uid": "u"}"#;
    let spec = r#"{"containers": [{"name": "main", "resources": {"limits": {"leafhost.dev/devices": "1"}}}]}"#;
    let whole = format!(
        r#"{{"Pod": {{"metadata": {metadata}, "spec": {spec}}}, "Nodes": {{"items": []}}, "NodeNames": null}}"#
    );
    let (status, text) = ask(whole.clone()).await;
    assert!(
        status == 200 && text.contains("nodeCacheCapable: true"),
        "{text}"
    );
    let without = whole.replace("null", r#"["a"]"#);
    let (_, text) = ask(without).await;
    assert!(
        text.contains("does not describe the devices of container main"),
        "{text}"
    );
    let not_ours = format!(r#"{{"Pod": {{"metadata": {metadata}}}, "NodeNames": ["a", "x"]}}"#);
    let (_, text) = ask(not_ours).await;
    assert!(text.contains(r#""NodeNames":["a","x"]"#), "{text}");
    for broken in [
        String::new(),
        "null".to_owned(),
        whole[..40].to_owned(),
        "[".repeat(10_000),
    ] {
        let (status, text) = ask(broken).await;
        assert!((400..500).contains(&status), "{status} {text}");
    }
    let (status, _) = ask(" ".repeat((4 << 20) + 1)).await;
    assert_eq!(status, 413);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_runs_has_its_slot_again_in_an_instance_that_is_made_anew() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    let first = pod("first", ONE);
    assert_eq!(bench.schedules(&first, "a").await, "");
    let before = bench.played.get("gpu-a1");
    let mut recreated = gpu("gpu-a1", &["a"], 0);
    recreated.metadata.uid = "another".to_owned();
    recreated.metadata.creation_timestamp = Some("2026-11-26T13:00:00Z".to_owned());
    bench.scheduler.instance_gone(&before.key());
    bench.played.put(recreated.clone());
    bench.sees();
    // Other pods cannot take the slot, even before it is restored.
    let other = pod("other", ONE);
    bench.creates(&other);
    assert_eq!(bench.filter(&other, &["a"]).node_names, [""; 0]);
    assert_eq!(bench.scheduler.restore().await, None);
    let after = bench.played.get("gpu-a1");
    assert_eq!(after.usage("gpu-a1-0"), "P:uid-first:a");
    let uses = |instance: &Instance| {
        let mut reserved = instance.reserved("gpu-a1-0").unwrap().clone();
        reserved.uses[0].request.clear();
        reserved
    };
    assert_eq!(uses(&after), uses(&before));
    // A slot that is released afterwards is not restored again.
    bench.played.set_usage("gpu-a1", "");
    bench.sees();
    assert_eq!(bench.scheduler.restore().await, None);
    assert_eq!(bench.played.usage("gpu-a1"), "");
    assert_eq!(bench.filter(&other, &["a"]).node_names, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_an_instance_that_is_older_than_the_pod_stays_with_whom_it_was_given_to() {
    let mut old = gpu("gpu-a1", &["a"], 0);
    old.metadata.creation_timestamp = Some("2026-11-26T11:00:00Z".to_owned());
    let bench = Bench::new(&[old]);
    let first = pod("first", ONE);
    assert_eq!(bench.schedules(&first, "a").await, "");
    bench.played.set_usage("gpu-a1", "");
    bench.sees();
    assert_eq!(bench.scheduler.restore().await, None);
    assert_eq!(bench.played.usage("gpu-a1"), "");
}
