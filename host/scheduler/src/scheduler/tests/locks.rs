//! Tests of nodes that are locked from Bind until the pod has its devices.

use leafhost_core::scheduling::NodeLock;

use super::*;

/// Returns an extender that locks nodes, in a cluster whose node a has `gpus` GPUs.
fn locking(gpus: usize) -> Bench {
    let played = Arc::new(Played::default());
    for (index, name) in (0..).zip(["gpu-a1", "gpu-b2", "gpu-c3"]).take(gpus) {
        played.put(gpu(name, &["a"], index));
    }
    for node in ["a", "b"] {
        let seen = NodeSeen {
            version: "0".to_owned(),
            ..NodeSeen::default()
        };
        played.nodes.lock().unwrap().insert(node.to_owned(), seen);
    }
    let cluster = Arc::clone(&played) as _;
    let scheduler = Scheduler::new(cluster, Arc::default(), true);
    Bench::of(played, scheduler)
}

impl Bench {
    /// Returns the name of the pod for which node a is locked.
    fn locked(&self) -> String {
        let nodes = self.played.nodes.lock().unwrap();
        let lock = NodeLock::read(&nodes["a"].lock);
        lock.map(|lock| lock.pod.name).unwrap_or_default()
    }

    /// Writes the lock annotation of node a, as another client would.
    fn says(&self, lock: &str) {
        let mut nodes = self.played.nodes.lock().unwrap();
        let seen = nodes.get_mut("a").unwrap();
        let next = self
            .played
            .version
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        *seen = NodeSeen {
            version: next.to_string(),
            lock: lock.to_owned(),
        };
        let seen = seen.clone();
        drop(nodes);
        self.scheduler.node("a".to_owned(), seen);
    }

    /// Starts to bind a pod.
    fn binds(&self, pod: &Pod) -> tokio::task::JoinHandle<String> {
        self.creates(pod);
        assert_eq!(self.filter(pod, &["a"]).node_names, ["a"]);
        let args = BindingArgs {
            pod_name: pod.key.name.clone(),
            pod_namespace: pod.key.namespace.clone(),
            uid: pod.uid.clone(),
            node: "a".to_owned(),
        };
        let scheduler = Arc::clone(&self.scheduler);
        tokio::spawn(async move { scheduler.bind(args).await.error })
    }

    /// Deletes a pod.
    fn deletes(&self, pod: &Pod) {
        self.played.pods.lock().unwrap().remove(&pod.key);
        self.sees();
    }
}

#[tokio::test(start_paused = true)]
async fn the_next_pod_waits_in_bind_until_the_node_is_unlocked() {
    let bench = locking(3);
    let (first, second, third) = (pod("first", ONE), pod("second", ONE), pod("third", ONE));
    assert_eq!(bench.schedules(&first, "a").await, "");
    assert_eq!(bench.locked(), "first");
    let waiting = [bench.binds(&second), bench.binds(&third)];
    sleep(Duration::from_secs(1)).await;
    assert!(waiting.iter().all(|one| !one.is_finished()));
    assert_eq!(bench.locked(), "first");
    bench.says("");
    let [second, third] = waiting;
    assert_eq!(second.await.unwrap(), "");
    assert_eq!(bench.locked(), "second");
    bench.says("");
    assert_eq!(third.await.unwrap(), "");
    assert_eq!(bench.locked(), "third");
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_pod_still_waits_is_never_taken_over() {
    let bench = locking(2);
    let (first, second) = (pod("first", ONE), pod("second", ONE));
    assert_eq!(bench.schedules(&first, "a").await, "");
    bench.says("2020-01-01T00:00:00Z,default,first,uid-first");
    for _ in 0..100 {
        let begun = Instant::now();
        let why = bench.schedules(&second, "a").await;
        assert!(
            why.contains("node a is locked until pod default/first"),
            "{why}"
        );
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "{:?}",
            begun.elapsed()
        );
        sleep(Duration::from_secs(5)).await;
    }
    assert_eq!(bench.locked(), "first");
    assert_eq!(bench.played.usage("gpu-b2"), "");
}

#[tokio::test(start_paused = true)]
async fn a_lock_whose_pod_is_gone_has_ended_is_elsewhere_or_is_served_is_taken_over_at_once() {
    let ends: [fn(&Bench, &Pod); 5] = [
        |bench, first| bench.deletes(first),
        |bench, first| {
            let mut first = first.clone();
            first.has_ended = true;
            bench.creates(&first);
        },
        |bench, first| {
            let mut first = first.clone();
            first.node = "b".to_owned();
            bench.creates(&first);
        },
        |bench, first| {
            // Another pod of the same name.
            let mut first = first.clone();
            first.uid = "another".to_owned();
            bench.creates(&first);
        },
        |bench, first| {
            let name = "gpu-a1";
            let mut instance = Instance::clone(&bench.played.get(name));
            let status = instance.status.nodes.get_mut("a").unwrap();
            let holders = &mut status.holders;
            holders.insert(format!("{name}-0"), first.key.to_string());
            bench.played.put(instance);
            bench.sees();
        },
    ];
    for end in ends {
        let bench = locking(2);
        let (first, second) = (pod("first", ONE), pod("second", ONE));
        assert_eq!(bench.schedules(&first, "a").await, "");
        let waiting = bench.binds(&second);
        sleep(Duration::from_millis(500)).await;
        assert!(!waiting.is_finished());
        let bound = bench.played.pods.lock().unwrap()[&first.key].clone();
        let begun = Instant::now();
        end(&bench, &bound);
        assert_eq!(waiting.await.unwrap(), "");
        assert!(begun.elapsed() < Duration::from_millis(200));
        assert_eq!(bench.locked(), "second");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_is_unlocked_when_the_pod_is_not_bound_and_not_when_it_may_be() {
    let bench = locking(1);
    let first = pod("first", ONE);
    *bench.played.ends.lock().unwrap() = Ends::Refused;
    assert!(!bench.schedules(&first, "a").await.is_empty());
    assert_eq!(bench.locked(), "");
    *bench.played.ends.lock().unwrap() = Ends::Lost;
    assert!(!bench.schedules(&first, "a").await.is_empty());
    assert_eq!(bench.locked(), "first");
    // The pod's own lock does not block it.
    *bench.played.ends.lock().unwrap() = Ends::Well;
    assert_eq!(bench.schedules(&first, "a").await, "");
    assert_eq!(bench.locked(), "first");
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_read_locks_nothing() {
    for text in ["now", "2026-11-26T12:00:00Z,default,first", ",,,"] {
        let bench = locking(1);
        bench.says(text);
        assert_eq!(bench.schedules(&pod("first", ONE), "a").await, "", "{text}");
        assert_eq!(bench.locked(), "first");
    }
}

#[tokio::test(start_paused = true)]
async fn two_extenders_never_have_a_node_locked_for_two_pods() {
    let bench = locking(2);
    let cluster = Arc::clone(&bench.played) as _;
    let other = Scheduler::new(cluster, Arc::default(), true);
    let other = Bench::of(Arc::clone(&bench.played), other);
    let first = pod("first", ONE);
    assert_eq!(bench.schedules(&first, "a").await, "");
    // The other extender has not seen the lock yet: its write fails.
    let second = pod("second", ONE);
    let waiting = other.binds(&second);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(bench.locked(), "first");
    bench.says("");
    let seen = bench.played.nodes.lock().unwrap()["a"].clone();
    other.scheduler.node("a".to_owned(), seen);
    assert_eq!(waiting.await.unwrap(), "");
    assert_eq!(bench.locked(), "second");
}
