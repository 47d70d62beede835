//! Tests of tickets with a simulated kubelet and a store that holds a scheduler's writes.

mod handle;
mod history;

use std::collections::BTreeMap;
use std::sync::Mutex;

use async_trait::async_trait;
use leafhost_core::device::Health;
use leafhost_core::instance::{Instance, NodeStatus, Reserved, Use};
use leafhost_core::scheduling::NodeLock;
use leafhost_fakes::Store;
use tokio::task::JoinHandle;

use handle::TicketHandle;

use super::*;
use crate::AllocateQueue;
use crate::fixture::{Fixture, Kubelet, NODE, device_id, instance, kubelet, snapshot};
use crate::model::snapshot::Admission;
use model::{Reservation, Reservations, ReservedDevices};

/// Admitted pods, and pods with tickets in the kubelet's records.
#[derive(Default)]
struct Admitting(Mutex<Admission>);

#[async_trait]
impl Admissions for Admitting {
    async fn admission(&self) -> Result<Admission, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

impl Admitting {
    fn admits(&self, pod: &str) {
        let mut admission = self.0.lock().unwrap();
        admission.active.insert(format!("default/{pod}"));
    }

    fn ends(&self, pod: &str) {
        let mut admission = self.0.lock().unwrap();
        admission.active.remove(&format!("default/{pod}"));
    }

    fn wrote(&self, pod: &str, container: &str) {
        let served = (format!("uid-{pod}"), container.to_owned());
        self.0.lock().unwrap().served.insert(served);
    }
}

/// Returns a container's use of a slot: its index, the number of the device, and the count of its devices.
fn one_use(container: &str, place: u32, number: u32, of: u32) -> Use {
    Use {
        container: container.to_owned(),
        place,
        number,
        of,
        request: "a".to_owned(),
    }
}

/// Reserves slot 0 of an Instance for a pod.
fn reserve(instance: &mut Instance, pod: &str, uses: &[Use]) {
    let slot = format!("{}-0", instance.metadata.name);
    let usage = DeviceUsage::of_pod(&format!("uid-{pod}"), NODE);
    let reserved = Reserved {
        pod: format!("default/{pod}"),
        places: uses.iter().map(|one| one.place).collect(),
        uses: uses.to_vec(),
    };
    let edit = leafhost_core::allocation::reserve(&slot, usage, reserved);
    edit.apply(instance).unwrap();
}

struct World {
    store: Arc<Store>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    kubelet: Arc<Kubelet>,
    admitting: Arc<Admitting>,
    is_offered: bool,
    lock: Option<LockPort>,
}

impl World {
    /// Creates a world with the Instances `gpu-<hash>`, whose devices are reported.
    fn new(instances: &[Instance]) -> Self {
        let fixture = Fixture::new(&[("gpu", instances)]);
        let store = Store::default();
        store.edit(|set| set.instances = fixture.instances.instances.clone());
        Self {
            store: Arc::new(store),
            devices: watch::Sender::new(Arc::new(fixture.devices)),
            kubelet: Kubelet::new(Some(1)),
            admitting: Arc::default(),
            is_offered: true,
            lock: None,
        }
    }

    fn start(&self) -> (TicketHandle, JoinHandle<Result<(), SourceEnded>>) {
        let ports = TicketPorts {
            store: Arc::clone(&self.store) as _,
            devices: self.devices.subscribe(),
            records: Arc::clone(&self.kubelet) as _,
            admissions: Arc::clone(&self.admitting) as _,
            lock: self.lock.clone(),
        };
        let config = TicketConfig {
            grace: Duration::from_mins(5),
            is_offered: self.is_offered,
        };
        let (queue, requests) = AllocateQueue::new(NODE, self.store.subscribe());
        let (task, _) = TicketTask::new(NODE, config, ports, requests, Arc::default());
        (
            TicketHandle(queue.handle.clone()),
            tokio::spawn(task.run(CancellationToken::new())),
        )
    }

    fn usage(&self, instance: &str) -> String {
        let server = self.store.server();
        let found = server.values().find(|one| one.metadata.name == instance);
        found.unwrap().usage(&format!("{instance}-0")).to_owned()
    }

    fn reserve(&self, instance: &str, pod: &str, uses: &[Use]) {
        self.store.edit(|set| {
            let mut all = set.instances.values_mut();
            let found = all.find(|one| one.metadata.name == instance).unwrap();
            reserve(Arc::make_mut(found), pod, uses);
        });
    }
}

fn ids(numbers: &[u32]) -> BTreeSet<String> {
    numbers.iter().map(|n| format!("ticket-{n:04}")).collect()
}

fn ticket(number: u32) -> DeviceId {
    DeviceId::new(DEVICES, format!("ticket-{number:04}"))
}

fn gpu(hash: &str) -> Instance {
    instance("gpu", hash, 1, &[])
}

#[test]
fn the_pod_under_admission_is_the_one_whose_next_container_has_no_ticket() {
    let container = |name: &str| ReservedDevices {
        name: name.to_owned(),
        of: 1,
        devices: BTreeMap::new(),
    };
    let reservation = |pod: &str, containers: &[&str]| Reservation {
        pod: format!("default/{pod}"),
        places: (0..).take(containers.len()).collect(),
        containers: (0..)
            .zip(containers.iter().map(|name| container(name)))
            .collect(),
    };
    let all = Reservations::from([
        ("u1".to_owned(), reservation("abc", &["main"])),
        ("u2".to_owned(), reservation("abc-1", &["init", "main"])),
        ("u3".to_owned(), reservation("abc-123", &["main"])),
    ]);
    let case = |active: &[&str], served: &[(&str, &str)], answered: &[(&str, &str)]| {
        let pairs = |pairs: &[(&str, &str)]| -> BTreeSet<Served> {
            let pairs = pairs.iter();
            pairs
                .map(|(a, b)| ((*a).to_owned(), (*b).to_owned()))
                .collect()
        };
        let admission = Admission {
            active: active.iter().map(|pod| format!("default/{pod}")).collect(),
            served: pairs(served),
        };
        match model::next(&all, &admission, &pairs(answered), &BTreeSet::new(), None) {
            Next::Container(uid, _, wanted) => format!("{uid} {}", wanted.name),
            Next::Nobody => "nobody".to_owned(),
            Next::Unclear(pods) => pods.join(" "),
        }
    };
    assert_eq!(case(&[], &[], &[]), "nobody");
    assert_eq!(case(&["other"], &[], &[]), "nobody");
    assert_eq!(case(&["abc"], &[], &[]), "u1 main");
    assert_eq!(case(&["abc", "abc-1"], &[("u1", "main")], &[]), "u2 init");
    assert_eq!(
        case(&["abc", "abc-1"], &[("u1", "main"), ("u2", "init")], &[]),
        "u2 main"
    );
    assert_eq!(
        case(&["abc", "abc-1"], &[("u1", "main")], &[("u2", "init")]),
        "u2 main"
    );
    assert_eq!(
        case(&["abc-123"], &[("u0", "main")], &[]),
        "u3 main",
        "an earlier pod of its name"
    );
    assert_eq!(
        case(&["abc", "abc-123"], &[], &[]),
        "default/abc default/abc-123"
    );
    let served = [
        ("u1", "main"),
        ("u2", "init"),
        ("u2", "main"),
        ("u3", "main"),
    ];
    assert_eq!(case(&["abc", "abc-1", "abc-123"], &served, &[]), "nobody");
}

#[tokio::test(start_paused = true)]
async fn each_container_gets_its_own_devices_also_after_the_agent_has_restarted() {
    let (mut a, mut b, mut c) = (gpu("a1"), gpu("b2"), gpu("c3"));
    reserve(
        &mut a,
        "one",
        &[one_use("init", 0, 0, 1), one_use("main", 1, 0, 2)],
    );
    reserve(&mut b, "one", &[one_use("main", 1, 1, 2)]);
    reserve(&mut c, "two", &[one_use("main", 0, 0, 1)]);
    let world = World::new(&[a, b, c]);
    let (handle, task) = world.start();
    world.admitting.admits("one");
    let first = handle.allocate(ids(&[0])).await.unwrap();
    assert_eq!(first.envs["ID"], "a1");
    // The kubelet has not recorded the first answer yet.
    let second = handle.allocate(ids(&[1])).await.unwrap();
    assert_eq!((&*second.envs["ID"], second.devices.len()), ("a1", 2));
    assert_eq!(second.envs["ID_B2"], "b2");
    task.abort();
    for container in ["init", "main"] {
        world.admitting.wrote("one", container);
    }
    let (handle, _task) = world.start();
    world.admitting.admits("two");
    let third = handle.allocate(ids(&[2])).await.unwrap();
    assert_eq!(third.envs["ID"], "c3");
    let none = handle.allocate(ids(&[3])).await.unwrap_err();
    assert!(
        none.to_string().contains("no pod that the kubelet admits"),
        "{none}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_node_is_unlocked_once_the_last_container_of_a_pod_has_its_devices_or_is_refused() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("init", 0, 0, 1)]);
    reserve(&mut b, "one", &[one_use("main", 1, 0, 1)]);
    if let (Some(a), Some(b)) = (&mut a.spec.leafhost, &mut b.spec.leafhost) {
        let all = a.reserved.values_mut().chain(b.reserved.values_mut());
        all.for_each(|one| one.places = vec![0, 1]);
    }
    let mut world = World::new(&[a, b]);
    let (locked, receiver) = watch::channel(None);
    let (done, mut finished) = watch::channel(BTreeSet::new());
    world.lock = Some(LockPort {
        locked: receiver,
        done,
    });
    let lock = |pod: &str| {
        let text = format!("2026-11-26T12:00:00Z,default,{pod},uid-{pod}");
        locked.send_replace(NodeLock::read(&text));
    };
    let (handle, _task) = world.start();
    lock("one");
    world.admitting.admits("one");
    handle.allocate(ids(&[0])).await.unwrap();
    assert!(!finished.borrow().contains("uid-one"));
    handle.allocate(ids(&[1])).await.unwrap();
    assert!(finished.borrow_and_update().contains("uid-one"));
    lock("two");
    handle.allocate(ids(&[2])).await.unwrap_err();
    assert!(!finished.borrow().contains("uid-two"), "it is another pod");
    world.admitting.admits("two");
    handle.allocate(ids(&[2])).await.unwrap_err();
    assert!(finished.borrow_and_update().contains("uid-two"));
}

#[test]
fn of_pods_that_cannot_be_told_apart_it_is_the_one_for_which_the_node_is_locked() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    reserve(&mut b, "two", &[one_use("main", 0, 0, 1)]);
    let set = Fixture::new(&[("gpu", &[a, b])]).instances;
    let all = model::reservations(NODE, &set);
    let none = (BTreeSet::new(), BTreeSet::new());
    let active = ["default/one", "default/two"].map(str::to_owned);
    let mut admission = Admission {
        active: active.into(),
        ..Admission::default()
    };
    let next = |admission: &Admission, locked: &str| match model::next(
        &all,
        admission,
        &none.0,
        &none.1,
        Some(locked),
    ) {
        Next::Container(uid, ..) => uid.to_owned(),
        other => format!("{other:?}"),
    };
    assert_eq!(next(&admission, "uid-two"), "uid-two");
    assert!(next(&admission, "uid-three").starts_with("Unclear"));
    // The kubelet's list takes precedence over the lock.
    admission.active.remove("default/two");
    assert_eq!(next(&admission, "uid-two"), "uid-one");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_comes_a_little_later_or_in_parts_is_waited_for() {
    let world = World::new(&[gpu("a1"), gpu("b2")]);
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    let waiting = tokio::spawn(async move { handle.allocate(ids(&[0])).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    world.reserve("gpu-a1", "one", &[one_use("main", 0, 0, 2)]);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished(), "it is to get two");
    world.reserve("gpu-b2", "one", &[one_use("main", 0, 1, 2)]);
    let given = waiting.await.unwrap().unwrap();
    assert_eq!(given.devices.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_the_watch_does_not_show_is_read() {
    let world = World::new(&[gpu("a1")]);
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    let begun = Instant::now();
    let refused = handle.allocate(ids(&[0])).await.unwrap_err();
    assert!(refused.to_string().contains("reserved"), "{refused}");
    *world.store.is_hidden.lock().unwrap() = true;
    world.reserve("gpu-a1", "one", &[one_use("main", 0, 0, 1)]);
    handle.allocate(ids(&[0])).await.unwrap();
    assert!(begun.elapsed() < 3 * UNSEEN, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn while_instances_cannot_be_read_a_reservation_is_waited_for_longer() {
    for is_broken in [false, true] {
        let world = World::new(&[gpu("a1")]);
        *world.store.broken.lock().unwrap() = is_broken;
        world
            .store
            .edit(|set| (set.complete, set.remembered) = (is_broken, true));
        let (handle, _task) = world.start();
        world.admitting.admits("one");
        let waiting = tokio::spawn(async move { handle.allocate(ids(&[0])).await });
        tokio::time::sleep(Duration::from_secs(7)).await;
        assert!(!waiting.is_finished());
        world.reserve("gpu-a1", "one", &[one_use("main", 0, 0, 1)]);
        waiting.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_that_is_not_there_is_refused_by_its_name() {
    let mut a = gpu("a1");
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let world = World::new(&[a]);
    world.devices.send_modify(|devices| {
        let mut fixture = Fixture {
            devices: DeviceSnapshot::clone(devices),
            ..Fixture::default()
        };
        fixture.view("gpu", "a1").device = None;
        fixture.view("gpu", "a1").missing_since = Some(jiff::Timestamp::UNIX_EPOCH);
        *devices = Arc::new(fixture.devices);
    });
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    let refused = handle.allocate(ids(&[0])).await.unwrap_err();
    assert!(refused.to_string().contains("Instance gpu-a1"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_has_just_started_waits_a_little_for_its_handlers() {
    let mut a = gpu("a1");
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let world = World::new(&[a]);
    let whole = world.devices.borrow().clone();
    world.devices.send_modify(|devices| {
        let mut fixture = Fixture {
            devices: DeviceSnapshot::clone(devices),
            ..Fixture::default()
        };
        fixture.view("gpu", "a1").device = None;
        *devices = Arc::new(fixture.devices);
    });
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    let again = handle.clone();
    let waiting = tokio::spawn(async move { again.allocate(ids(&[0])).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    world.devices.send_replace(whole);
    assert_eq!(waiting.await.unwrap().unwrap().envs["ID"], "a1");
}

#[tokio::test(start_paused = true)]
async fn slots_come_back_when_the_kubelet_has_no_ticket_of_the_pod_any_more() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    reserve(&mut b, "two", &[one_use("main", 0, 0, 1)]);
    let holder = ("gpu-a1-0".to_owned(), "default/one".to_owned());
    let mut seen = NodeStatus::new(Health::Healthy);
    seen.holders.extend([holder]);
    a.status.nodes.insert(NODE.to_owned(), seen);
    let world = World::new(&[a, b]);
    let (_handle, _task) = world.start();
    world.kubelet.run("one", &[ticket(0)]);
    world.kubelet.notify();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(world.usage("gpu-a1"), format!("P:uid-one:{NODE}"));
    world.store.take_writes();
    world.kubelet.end("one");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.usage("gpu-a1"), "");
    assert_eq!(
        world.store.take_writes().len(),
        1,
        "one write releases the slot and removes its holder"
    );
    let server = world.store.server();
    let mut freed = server.values().filter(|one| one.metadata.name == "gpu-a1");
    let freed = &freed.next().unwrap().status;
    assert!(freed.nodes[NODE].holders.is_empty());
    assert_eq!(freed.used, Some(0));
    // Nobody has seen a ticket of the other pod, and it does not come.
    assert_eq!(world.usage("gpu-b2"), format!("P:uid-two:{NODE}"));
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert_eq!(world.usage("gpu-b2"), "");
}

#[tokio::test(start_paused = true)]
async fn devices_that_a_pod_of_the_same_name_has_got_are_entered_as_its_own() {
    let mut a = gpu("a1");
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    let world = World::new(&[a]);
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    handle.allocate(ids(&[0])).await.unwrap();
    // The kubelet's record has another uid than the reservation.
    world.kubelet.run("other", &[ticket(0)]);
    world.kubelet.notify();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.usage("gpu-a1"), format!("P:uid-other:{NODE}"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_gets_the_ticket_of_a_rejected_one_does_not_get_its_devices() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("main", 0, 0, 1)]);
    reserve(&mut b, "two", &[one_use("main", 0, 0, 1)]);
    let world = World::new(&[a, b]);
    let (handle, _task) = world.start();
    world.admitting.admits("one");
    handle.allocate(ids(&[0])).await.unwrap();
    // The kubelet rejects the pod for another reason and uses the ticket again.
    world.admitting.ends("one");
    world.admitting.admits("two");
    let second = handle.allocate(ids(&[0])).await.unwrap();
    assert_eq!(second.envs["ID"], "b2");
    world.kubelet.run("two", &[ticket(0)]);
    world.kubelet.notify();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.usage("gpu-a1"), format!("P:uid-one:{NODE}"));
    assert_eq!(world.usage("gpu-b2"), format!("P:uid-two:{NODE}"));
}

#[tokio::test(start_paused = true)]
async fn nothing_is_looked_at_where_no_ticket_is_offered_and_no_pod_has_a_slot() {
    let mut world = World::new(&[gpu("a1")]);
    world.is_offered = false;
    let (_handle, _task) = world.start();
    tokio::time::sleep(Duration::from_mins(1)).await;
    world.kubelet.notify();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(world.kubelet.state().snapshots, 0);
    // Tickets were turned off while a pod had one.
    world.kubelet.run("one", &[ticket(0)]);
    world.reserve("gpu-a1", "one", &[one_use("main", 0, 0, 1)]);
    tokio::time::sleep(Duration::from_secs(20)).await;
    world.kubelet.end("one");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(world.usage("gpu-a1"), "");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_is_not_there_is_looked_for_less_and_less_often() {
    let world = World::new(&[gpu("a1")]);
    world.kubelet.state().number = None;
    let (_handle, _task) = world.start();
    tokio::time::sleep(Duration::from_mins(10)).await;
    let record_reads = world.kubelet.state().snapshots;
    assert!((50..80).contains(&record_reads), "{record_reads}");
}

#[test]
fn what_is_not_known_yet_of_a_pod_and_pods_that_are_over_mislead_nobody() {
    let (mut a, mut b) = (gpu("a1"), gpu("b2"));
    reserve(&mut a, "one", &[one_use("main", 1, 0, 1)]);
    if let Some(leafhost) = &mut a.spec.leafhost {
        // The pod's first container has a device that is not known here.
        leafhost
            .reserved
            .values_mut()
            .for_each(|one| one.places = vec![0, 1]);
    }
    reserve(&mut b, "two", &[one_use("main", 0, 0, 1)]);
    let set = Fixture::new(&[("gpu", &[a, b])]).instances;
    let all = model::reservations(NODE, &set);
    let (none, no_uid) = (BTreeSet::new(), BTreeSet::new());
    let mut admission = Admission {
        active: BTreeSet::from(["default/one".to_owned()]),
        ..Admission::default()
    };
    assert_eq!(
        model::next(&all, &admission, &none, &no_uid, None),
        Next::Nobody
    );
    admission.active = BTreeSet::from(["default/two".to_owned()]);
    let Next::Container(uid, _, _) = model::next(&all, &admission, &none, &no_uid, None) else {
        panic!("{all:?}");
    };
    assert_eq!(uid, "uid-two");
    let over = BTreeSet::from(["uid-two".to_owned()]);
    assert_eq!(
        model::next(&all, &admission, &none, &over, None),
        Next::Nobody
    );
    // The kubelet has a ticket of it: the pod waits for the devices of its next container.
    let first = ("uid-two".to_owned(), "init".to_owned());
    admission.served.insert(first);
    let next = model::next(&all, &admission, &none, &over, None);
    assert!(matches!(next, Next::Container("uid-two", ..)), "{next:?}");
}
