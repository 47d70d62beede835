//! Reads of the kubelet's records: which slots come back.

use super::*;

#[test]
fn an_earlier_holder_of_a_slot_says_nothing_of_the_pod_that_it_is_reserved_for() {
    let mut a = gpu("a1");
    let grace = Duration::from_mins(5);
    let mut history = TicketHistory::default();
    let none = BTreeSet::new();
    let mut see = |a: &Instance, snapshot: &Snapshot, recent: &BTreeSet<String>| {
        let set = Fixture::new(&[("gpu", std::slice::from_ref(a))]).instances;
        history
            .observe(NODE, &set, snapshot, (recent, grace))
            .back
            .len()
    };
    assert_eq!(see(&a, &snapshot(1, &[]), &none), 0);
    // The slot's former pod has ended, but the status still names it.
    let mut status = NodeStatus::new(Health::Healthy);
    let holder = ("gpu-a1-0".to_owned(), "default/before".to_owned());
    status.holders.extend([holder]);
    a.status.nodes.insert(NODE.to_owned(), status);
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let mut early = snapshot(1, &[]);
    early.alive.insert("uid-one".to_owned(), false);
    assert_eq!(see(&a, &early, &none), 0);
    // The Allocate was answered after the read had begun.
    let (held, recent) = (ticket(0), BTreeSet::from(["uid-one".to_owned()]));
    assert_eq!(see(&a, &snapshot(1, &[(&held, "one")]), &none), 0);
    assert_eq!(see(&a, &early, &recent), 0);
    assert_eq!(see(&a, &early, &none), 1);
    // A restarted agent does not release the slot either.
    let set = Fixture::new(&[("gpu", std::slice::from_ref(&a))]).instances;
    let seen = TicketHistory::default().observe(NODE, &set, &early, (&none, grace));
    assert_eq!(seen.back, []);
    // An earlier agent has seen the ticket of the pod that has ended since.
    let status = a.status.nodes.get_mut(NODE).unwrap();
    let holder = ("gpu-a1-0".to_owned(), "default/one".to_owned());
    status.holders.extend([holder]);
    let set = Fixture::new(&[("gpu", &[a])]).instances;
    let seen = TicketHistory::default().observe(NODE, &set, &early, (&none, grace));
    assert_eq!(seen.back.len(), 1);
    // If this agent has looked before, the holder may be an earlier pod of that name.
    let mut history = TicketHistory::default();
    let free = Fixture::new(&[("gpu", &[gpu("a1")])]).instances;
    for set in [&free, &set] {
        let seen = history.observe(NODE, set, &early, (&none, grace));
        assert_eq!(seen.back, []);
    }
}

#[test]
fn a_pod_with_a_ticket_counts_as_seen_by_that_run_of_the_kubelet_alone() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    reserve(&mut b, "two", &[one_use("main", 0, 0, 1)]);
    let set = Fixture::new(&[("gpu", &[a, b])]).instances;
    let mut history = TicketHistory::default();
    let held = ticket(0);
    let none = BTreeSet::new();
    for (seen, back) in [
        (snapshot(1, &[(&held, "one")]), vec![]),
        (snapshot(1, &[]), vec![Reason::GivenBack]),
    ] {
        let seen = history.observe(NODE, &set, &seen, (&none, Duration::from_mins(5)));
        let reasons: Vec<Reason> = seen.back.iter().map(|(_, _, reason)| *reason).collect();
        assert_eq!(reasons, back);
        let own = BTreeSet::from(["uid-one".to_owned()]);
        assert_eq!(history.seen_by(Some(kubelet(1))), own);
        assert_eq!(history.seen_by(Some(kubelet(2))), none);
    }
}

#[test]
fn the_slot_of_a_pod_without_a_ticket_is_kept_while_the_pod_is_on_the_node() {
    let mut a = gpu("a1");
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let set = Fixture::new(&[("gpu", &[a])]).instances;
    let mut history = TicketHistory::default();
    let mut waiting = snapshot(1, &[]);
    let grace = Duration::from_mins(5);
    let pod = "default/one".to_owned();
    for (active, back) in [(true, 0), (true, 0), (false, 0), (false, 1)] {
        waiting.active = BTreeSet::from_iter(active.then(|| pod.clone()));
        let seen = history.observe(NODE, &set, &waiting, (&BTreeSet::new(), grace));
        assert_eq!(seen.back.len(), back);
        waiting.begun += grace;
    }
}

#[test]
fn a_kubelet_that_has_just_started_or_cannot_be_read_frees_nothing() {
    let mut a = gpu("a1");
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let set = Fixture::new(&[("gpu", &[a])]).instances;
    let grace = Duration::from_mins(5);
    let mut history = TicketHistory::default();
    let mut see = |snapshot: &Snapshot| {
        history
            .observe(NODE, &set, snapshot, (&BTreeSet::new(), grace))
            .back
            .len()
    };
    let (held, other) = (ticket(0), device_id("cams", "cams-0"));
    assert_eq!(see(&snapshot(1, &[(&held, "one")])), 0);
    let mut mute = snapshot(1, &[]);
    mute.listed = None;
    assert_eq!(see(&mute), 0);
    let mut unread = snapshot(1, &[]);
    unread.checkpoint = None;
    assert_eq!(see(&unread), 0);
    let mut started = snapshot(2, &[(&other, "x")]);
    started.alive.insert("uid-one".to_owned(), true);
    assert_eq!(started.kubelet_run, Some(kubelet(2)));
    assert_eq!(see(&started), 0);
    assert_eq!(see(&started), 0);
    started.alive.insert("uid-one".to_owned(), false);
    assert_eq!(see(&started), 1, "its folder is gone");
}
