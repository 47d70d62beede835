//! Stores that take no claims, and the report of refusals.

use super::*;
use std::collections::BTreeSet;

#[tokio::test(start_paused = true)]
async fn while_nothing_can_be_written_free_ids_are_unhealthy_and_it_is_told() {
    let rig = Rig::cams(3, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(10).await;
    *rig.store.broken.lock().unwrap() = true;
    let refusal = rig.allocate("cams-a", &["cams-a-1"]).await.unwrap_err();
    assert!(refusal.to_string().contains("read-only"), "{refusal}");
    idle().await;
    // Slots of containers stay unchanged.
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1- cams-a-2-");
    assert_eq!(rig.listed("cams"), "cams-0-");
    let report = Arc::clone(&rig.report.borrow());
    let [problem] = report.problems.as_slice() else {
        panic!("{report:?}");
    };
    assert_eq!(problem.reason(), "SlotsNotClaimed");
    let told = problem.to_string();
    assert!(
        told.contains("the folder is read-only; make it writable"),
        "{told}"
    );
    // The write is tried again, less and less often.
    for (seconds, calls) in [(60, 6..=14), (600, 60..=81)] {
        let before = rig.store.calls();
        pass(seconds).await;
        let tried = rig.store.calls() - before;
        assert!(calls.contains(&tried), "{tried} in {seconds} s");
    }
    *rig.store.broken.lock().unwrap() = false;
    pass(11).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+ cams-a-2+");
    assert_eq!(rig.problems(), Vec::<String>::new());
    let calls = rig.store.calls();
    pass(600).await;
    assert_eq!(rig.store.calls(), calls, "nothing is tried any more");
}

/// Starts with four devices, the first of which may not be written.
async fn with_one_denied() -> Rig {
    let instances = ["a", "b", "c", "d"].map(|hash| instance("cams", hash, 2, &[]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
    idle().await;
    rig.allocate("cams-a", &["cams-a-1"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-1")]);
    pass(10).await;
    rig.store.denied.lock().unwrap().insert("cams-a".into());
    rig
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_cannot_be_written_is_barred_alone() {
    let rig = with_one_denied().await;
    let refusal = rig.allocate("cams-a", &["cams-a-0"]).await.unwrap_err();
    assert!(
        refusal.to_string().contains("a policy forbids it"),
        "{refusal}"
    );
    idle().await;
    // A container keeps its slot, and all others are offered.
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1+");
    assert_eq!(rig.listed("cams-b"), "cams-b-0+ cams-b-1+");
    assert_eq!(rig.listed("cams"), "cams-0+ cams-1+ cams-2+");
    let report = Arc::clone(&rig.report.borrow());
    let problem = report.problems.first().unwrap();
    assert_eq!(problem.reason(), "InstanceNotClaimed");
    assert_eq!(problem.subject().to_string(), "Instance default/cams-a");
    // Each of the others can be allocated through the Configuration.
    let given = rig.allocate("cams", &["cams-0", "cams-1", "cams-2"]).await;
    assert!(given.is_ok(), "{given:?}");
    assert!(rig.usage("cams-a-0").is_empty());
    // A pod that ends releases its slots of other Instances.
    rig.kubelet.run(
        "q",
        &[0, 1, 2].map(|number| device_id("cams", &format!("cams-{number}"))),
    );
    pass(10).await;
    rig.kubelet.end("p");
    rig.kubelet.end("q");
    pass(20).await;
    assert_eq!(rig.listed("cams-b"), "cams-b-0+ cams-b-1+");
    assert_eq!(rig.usage("cams-a-1"), NODE, "it cannot be written");
    rig.store.denied.lock().unwrap().clear();
    pass(61).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
    assert_eq!(rig.usage("cams-a-1"), "");
    assert_eq!(rig.problems(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn two_instances_that_cannot_be_written_bar_all_until_another_can_be() {
    let rig = with_one_denied().await;
    rig.store.denied.lock().unwrap().insert("cams-b".into());
    for (resource, id) in [("cams-a", "cams-a-0"), ("cams-b", "cams-b-0")] {
        assert!(rig.allocate(resource, &[id]).await.is_err());
    }
    idle().await;
    assert_eq!(rig.listed("cams-c"), "cams-c-0- cams-c-1-");
    pass(3).await;
    // A successful write shows that only those two fail.
    assert_eq!(rig.listed("cams-c"), "cams-c-0+ cams-c-1+");
    assert_eq!(rig.listed("cams-b"), "cams-b-0- cams-b-1-");
    for _ in 0..60 {
        pass(10).await;
        assert_eq!(rig.listed("cams-c"), "cams-c-0+ cams-c-1+");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_kubelet_delays_only_the_allocation_that_must_ask_it() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 2, &[]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
    idle().await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(10).await;
    rig.kubelet.state().hangs = true;
    let begun = Instant::now();
    let asks = async {
        let refused = rig.allocate("cams-a", &["cams-a-0"]).await;
        (refused.is_ok(), begun.elapsed().as_secs())
    };
    let others = async {
        idle().await;
        rig.allocate("cams-a", &["cams-a-1"]).await.unwrap();
        rig.put(instance("cams", "b", 2, &[(0, "node-b")]));
        idle().await;
        assert_eq!(rig.listed("cams-b"), "cams-b-0- cams-b-1+");
        begun.elapsed()
    };
    let (asked, others) = tokio::join!(asks, others);
    assert_eq!(asked, (true, 2), "nothing says that somebody has it");
    assert_eq!(others, Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_hanging_disk_delays_no_offer_and_no_allocation() {
    #[derive(Debug)]
    struct Hanging;
    #[async_trait::async_trait]
    impl ResourceLedger for Hanging {
        fn names(&self) -> BTreeSet<String> {
            BTreeSet::new()
        }
        async fn add(&self, _: BTreeSet<String>) -> Result<(), String> {
            std::future::pending().await
        }
        fn kubelet(&self) -> Option<String> {
            None
        }
        async fn set_kubelet(&self, _: String) -> Result<(), String> {
            std::future::pending().await
        }
    }
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[])])]);
    let rig = Rig::with(&fixture, Kubelet::new(Some(1)), Arc::new(Hanging));
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+");
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_that_cannot_be_written_tells_that_no_claim_can() {
    let rig = Rig::cams(2, &[]).await;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    pass(10).await;
    *rig.store.broken.lock().unwrap() = true;
    rig.kubelet.end("p");
    pass(1).await;
    // The next pod needs no write.
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1-");
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn one_write_of_a_batch_that_fails_bars_free_ids_whatever_else_was_written() {
    let rig = Rig::cams(3, &[]).await;
    let asked = ["cams-a-0", "cams-a-1"];
    rig.allocate("cams-a", &asked).await.unwrap();
    rig.kubelet
        .run("p", &asked.map(|slot| device_id("cams-a", slot)));
    pass(10).await;
    *rig.store.failures.lock().unwrap() = 1;
    rig.kubelet.end("p");
    while !rig.usage("cams-a-1").is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
        idle().await;
    }
    let free = asked.map(|slot| rig.usage(slot).is_empty());
    assert_eq!(free, [false, true], "one could be written");
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1- cams-a-2-");
    pass(11).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+ cams-a-2+");
    assert_eq!(rig.problems(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_lost_race_does_not_make_the_other_slots_unhealthy() {
    let rig = Rig::cams(2, &[]).await;
    *rig.store.conflicts.lock().unwrap() = 1;
    assert!(rig.allocate("cams-a", &["cams-a-0"]).await.is_err());
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
    assert_eq!(rig.problems(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_last_refusals_of_a_resource_are_shown_until_it_is_allocated_or_for_ten_minutes() {
    let rig = Rig::cams(2, &[]).await;
    let shown = |resource: &str| {
        let report = Arc::clone(&rig.report.borrow());
        let view = report.refusals.get(&format!("akri.sh/{resource}"))?;
        Some((view.count, view.reason.clone()))
    };
    for times in 1..=3 {
        *rig.store.conflicts.lock().unwrap() = 1;
        assert!(rig.allocate("cams-a", &["cams-a-0"]).await.is_err());
        idle().await;
        let (count, reason) = shown("cams-a").unwrap();
        assert_eq!(count, times);
        assert!(reason.contains("another node claimed"), "{reason}");
    }
    assert_eq!(shown("cams"), None);
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    idle().await;
    assert_eq!(shown("cams-a"), None);

    *rig.store.conflicts.lock().unwrap() = 4;
    assert!(rig.allocate("cams", &["cams-0"]).await.is_err());
    pass(590).await;
    assert!(shown("cams").is_some());
    pass(20).await;
    assert_eq!(shown("cams"), None);
}
