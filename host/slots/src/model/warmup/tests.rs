use tokio::time::advance;

use super::*;
use crate::fixture::{Fixture, instance};

/// Returns the waits of a node that begins to see `cams-a` when that is created, the store, and that time.
fn begun() -> (Warmup, Fixture, Timestamp) {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let created = "2026-01-01T00:00:00Z".parse().unwrap();
    let mut warmup = Warmup::default();
    warmup.update(&fixture.instances, Instant::now(), created);
    assert_eq!(warmup.next(), Some(Instant::now() + WAIT));
    (warmup, fixture, created)
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_once_and_a_change_of_the_instance_begins_no_other() {
    let (mut warmup, mut fixture, created) = begun();
    advance(WAIT.saturating_sub(Duration::from_millis(1))).await;
    assert!(!warmup.expire(Instant::now()));
    advance(Duration::from_millis(1)).await;
    assert!(warmup.expire(Instant::now()));
    assert!(!warmup.expire(Instant::now()));
    fixture.put(instance("cams", "a", 2, &[(0, "node-b")]));
    warmup.update(&fixture.instances, Instant::now(), created);
    assert!(warmup.waiting().is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_ends_all_waits_is_told_if_an_instance_waited() {
    let (mut warmup, ..) = begun();
    assert!(warmup.end());
    assert!(warmup.waiting().is_empty());
    assert!(!warmup.end());
}
