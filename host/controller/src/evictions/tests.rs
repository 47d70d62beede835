use leafhost_core::cluster::PodState;
use leafhost_core::device::Health;
use leafhost_core::instance::NodeStatus;
use leafhost_core::node_report::{ReportedConfiguration, ReportedHandler};
use leafhost_core::ports::InstanceSet;
use leafhost_core::status_store::ConfigurationState;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, denied};

type Task = AbortOnDropHandle<()>;

fn key() -> ConfigurationKey {
    ConfigurationKey::new("n", "cams").unwrap()
}

/// Starts the task for Instances that pods `n/p1`, `n/p2`, … of node `a` use, one each.
async fn start(
    pods: usize,
    is_enabled: bool,
) -> (Arc<Fake>, watch::Receiver<Arc<Vec<Problem>>>, Task) {
    let fake = Fake::new(pods);
    let state = ConfigurationState {
        uid: "u".into(),
        handler: "udev".into(),
        restarts_pods: true,
        ..ConfigurationState::default()
    };
    fake.configurations
        .send_replace(Arc::new(ConfigurationStates {
            complete: true,
            configurations: [(key(), Arc::new(state))].into(),
        }));
    let handler = ReportedHandler {
        configurations: [(key(), ReportedConfiguration::default())].into(),
        ..ReportedHandler::default()
    };
    fake.reports.send_modify(|set| {
        let place = ("a".to_owned(), "udev".to_owned());
        Arc::make_mut(set).handlers.insert(place, Arc::new(handler));
    });
    for number in 1..=pods {
        let pod = PodKey::read(&format!("n/p{number}")).unwrap();
        let state = PodState {
            uid: format!("u{number}"),
            node: Some("a".into()),
            created: Some(Timestamp::now() - Duration::from_mins(1)),
            owner: Some("ReplicaSet".into()),
            ..PodState::default()
        };
        fake.pods.lock().unwrap().insert(pod, state);
    }
    fake.edit(|instance| {
        let name = instance.metadata.name.clone();
        let pod = name.replace("cams-", "n/p");
        let status = NodeStatus {
            holders: [(format!("{name}-1"), pod)].into(),
            ..NodeStatus::new(Health::Unknown)
        };
        instance.status.nodes.insert("a".into(), status);
    });
    let (problems, shown) = watch::channel(Arc::default());
    let cluster = Arc::clone(&fake);
    let task = async move { run(&*cluster, is_enabled, problems, &cluster.metrics).await };
    let task = AbortOnDropHandle::new(tokio::spawn(task));
    pass(5).await;
    (fake, shown, task)
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Removes all Instances.
fn lose(fake: &Fake) {
    let none = InstanceSet::read(BTreeMap::new());
    fake.instances.send_replace(Arc::new(none));
}

fn evictions(fake: &Fake) -> Vec<(Instant, PodKey, String)> {
    fake.evictions.lock().unwrap().clone()
}

fn line(fake: &Fake, start: &str) -> Option<String> {
    let text = fake.metrics.render();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    line.map(str::to_owned)
}

const EVICTED: &str = "leafhost_controller_pods_evicted_total{configuration=\"cams\"} ";
const FAILED: &str = "leafhost_controller_failed_writes_total{of=\"eviction\"} ";

#[tokio::test(start_paused = true)]
async fn pods_whose_device_is_gone_are_evicted_one_after_another_once_with_an_event() {
    let (fake, problems, _task) = start(3, true).await;
    lose(&fake);
    pass(9).await;
    assert_eq!(evictions(&fake).len(), 0);
    pass(600).await;
    let found = evictions(&fake);
    let uids: Vec<&str> = found.iter().map(|(_, _, uid)| uid.as_str()).collect();
    assert_eq!(uids, ["u1", "u2", "u3"]);
    for two in found.windows(2) {
        assert!(two[1].0 - two[0].0 >= PAUSE);
    }
    let events = fake.events.lock().unwrap().clone();
    assert_eq!(events.len(), 3);
    let event = &events[0].1;
    let regarding = Regarding::Pod(ObjectName {
        namespace: "n".into(),
        name: "p1".into(),
        uid: "u1".into(),
    });
    assert_eq!((&event.regarding, &*event.reason), (&regarding, REASON));
    let text = "node a no longer has the device of Instance n/cams-1";
    assert!(event.message.contains(text), "{}", event.message);
    assert_eq!(line(&fake, EVICTED).as_deref(), Some("3"));
    assert!(problems.borrow().is_empty());
    // The counter ends with the Configuration.
    fake.configurations
        .send_replace(Arc::new(ConfigurationStates {
            complete: true,
            ..ConfigurationStates::default()
        }));
    pass(5).await;
    assert_eq!(line(&fake, EVICTED), None);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_back_in_time_and_a_controller_that_does_not_lead_evict_nobody() {
    let (fake, _problems, _task) = start(2, true).await;
    let before = Arc::clone(&fake.instances.borrow());
    lose(&fake);
    pass(5).await;
    fake.instances.send_replace(before);
    pass(600).await;
    assert_eq!(evictions(&fake).len(), 0);
    fake.leads.send_replace(false);
    lose(&fake);
    pass(600).await;
    // The losses of others are not known.
    fake.leads.send_replace(true);
    pass(600).await;
    assert_eq!(evictions(&fake).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_that_a_budget_forbids_is_tried_ever_later_and_is_no_failure() {
    let (fake, problems, _task) = start(1, true).await;
    let budget = EvictionError::NotNow("the budget allows none".into());
    *fake.keeps.lock().unwrap() = Some(budget);
    lose(&fake);
    pass(300).await;
    let tried = evictions(&fake);
    assert!((7..=10).contains(&tried.len()), "{}", tried.len());
    assert_eq!(line(&fake, FAILED).as_deref(), Some("0"));
    assert_eq!(line(&fake, EVICTED), None);
    assert!(problems.borrow().is_empty());
    *fake.keeps.lock().unwrap() = None;
    pass(600).await;
    assert_eq!(evictions(&fake).len(), tried.len() + 1);
    assert_eq!(line(&fake, EVICTED).as_deref(), Some("1"));
}

#[tokio::test(start_paused = true)]
async fn a_missing_right_is_a_problem_of_the_configuration_until_an_eviction_succeeds() {
    let (fake, problems, _task) = start(1, true).await;
    *fake.keeps.lock().unwrap() = Some(EvictionError::Failed(denied()));
    lose(&fake);
    pass(15).await;
    let expected = Problem::PodsNotRestarted {
        configuration: key(),
        error: "no right".into(),
    };
    assert_eq!(**problems.borrow(), [expected]);
    assert_ne!(line(&fake, FAILED).as_deref(), Some("0"));
    *fake.keeps.lock().unwrap() = None;
    pass(600).await;
    assert!(problems.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_controller_that_may_not_evict_says_so_and_evicts_nobody() {
    let (fake, problems, _task) = start(1, false).await;
    let expected = Problem::PodsNotRestarted {
        configuration: key(),
        error: DISABLED.into(),
    };
    assert_eq!(**problems.borrow(), [expected]);
    lose(&fake);
    pass(600).await;
    assert_eq!(evictions(&fake).len(), 0);
    fake.leads.send_replace(false);
    pass(5).await;
    assert!(problems.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_nothing_would_create_again_stays() {
    let (fake, _problems, _task) = start(1, true).await;
    for state in fake.pods.lock().unwrap().values_mut() {
        state.owner = None;
    }
    lose(&fake);
    pass(600).await;
    assert_eq!(evictions(&fake).len(), 0);
    assert_eq!(line(&fake, EVICTED), None);
}
