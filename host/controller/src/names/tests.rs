use std::collections::BTreeMap;

use leafhost_core::names::ConfigurationKey;
use leafhost_core::status_store::{ConfigurationState, ConfigurationStates};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::Fake;

const GRACE: Duration = Duration::from_hours(1);

fn start() -> (Arc<Fake>, AbortOnDropHandle<()>) {
    let fake = Fake::new(0);
    let cluster = Arc::clone(&fake);
    let task = async move { run(&*cluster, GRACE, &cluster.metrics).await };
    (fake, AbortOnDropHandle::new(tokio::spawn(task)))
}

/// Publishes these Configurations `namespace/name`, the oldest first.
fn show(fake: &Fake, all: &[&str]) {
    let states = all.iter().enumerate().map(|(age, text)| {
        let (namespace, name) = text.split_once('/').unwrap();
        let state = ConfigurationState {
            created: Timestamp::from_second(i64::try_from(age).unwrap()).ok(),
            ..ConfigurationState::default()
        };
        let key = ConfigurationKey::new(namespace, name).unwrap();
        (key, Arc::new(state))
    });
    fake.configurations
        .send_replace(Arc::new(ConfigurationStates {
            complete: true,
            configurations: states.collect(),
        }));
}

/// Waits, then returns the writes made since the last call.
async fn written(fake: &Fake, wait: Duration) -> Vec<String> {
    tokio::time::sleep(wait).await;
    let written = std::mem::take(&mut *fake.named.lock().unwrap());
    written.into_iter().map(|(_, told)| told).collect()
}

const MOMENT: Duration = Duration::from_secs(30);

/// Moves the time since when names are unused into the past.
fn age(fake: &Fake, time: Duration) {
    let mut records = fake.names.borrow().records.clone();
    for record in records.values_mut() {
        record.unused_since = record.unused_since.map(|since| since - time);
    }
    fake.names.send_replace(Arc::new(NameSet::read(records)));
}

#[tokio::test(start_paused = true)]
async fn who_is_deleted_and_applied_again_keeps_the_name_beside_an_older_rival() {
    let (fake, _task) = start();
    show(&fake, &["a/echo"]);
    assert_eq!(written(&fake, MOMENT).await, ["echo for a"]);
    show(&fake, &["a/echo", "b/echo"]);
    assert_eq!(written(&fake, MOMENT).await, [""; 0]);
    show(&fake, &["b/echo"]);
    assert_eq!(written(&fake, MOMENT).await, ["echo unused"]);
    show(&fake, &["b/echo", "a/echo"]);
    assert_eq!(written(&fake, MOMENT).await, ["echo used"]);
    show(&fake, &["b/echo"]);
    assert_eq!(written(&fake, MOMENT).await, ["echo unused"]);
    age(&fake, GRACE.checked_sub(MOMENT).unwrap());
    assert_eq!(written(&fake, MOMENT).await, [""; 0]);
    age(&fake, MOMENT);
    assert_eq!(written(&fake, MOMENT).await, ["echo free", "echo for b"]);
    assert_eq!(written(&fake, GRACE).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_an_administrator_frees_is_that_of_the_oldest_at_once() {
    let (fake, _task) = start();
    show(&fake, &["a/echo"]);
    written(&fake, MOMENT).await;
    show(&fake, &["b/echo", "a/echo"]);
    fake.names
        .send_replace(Arc::new(NameSet::read(BTreeMap::new())));
    assert_eq!(written(&fake, MOMENT).await, ["echo for b"]);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_cannot_be_written_delays_no_other_and_is_tried_less_and_less_often() {
    for error in [
        WriteError::Denied("a policy".into()),
        WriteError::NoAnswer {
            message: "a policy hangs".into(),
            retry_after: None,
        },
    ] {
        let (fake, _task) = start();
        let refused = ("bad".to_owned(), error);
        fake.unnamed.lock().unwrap().extend([refused]);
        show(&fake, &["a/bad", "b/echo", "c/other"]);
        let first = written(&fake, Duration::from_secs(3)).await;
        for name in ["echo for b", "other for c"] {
            assert!(first.iter().any(|one| one == name), "{first:?}");
        }
        let later = written(&fake, Duration::from_mins(30)).await;
        assert!((5..15).contains(&later.len()), "{later:?}");
        fake.unnamed.lock().unwrap().clear();
        let last = written(&fake, Duration::from_mins(5)).await;
        assert_eq!(last, ["bad for a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_name_refused_for_one_namespace_is_tried_at_once_for_another() {
    let (fake, _task) = start();
    let refused = ("bad".to_owned(), WriteError::Denied("a quota".into()));
    fake.unnamed.lock().unwrap().extend([refused]);
    show(&fake, &["a/bad"]);
    written(&fake, Duration::from_mins(30)).await;
    // Now the next attempt is minutes away.
    while written(&fake, Duration::from_secs(1)).await.is_empty() {}
    show(&fake, &["b/bad"]);
    let tried = written(&fake, MOMENT).await;
    assert_eq!(tried.first().map(String::as_str), Some("bad for b"));
}

#[tokio::test(start_paused = true)]
async fn who_does_not_lead_or_cannot_read_the_names_writes_none() {
    let (fake, _task) = start();
    fake.leads.send_replace(false);
    show(&fake, &["a/echo"]);
    assert_eq!(written(&fake, MOMENT).await, [""; 0]);
    fake.names.send_replace(Arc::new(NameSet {
        is_known: true,
        ..NameSet::default()
    }));
    fake.leads.send_replace(true);
    assert_eq!(written(&fake, MOMENT).await, [""; 0]);
    fake.names
        .send_replace(Arc::new(NameSet::read(BTreeMap::new())));
    assert_eq!(written(&fake, MOMENT).await, ["echo for a"]);
}
