use leafhost_core::cluster::NodeState;
use leafhost_core::node_report::{ReportedConfiguration, ReportedHandler, ReportedProblem};
use leafhost_core::status_store::{ConfigurationState, ConfigurationStates};
use leafhost_core::timeouts::BACKOFF_LAST;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, denied, unanswered};

fn key(number: usize) -> ConfigurationKey {
    ConfigurationKey::new("default", &format!("c{number:03}")).unwrap()
}

fn start(configurations: usize) -> (Arc<Fake>, AbortOnDropHandle<()>) {
    start_with((0..configurations).map(key).collect())
}

fn start_with(configurations: Vec<ConfigurationKey>) -> (Arc<Fake>, AbortOnDropHandle<()>) {
    let fake = Fake::new(0);
    let states = configurations.into_iter().enumerate();
    let states = states.map(|(number, key)| {
        let state = ConfigurationState {
            uid: format!("u{number}"),
            resource_version: "1".into(),
            generation: 1,
            handler: "onvif".into(),
            ..ConfigurationState::default()
        };
        (key, Arc::new(state))
    });
    fake.configurations
        .send_replace(Arc::new(ConfigurationStates {
            complete: true,
            configurations: states.collect(),
        }));
    let cluster = Arc::clone(&fake);
    let (problems, _) = watch::channel(Arc::default());
    let task = tokio::spawn(async move {
        let (brokers, restarts) = (watch::Sender::default(), watch::Sender::default());
        let (brokers, restarts) = (brokers.subscribe(), restarts.subscribe());
        run(&*cluster, brokers, restarts, problems, &cluster.metrics).await;
    });
    (fake, AbortOnDropHandle::new(task))
}

/// Publishes a node's report in which all Configurations fail with this text.
fn report(fake: &Fake, node: &str, configurations: usize, text: &str) {
    let reported = (0..configurations).map(|number| {
        let reported = ReportedConfiguration {
            problem: Some(ReportedProblem {
                reason: "DiscoveryFailed".into(),
                message: text.into(),
            }),
            ..ReportedConfiguration::default()
        };
        (key(number), reported)
    });
    let handler = ReportedHandler {
        configurations: reported.collect(),
        ..ReportedHandler::default()
    };
    fake.reports.send_modify(|set| {
        let place = (node.to_owned(), "onvif".to_owned());
        Arc::make_mut(set).handlers.insert(place, Arc::new(handler));
    });
}

fn times(fake: &Fake, number: usize) -> Vec<Duration> {
    let shown = fake.shown.lock().unwrap();
    let times = shown.iter().filter(|(_, one)| *one == key(number));
    let times: Vec<Instant> = times.map(|(at, _)| *at).collect();
    times.windows(2).map(|two| two[1] - two[0]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_broken_configurations_on_fifty_nodes_are_written_every_five_seconds_at_most() {
    let (fake, _task) = start(100);
    for number in 0..50 {
        fake.set(&format!("node-{number:02}"), Some(NodeState::default()));
    }
    for second in 0..60 {
        for number in 0..50 {
            report(
                &fake,
                &format!("node-{number:02}"),
                100,
                &format!("failed at {second}"),
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    for number in 0..100 {
        let times = times(&fake, number);
        assert!((10..=12).contains(&times.len()), "{}", times.len());
        assert!(times.iter().all(|time| *time >= SPACING), "{times:?}");
    }
    // A status that does not differ is not written.
    tokio::time::sleep(SPACING * 2).await;
    let before = fake.shown.lock().unwrap().len();
    report(&fake, "node-00", 100, "failed at 59");
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(fake.shown.lock().unwrap().len(), before);
}

#[tokio::test(start_paused = true)]
async fn the_first_status_of_a_configuration_is_that_of_the_first_reports() {
    let (fake, _task) = start(1);
    tokio::time::sleep(FIRST_REPORT / 2).await;
    assert_eq!(fake.shown.lock().unwrap().len(), 0);
    report(&fake, "a", 1, "no");
    tokio::time::sleep(SOON * 2).await;
    let shown = fake.configurations.borrow().configurations[&key(0)]
        .status
        .clone();
    assert_eq!(shown.unwrap().ready, "0/1");
    // A Configuration without reports gets a status after a while.
    let (fake, _task) = start(1);
    tokio::time::sleep(FIRST_REPORT * 2).await;
    let shown = fake.configurations.borrow().configurations[&key(0)]
        .status
        .clone();
    assert_eq!(shown.unwrap().ready, "0/0");
}

#[tokio::test(start_paused = true)]
async fn a_status_that_is_edited_by_hand_is_put_right_and_one_that_cannot_be_written_tried_ever_later()
 {
    let (fake, _task) = start(1);
    report(&fake, "a", 1, "no");
    tokio::time::sleep(SPACING * 2).await;
    assert_eq!(fake.shown.lock().unwrap().len(), 1);
    let edit = || {
        fake.configurations.send_modify(|states| {
            let state = Arc::make_mut(states)
                .configurations
                .get_mut(&key(0))
                .unwrap();
            Arc::make_mut(state).status = None;
        });
    };
    edit();
    tokio::time::sleep(SPACING).await;
    assert_eq!(fake.shown.lock().unwrap().len(), 2);
    for error in [denied(), unanswered()] {
        *fake.answer.lock().unwrap() = None;
        tokio::time::sleep(BACKOFF_LAST * 2).await;
        fake.shown.lock().unwrap().clear();
        *fake.answer.lock().unwrap() = Some(error);
        for _ in 0..600 {
            edit();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let waits: Vec<u64> = times(&fake, 0).iter().map(Duration::as_secs).collect();
        // The task runs at most one pass a second.
        assert!(waits[..3].iter().all(|wait| *wait <= 5), "{waits:?}");
        assert!(waits[3..].is_sorted() && waits.len() == 9, "{waits:?}");
        // Also if nothing changes: an operator may have granted the missing right.
        tokio::time::sleep(BACKOFF_LAST * 2).await;
        assert_eq!(times(&fake, 0).len(), 11);
    }
}

#[tokio::test(start_paused = true)]
async fn a_namespace_whose_statuses_cannot_be_written_delays_no_other_one() {
    let of = |namespace| {
        let key = move |number| ConfigurationKey::new(namespace, &format!("c{number:03}"));
        (0..100).map(move |number| key(number).unwrap())
    };
    let (fake, _task) = start_with(of("aaa").chain(of("zzz")).collect());
    fake.hangs.lock().unwrap().insert("aaa");
    // No node reports on the Configurations, so they get a status after a while.
    tokio::time::sleep(FIRST_REPORT + SOON * 2).await;
    let shown = fake.shown.lock().unwrap().clone();
    let (other, broken): (Vec<_>, Vec<_>) = shown
        .into_iter()
        .partition(|(_, key)| key.namespace() == "zzz");
    assert_eq!((other.len(), broken.len()), (100, PLACES.of_one));
    // Each of the others is tried nevertheless.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let shown = fake.shown.lock().unwrap();
    let tried: BTreeSet<_> = shown.iter().map(|(_, key)| key).collect();
    assert_eq!(tried.len(), 200);
}
