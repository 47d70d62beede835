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
