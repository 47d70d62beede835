//! Effects of snapshots of the kubelet's records on the slot task.

use super::*;
use std::collections::BTreeMap;

#[tokio::test(start_paused = true)]
async fn nothing_is_offered_before_the_first_look_or_ten_seconds() {
    for (slow, number, is_mute, offered_after) in [
        (3, Some(1), false, 3),
        (3600, Some(1), false, 10),
        (0, Some(1), true, 10),
        // Without a kubelet nothing is waited for.
        (0, None, false, 0),
    ] {
        let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[])])]);
        let kubelet = Kubelet::new(number);
        kubelet.state().slow = Duration::from_secs(slow);
        kubelet.state().is_mute = is_mute;
        let began = Instant::now();
        let rig = Rig::new(&fixture, kubelet);
        // Events do not shorten the wait.
        rig.kubelet.notify();
        wait_for(&rig.offers, |offers| !offers.is_empty()).await;
        assert_eq!(began.elapsed().as_secs(), offered_after, "{slow} {is_mute}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_list_has_what_the_kubelet_holds_though_the_store_does_not() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let kubelet = Kubelet::new(Some(1));
    kubelet.run(
        "p",
        &[
            device_id("cams-a", "cams-a-1"),
            device_id("cams-b", "cams-b-0"),
        ],
    );
    let mut rig = Rig::new(&fixture, kubelet);
    rig.offers.changed().await.unwrap();
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
    assert_eq!(rig.listed("cams-b"), "cams-b-0-");
    assert_eq!(rig.usage("cams-a-1"), NODE);
    let held = Arc::clone(&rig.held.borrow());
    let held: Vec<_> = held.values().flat_map(BTreeMap::keys).collect();
    assert_eq!(held, ["cams-a-1", "cams-b-0"]);
}

#[tokio::test(start_paused = true)]
async fn a_slot_nobody_was_seen_to_have_comes_back_after_the_grace() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[(0, NODE)])])]);
    // No agent has noted which kubelet it served.
    let ledger = Arc::new(Ledger::default());
    let rig = Rig::with(&fixture, Kubelet::new(Some(1)), ledger);
    pass(GRACE.as_secs() - 15).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    pass(30).await;
    assert_eq!(rig.usage("cams-a-0"), "");
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_somebody_else_wrote_down_for_this_node_comes_back_after_the_grace() {
    let rig = Rig::cams(2, &[]).await;
    pass(60).await;
    rig.put(instance("cams", "a", 2, &[(0, NODE)]));
    pass(GRACE.as_secs() + 30).await;
    assert_eq!(rig.usage("cams-a-0"), "");
}

#[tokio::test(start_paused = true)]
async fn a_slot_comes_back_by_an_event_at_once_and_by_a_failed_write_later() {
    let rig = Rig::cams(1, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(10).await;
    *rig.store.broken.lock().unwrap() = true;
    rig.kubelet.end("p");
    pass(1).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    *rig.store.broken.lock().unwrap() = false;
    pass(11).await;
    assert_eq!(rig.usage("cams-a-0"), "");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_made_anew_is_claimed_again_for_who_has_it() {
    let rig = Rig::cams(2, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    let both = [device_id("cams-a", "cams-a-0"), device_id("cams", "cams-0")];
    rig.kubelet.run("p", &both);
    pass(10).await;
    rig.store.edit(|set| set.instances.clear());
    pass(60).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0-");
    assert_eq!(rig.listed("cams"), "cams-0-");
    let held: Vec<_> = rig
        .held
        .borrow()
        .values()
        .flat_map(BTreeMap::values)
        .map(ToString::to_string)
        .collect();
    assert_eq!(held, [NODE, "C:cams-0:node-a"]);
    let mut recreated = instance("cams", "a", 2, &[]);
    recreated.metadata.uid = "another".into();
    rig.put(recreated);
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    assert_eq!(rig.usage("cams-a-1"), "C:cams-0:node-a");
    // Another node may have claimed a third one first.
    let mut taken = instance("cams", "a", 2, &[(0, "node-b"), (1, "C:cams-0:node-a")]);
    taken.metadata.uid = "third".into();
    rig.put(taken);
    idle().await;
    let problems = rig.problems().join("\n");
    assert!(
        problems.contains("cams-a-0 is held by default/p") && problems.contains("node-b"),
        "{problems}"
    );
    assert_eq!(rig.usage("cams-a-0"), "node-b");
}

#[tokio::test(start_paused = true)]
async fn without_a_kubelet_everything_is_offered_and_nothing_is_looked_at() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[])])]);
    let rig = Rig::new(&fixture, Kubelet::new(None));
    pass(3600).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+");
    assert_eq!((rig.snapshots(), rig.problems()), (1, vec![]));
    // Slots of a kubelet that ran before stay, with a snapshot every ten seconds.
    rig.put(instance("cams", "a", 1, &[(0, NODE)]));
    rig.kubelet.notify();
    pass(3600).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    assert!(rig.snapshots() <= 1 + 362, "{}", rig.snapshots());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_says_nothing_is_asked_ever_more_rarely_until_it_does() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[])])]);
    let rig = Rig::new(&fixture, Kubelet::new(None));
    pass(60).await;
    // The kubelet starts with a pod of before, and is slow to answer.
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    rig.kubelet.state().number = Some(1);
    rig.kubelet.state().is_mute = true;
    rig.kubelet.notify();
    // At once and often, in case it is just starting; then every ten seconds.
    for (seconds, snapshots) in [(1, 6..=9), (100, 12..=15), (100, 9..=11)] {
        let before = rig.snapshots();
        pass(seconds).await;
        let new = rig.snapshots() - before;
        assert!(snapshots.contains(&new), "{new} in {seconds} s");
    }
    assert_eq!(rig.problems(), ["it is mute"]);
    rig.kubelet.state().is_mute = false;
    pass(11).await;
    assert_eq!(rig.problems(), Vec::<String>::new());
    assert_eq!(rig.usage("cams-a-0"), NODE);
}

#[tokio::test(start_paused = true)]
async fn events_are_looked_at_together() {
    let rig = Rig::cams(1, &[(0, NODE)]).await;
    let before = rig.snapshots();
    for _ in 0..100 {
        rig.kubelet.notify();
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        rig.snapshots() - before <= 8,
        "{}",
        rig.snapshots() - before
    );
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_a_person_frees_while_a_pod_has_it_is_claimed_again() {
    let rig = Rig::cams(1, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(10).await;
    let free = Change::Update {
        key: instance("cams", "a", 1, &[]).key(),
        uid: "uid-cams-a".into(),
        edits: vec![Edit::Slot {
            id: "cams-a-0".into(),
            held: DeviceUsage::Node(NODE.into()),
            new: DeviceUsage::Unused,
            reserved: None,
        }],
    };
    assert!(rig.store.apply(vec![free.clone()]).await[0].is_ok());
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    // As the controller does for a node whose object is deleted: once a minute in the end.
    let mut freed = 0;
    for _ in 0..600 {
        if rig.usage("cams-a-0") == NODE {
            assert!(rig.store.apply(vec![free.clone()]).await[0].is_ok());
            freed += 1;
        }
        pass(1).await;
    }
    assert!((10..=15).contains(&freed), "{freed}");
}

#[tokio::test(start_paused = true)]
async fn the_slot_of_a_pod_that_lived_a_moment_is_free_as_soon_as_a_look_can_tell() {
    let rig = Rig::cams(1, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(1).await;
    rig.kubelet.end("p");
    pass(3).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    pass(2).await;
    assert_eq!(rig.usage("cams-a-0"), "");
}

#[tokio::test(start_paused = true)]
async fn the_pods_that_have_slots_of_withdrawn_instances_are_named() {
    let rig = Rig::cams(2, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    rig.kubelet.run("q", &[device_id("cams", "cams-0")]);
    pass(10).await;
    assert_eq!(rig.problems(), [""; 0]);
    rig.store.edit(|set| set.instances.clear());
    pass(1).await;
    let problems = rig.problems();
    let [problem] = problems.as_slice() else {
        panic!("{problems:?}");
    };
    for words in [
        "cams-a-0 (default/p)",
        "cams-a-1 (default/q)",
        "delete the pod",
    ] {
        assert!(problem.contains(words), "{problem}");
    }
    rig.kubelet.end("p");
    rig.kubelet.end("q");
    pass(11).await;
    assert_eq!(rig.problems(), [""; 0]);
}
