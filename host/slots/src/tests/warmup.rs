//! Instances created moments ago, in a store to which other nodes write.

use jiff::Timestamp;

use super::*;

/// Returns `cams-a` as created just now, with this uid.
fn made_now(uid: &str) -> Instance {
    let mut instance = instance("cams", "a", 2, &[]);
    instance.metadata.uid = uid.to_owned();
    instance.metadata.creation_timestamp = Some(Timestamp::now().to_string());
    instance
}

async fn rig(first: Instance) -> Rig {
    rig_of(first, None).await
}

/// Starts the task in a cluster with that many nodes.
async fn rig_of(first: Instance, nodes: Option<usize>) -> Rig {
    let fixture = Fixture::new(&[("cams", &[first])]);
    let mut store = Store::default();
    store.has_other_nodes = true;
    *store.nodes.lock().unwrap() = nodes;
    store.edit(|set| set.clone_from(&fixture.instances));
    let devices = watch::Sender::new(Arc::new(fixture.devices.clone()));
    let ledger = Ledger::default();
    *ledger.kubelet.lock().unwrap() = Some(fixture::kubelet(1).to_string());
    let rig = Rig::start(
        Arc::new(store),
        Kubelet::new(Some(1)),
        devices,
        Arc::new(ledger),
    );
    idle().await;
    rig
}

#[tokio::test(start_paused = true)]
async fn no_slot_of_a_new_instance_is_given_until_other_nodes_had_time_to_claim_theirs() {
    let rig = rig(made_now("new")).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap_err();
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1-");
    assert_eq!(rig.listed("cams"), "cams-0-");
    pass(1).await;
    // A request for any device waits for that.
    let asked = Instant::now();
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    assert_eq!(asked.elapsed().as_secs(), 4);
}

#[tokio::test(start_paused = true)]
async fn on_the_only_node_of_a_cluster_a_new_instance_gives_its_slots_at_once() {
    let rig = rig_of(made_now("new"), Some(1)).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn on_a_node_that_is_no_longer_the_only_one_a_new_instance_waits_for_the_others() {
    let rig = rig_of(made_now("new"), Some(1)).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
    *rig.store.nodes.lock().unwrap() = Some(2);
    pass(2).await;
    rig.put(made_now("again"));
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1-");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_a_minute_old_is_not_new() {
    let rig = rig(instance("cams", "a", 2, &[])).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_of_an_instance_that_was_made_again_is_claimed_at_once() {
    let rig = rig(instance("cams", "a", 2, &[])).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    rig.kubelet.notify();
    pass(1).await;
    rig.put(made_now("again"));
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1-");
    pass(5).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_namesake_has_gone_gives_no_slot_until_other_nodes_had_time_to_claim_theirs()
 {
    let first = instance("cams", "a", 2, &[]);
    let rig = rig(first.clone()).await;
    let mut other = first.clone();
    other.metadata.namespace = "second".into();
    other.metadata.uid = "second".into();
    rig.put(other.clone());
    pass(60).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
    rig.store
        .edit(|set| drop(set.instances.remove(&other.key())));
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1-");
    pass(5).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
}
