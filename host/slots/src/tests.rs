//! Tests of the slot task with a fake kubelet and a fake store, on paused time.

use leafhost_core::instance::{Edit, Instance};
use leafhost_core::ports::Change;
use leafhost_core::slot::DeviceUsage;
use leafhost_fakes::{Ledger, Store, idle, wait_for};
use leafhost_kubelet::Offers;
use leafhost_kubelet::{Allocation, Allocator as _, Health, Refusal, ResourceName};
use std::collections::BTreeSet;
use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::fixture::{Fixture, Kubelet, NODE, device_id, ids, instance};
use super::*;
use crate::queue::OUTAGE;
use crate::writes::WRITE;

mod again;
mod agreement;
mod moved;
mod races;
mod snapshots;
mod trouble;
mod undelivered;
mod warmup;

const GRACE: Duration = Duration::from_mins(5);

/// Running slot task.
struct Rig {
    store: Arc<Store>,
    kubelet: Arc<Kubelet>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    offers: watch::Receiver<Arc<Offers>>,
    held: watch::Receiver<Arc<HeldSlots>>,
    report: watch::Receiver<Arc<SlotReport>>,
    handle: SlotHandle,
    ledger: Arc<dyn ResourceLedger>,
    task: AbortOnDropHandle<Result<(), SourceEnded>>,
}

impl Rig {
    /// Starts a task whose earlier agent has served the kubelet 1.
    fn new(fixture: &Fixture, kubelet: Arc<Kubelet>) -> Self {
        let ledger = Ledger::default();
        *ledger.kubelet.lock().unwrap() = Some(fixture::kubelet(1).to_string());
        Self::with(fixture, kubelet, Arc::new(ledger))
    }

    fn with(fixture: &Fixture, kubelet: Arc<Kubelet>, ledger: Arc<dyn ResourceLedger>) -> Self {
        let store = Arc::new(Store::default());
        store.edit(|set| set.clone_from(&fixture.instances));
        let devices = watch::Sender::new(Arc::new(fixture.devices.clone()));
        Self::start(store, kubelet, devices, ledger)
    }

    fn start(
        store: Arc<Store>,
        kubelet: Arc<Kubelet>,
        devices: watch::Sender<Arc<DeviceSnapshot>>,
        ledger: Arc<dyn ResourceLedger>,
    ) -> Self {
        let seen = devices.subscribe();
        let (holding, held) = watch::channel(Arc::default());
        let (queue, _) = AllocateQueue::new(NODE, store.subscribe());
        let (handle, offers) = (queue.handle.clone(), queue.offers.subscribe());
        let ports = SlotPorts {
            store: Arc::clone(&store) as Arc<dyn InstanceStore>,
            ledger: Arc::clone(&ledger),
            devices: seen,
            held: holding,
        };
        let config = SlotConfig {
            grace: GRACE,
            instance_resources: 256,
        };
        let records = Arc::clone(&kubelet) as Arc<dyn Records>;
        let (task, report) = SlotTask::new(queue, config, ports, records, Arc::default());
        let task = tokio::spawn(task.run(CancellationToken::new()));
        Self {
            store,
            kubelet,
            devices,
            offers,
            held,
            report,
            handle,
            ledger,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Kills the agent, if it still runs, and starts another one.
    fn restart(&mut self) {
        self.task.abort();
        let (store, kubelet) = (Arc::clone(&self.store), Arc::clone(&self.kubelet));
        let ledger = Arc::clone(&self.ledger);
        *self = Self::start(store, kubelet, self.devices.clone(), ledger);
    }

    /// Starts with one Instance `cams-a` and a kubelet, and waits for the first snapshot.
    async fn cams(capacity: u32, usage: &[(u32, &str)]) -> Self {
        let fixture = Fixture::new(&[("cams", &[instance("cams", "a", capacity, usage)])]);
        let rig = Self::new(&fixture, Kubelet::new(Some(1)));
        idle().await;
        rig
    }

    async fn allocate(&self, resource: &str, asked: &[&str]) -> Result<Allocation, Refusal> {
        let name = ResourceName::new(format!("akri.sh/{resource}")).unwrap();
        self.handle.allocate(&name, ids(asked)).await
    }

    /// Returns the stored usage of a slot.
    fn usage(&self, slot: &str) -> String {
        let set = self.store.set();
        let mut all = set.instances.values();
        all.find_map(|instance| instance.spec.device_usage.get(slot).cloned())
            .unwrap_or_default()
    }

    fn listed(&self, resource: &str) -> String {
        let name = ResourceName::new(format!("akri.sh/{resource}")).unwrap();
        let offers = Arc::clone(&self.offers.borrow());
        let list = offers.get(&name);
        let shown = list
            .into_iter()
            .flat_map(|list| list.iter())
            .map(|(id, device)| match device.health {
                Health::Healthy => format!("{id}+"),
                Health::Unhealthy => format!("{id}-"),
            });
        shown.collect::<Vec<_>>().join(" ")
    }

    /// Replaces the stored Instance, as another writer would.
    fn put(&self, instance: Instance) {
        self.store
            .edit(|set| drop(set.instances.insert(instance.key(), Arc::new(instance))));
    }

    fn snapshots(&self) -> usize {
        self.kubelet.state().snapshots
    }

    fn problems(&self) -> Vec<String> {
        let report = self.report.borrow();
        report.problems.iter().map(ToString::to_string).collect()
    }
}

async fn pass(seconds: u64) {
    idle().await;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    idle().await;
}

#[tokio::test(start_paused = true)]
async fn the_kubelet_is_answered_after_the_claim_is_written() {
    let rig = Rig::cams(2, &[]).await;
    *rig.store.slow.lock().unwrap() = Duration::from_secs(2);
    let began = Instant::now();
    let given = rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 2);
    assert_eq!(rig.usage("cams-a-0"), NODE);
    assert_eq!(given.envs["ID"], "a");
    let given = rig.allocate("cams", &["cams-0"]).await.unwrap();
    assert_eq!(rig.usage("cams-a-1"), "C:cams-0:node-a");
    assert_eq!(
        given.annotations["slots.leafhost.dev/cams"],
        "cams-0=cams-a-1"
    );
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1-");
    assert_eq!(rig.listed("cams"), "cams-0+");
}

#[tokio::test(start_paused = true)]
async fn who_loses_a_race_is_refused_sees_the_truth_and_leaks_nothing() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 1, &[]));
    let rig = Rig::new(
        &Fixture::new(&[("cams", &instances)]),
        Kubelet::new(Some(1)),
    );
    idle().await;
    *rig.store.slow.lock().unwrap() = Duration::from_secs(1);
    let losing = rig.allocate("cams", &["cams-0", "cams-1"]);
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        rig.put(instance("cams", "b", 1, &[(0, "node-b")]));
    };
    let (refusal, ()) = tokio::join!(losing, other);
    let refusal = refusal.unwrap_err().to_string();
    assert!(
        refusal.contains("another node claimed cams-b-0 first"),
        "{refusal}"
    );
    pass(1).await;
    assert_eq!(rig.usage("cams-a-0"), "");
    assert_eq!(rig.usage("cams-b-0"), "node-b");
    assert_eq!(rig.listed("cams-a"), "cams-a-0+");
    assert_eq!(rig.listed("cams-b"), "cams-b-0-");
    assert_eq!(rig.listed("cams"), "cams-0+");
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_unknown_outcome_comes_back_when_the_store_shows_it() {
    let rig = Rig::cams(1, &[]).await;
    *rig.store.unknown.lock().unwrap() = 100;
    let refusal = rig.allocate("cams-a", &["cams-a-0"]).await.unwrap_err();
    assert!(refusal.to_string().contains("no answer came"), "{refusal}");
    *rig.store.unknown.lock().unwrap() = 0;
    pass(60).await;
    assert_eq!(rig.usage("cams-a-0"), "");

    // A claim that shows up a minute later is released, too.
    *rig.store.broken.lock().unwrap() = true;
    assert!(rig.allocate("cams-a", &["cams-a-0"]).await.is_err());
    *rig.store.broken.lock().unwrap() = false;
    pass(60).await;
    rig.put(instance("cams", "a", 1, &[(0, NODE)]));
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), "");

    // A claim that was made again and answered is kept.
    *rig.store.broken.lock().unwrap() = true;
    assert!(rig.allocate("cams-a", &["cams-a-0"]).await.is_err());
    *rig.store.broken.lock().unwrap() = false;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    pass(3).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_failed_before_does_not_take_back_what_another_of_the_batch_gets() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 1, &[]));
    let rig = Rig::new(
        &Fixture::new(&[("cams", &instances)]),
        Kubelet::new(Some(1)),
    );
    idle().await;
    *rig.store.broken.lock().unwrap() = true;
    assert!(rig.allocate("cams-a", &["cams-a-0"]).await.is_err());
    *rig.store.broken.lock().unwrap() = false;
    *rig.store.conflicts.lock().unwrap() = 1;
    let (loser, winner) = tokio::join!(
        rig.allocate("cams-b", &["cams-b-0"]),
        rig.allocate("cams-a", &["cams-a-0"]),
    );
    assert!(loser.is_err() && winner.is_ok(), "{loser:?} {winner:?}");
    idle().await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_within_five_seconds_is_an_error_and_nothing_waits_for_it() {
    let rig = Rig::cams(3, &[]).await;
    let held = rig.allocate("cams-a", &["cams-a-2"]).await.unwrap();
    *rig.store.slow.lock().unwrap() = Duration::from_secs(9);
    let began = Instant::now();
    let hangs = rig.allocate("cams-a", &["cams-a-0"]);
    let again = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let answer = rig.allocate("cams-a", &["cams-a-2"]).await;
        (answer, began.elapsed().as_secs())
    };
    let (refusal, again) = tokio::join!(hangs, again);
    assert_eq!(again, (Ok(held), 1), "it needs no write");
    assert!(began.elapsed() <= OUTAGE + WRITE);
    let refusal = refusal.unwrap_err().to_string();
    assert!(refusal.contains("within 5 seconds"), "{refusal}");
    *rig.store.slow.lock().unwrap() = Duration::ZERO;
    pass(20).await;
    assert_eq!(rig.usage("cams-a-0"), "");
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+ cams-a-2+");
}

#[tokio::test(start_paused = true)]
async fn until_the_store_is_read_pods_that_run_are_served_by_what_was_known_and_nothing_new_is_given()
 {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[(0, NODE)])])]);
    let kubelet = Kubelet::new(Some(1));
    kubelet.run("p", &[device_id("cams-a", "cams-a-0")]);
    let rig = Rig::new(&fixture, kubelet);
    rig.store
        .edit(|set| (set.complete, set.remembered) = (false, true));
    *rig.store.broken.lock().unwrap() = true;
    pass(1).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1-");
    // The kubelet has restarted and admits its pods again.
    rig.kubelet.state().held.clear();
    let again = rig.allocate("cams-a", &["cams-a-0"]).await;
    assert!(again.is_ok(), "{again:?}");
    assert!(rig.allocate("cams-a", &["cams-a-1"]).await.is_err());
    *rig.store.broken.lock().unwrap() = false;
    rig.store
        .edit(|set| (set.complete, set.remembered) = (true, false));
    pass(20).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_offered_of_a_store_of_which_nothing_is_known() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 2, &[])])]);
    let rig = Rig::new(&fixture, Kubelet::new(Some(1)));
    rig.store.edit(|set| set.complete = false);
    pass(20).await;
    assert_eq!(rig.offers.borrow().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_same_question_again_gets_the_same_answer_without_a_write() {
    let rig = Rig::cams(3, &[]).await;
    for (resource, id) in [("cams-a", "cams-a-0"), ("cams", "cams-0")] {
        let first = rig.allocate(resource, &[id]).await.unwrap();
        let calls = rig.store.calls();
        assert_eq!(rig.allocate(resource, &[id]).await.unwrap(), first);
        assert_eq!(rig.store.calls(), calls);
    }
}

#[tokio::test(start_paused = true)]
async fn two_questions_for_one_id_at_the_same_time_get_one_slot() {
    let instances = ["a", "b"].map(|hash| instance("cams", hash, 1, &[]));
    let rig = Rig::new(
        &Fixture::new(&[("cams", &instances)]),
        Kubelet::new(Some(1)),
    );
    idle().await;
    let (one, two) = tokio::join!(
        rig.allocate("cams", &["cams-0"]),
        rig.allocate("cams", &["cams-0"]),
    );
    assert_eq!(one.unwrap(), two.unwrap());
    let used = [rig.usage("cams-a-0"), rig.usage("cams-b-0")];
    assert_eq!(used.iter().filter(|usage| !usage.is_empty()).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn many_questions_at_once_each_get_a_slot_of_their_own() {
    let rig = Arc::new(Rig::cams(60, &[]).await);
    let mut asking = JoinSet::new();
    for number in 0..70 {
        let rig = Arc::clone(&rig);
        asking.spawn(async move { rig.allocate("cams-a", &[&format!("cams-a-{number}")]).await });
    }
    let answers = asking.join_all().await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 60);
    let set = rig.store.set();
    let instance = set.instances.values().next().unwrap();
    assert_eq!(
        instance
            .spec
            .device_usage
            .values()
            .filter(|usage| *usage == NODE)
            .count(),
        60
    );
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_is_given_to_nobody_else() {
    let rig = Rig::cams(2, &[]).await;
    let held = device_id("cams-a", "cams-a-0");
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("p", std::slice::from_ref(&held));
    pass(10).await;
    let refused = async || {
        let both = rig.allocate("cams-a", &["cams-a-0", "cams-a-1"]).await;
        both.unwrap_err().to_string()
    };
    let refusal = refused().await;
    assert!(refusal.contains("held by default/p"), "{refusal}");
    assert_eq!(rig.usage("cams-a-1"), "", "all or none");

    // A kubelet that does not answer.
    rig.kubelet.state().number = Some(2);
    rig.kubelet.state().is_mute = true;
    let refusal = refused().await;
    assert!(refusal.contains("cannot determine"), "{refusal}");
    // A kubelet that has lost its checkpoint.
    rig.kubelet.state().is_mute = false;
    rig.kubelet.state().held.clear();
    let refusal = refused().await;
    assert!(refusal.contains("has lost its record"), "{refusal}");
    pass(3600).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1+");
    // The pod has ended.
    rig.kubelet.end("p");
    pass(1).await;
    assert_eq!(rig.usage("cams-a-0"), "");
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+");
}

#[tokio::test(start_paused = true)]
async fn what_an_ended_pod_had_is_given_to_the_next_before_it_came_back() {
    let rig = Rig::cams(1, &[]).await;
    let held = device_id("cams-a", "cams-a-0");
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("old", std::slice::from_ref(&held));
    pass(10).await;
    // A running snapshot still shows the old one.
    rig.kubelet.state().slow = Duration::from_secs(2);
    rig.kubelet.notify();
    pass(1).await;
    rig.kubelet.state().held.clear();
    rig.kubelet.state().slow = Duration::ZERO;
    rig.allocate("cams-a", &["cams-a-0"]).await.unwrap();
    rig.kubelet.run("new", std::slice::from_ref(&held));
    rig.kubelet.end("old");
    pass(GRACE.as_secs() * 2).await;
    assert_eq!(rig.usage("cams-a-0"), NODE);
    let holder = rig.report.borrow().slots[0].holder.clone();
    assert_eq!(holder.as_deref(), Some("default/new"));
}

#[tokio::test(start_paused = true)]
async fn a_container_gets_different_instances_though_its_ids_stood_for_one() {
    let usage = [(0, "C:cams-0:node-a"), (1, "C:cams-1:node-a")];
    let instances = [
        instance("cams", "a", 2, &usage),
        instance("cams", "b", 1, &[]),
    ];
    let rig = Rig::new(
        &Fixture::new(&[("cams", &instances)]),
        Kubelet::new(Some(1)),
    );
    idle().await;
    let given = rig.allocate("cams", &["cams-0", "cams-1"]).await.unwrap();
    let slots = &given.annotations["slots.leafhost.dev/cams"];
    assert!(
        slots.contains("=cams-a-") && slots.contains("=cams-b-0"),
        "{slots}"
    );
    idle().await;
    let used = ["cams-a-0", "cams-a-1", "cams-b-0"].map(|slot| rig.usage(slot));
    assert_eq!(
        used.iter().filter(|usage| !usage.is_empty()).count(),
        2,
        "{used:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn devices_and_instances_are_followed() {
    let rig = Rig::cams(1, &[]).await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+");
    rig.put(instance("cams", "a", 3, &[]));
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+ cams-a-1+ cams-a-2+");
    let mut fixture = Fixture::new(&[("cams", &[instance("cams", "a", 3, &[])])]);
    fixture.view("cams", "a").missing_since = Some(jiff::Timestamp::UNIX_EPOCH);
    rig.devices.send_replace(Arc::new(fixture.devices));
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0- cams-a-1- cams-a-2-");
    let refusal = rig.allocate("cams-a", &["cams-a-0"]).await.unwrap_err();
    assert!(
        refusal.to_string().contains("no longer exists"),
        "{refusal}"
    );
}

/// Ledger that fails until told otherwise.
#[derive(Debug, Default)]
struct Shaky {
    ledger: Ledger,
    is_well: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl ResourceLedger for Shaky {
    fn names(&self) -> BTreeSet<String> {
        self.ledger.names()
    }

    async fn add(&self, names: BTreeSet<String>) -> Result<(), String> {
        if self.is_well.load(std::sync::atomic::Ordering::Relaxed) {
            return self.ledger.add(names).await;
        }
        Err("the disk is full".to_owned())
    }

    fn kubelet(&self) -> Option<String> {
        self.ledger.kubelet()
    }

    async fn set_kubelet(&self, kubelet: String) -> Result<(), String> {
        self.ledger.set_kubelet(kubelet).await
    }
}

#[tokio::test(start_paused = true)]
async fn names_are_written_down_when_that_is_possible_again() {
    let fixture = Fixture::new(&[("cams", &[instance("cams", "a", 1, &[])])]);
    let ledger = Arc::new(Shaky::default());
    let rig = Rig::with(&fixture, Kubelet::new(Some(1)), Arc::clone(&ledger) as _);
    idle().await;
    assert_eq!(rig.listed("cams-a"), "cams-a-0+");
    rig.put(instance("cams", "a", 2, &[]));
    idle().await;
    assert!(rig.problems()[0].contains("the disk is full"));
    ledger
        .is_well
        .store(true, std::sync::atomic::Ordering::Relaxed);
    // No other event happens.
    pass(10).await;
    assert_eq!(rig.problems(), Vec::<String>::new());
    assert_eq!(ledger.names(), ids(&["cams-a"]));
}
