use leafhost_core::device_id::DeviceId;
use leafhost_fakes::Store;
use serde_json::json;

use super::*;
use crate::report::SlotView;

struct Bench {
    store: Arc<Store>,
    slots: watch::Sender<Arc<SlotReport>>,
    _tickets: watch::Sender<Arc<TicketReport>>,
    _task: tokio::task::JoinSet<()>,
}

fn key() -> InstanceKey {
    InstanceKey::new("default", "a-1")
}

/// Starts the task of node n, with an Instance that m and n see and of which each has a slot.
fn start(nodes: &[&str]) -> Bench {
    let instance: Instance = serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": "a-1", "namespace": "default", "uid": "u"},
        "spec": {"configurationName": "a", "capacity": 3, "shared": true, "nodes": nodes,
            "deviceUsage": {"a-1-0": "n", "a-1-1": "m", "a-1-2": ""}},
        "status": {"used": 0, "nodes": {"m": {"health": "Healthy", "holders": {"a-1-1": "default/q"}},
            "n": {"health": "Unhealthy", "reason": "hot"}}},
    }))
    .unwrap();
    let store = Arc::new(Store::default());
    store.edit(|set| drop(set.instances.insert(key(), Arc::new(instance))));
    let (slots, shown) = watch::channel(Arc::default());
    let tickets = watch::Sender::new(Arc::new(TicketReport {
        is_known: true,
        ..TicketReport::default()
    }));
    let holders = HoldersTask::new(
        "n".into(),
        Arc::clone(&store) as _,
        shown,
        tickets.subscribe(),
    );
    let mut task = tokio::task::JoinSet::new();
    task.spawn(holders.run());
    Bench {
        store,
        slots,
        _tickets: tickets,
        _task: task,
    }
}

impl Bench {
    fn hold(&self, held: &[(&str, &str)]) {
        let held: Vec<_> = held.iter().map(|(slot, pod)| (*slot, Some(*pod))).collect();
        self.see(&held);
    }

    /// Shows these slots as this node's; some have no observed holder.
    fn see(&self, held: &[(&str, Option<&str>)]) {
        let slots = held.iter().map(|(slot, pod)| SlotView {
            slot: (*slot).into(),
            instance: Some(key()),
            device_id: DeviceId::new("akri.sh/a-1", *slot),
            holder: pod.map(str::to_owned),
            is_named: pod.is_some_and(|pod| pod.contains('/')),
        });
        self.slots.send_replace(Arc::new(SlotReport {
            is_known: true,
            slots: slots.collect(),
            ..SlotReport::default()
        }));
    }

    /// Returns the status after that many seconds, and the number of writes meanwhile.
    async fn after(&self, seconds: u64) -> (serde_json::Value, usize) {
        sleep(Duration::from_secs(seconds)).await;
        let status = json!(self.store.server()[&key()].status);
        (status, self.store.take_writes().len())
    }
}

#[tokio::test(start_paused = true)]
async fn who_has_a_slot_is_written_once_into_the_nodes_own_entry_and_used_slots_are_counted() {
    let bench = start(&["m", "n"]);
    bench.hold(&[]);
    assert_eq!(bench.after(60).await.1, 0, "the first node counts");
    bench.hold(&[("a-1-0", "default/p")]);
    let (status, writes) = bench.after(1).await;
    let own = json!({"health": "Unhealthy", "reason": "hot", "holders": {"a-1-0": "default/p"}});
    assert_eq!(status["nodes"]["n"], own);
    assert_eq!(status["nodes"]["m"]["holders"]["a-1-1"], "default/q");
    assert_eq!((&status["used"], writes), (&json!(2), 1));
    assert_eq!(bench.after(600).await.1, 0);
    bench.hold(&[]);
    assert_eq!(bench.after(1).await.1, 0, "the release may remove it");
    let (status, writes) = bench.after(2).await;
    assert_eq!(status["nodes"]["n"].get("holders"), None);
    assert_eq!(writes, 1);
}

#[tokio::test(start_paused = true)]
async fn changes_that_come_fast_are_at_most_one_write_a_second() {
    let bench = start(&["m", "n"]);
    for pod in 0..40 {
        bench.hold(&[("a-1-0", &format!("default/p{pod}"))]);
        sleep(Duration::from_millis(100)).await;
    }
    let (status, writes) = bench.after(3).await;
    assert_eq!(status["nodes"]["n"]["holders"]["a-1-0"], "default/p39");
    assert!((4..=6).contains(&writes), "{writes}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_starts_anew_writes_nothing_while_it_has_not_seen_who_has_a_slot() {
    let bench = start(&["m", "n"]);
    bench.store.edit(|set| {
        let instance = Arc::make_mut(set.instances.get_mut(&key()).unwrap());
        let entry = instance.status.nodes.get_mut("n").unwrap();
        entry.holders = [("a-1-0".to_owned(), "default/p".to_owned())].into();
        instance.status.used = Some(2);
    });
    assert_eq!(bench.after(30).await.1, 0, "nothing is known yet");
    bench.see(&[("a-1-0", None)]);
    assert_eq!(bench.after(30).await.1, 0);
    // The kubelet was restarted, too, and knows no names yet.
    bench.hold(&[("a-1-0", "pod 1234")]);
    assert_eq!(bench.after(30).await.1, 0);
    bench.hold(&[("a-1-0", "default/p")]);
    assert_eq!(bench.after(30).await.1, 0);
    // The slot was released and claimed for another pod.
    bench.see(&[("a-1-0", None)]);
    let (status, writes) = bench.after(3).await;
    assert_eq!((status["nodes"]["n"].get("holders"), writes), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn the_first_node_puts_a_wrong_number_right_after_a_while() {
    let bench = start(&["n", "m"]);
    bench.hold(&[]);
    assert_eq!(bench.after(4).await.1, 0);
    let (status, writes) = bench.after(2).await;
    assert_eq!((&status["used"], writes), (&json!(2), 1));
    assert_eq!(bench.after(600).await.1, 0);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_tried_again_less_and_less_often() {
    let bench = start(&["m", "n"]);
    bench.store.denied.lock().unwrap().insert("a-1".into());
    let before = bench.store.calls();
    bench.hold(&[("a-1-0", "default/p")]);
    bench.after(600).await;
    let tried = bench.store.calls() - before;
    assert!((8..=14).contains(&tried), "{tried}");
    bench.store.denied.lock().unwrap().clear();
    let (status, _) = bench.after(300).await;
    assert_eq!(status["nodes"]["n"]["holders"]["a-1-0"], "default/p");
}
