//! Slots that the store records under one id of the kubelet.

use super::*;

/// Returns a snapshot in which a pod has the device id, with this slot in the kubelet's record of the answer.
fn answered(device_id: &DeviceId, slot: &str) -> Snapshot {
    let mut seen = snapshot(1, &[(device_id, "p")]);
    let slots = BTreeMap::from([(device_id.clone(), slot.to_owned())]);
    seen.checkpoint.as_mut().unwrap().slots = slots;
    seen
}

#[tokio::test(start_paused = true)]
async fn of_three_slots_with_one_id_the_one_that_was_answered_keeps_its_own_claim() {
    let hashes = ["a", "b", "c"];
    let instances = hashes.map(|hash| instance("cams", hash, 1, &[(0, "C:cams-0:node-a")]));
    let fixture = Fixture::new(&[("cams", &instances)]);
    let device_id = device_id("cams", "cams-0");
    for hash in hashes {
        let mut slot_table = SlotTable::default();
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        assert_eq!(slot_table.by_device_id[&device_id].slot, "cams-a-0");
        let slot = format!("cams-{hash}-0");
        slot_table.observe(&answered(&device_id, &slot), GRACE);
        let state = &slot_table.by_device_id[&device_id];
        let key = instance("cams", hash, 1, &[]).key();
        assert_eq!((&state.slot, &state.stored), (&slot, &Some(key)));
        assert_eq!(slot_table.by_device_id.len(), 3, "{hash}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_from_before_an_answer_does_not_correct_its_slot() {
    let (fixture, device_id) = doubled();
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    slot_table.allocated(
        &BTreeSet::from([device_id.clone()]),
        Some(kubelet(1)),
        Instant::now(),
    );
    let moment = Duration::from_millis(1);
    for (wait, slot) in [
        (RECORD_WAIT.saturating_sub(moment), "cams-a-0"),
        (moment, "cams-b-0"),
    ] {
        advance(wait).await;
        slot_table.observe(&answered(&device_id, "cams-b-0"), GRACE);
        assert_eq!(slot_table.by_device_id[&device_id].slot, slot);
    }
}

#[test]
fn an_id_stays_with_its_instance_when_that_records_another_slot_for_it() {
    let usage = "C:cams-0:node-a";
    let mut slot_table = SlotTable::default();
    for (of_a, of_b, slot) in [
        (vec![], vec![(0, usage)], "cams-b-0"),
        (vec![(0, usage)], vec![(1, usage)], "cams-b-1"),
    ] {
        let instances = [
            instance("cams", "a", 2, &of_a),
            instance("cams", "b", 2, &of_b),
        ];
        let fixture = Fixture::new(&[("cams", &instances)]);
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        let state = &slot_table.by_device_id[&device_id("cams", "cams-0")];
        assert_eq!(state.slot, slot);
    }
}

#[tokio::test(start_paused = true)]
async fn the_claim_of_a_namesake_is_not_that_of_a_pod_whose_instance_exists() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    // Somebody has freed the slot of the first Instance.
    let first = instance("cams", "a", 2, &[]);
    let mut fixture = Fixture::new(&[("cams", std::slice::from_ref(&first))]);
    fixture.configure("second", "cams");
    let mut namesake = instance("cams", "a", 2, &[(0, NODE)]);
    namesake.metadata.namespace = "second".into();
    fixture.put(namesake);
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let state = &slot_table.by_device_id[&device_id];
    assert_eq!(state.stored, None);
    assert_eq!(state.origin, Some(first.key()));
}
