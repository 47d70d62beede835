//! Holders of slots, and the release of slots.

use tokio::time::advance;

use super::*;
use crate::fixture::{Fixture, NODE, instance, kubelet, pod, snapshot, unit};
use crate::model::snapshot::Pod;

const GRACE: Duration = Duration::from_mins(5);

/// Returns holds in which slot 0 of `cams-a` is this node's, through its own resource.
fn held() -> (Holds, Unit) {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let mut holds = Holds::default();
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    let unit = unit("cams-a", "cams-a-0");
    assert_eq!(holds.by_unit.keys().collect::<Vec<_>>(), [&unit]);
    (holds, unit)
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
        let mut holds = Holds::default();
        holds.update(NODE, &fixture.owners(), &fixture.instances);
        let hold = &holds.by_unit[&unit(resource, id)];
        assert_eq!(hold.slot, "cams-a-0", "{usage}");
        assert_eq!(hold.usage.to_string(), usage);
    }
    let others = [(0, "node-b"), (1, "C:cams-0:node-b"), (2, ""), (3, "a b")];
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 4, &others)])]);
    let mut holds = Holds::default();
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    assert!(holds.by_unit.is_empty(), "{holds:?}");
}

#[tokio::test(start_paused = true)]
async fn what_the_kubelet_was_seen_to_have_comes_back_at_once_when_the_same_kubelet_has_given_it_back()
 {
    let (mut holds, unit) = held();
    assert_eq!(holds.see(&snapshot(1, &[(&unit, "p")]), GRACE), []);
    assert_eq!(
        holds.see(&snapshot(1, &[]), GRACE),
        [(unit, Reason::GivenBack)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_nobody_was_seen_to_have_comes_back_after_the_grace_and_never_by_one_look() {
    let (mut holds, unit) = held();
    assert_eq!(holds.see(&snapshot(1, &[]), Duration::ZERO), []);
    let (mut holds, _) = held();
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        holds.see(&snapshot(1, &[]), GRACE),
        [(unit, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_new_kubelet_begins_the_grace_anew() {
    let (mut holds, unit) = held();
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    advance(GRACE).await;
    assert_eq!(holds.see(&snapshot(2, &[]), GRACE), []);
    advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
    assert_eq!(holds.see(&snapshot(2, &[]), GRACE), []);
    advance(Duration::from_secs(1)).await;
    assert_eq!(
        holds.see(&snapshot(2, &[]), GRACE),
        [(unit, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_look_that_told_nothing_frees_nothing() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    for _ in 0..10 {
        advance(GRACE).await;
        let mut mute = snapshot(1, &[]);
        mute.listed = None;
        assert_eq!(holds.see(&mute, GRACE), []);
    }
    // Only the checkpoint has init containers; one that was not written anew may name a pod that has ended.
    let mut unsure = snapshot(1, &[(&unit, "p")]);
    unsure.listed = Some(BTreeMap::new());
    unsure.checkpoint.as_mut().unwrap().fresh = false;
    assert_eq!(holds.see(&unsure, GRACE), []);
    let mut init = snapshot(1, &[(&unit, "p")]);
    init.listed = Some(BTreeMap::new());
    assert_eq!(holds.see(&init, GRACE), []);
    assert!(matches!(holds.by_unit[&unit].holder, Holder::Seen { .. }));
}

#[tokio::test(start_paused = true)]
async fn without_a_checkpoint_what_was_seen_comes_back_after_the_grace_alone() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    let absent = || {
        let mut snapshot = snapshot(1, &[]);
        snapshot.checkpoint = None;
        snapshot
    };
    assert_eq!(holds.see(&absent(), GRACE), []);
    advance(GRACE).await;
    assert_eq!(holds.see(&absent(), GRACE), [(unit, Reason::Unclaimed)]);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_began_before_an_allocation_says_nothing_of_it() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "old")]), GRACE);
    let before = snapshot(1, &[]);
    let old = snapshot(1, &[(&unit, "old")]);
    advance(Duration::from_secs(1)).await;
    let kubelet = snapshot(1, &[]).kubelet_run;
    holds.allocated(&BTreeSet::from([unit.clone()]), kubelet, Instant::now());
    assert_eq!(holds.see(&before, GRACE), []);
    assert_eq!(holds.see(&old, GRACE), []);
    assert!(matches!(holds.by_unit[&unit].holder, Holder::Unseen(_)));
    // The kubelet records an answer a little later.
    for _ in 0..4 {
        advance(Duration::from_secs(1)).await;
        assert_eq!(holds.see(&snapshot(1, &[]), Duration::ZERO), []);
    }
    holds.see(&snapshot(1, &[(&unit, "new")]), GRACE);
    let words = holds.by_unit[&unit].holder.words();
    assert_eq!(words.as_deref(), Some("default/new"));
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_lost_its_checkpoint_does_not_free_the_slot_of_a_pod_that_is_there() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    let lost = |alive| {
        let mut snapshot = snapshot(2, &[]);
        snapshot.alive.insert("uid-p".into(), alive);
        snapshot.active.insert("default/p".into());
        snapshot
    };
    for _ in 0..5 {
        advance(GRACE).await;
        assert_eq!(holds.see(&lost(true), GRACE), []);
        assert!(holds.by_unit[&unit].holder.is_lost());
    }
    assert_eq!(holds.see(&lost(false), GRACE), [(unit, Reason::PodGone)]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_while_no_kubelet_ran_frees_its_slot_though_its_folder_stays() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    let ended = || {
        let mut snapshot = snapshot(2, &[]);
        snapshot.alive.insert("uid-p".into(), true);
        snapshot
    };
    assert_eq!(holds.see(&ended(), GRACE), []);
    assert!(!holds.by_unit[&unit].holder.is_lost());
    advance(GRACE).await;
    assert_eq!(holds.see(&ended(), GRACE), [(unit, Reason::Unclaimed)]);
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_without_a_uid_a_new_kubelet_frees_nothing_before_the_grace() {
    let (mut holds, unit) = held();
    let mut first = snapshot(1, &[(&unit, "p")]);
    first.checkpoint = None;
    first.listed = Some(BTreeMap::from([(
        unit.clone(),
        BTreeSet::from([Pod {
            uid: None,
            ..pod("p")
        }]),
    )]));
    holds.see(&first, GRACE);
    assert_eq!(holds.see(&snapshot(2, &[]), GRACE), []);
    advance(GRACE).await;
    assert_eq!(
        holds.see(&snapshot(2, &[]), GRACE),
        [(unit, Reason::Unclaimed)]
    );
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_counts_as_looked_at_once_it_has_answered() {
    let (mut holds, _) = held();
    let mut mute = snapshot(1, &[]);
    mute.listed = None;
    holds.see(&mute, GRACE);
    assert_eq!(holds.kubelet_run(), None);
    holds.see(&snapshot(1, &[]), GRACE);
    assert_eq!(holds.kubelet_run(), snapshot(1, &[]).kubelet_run);
    mute.kubelet_run = None;
    holds.see(&mute, GRACE);
    assert_eq!(holds.kubelet_run(), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_seen_stays_when_its_instance_goes_and_what_is_not_goes_along() {
    let empty = InstanceSet::read(BTreeMap::new());
    let (mut holds, unit) = held();
    holds.update(NODE, &Owners::default(), &empty);
    assert!(holds.by_unit.is_empty());
    let (mut holds, _) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    holds.update(NODE, &Owners::default(), &empty);
    assert_eq!(holds.by_unit[&unit].stored, None);
    let held = holds.held(&Owners::default());
    let key = instance("cams", "a", 2, &[]).key();
    assert_eq!(held[&key]["cams-a-0"].to_string(), NODE);
    assert_eq!(
        holds.see(&snapshot(1, &[]), GRACE),
        [(unit, Reason::GivenBack)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_of_an_instance_that_is_gone_is_that_of_the_one_that_has_its_name() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    let mut fixture = Fixture::default();
    fixture.configure("second", "cams");
    let mut namesake = instance("cams", "a", 2, &[]);
    namesake.metadata.namespace = "second".into();
    fixture.put(namesake.clone());
    // The slot belongs to the Instance while it exists.
    let gone = instance("cams", "a", 2, &[]);
    let mut both = fixture.clone();
    both.put(gone.clone());
    holds.update(NODE, &both.owners(), &both.instances);
    let hold = &holds.by_unit[&unit];
    assert_eq!(hold.owner(&fixture.owners()), Some(&gone.key()));
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    let hold = &holds.by_unit[&unit];
    assert_eq!(hold.stored, None);
    assert_eq!(hold.owner(&fixture.owners()), Some(&namesake.key()));
    let by_instance = holds.held(&fixture.owners());
    assert_eq!(by_instance.keys().collect::<Vec<_>>(), [&namesake.key()]);
    // The claim of the other Instance under this id is that slot.
    let usage = &mut namesake.spec.device_usage;
    usage.insert("cams-a-0".into(), NODE.into());
    fixture.put(namesake.clone());
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    let stored = holds.by_unit.values().map(|hold| hold.stored.clone());
    assert_eq!(stored.collect::<Vec<_>>(), [Some(namesake.key())]);
}

#[tokio::test(start_paused = true)]
async fn a_look_that_a_later_one_overtook_gives_nothing_back_to_who_had_it() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let (mut holds, unit) = held();
    assert_eq!(holds.see(&snapshot(1, &[(&unit, "p")]), GRACE), []);
    let slow = snapshot(1, &[(&unit, "p")]);
    advance(Duration::from_secs(1)).await;
    let mut mute = snapshot(1, &[]);
    let later = snapshot(1, &[]);
    let back = holds.see(&later, GRACE);
    assert_eq!(back, [(unit.clone(), Reason::GivenBack)]);
    holds.released(&unit);
    assert_eq!(holds.see(&slow, GRACE), []);
    holds.adopt(NODE, &fixture.owners(), &slow);
    assert!(holds.by_unit.is_empty(), "{holds:?}");
    // A snapshot without an answer overtakes no other.
    advance(Duration::from_secs(1)).await;
    let slow = snapshot(1, &[(&unit, "p")]);
    advance(Duration::from_secs(1)).await;
    (mute.begun, mute.listed) = (Instant::now(), None);
    assert_eq!(holds.see(&mute, GRACE), []);
    holds.see(&slow, GRACE);
    holds.adopt(NODE, &fixture.owners(), &slow);
    assert_eq!(holds.by_unit.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn strangers_are_taken_over_where_their_slot_is_known() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let (own, lost) = (unit("cams-a", "cams-a-1"), unit("gone-b", "gone-b-0"));
    let (known, unknown) = (unit("cams", "cams-0"), unit("cams", "cams-1"));
    let (odd, foreign) = (
        unit("cams-a", "elsewhere"),
        Unit {
            resource: "vendor.example/gpu".into(),
            id: "cams-a-0".into(),
        },
    );
    let mut snapshot = snapshot(
        1,
        &[&own, &lost, &known, &unknown, &odd, &foreign].map(|unit| (unit, "p")),
    );
    let slots = BTreeMap::from([(known.clone(), "cams-a-0".to_owned())]);
    snapshot.checkpoint.as_mut().unwrap().slots = slots;
    let mut holds = Holds::default();
    holds.adopt(NODE, &fixture.owners(), &snapshot);
    let found: Vec<_> = holds
        .by_unit
        .iter()
        .map(|(unit, hold)| format!("{unit} = {} {}", hold.slot, hold.usage))
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
    let mut old = snapshot.clone();
    old.listed = Some(BTreeMap::new());
    old.checkpoint.as_mut().unwrap().fresh = false;
    old.alive = BTreeMap::from([("uid-p".to_owned(), false)]);
    let mut holds = Holds::default();
    holds.adopt(NODE, &fixture.owners(), &old);
    assert!(holds.by_unit.is_empty());
}

/// Returns a fixture in which `cams-0` maps to slots of both `cams-a` and `cams-b`.
fn doubled() -> (Fixture, Unit) {
    let usage = [(0, "C:cams-0:node-a")];
    let (a, b) = (
        instance("cams", "a", 1, &usage),
        instance("cams", "b", 1, &usage),
    );
    (Fixture::new(&[("cams", &[a, b])]), unit("cams", "cams-0"))
}

#[tokio::test(start_paused = true)]
async fn of_two_slots_with_one_id_the_one_the_kubelet_was_answered_stays() {
    let (fixture, unit) = doubled();
    for (answered, other) in [("cams-a-0", "cams-b-0"), ("cams-b-0", "cams-a-0")] {
        let mut holds = Holds::default();
        holds.update(NODE, &fixture.owners(), &fixture.instances);
        assert_eq!(holds.by_unit.len(), 2);
        let seen = || {
            let mut seen = snapshot(1, &[(&unit, "p")]);
            let slots = BTreeMap::from([(unit.clone(), answered.to_owned())]);
            seen.checkpoint.as_mut().unwrap().slots = slots;
            seen
        };
        assert_eq!(holds.see(&seen(), GRACE), []);
        // The store repeats it, as it does after any change.
        holds.update(NODE, &fixture.owners(), &fixture.instances);
        assert_eq!(holds.by_unit[&unit].slot, answered);
        assert!(holds.by_unit[&unit].stored.is_some());
        advance(GRACE).await;
        let back = holds.see(&seen(), GRACE);
        let back: Vec<_> = back
            .iter()
            .map(|(unit, reason)| (holds.by_unit[unit].slot.as_str(), *reason))
            .collect();
        assert_eq!(back, [(other, Reason::Unclaimed)]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_shows_up_late_does_not_take_the_place_of_the_one_that_was_answered() {
    let (fixture, unit) = doubled();
    let mut first = fixture.clone();
    let key = instance("cams", "a", 1, &[]).key();
    first.put(instance("cams", "a", 1, &[]));
    let mut holds = Holds::default();
    holds.update(NODE, &first.owners(), &first.instances);
    assert_eq!(holds.by_unit[&unit].slot, "cams-b-0");
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    assert_eq!(holds.by_unit[&unit].slot, "cams-b-0");
    // Nor while the right Instance is gone for a time.
    let mut without = fixture.clone();
    without
        .instances
        .instances
        .remove(&instance("cams", "b", 1, &[]).key());
    holds.update(NODE, &without.owners(), &without.instances);
    let hold = &holds.by_unit[&unit];
    assert_eq!((hold.slot.as_str(), &hold.stored), ("cams-b-0", &None));
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
    let mut holds = Holds::default();
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    let unit = unit("cams-a", "cams-a-0");
    let namespace = |unit: &Unit| holds.by_unit[unit].stored.clone().unwrap().namespace;
    assert_eq!(holds.by_unit.len(), 2);
    assert_eq!(namespace(&unit), "default");
    let seen = || snapshot(1, &[(&unit, "p")]);
    let mut later = holds.clone();
    assert_eq!(later.see(&seen(), GRACE), []);
    advance(GRACE).await;
    let back = later.see(&seen(), GRACE);
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

/// Returns holds in which slot 0 of `cams-a` is claimed by an earlier agent that has served the kubelet `trusted`.
fn found(trusted: Option<KubeletRun>) -> (Holds, Unit) {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let mut holds = Holds::new(trusted);
    holds.update(NODE, &fixture.owners(), &fixture.instances);
    (holds, unit("cams-a", "cams-a-0"))
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_an_agent_that_has_ended_comes_back_when_the_same_kubelet_has_written_without_it()
 {
    let (mut holds, unit) = found(Some(kubelet(1)));
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    assert!(holds.open(Instant::now()).is_empty());
    // The kubelet records the last answer of the ended agent a little later.
    advance(RECORD_WAIT).await;
    assert_eq!(holds.open(Instant::now()), BTreeSet::from([unit.clone()]));
    let mut read = snapshot(1, &[]);
    read.checkpoint.as_mut().unwrap().anew = false;
    assert_eq!(holds.see(&read, GRACE), [], "it may be an older one");
    let mut missing = snapshot(1, &[]);
    missing.checkpoint = None;
    assert_eq!(holds.see(&missing, GRACE), []);
    assert_eq!(
        holds.see(&snapshot(1, &[]), GRACE),
        [(unit, Reason::Undelivered)]
    );
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_the_kubelet_has_not_booked_comes_back_after_five_seconds() {
    let (mut holds, unit) = held();
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    holds.allocated(
        &BTreeSet::from([unit.clone()]),
        Some(kubelet(1)),
        Instant::now(),
    );
    advance(RECORD_WAIT.saturating_sub(Duration::from_millis(1))).await;
    assert_eq!(holds.see(&snapshot(1, &[]), GRACE), []);
    advance(Duration::from_millis(1)).await;
    assert_eq!(holds.open(Instant::now()), BTreeSet::from([unit.clone()]));
    assert_eq!(
        holds.see(&snapshot(1, &[]), GRACE),
        [(unit, Reason::Undelivered)]
    );
}

#[tokio::test(start_paused = true)]
async fn what_another_kubelet_may_have_given_away_stays_for_the_grace() {
    for trusted in [None, Some(kubelet(1))] {
        let (mut holds, unit) = found(trusted);
        assert_eq!(holds.see(&snapshot(2, &[]), GRACE), []);
        assert!(
            holds.by_unit[&unit].is_doubtful(Some(kubelet(2))),
            "{trusted:?}"
        );
        assert_eq!(holds.news(), None);
        advance(GRACE.saturating_sub(Duration::from_secs(1))).await;
        assert!(holds.open(Instant::now()).is_empty());
        assert_eq!(holds.see(&snapshot(2, &[]), GRACE), []);
        advance(Duration::from_secs(1)).await;
        assert_eq!(
            holds.see(&snapshot(2, &[]), GRACE),
            [(unit.clone(), Reason::Unclaimed)]
        );
        holds.released(&unit);
        assert_eq!(holds.news(), Some(kubelet(2)));
        holds.trust(kubelet(2));
        assert_eq!(holds.news(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_is_trusted_once_it_is_seen_to_have_all_and_not_with_one_that_it_lost() {
    let (mut holds, unit) = held();
    holds.see(&snapshot(1, &[(&unit, "p")]), GRACE);
    assert_eq!(holds.news(), Some(kubelet(1)));
    let mut lost = snapshot(2, &[]);
    lost.alive.insert("uid-p".into(), true);
    lost.active.insert("default/p".into());
    holds.see(&lost, GRACE);
    assert_eq!(holds.news(), None);
    holds.see(&snapshot(2, &[(&unit, "p")]), GRACE);
    assert_eq!(holds.news(), Some(kubelet(2)));
}
