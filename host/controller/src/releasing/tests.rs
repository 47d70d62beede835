use leafhost_core::cluster::NodeState;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, Meanwhile, WITHOUT_END, denied, unanswered};

fn start_with(count: usize) -> (Arc<Fake>, AbortOnDropHandle<()>) {
    start_on(Fake::new(count))
}

fn start_on(fake: Arc<Fake>) -> (Arc<Fake>, AbortOnDropHandle<()>) {
    let cluster = Arc::clone(&fake);
    let metrics = Arc::clone(&fake.metrics);
    let task = tokio::spawn(async move { run(&*cluster, &metrics).await });
    (fake, AbortOnDropHandle::new(task))
}

fn start() -> (Arc<Fake>, AbortOnDropHandle<()>) {
    start_with(1)
}

fn not_ready(ago: Duration) -> NodeState {
    NodeState {
        is_out_of_service: false,
        not_ready_since: Some(Timestamp::now() - ago),
    }
}

#[tokio::test(start_paused = true)]
async fn the_slots_of_a_deleted_node_are_free_with_one_write() {
    let (fake, _task) = start();
    assert_eq!(fake.settled().await, 0);
    fake.set("b", None);
    fake.written(1).await;
    assert_eq!(fake.holders(), ["", "a"]);
    assert_eq!(fake.settled().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_node_keeps_the_slots_that_its_pods_ask_for_until_they_are_gone() {
    for is_shared in [true, false] {
        let (fake, _task) = start();
        fake.edit(|instance| instance.spec.shared = is_shared);
        *fake.requested.lock().unwrap() = Some(BTreeSet::from(["akri.sh/cams-1".to_owned()]));
        fake.set("b", None);
        assert_eq!(fake.settled().await, 0);
        // A failed request frees nothing.
        *fake.requested.lock().unwrap() = None;
        assert_eq!(fake.settled().await, 0);
        *fake.requested.lock().unwrap() = Some(BTreeSet::new());
        tokio::time::sleep(LOOK_AGAIN).await;
        fake.written(1).await;
        assert_eq!(fake.holders(), ["", "a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_writes_nothing_and_who_becomes_leader_begins() {
    let (fake, _task) = start();
    fake.leads.send_replace(false);
    fake.set("b", None);
    assert_eq!(fake.settled().await, 0);
    fake.leads.send_replace(true);
    fake.written(1).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_before_all_nodes_are_known() {
    let (fake, _task) = start();
    fake.nodes.send_replace(Arc::default());
    assert_eq!(fake.settled().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_ready_keeps_its_slots_until_no_pod_of_it_asks_for_them() {
    let (fake, _task) = start();
    *fake.requested.lock().unwrap() = Some(BTreeSet::from(["akri.sh/cams".to_owned()]));
    fake.set("b", Some(not_ready(Duration::from_mins(7))));
    assert_eq!(fake.settled().await, 0);
    *fake.requested.lock().unwrap() = None;
    assert_eq!(fake.settled().await, 0);
    *fake.requested.lock().unwrap() = Some(BTreeSet::new());
    fake.written(1).await;
    assert_eq!(fake.holders(), ["", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_somebody_was_quicker_than_is_tried_again_on_what_is_there_then() {
    let (fake, _task) = start();
    *fake.refuses.lock().unwrap() = Some((1, WriteError::Outdated));
    let out = NodeState {
        is_out_of_service: true,
        ..not_ready(Duration::ZERO)
    };
    fake.set("b", Some(out));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((fake.tried(), fake.writes.borrow().len()), (1, 0));
    // Node a, which is present, has claimed the other slot meanwhile.
    fake.edit(|instance| {
        let usage = &mut instance.spec.device_usage;
        usage.insert("cams-1-2".into(), "a".into());
    });
    fake.written(1).await;
    assert_eq!(fake.holders(), ["", "a", "a"]);
}

#[tokio::test(start_paused = true)]
async fn instances_that_cannot_be_written_delay_none_of_another_namespace_nor_that_sorts_after_them()
 {
    // The number of namespaces that cannot be written exceeds the number of concurrent writes.
    let broken: Vec<String> = (0..20).map(|number| format!("a{number:02}")).collect();
    let broken: Vec<&'static str> = broken.into_iter().map(|name| &*name.leak()).collect();
    let mut all: Vec<(&str, usize)> = broken.iter().map(|name| (*name, 5)).collect();
    all.extend([("b", 50), ("z", 50)]);
    let (fake, _task) = start_on(Fake::with(&all));
    fake.hangs.lock().unwrap().extend(&broken);
    fake.set("b", None);
    // Each broken namespace takes a place once, for three seconds.
    tokio::time::timeout(Duration::from_secs(10), fake.written(100))
        .await
        .unwrap();
    // One failing Instance of a namespace does not stop the attempts on its others.
    tokio::time::sleep(Duration::from_mins(5)).await;
    let tried: BTreeSet<InstanceKey> = {
        let tried = fake.tried.lock().unwrap();
        tried.iter().map(|(_, key)| key.clone()).collect()
    };
    assert_eq!(tried.len(), 200, "each was tried");
    // When writes succeed again, all Instances are written, including the first one.
    fake.hangs.lock().unwrap().clear();
    tokio::time::timeout(Duration::from_mins(7), fake.written(200))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn while_the_api_server_answers_nothing_two_writes_a_second_are_tried() {
    let (fake, _task) = start_with(100);
    *fake.refuses.lock().unwrap() = Some((WITHOUT_END, unanswered()));
    fake.set("b", None);
    tokio::time::sleep(Duration::from_mins(1)).await;
    let first = fake.tried();
    assert!((110..=125).contains(&first), "{first}");
    tokio::time::sleep(Duration::from_mins(3)).await;
    let later = fake.tried() - first;
    assert!((355..=360).contains(&later), "{later}");
    // A controller that does not lead writes nothing, and does not wait once it leads again.
    fake.leads.send_replace(false);
    tokio::time::sleep(Duration::from_mins(10)).await;
    let before = fake.tried();
    *fake.refuses.lock().unwrap() = None;
    fake.leads.send_replace(true);
    tokio::time::timeout(Duration::from_secs(2), fake.written(100))
        .await
        .unwrap();
    assert_eq!(fake.tried() - before, 100);
}

#[tokio::test(start_paused = true)]
async fn when_the_api_server_is_busy_writes_wait_as_long_as_it_asks_for() {
    let busy = WriteError::NoAnswer {
        message: "busy".into(),
        retry_after: Some(Duration::from_secs(20)),
    };
    let namespaces = ["a", "b", "c", "d"].map(|name| (name, 10));
    let (fake, _task) = start_on(Fake::with(&namespaces));
    *fake.refuses.lock().unwrap() = Some((WITHOUT_END, busy));
    fake.set("b", None);
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(fake.tried(), PLACES.all);
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(fake.tried(), PLACES.all + PLACES.slow);
}

#[tokio::test(start_paused = true)]
async fn what_was_planned_is_left_when_a_node_is_back_or_the_lead_is_lost() {
    let is_back: Meanwhile = |fake| fake.set("b", Some(NodeState::default()));
    let is_lost: Meanwhile = |fake| {
        fake.leads.send_replace(false);
    };
    for meanwhile in [is_back, is_lost] {
        let (fake, _task) = start_with(50);
        *fake.meanwhile.lock().unwrap() = Some(meanwhile);
        fake.set("b", None);
        // The writes that had begun.
        assert_eq!(fake.settled().await, PLACES.of_one);
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_writes_back_what_was_released_is_contradicted_once_a_minute() {
    let (fake, _task) = start();
    let (agent, mut instances) = (Arc::clone(&fake), fake.instances.subscribe());
    let _agent = AbortOnDropHandle::new(tokio::spawn(async move {
        while instances.changed().await.is_ok() {
            let is_there = |one: &Arc<Instance>| one.spec.nodes.contains(&"b".to_owned());
            if !instances
                .borrow_and_update()
                .instances
                .values()
                .all(is_there)
            {
                agent.edit(|instance| instance.spec.nodes.push("b".into()));
            }
        }
    }));
    fake.set("b", None);
    assert_eq!(fake.settled().await, 10);
    // The removal of another node does not wait.
    fake.set("a", None);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(fake.holders().iter().all(String::is_empty));
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_tried_ever_later_whatever_happens_to_it() {
    let (fake, _task) = start();
    *fake.refuses.lock().unwrap() = Some((WITHOUT_END, denied()));
    fake.set("b", None);
    for _ in 0..1_200 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fake.edit(|instance| instance.spec.capacity += 1);
    }
    let waits = |fake: &Fake| -> Vec<u64> {
        let tried = fake.tried.lock().unwrap();
        let waits = tried.windows(2).map(|two| (two[1].0 - two[0].0).as_secs());
        waits.collect()
    };
    let expected = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300];
    assert_eq!(waits(&fake), expected);
    // Also if nothing changes: an operator may have granted the missing right.
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(waits(&fake)[expected.len()..], [300, 300]);
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_node_that_keeps_its_slots_are_not_listed_at_each_change() {
    let (fake, _task) = start();
    *fake.requested.lock().unwrap() = Some(BTreeSet::from(["akri.sh/cams".to_owned()]));
    fake.set("b", Some(not_ready(Duration::from_mins(7))));
    for _ in 0..600 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fake.edit(|instance| instance.spec.capacity += 1);
    }
    let lists = *fake.lists.lock().unwrap();
    assert!((12..=13).contains(&lists), "{lists} in a minute");
}
