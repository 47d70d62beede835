//! Snapshots that do not show a slot.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_look_is_due_when_the_kubelet_must_have_recorded_the_answer() {
    let (mut slot_table, device_id) = held();
    let answered = Instant::now();
    slot_table.allocated(&BTreeSet::from([device_id]), Some(kubelet(1)), answered);
    advance(Duration::from_secs(1)).await;
    slot_table.observe(&snapshot(1, &[]), GRACE);
    assert_eq!(slot_table.due(), Some(answered + RECORD_WAIT));
    advance(RECORD_WAIT).await;
    slot_table.observe(&snapshot(1, &[]), GRACE);
    assert_eq!(slot_table.due(), None);
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_both_records_lack_is_certainly_absent_until_it_is_seen() {
    let (mut slot_table, device_id) = held();
    let mut listed_alone = snapshot(1, &[]);
    listed_alone.checkpoint = None;
    for (snapshot, absent) in [
        (&listed_alone, false),
        (&snapshot(1, &[]), true),
        (&snapshot(1, &[]), true),
        (&listed_alone, true),
        (&snapshot(1, &[(&device_id, "p")]), false),
    ] {
        slot_table.observe(snapshot, GRACE);
        let state = &slot_table.by_device_id[&device_id];
        assert_eq!(state.absent, absent, "{snapshot:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_from_before_a_boot_ends_when_the_new_kubelet_has_written_without_it() {
    let (mut slot_table, device_id) = found_after(Some(kubelet(1)), true);
    assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
    assert!(!slot_table.by_device_id[&device_id].is_uncertain(Some(kubelet(2))));
    advance(RECORD_WAIT).await;
    assert_eq!(
        slot_table.open(Instant::now()),
        BTreeSet::from([device_id.clone()])
    );
    let mut read = snapshot(2, &[]);
    read.checkpoint.as_mut().unwrap().rewritten = false;
    assert_eq!(slot_table.observe(&read, GRACE), []);
    assert_eq!(
        slot_table.observe(&snapshot(2, &[]), GRACE),
        [(device_id, Reason::PodGone)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_from_before_a_boot_stays_with_a_pod_that_was_admitted_again() {
    let (mut slot_table, device_id) = found_after(Some(kubelet(1)), true);
    advance(RECORD_WAIT).await;
    for _ in 0..3 {
        let read = snapshot(2, &[(&device_id, "p")]);
        assert_eq!(slot_table.observe(&read, GRACE), []);
    }
    // An allocation of this boot is judged by its own kubelet.
    let (mut slot_table, device_id) = found_after(Some(kubelet(1)), true);
    slot_table.allocated(
        &BTreeSet::from([device_id.clone()]),
        Some(kubelet(2)),
        Instant::now(),
    );
    advance(RECORD_WAIT).await;
    assert_eq!(slot_table.observe(&snapshot(3, &[]), GRACE), []);
    assert!(slot_table.by_device_id[&device_id].is_uncertain(Some(kubelet(3))));
}
