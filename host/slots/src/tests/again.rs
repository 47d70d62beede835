//! Allocations that are decided again: their slots were claimed by another node first, or store or device were not ready.

use super::*;
use crate::queue::{AGAIN, OUTAGE};
use crate::writes::WRITE;

async fn rig(hashes: &[&str], capacity: u32) -> Rig {
    let instances = hashes
        .iter()
        .map(|hash| instance("cams", hash, capacity, &[]));
    let instances: Vec<_> = instances.collect();
    let fixture = Fixture::new(&[("cams", &instances)]);
    let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
    idle().await;
    *rig.store.slow.lock().unwrap() = Duration::from_secs(1);
    rig
}

/// Lets another node claim the slots that the task has chosen, half a second later.
async fn is_quicker(rig: &Rig, free: &[&str]) {
    tokio::time::sleep(Duration::from_millis(500)).await;
    rig.store.edit(|set| {
        for instance in set.instances.values_mut() {
            let slots = Arc::make_mut(instance);
            let capacity = slots.spec.capacity;
            let name = slots.metadata.name.clone();
            for slot in (0..capacity).map(|slot| format!("{name}-{slot}")) {
                if !free.contains(&&*slot) {
                    slots.spec.device_usage.insert(slot, "node-b".into());
                }
            }
        }
    });
}

#[tokio::test(start_paused = true)]
async fn who_loses_a_race_gets_what_is_free_then() {
    for free in ["cams-a-0", "cams-a-1", "cams-b-0", "cams-b-1", "cams-c-1"] {
        let rig = rig(&["a", "b", "c"], 2).await;
        let asked = Instant::now();
        let free_then = [free];
        let (given, ()) = tokio::join!(
            rig.allocate("cams", &["cams-0"]),
            is_quicker(&rig, &free_then)
        );
        let given = given.unwrap();
        assert_eq!(
            given.annotations["slots.leafhost.dev/cams"],
            format!("cams-0={free}")
        );
        assert!(asked.elapsed() <= Duration::from_secs(2));
        assert_eq!(rig.usage(free), "C:cams-0:node-a");
    }
}

#[tokio::test(start_paused = true)]
async fn a_container_that_asks_for_two_gives_back_what_it_got_before_it_gets_two_others() {
    let rig = rig(&["a", "b", "c"], 1).await;
    let (given, ()) = tokio::join!(
        rig.allocate("cams", &["cams-0", "cams-1"]),
        is_quicker(&rig, &["cams-a-0", "cams-b-0"])
    );
    given.unwrap();
    for slot in ["cams-a-0", "cams-b-0"] {
        let usage = rig.usage(slot);
        assert!(usage.ends_with(":node-a"), "{slot} {usage}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_free_slot_gets_one_that_is_free_within_five_seconds() {
    let rig = rig(&["a", "b"], 1).await;
    let later = async {
        is_quicker(&rig, &[]).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        rig.put(instance("cams", "b", 1, &[]));
    };
    let (given, ()) = tokio::join!(rig.allocate("cams", &["cams-0"]), later);
    given.unwrap();
    assert_eq!(rig.usage("cams-b-0"), "C:cams-0:node-a");
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_free_slot_for_five_seconds_is_refused_with_what_was_lost() {
    let rig = rig(&["a"], 1).await;
    let asked = Instant::now();
    let (given, ()) = tokio::join!(rig.allocate("cams", &["cams-0"]), is_quicker(&rig, &[]));
    let refusal = given.unwrap_err().to_string();
    assert!(
        refusal.contains("no further Instance")
            && refusal.contains("another node claimed cams-a-0 first"),
        "{refusal}"
    );
    assert_eq!(asked.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_slot_is_claimed_four_times_in_vain_at_most() {
    let rig = rig(&["a", "b"], 4).await;
    *rig.store.slow.lock().unwrap() = Duration::ZERO;
    *rig.store.conflicts.lock().unwrap() = 3;
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    *rig.store.conflicts.lock().unwrap() = 5;
    let refusal = rig.allocate("cams", &["cams-1"]).await.unwrap_err();
    assert!(
        refusal.to_string().contains("another node claimed"),
        "{refusal}"
    );
    assert_eq!(*rig.store.conflicts.lock().unwrap(), 1);
    // No other slot can be chosen for a certain Instance.
    assert!(rig.allocate("cams-a", &["cams-a-3"]).await.is_err());
    assert_eq!(*rig.store.conflicts.lock().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn whose_claim_gets_no_answer_gets_another_slot() {
    let rig = rig(&["a", "b"], 1).await;
    *rig.store.slow.lock().unwrap() = Duration::ZERO;
    *rig.store.unknown.lock().unwrap() = 1;
    rig.allocate("cams", &["cams-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams", "cams-0")]);
    rig.kubelet.notify();
    // Claims that may have been written are released.
    pass(30).await;
    let usages = ["cams-a-0", "cams-b-0"].map(|slot| rig.usage(slot));
    let used = usages.iter().filter(|usage| !usage.is_empty()).count();
    assert_eq!(used, 1, "{usages:?}");
}

#[tokio::test(start_paused = true)]
async fn whose_claim_is_denied_gets_a_slot_of_another_instance() {
    let rig = rig(&["a", "b"], 2).await;
    *rig.store.slow.lock().unwrap() = Duration::ZERO;
    rig.store.denied.lock().unwrap().insert("cams-a".into());
    for id in ["cams-0", "cams-1"] {
        rig.allocate("cams", &[id]).await.unwrap();
    }
    let refusal = rig.allocate("cams", &["cams-2"]).await.unwrap_err();
    assert!(
        refusal.to_string().contains("no further Instance"),
        "{refusal}"
    );
}

#[tokio::test(start_paused = true)]
async fn whose_claim_cannot_be_written_for_ten_seconds_learns_why() {
    let rig = rig(&["a", "b"], 1).await;
    *rig.store.broken.lock().unwrap() = true;
    let asked = Instant::now();
    let refusal = rig.allocate("cams", &["cams-0"]).await.unwrap_err();
    let refusal = refusal.to_string();
    assert!(refusal.contains("cannot write the claim"), "{refusal}");
    let waited = asked.elapsed();
    assert!(OUTAGE <= waited && waited <= OUTAGE + WRITE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn who_asks_while_the_store_is_unavailable_gets_its_slot_when_it_is_back() {
    for (resource, id) in [("cams", "cams-0"), ("cams-a", "cams-a-0")] {
        let rig = rig(&["a"], 1).await;
        *rig.store.slow.lock().unwrap() = Duration::ZERO;
        *rig.store.broken.lock().unwrap() = true;
        let back = async {
            tokio::time::sleep(Duration::from_millis(7500)).await;
            *rig.store.broken.lock().unwrap() = false;
        };
        let asked = Instant::now();
        let ids = [id];
        let (given, ()) = tokio::join!(rig.allocate(resource, &ids), back);
        given.unwrap();
        assert!(asked.elapsed() <= OUTAGE, "{:?}", asked.elapsed());
        assert!(rig.usage("cams-a-0").ends_with(NODE));
    }
}

#[tokio::test(start_paused = true)]
async fn who_wants_an_instance_whose_claim_got_no_answer_gets_it_a_second_later() {
    let rig = rig(&["a"], 1).await;
    *rig.store.slow.lock().unwrap() = Duration::ZERO;
    *rig.store.unknown.lock().unwrap() = 1;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    rig.kubelet.notify();
    pass(30).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
}

#[tokio::test(start_paused = true)]
async fn who_wants_a_device_before_its_first_report_waits_for_it() {
    for used in [&[][..], &[(0, NODE)]] {
        let mut fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, used)])]);
        let seen = fixture.devices.clone();
        fixture.view("cams", "a").device = None;
        let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
        idle().await;
        let later = async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            rig.devices.send_replace(Arc::new(seen));
        };
        let (given, ()) = tokio::join!(rig.allocate("cams-a", &["cams-a-0"]), later);
        given.unwrap();
        assert_eq!(rig.usage("cams-a-0"), NODE);
        rig.devices.send_replace(Arc::new(fixture.devices));
        let asked = Instant::now();
        let refusal = rig.allocate("cams-a", &["cams-a-0"]).await.unwrap_err();
        assert!(refusal.to_string().contains("not been seen"), "{refusal}");
        assert_eq!(asked.elapsed(), AGAIN);
    }
}
