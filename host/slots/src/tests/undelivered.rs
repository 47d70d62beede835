//! Claims that no pod has: their answer never reached the kubelet, or the kubelet has lost its record.

use super::*;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// Seconds within which a slot that no pod can have is free again.
const SOON: u64 = 15;

/// Stores a claim of this node for slot 0 of `cams-a`.
fn claim(store: &Store) {
    let claimed = instance("cams", "a", 2, &[(0, NODE)]);
    store.edit(|set| drop(set.instances.insert(claimed.key(), Arc::new(claimed))));
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_claimed_and_never_answered_is_free_soon_after_the_next_one_has_started() {
    let mut rig = Rig::cams(2, &[]).await;
    // The agent was killed between the claim and the answer.
    rig.task.abort();
    claim(&rig.store);
    rig.restart();
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    pass(SOON).await;
    assert_eq!(rig.usage("cams-a-0"), "");
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
}

#[tokio::test(start_paused = true)]
async fn what_an_ended_agent_gave_stays_with_who_has_it() {
    let mut rig = Rig::cams(2, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.restart();
    idle().await;
    // The kubelet records the last answer when the next agent already runs.
    tokio::time::sleep(Duration::from_secs(4)).await;
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(GRACE.as_secs() * 2).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_pod_that_was_rejected_for_another_reason_is_free_soon() {
    let rig = Rig::cams(2, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    pass(SOON).await;
    assert_eq!([rig.usage("cams-a-0"), rig.usage("cams-a-1")], ["", ""]);
}

#[tokio::test(start_paused = true)]
async fn while_the_books_cannot_be_read_an_undelivered_claim_stays() {
    let rig = Rig::cams(2, &[]).await;
    rig.kubelet.state().is_mute = true;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    pass(3600).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    rig.kubelet.state().is_mute = false;
    pass(SOON).await;
    assert_eq!(rig.usage("cams-a-0"), "");
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_record_was_lost_is_not_given_away_by_the_next_agent_before_the_grace() {
    let instances = [instance("cams", "a", 5, &[])];
    let mut rig = Rig::new(
        &Fixture::new(&[("cams", &instances)]),
        Kubelet::new(Some(1)),
    );
    idle().await;
    rig.allocate("cams-a", &["cams-a-2"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-2")]);
    pass(10).await;
    rig.kubelet.state().number = Some(2);
    rig.kubelet.state().held.clear();
    rig.kubelet.notify();
    pass(1).await;
    let lost = rig.problems().join("\n");
    assert!(
        lost.contains("lost its record") && lost.contains("cams-a-2 (default/p)"),
        "{lost}"
    );
    rig.restart();
    let told = |rig: &Rig| rig.problems().join("\n");
    for _ in 0..2 {
        pass(GRACE.as_secs() / 2 - 10).await;
        let listed = "cams-a-0+ cams-a-1+ cams-a-2- cams-a-3+ cams-a-4+";
        assert_eq!(rig.listed("cams-a"), listed);
        let refusal = rig.allocate("cams-a", &["cams-a-2"]).await.unwrap_err();
        assert!(
            refusal.to_string().contains("cannot determine"),
            "{refusal}"
        );
        let all = ids(&["cams-a-0", "cams-a-1", "cams-a-2", "cams-a-3", "cams-a-4"]);
        let name = ResourceName::new("akri.sh/cams-a").unwrap();
        let worst = rig.handle.prefer(&name, &all).pop();
        assert_eq!(worst.as_deref(), Some("cams-a-2"));
        let told = told(&rig);
        assert!(
            told.contains("has no record of slots") && told.contains("cams-a-2"),
            "{told}"
        );
    }
    pass(60).await;
    assert_eq!(rig.usage("cams-a-2"), "");
    assert_eq!(told(&rig), "");
}

#[tokio::test(start_paused = true)]
async fn held_ids_are_preferred_last() {
    let rig = Rig::cams(4, &[(3, "node-b")]).await;
    let name = ResourceName::new("akri.sh/cams-a").unwrap();
    let all = ids(&["cams-a-0", "cams-a-1", "cams-a-2", "cams-a-3"]);
    let first = rig.handle.prefer(&name, &all).swap_remove(0);
    rig.allocate("cams-a", &[&first]).await.unwrap();
    idle().await;
    let ordered = rig.handle.prefer(&name, &all);
    assert_eq!(ordered[2..], [first, "cams-a-3".to_owned()]);
}

#[test]
fn as_many_nodes_as_an_instance_has_free_slots_prefer_different_ones() {
    let nodes: Vec<String> = (0..10).map(|node| format!("node-{node}")).collect();
    let free: BTreeSet<String> = (0..5).map(|slot| format!("cams-a-{slot}")).collect();
    let preferred = |instances: &watch::Receiver<Arc<InstanceSet>>| {
        let name = ResourceName::new("akri.sh/cams-a").unwrap();
        let mut nodes_of: BTreeMap<String, usize> = BTreeMap::new();
        for node in &nodes {
            let handle = AllocateQueue::new(node, instances.clone()).0.handle;
            let first = handle.prefer(&name, &free).swap_remove(0);
            *nodes_of.entry(first).or_default() += 1;
        }
        nodes_of
    };
    let mut seen = instance("cams", "a", 5, &[]);
    seen.spec.nodes.clone_from(&nodes);
    let (_sender, instances) =
        watch::channel(Arc::new(Fixture::new(&[("cams", &[seen])]).instances));
    let two_each = free.iter().map(|slot| (slot.clone(), 2)).collect();
    assert_eq!(preferred(&instances), two_each);
    // For an unknown Instance the node still has a starting point.
    let (_sender, unknown) = watch::channel(Arc::default());
    assert!(preferred(&unknown).len() > 2);
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_is_noted_only_once_all_instances_are_read() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let store = Arc::new(Store::default());
    store.edit(|set| set.complete = false);
    let devices = watch::Sender::new(Arc::new(fixture.devices.clone()));
    let ledger = Arc::new(Ledger::default());
    let rig = Rig::start(
        Arc::clone(&store),
        Kubelet::new(Some(1)),
        devices,
        Arc::clone(&ledger) as _,
    );
    idle().await;
    assert_eq!(ledger.kubelet(), None);
    rig.store.edit(|set| set.clone_from(&fixture.instances));
    pass(30).await;
    assert_eq!(
        ledger.kubelet(),
        None,
        "it may have lost the record of the slot"
    );
}
