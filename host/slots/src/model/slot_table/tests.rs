//! Holders of slots, and the release of slots.

use tokio::time::advance;

use super::*;
use crate::fixture::{Fixture, NODE, device_id, instance, kubelet, pod, snapshot};
use crate::model::snapshot::Pod;

const GRACE: Duration = Duration::from_mins(5);

mod absence;
mod duplicates;

/// Returns a table in which slot 0 of `cams-a` is this node's, through its own resource.
fn held() -> (SlotTable, DeviceId) {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let device_id = device_id("cams-a", "cams-a-0");
    assert_eq!(
        slot_table.by_device_id.keys().collect::<Vec<_>>(),
        [&device_id]
    );
    (slot_table, device_id)
}

#[test]
fn a_slot_is_this_nodes_in_all_forms_akri_writes() {
    for (usage, resource, id) in [
        (NODE, "cams-a", "cams-a-0"),
        ("C:cams-3:node-a", "cams", "cams-3"),
        // Written by older agents of Akri.
        ("C:0:node-a", "cams", "cams-0"),
    ] {
        let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[(0, usage)])])]);
        let mut slot_table = SlotTable::default();
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        let state = &slot_table.by_device_id[&device_id(resource, id)];
        assert_eq!(state.slot, "cams-a-0", "{usage}");
        assert_eq!(state.usage.to_string(), usage);
    }
    let others = [(0, "node-b"), (1, "C:cams-0:node-b"), (2, ""), (3, "a b")];
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 4, &others)])]);
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    assert!(slot_table.by_device_id.is_empty(), "{slot_table:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_kubelet_was_seen_to_have_comes_back_at_once_when_the_same_kubelet_has_given_it_back()
 {
    let (mut slot_table, device_id) = held();
    assert_eq!(
        slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE),
        []
    );
    assert_eq!(
        slot_table.observe(&snapshot(1, &[]), GRACE),
        [(device_id, Reason::GivenBack)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_nobody_was_seen_to_have_comes_back_after_the_grace_and_never_by_one_look() {
    let (mut slot_table, device_id) = held();
    assert_eq!(slot_table.observe(&snapshot(1, &[]), Duration::ZERO), []);
    let (mut slot_table, _) = held();
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        slot_table.observe(&snapshot(1, &[]), GRACE),
        [(device_id, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_kubelet_begins_the_grace_anew() {
    let (mut slot_table, device_id) = held();
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    advance(GRACE).await;
    assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
    advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        slot_table.observe(&snapshot(2, &[]), GRACE),
        [(device_id, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_look_that_told_nothing_frees_nothing() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    for _ in 0..10 {
        advance(GRACE).await;
        let mut mute = snapshot(1, &[]);
        mute.listed = None;
        assert_eq!(slot_table.observe(&mute, GRACE), []);
    }
    // Only the checkpoint has init containers; one that was not written again may name a pod that has ended.
    let mut unsure = snapshot(1, &[(&device_id, "p")]);
    unsure.listed = Some(BTreeMap::new());
    unsure.checkpoint.as_mut().unwrap().fresh = false;
    assert_eq!(slot_table.observe(&unsure, GRACE), []);
    let mut init = snapshot(1, &[(&device_id, "p")]);
    init.listed = Some(BTreeMap::new());
    assert_eq!(slot_table.observe(&init, GRACE), []);
    assert!(matches!(
        slot_table.by_device_id[&device_id].holder,
        Holder::Seen { .. }
    ));
}

#[tokio::test(start_paused = true)]
async fn without_a_checkpoint_what_was_seen_comes_back_after_the_grace_alone() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    let absent = || {
        let mut snapshot = snapshot(1, &[]);
        snapshot.checkpoint = None;
        snapshot
    };
    assert_eq!(slot_table.observe(&absent(), GRACE), []);
    advance(GRACE).await;
    assert_eq!(
        slot_table.observe(&absent(), GRACE),
        [(device_id, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_look_that_began_before_an_allocation_says_nothing_of_it() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "old")]), GRACE);
    let before = snapshot(1, &[]);
    let old = snapshot(1, &[(&device_id, "old")]);
    advance(Duration::from_secs(1)).await;
    let kubelet = snapshot(1, &[]).kubelet_run;
    slot_table.allocated(
        &BTreeSet::from([device_id.clone()]),
        kubelet,
        Instant::now(),
    );
    assert_eq!(slot_table.observe(&before, GRACE), []);
    assert_eq!(slot_table.observe(&old, GRACE), []);
    assert!(matches!(
        slot_table.by_device_id[&device_id].holder,
        Holder::Unseen(_)
    ));
    // The kubelet records an answer a little later.
    for _ in 0..4 {
        advance(Duration::from_secs(1)).await;
        assert_eq!(slot_table.observe(&snapshot(1, &[]), Duration::ZERO), []);
    }
    slot_table.observe(&snapshot(1, &[(&device_id, "new")]), GRACE);
    let words = slot_table.by_device_id[&device_id].holder.describe();
    assert_eq!(words.as_deref(), Some("default/new"));
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_lost_its_checkpoint_does_not_free_the_slot_of_a_pod_that_is_there() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    let lost = |alive| {
        let mut snapshot = snapshot(2, &[]);
        snapshot.alive.insert("uid-p".into(), alive);
        snapshot.active.insert("default/p".into());
        snapshot
    };
    for _ in 0..5 {
        advance(GRACE).await;
        assert_eq!(slot_table.observe(&lost(true), GRACE), []);
        assert!(slot_table.by_device_id[&device_id].holder.is_lost());
    }
    assert_eq!(
        slot_table.observe(&lost(false), GRACE),
        [(device_id, Reason::PodGone)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_while_no_kubelet_ran_frees_its_slot_though_its_folder_stays() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    let ended = || {
        let mut snapshot = snapshot(2, &[]);
        snapshot.alive.insert("uid-p".into(), true);
        snapshot
    };
    assert_eq!(slot_table.observe(&ended(), GRACE), []);
    assert!(!slot_table.by_device_id[&device_id].holder.is_lost());
    advance(GRACE).await;
    assert_eq!(
        slot_table.observe(&ended(), GRACE),
        [(device_id, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_without_a_uid_a_new_kubelet_frees_nothing_before_the_grace() {
    let (mut slot_table, device_id) = held();
    let mut first = snapshot(1, &[(&device_id, "p")]);
    first.checkpoint = None;
    first.listed = Some(BTreeMap::from([(
        device_id.clone(),
        BTreeSet::from([Pod {
            uid: None,
            ..pod("p")
        }]),
    )]));
    slot_table.observe(&first, GRACE);
    assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
    advance(GRACE).await;
    assert_eq!(
        slot_table.observe(&snapshot(2, &[]), GRACE),
        [(device_id, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_counts_as_looked_at_once_it_has_answered() {
    let (mut slot_table, _) = held();
    let mut mute = snapshot(1, &[]);
    mute.listed = None;
    slot_table.observe(&mute, GRACE);
    assert_eq!(slot_table.kubelet_run(), None);
    slot_table.observe(&snapshot(1, &[]), GRACE);
    assert_eq!(slot_table.kubelet_run(), snapshot(1, &[]).kubelet_run);
    mute.kubelet_run = None;
    slot_table.observe(&mute, GRACE);
    assert_eq!(slot_table.kubelet_run(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_seen_stays_when_its_instance_goes_and_what_is_not_goes_along() {
    let empty = InstanceSet::read(BTreeMap::new());
    let (mut slot_table, device_id) = held();
    slot_table.update(NODE, &NameIndex::default(), &empty);
    assert!(slot_table.by_device_id.is_empty());
    let (mut slot_table, _) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    slot_table.update(NODE, &NameIndex::default(), &empty);
    assert_eq!(slot_table.by_device_id[&device_id].stored, None);
    let held = slot_table.held(&NameIndex::default());
    let key = instance("cams", "a", 2, &[]).key();
    assert_eq!(held[&key]["cams-a-0"].to_string(), NODE);
    assert_eq!(
        slot_table.observe(&snapshot(1, &[]), GRACE),
        [(device_id, Reason::GivenBack)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_of_an_instance_that_is_gone_is_that_of_the_one_that_has_its_name() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    let mut fixture = Fixture::default();
    fixture.configure("second", "cams");
    let mut namesake = instance("cams", "a", 2, &[]);
    namesake.metadata.namespace = "second".into();
    fixture.put(namesake.clone());
    // The slot belongs to the Instance while it exists.
    let gone = instance("cams", "a", 2, &[]);
    let mut both = fixture.clone();
    both.put(gone.clone());
    slot_table.update(NODE, &both.name_index(), &both.instances);
    let state = &slot_table.by_device_id[&device_id];
    assert_eq!(state.owner(&fixture.name_index()), Some(&gone.key()));
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let state = &slot_table.by_device_id[&device_id];
    assert_eq!(state.stored, None);
    assert_eq!(state.owner(&fixture.name_index()), Some(&namesake.key()));
    let by_instance = slot_table.held(&fixture.name_index());
    assert_eq!(by_instance.keys().collect::<Vec<_>>(), [&namesake.key()]);
    // The claim of the other Instance under this id is that slot.
    let usage = &mut namesake.spec.device_usage;
    usage.insert("cams-a-0".into(), NODE.into());
    fixture.put(namesake.clone());
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let stored = slot_table
        .by_device_id
        .values()
        .map(|state| state.stored.clone());
    assert_eq!(stored.collect::<Vec<_>>(), [Some(namesake.key())]);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_a_later_one_overtook_gives_nothing_back_to_who_had_it() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let (mut slot_table, device_id) = held();
    assert_eq!(
        slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE),
        []
    );
    let slow = snapshot(1, &[(&device_id, "p")]);
    advance(Duration::from_secs(1)).await;
    let mut mute = snapshot(1, &[]);
    let later = snapshot(1, &[]);
    let back = slot_table.observe(&later, GRACE);
    assert_eq!(back, [(device_id.clone(), Reason::GivenBack)]);
    slot_table.released(&device_id);
    assert_eq!(slot_table.observe(&slow, GRACE), []);
    slot_table.adopt(NODE, &fixture.name_index(), &slow);
    assert!(slot_table.by_device_id.is_empty(), "{slot_table:?}");
    // A snapshot without an answer overtakes no other.
    advance(Duration::from_secs(1)).await;
    let slow = snapshot(1, &[(&device_id, "p")]);
    advance(Duration::from_secs(1)).await;
    (mute.begun, mute.listed) = (Instant::now(), None);
    assert_eq!(slot_table.observe(&mute, GRACE), []);
    slot_table.observe(&slow, GRACE);
    slot_table.adopt(NODE, &fixture.name_index(), &slow);
    assert_eq!(slot_table.by_device_id.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_taken_over_where_their_slot_is_known() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let (own, lost) = (
        device_id("cams-a", "cams-a-1"),
        device_id("gone-b", "gone-b-0"),
    );
    let (known, unknown) = (device_id("cams", "cams-0"), device_id("cams", "cams-1"));
    let (odd, foreign) = (
        device_id("cams-a", "elsewhere"),
        DeviceId::new("vendor.example/gpu", "cams-a-0"),
    );
    let mut snapshot = snapshot(
        1,
        &[&own, &lost, &known, &unknown, &odd, &foreign].map(|device_id| (device_id, "p")),
    );
    let slots = BTreeMap::from([(known.clone(), "cams-a-0".to_owned())]);
    snapshot.checkpoint.as_mut().unwrap().slots = slots;
    let mut slot_table = SlotTable::default();
    slot_table.adopt(NODE, &fixture.name_index(), &snapshot);
    let found: Vec<_> = slot_table
        .by_device_id
        .iter()
        .map(|(device_id, state)| format!("{device_id} = {} {}", state.slot, state.usage))
        .collect();
    assert_eq!(
        found,
        [
            "akri.sh/cams cams-0 = cams-a-0 C:cams-0:node-a",
            "akri.sh/cams-a cams-a-1 = cams-a-1 node-a",
            "akri.sh/gone-b gone-b-0 = gone-b-0 node-a",
        ]
    );
    // An old checkpoint is believed about pods that are present.
    for (fresh, alive, adopted) in [(false, false, 0), (false, true, 3), (true, false, 3)] {
        let mut old = snapshot.clone();
        old.listed = Some(BTreeMap::new());
        old.checkpoint.as_mut().unwrap().fresh = fresh;
        old.alive = BTreeMap::from([("uid-p".to_owned(), alive)]);
        let mut slot_table = SlotTable::default();
        slot_table.adopt(NODE, &fixture.name_index(), &old);
        assert_eq!(slot_table.by_device_id.len(), adopted, "{fresh} {alive}");
    }
}

/// Returns a fixture in which `cams-0` maps to slots of both `cams-a` and `cams-b`.
fn doubled() -> (Fixture, DeviceId) {
    let usage = [(0, "C:cams-0:node-a")];
    let (a, b) = (
        instance("cams", "a", 1, &usage),
        instance("cams", "b", 1, &usage),
    );
    (
        Fixture::new(&[("cams", &[a, b])]),
        device_id("cams", "cams-0"),
    )
}

#[tokio::test(start_paused = true)]
async fn of_two_slots_with_one_id_the_one_the_kubelet_was_answered_stays() {
    let (fixture, device_id) = doubled();
    for (answered, other) in [("cams-a-0", "cams-b-0"), ("cams-b-0", "cams-a-0")] {
        let mut slot_table = SlotTable::default();
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        assert_eq!(slot_table.by_device_id.len(), 2);
        let seen = || {
            let mut seen = snapshot(1, &[(&device_id, "p")]);
            let slots = BTreeMap::from([(device_id.clone(), answered.to_owned())]);
            seen.checkpoint.as_mut().unwrap().slots = slots;
            seen
        };
        assert_eq!(slot_table.observe(&seen(), GRACE), []);
        // The store repeats it, as it does after any change.
        slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
        assert_eq!(slot_table.by_device_id[&device_id].slot, answered);
        assert!(slot_table.by_device_id[&device_id].stored.is_some());
        advance(GRACE).await;
        let back = slot_table.observe(&seen(), GRACE);
        let back: Vec<_> = back
            .iter()
            .map(|(device_id, reason)| (slot_table.by_device_id[device_id].slot.as_str(), *reason))
            .collect();
        assert_eq!(back, [(other, Reason::Unclaimed)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_shows_up_late_does_not_take_the_place_of_the_one_that_was_answered() {
    let (fixture, device_id) = doubled();
    let mut first = fixture.clone();
    let key = instance("cams", "a", 1, &[]).key();
    first.put(instance("cams", "a", 1, &[]));
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &first.name_index(), &first.instances);
    assert_eq!(slot_table.by_device_id[&device_id].slot, "cams-b-0");
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    assert_eq!(slot_table.by_device_id[&device_id].slot, "cams-b-0");
    // The claim does not move either while the right Instance is missing for a time.
    let mut without = fixture.clone();
    without
        .instances
        .instances
        .remove(&instance("cams", "b", 1, &[]).key());
    slot_table.update(NODE, &without.name_index(), &without.instances);
    let state = &slot_table.by_device_id[&device_id];
    assert_eq!((state.slot.as_str(), &state.stored), ("cams-b-0", &None));
    assert!(without.instances.instances.contains_key(&key));
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_another_namespace_is_never_taken_for_one_of_the_same_name() {
    let mut fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[(0, NODE)])])]);
    fixture.configure("second", "cams");
    let mut younger = instance("cams", "a", 1, &[(0, NODE)]);
    younger.metadata.namespace = "second".into();
    younger.metadata.creation_timestamp = Some("2026-02-01T00:00:00Z".into());
    fixture.put(younger);
    let mut slot_table = SlotTable::default();
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    let device_id = device_id("cams-a", "cams-a-0");
    let namespace = |device_id: &DeviceId| {
        slot_table.by_device_id[device_id]
            .stored
            .clone()
            .unwrap()
            .namespace
    };
    assert_eq!(slot_table.by_device_id.len(), 2);
    assert_eq!(namespace(&device_id), "default");
    let seen = || snapshot(1, &[(&device_id, "p")]);
    let mut later = slot_table.clone();
    assert_eq!(later.observe(&seen(), GRACE), []);
    advance(GRACE).await;
    let back = later.observe(&seen(), GRACE);
    assert_eq!(back.len(), 1);
    assert_eq!(namespace(&back[0].0), "second");
}

#[test]
fn a_slots_id_tells_its_instance() {
    assert_eq!(instance_of("cams-a-0"), Some("cams-a"));
    for text in ["cams", "cams-a-", "cams-a-00", "-0x"] {
        assert_eq!(instance_of(text), None, "{text}");
    }
}

/// Returns a table in which slot 0 of `cams-a` is claimed by an earlier agent that has served the kubelet `trusted`.
fn found(trusted: Option<KubeletRun>) -> (SlotTable, DeviceId) {
    found_after(trusted, false)
}

/// Returns the same table; the machine may have booted since.
fn found_after(trusted: Option<KubeletRun>, has_rebooted: bool) -> (SlotTable, DeviceId) {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let mut slot_table = SlotTable::new(trusted, has_rebooted);
    slot_table.update(NODE, &fixture.name_index(), &fixture.instances);
    (slot_table, device_id("cams-a", "cams-a-0"))
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_an_agent_that_has_ended_comes_back_when_the_same_kubelet_has_written_without_it()
 {
    let (mut slot_table, device_id) = found(Some(kubelet(1)));
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    assert!(slot_table.open(Instant::now()).is_empty());
    // The kubelet records the last answer of the ended agent a little later.
    advance(RECORD_WAIT).await;
    assert_eq!(
        slot_table.open(Instant::now()),
        BTreeSet::from([device_id.clone()])
    );
    let mut read = snapshot(1, &[]);
    read.checkpoint.as_mut().unwrap().rewritten = false;
    assert_eq!(
        slot_table.observe(&read, GRACE),
        [],
        "it may be an older one"
    );
    let mut missing = snapshot(1, &[]);
    missing.checkpoint = None;
    assert_eq!(slot_table.observe(&missing, GRACE), []);
    assert_eq!(
        slot_table.observe(&snapshot(1, &[]), GRACE),
        [(device_id, Reason::Undelivered)]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_kubelet_has_not_booked_comes_back_after_five_seconds() {
    let (mut slot_table, device_id) = held();
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    slot_table.allocated(
        &BTreeSet::from([device_id.clone()]),
        Some(kubelet(1)),
        Instant::now(),
    );
    advance(RECORD_WAIT.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!(slot_table.observe(&snapshot(1, &[]), GRACE), []);
    advance(Duration::from_millis(1)).await;
    assert_eq!(
        slot_table.open(Instant::now()),
        BTreeSet::from([device_id.clone()])
    );
    assert_eq!(
        slot_table.observe(&snapshot(1, &[]), GRACE),
        [(device_id, Reason::Undelivered)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_another_kubelet_may_have_given_away_stays_for_the_grace() {
    for trusted in [None, Some(kubelet(1))] {
        let (mut slot_table, device_id) = found(trusted);
        assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
        assert!(
            slot_table.by_device_id[&device_id].is_uncertain(Some(kubelet(2))),
            "{trusted:?}"
        );
        assert_eq!(slot_table.kubelet_to_trust(), None);
        advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
        assert!(slot_table.open(Instant::now()).is_empty());
        assert_eq!(slot_table.observe(&snapshot(2, &[]), GRACE), []);
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            slot_table.observe(&snapshot(2, &[]), GRACE),
            [(device_id.clone(), Reason::Unclaimed)]
        );
        slot_table.released(&device_id);
        assert_eq!(slot_table.kubelet_to_trust(), Some(kubelet(2)));
        slot_table.trust(kubelet(2));
        assert_eq!(slot_table.kubelet_to_trust(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_is_trusted_once_it_is_seen_to_have_all_and_not_with_one_that_it_lost() {
    let (mut slot_table, device_id) = held();
    slot_table.observe(&snapshot(1, &[(&device_id, "p")]), GRACE);
    assert_eq!(slot_table.kubelet_to_trust(), Some(kubelet(1)));
    let mut lost = snapshot(2, &[]);
    lost.alive.insert("uid-p".into(), true);
    lost.active.insert("default/p".into());
    slot_table.observe(&lost, GRACE);
    assert_eq!(slot_table.kubelet_to_trust(), None);
    slot_table.observe(&snapshot(2, &[(&device_id, "p")]), GRACE);
    assert_eq!(slot_table.kubelet_to_trust(), Some(kubelet(2)));
}
