mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::claim::{AllocatedClaim, Parameters};
use leafhost_core::device::{Device, Health};
use leafhost_fakes::key;
use tokio::time::Instant;

use super::*;
use world::{Bench, NODE, mk_agent, mk_allocated, mk_bench, mk_devices, mk_instance, mk_ref};

#[tokio::test(start_paused = true)]
async fn a_claim_takes_a_slot_until_it_is_given_back() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    let devices = bench.prepare("viewer").await.unwrap();
    let expected = PreparedDevice {
        requests: vec!["gpu".to_owned()],
        pool: NODE.to_owned(),
        device: "gpu-a1".to_owned(),
        cdi: vec!["k8s.leafhost.dev/claim-viewer-uid=gpu-a1".to_owned()],
        share: None,
    };
    assert_eq!(devices, [expected]);
    assert_eq!(
        bench.held(),
        ["gpu-a1-0=R:default:viewer:viewer-uid:node-a"]
    );
    let env = bench.world.specs.lock().unwrap()["viewer-uid"]["gpu-a1"]
        .env
        .clone();
    assert_eq!(
        (&*env["ID"], &*env["ID_A1"], &*env["MODE"]),
        ("a1", "a1", "fast")
    );
    // The second answer comes from the record: the claim is not read.
    bench.world.claims.lock().unwrap().clear();
    assert_eq!(bench.prepare("viewer").await.unwrap(), devices);
    assert_eq!(bench.store.take_writes().len(), 1);

    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    bench.until(|bench| bench.held().is_empty()).await;
    bench
        .until(|bench| bench.report.borrow().claims.is_empty())
        .await;
    assert!(bench.world.specs.lock().unwrap().is_empty());
    // Twice is not an error.
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_a_slot_that_is_being_given_back_and_fails_in_time() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("first", &[mk_allocated("gpu-a1", None)]);
    bench.allocate("second", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("first").await.unwrap();
    let begun = Instant::now();
    let error = bench.prepare("second").await.unwrap_err();
    assert!(
        error.contains("gpu-a1-0=R:default:first:first-uid:node-a"),
        "{error}"
    );
    assert!((39..=41).contains(&begun.elapsed().as_secs()));
    let again = async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        bench.claims.unprepare(mk_ref("first")).await
    };
    let (second, first) = tokio::join!(bench.prepare("second"), again);
    first.unwrap();
    second.unwrap();
    assert_eq!(
        bench.held(),
        ["gpu-a1-0=R:default:second:second-uid:node-a"]
    );
}

#[tokio::test(start_paused = true)]
async fn two_shares_of_a_device_are_two_slots_and_a_slot_that_is_named_is_that_one() {
    let bench = mk_bench(&[mk_instance("a1", 3)]);
    let shares = [
        mk_allocated("gpu-a1", Some("s1")),
        mk_allocated("gpu-a1", Some("s2")),
    ];
    bench.allocate("both", &shares);
    let devices = bench.prepare("both").await.unwrap();
    let names: Vec<_> = devices.iter().flat_map(|device| &device.cdi).collect();
    assert_eq!(
        names,
        [
            "k8s.leafhost.dev/claim-both-uid=gpu-a1-s1",
            "k8s.leafhost.dev/claim-both-uid=gpu-a1-s2"
        ]
    );
    assert_eq!(bench.held().len(), 2);
    bench.allocate("third", &[mk_allocated("gpu-a1-2", None)]);
    bench.prepare("third").await.unwrap();
    assert_eq!(bench.held()[2], "gpu-a1-2=R:default:third:third-uid:node-a");
    bench.claims.unprepare(mk_ref("both")).await.unwrap();
    bench.until(|bench| bench.held().len() == 1).await;
    let mut wide = mk_allocated("gpu-a1", Some("s3"));
    wide.slots = 2;
    bench.allocate("wide", &[wide]);
    bench.prepare("wide").await.unwrap();
    assert_eq!(bench.held().len(), 3);
    let mut admin = mk_allocated("gpu-a1", None);
    admin.is_admin = true;
    bench.allocate("admin", &[admin]);
    bench.prepare("admin").await.unwrap();
    assert_eq!(
        bench.held().len(),
        3,
        "who looks after a device takes no slot"
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_devices_are_not_all_there_gets_none() {
    let bench = mk_bench(&[mk_instance("a1", 1), mk_instance("b2", 1)]);
    let both = [mk_allocated("gpu-a1", None), mk_allocated("gpu-gone", None)];
    bench.allocate("both", &both);
    let error = bench.prepare("both").await.unwrap_err();
    assert!(
        error.contains("device gpu-gone of pool node-a is not on node node-a"),
        "{error}"
    );
    bench.until(|bench| bench.held().is_empty()).await;
    bench.devices.send_replace(mk_devices(
        &["a1", "b2"],
        &Health::Unhealthy("too hot".to_owned()),
    ));
    bench.allocate("hot", &[mk_allocated("gpu-b2", None)]);
    let error = bench.prepare("hot").await.unwrap_err();
    assert!(error.ends_with("is not healthy: too hot"), "{error}");
    bench
        .devices
        .send_replace(mk_devices(&["a1"], &Health::Healthy));
    let appears = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        bench
            .devices
            .send_replace(mk_devices(&["a1", "b2"], &Health::Healthy));
    };
    let (prepared, ()) = tokio::join!(bench.prepare("hot"), appears);
    prepared.unwrap();
}

#[tokio::test(start_paused = true)]
async fn claims_that_are_gone_or_others_by_now_are_refused_and_failures_that_pass_are_not() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    let error = bench.prepare("viewer").await.unwrap_err();
    assert_eq!(error, "the claim is gone, or nothing is allocated to it");
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    let mut other = mk_ref("viewer");
    other.uid = "another".to_owned();
    let error = bench.claims.prepare(other).await.unwrap_err();
    assert_eq!(error, "another claim now has the name");
    *bench.world.failures.lock().unwrap() = 20;
    bench.prepare("viewer").await.unwrap();
    assert_eq!(bench.held().len(), 1);
    *bench.world.failures.lock().unwrap() = u32::MAX;
    let error = bench.prepare("later").await.unwrap_err();
    assert_eq!(error, "cannot read the claim: busy");
}

#[tokio::test(start_paused = true)]
async fn variables_of_a_claim_win() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    let claim = AllocatedClaim {
        uid: "viewer-uid".to_owned(),
        results: vec![mk_allocated("gpu-a1", None)],
        parameters: vec![Parameters {
            requests: Vec::new(),
            properties: BTreeMap::from([("MODE".to_owned(), "slow".to_owned())]),
        }],
    };
    let name = "default/viewer".to_owned();
    bench.world.claims.lock().unwrap().insert(name, claim);
    bench.prepare("viewer").await.unwrap();
    let env = bench.world.specs.lock().unwrap()["viewer-uid"]["gpu-a1"]
        .env
        .clone();
    assert_eq!((&*env["MODE"], &*env["MODE_A1"]), ("slow", "slow"));
}

/// Kills the agent between the slot, the record, the CDI specs and the answer.
#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_between_gives_nothing_twice_and_loses_nothing() {
    for broken in ["record", "spec"] {
        let bench = mk_bench(&[mk_instance("a1", 2)]);
        bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
        *bench.world.broken.lock().unwrap() = Some(broken);
        bench.prepare("viewer").await.unwrap_err();
        *bench.world.broken.lock().unwrap() = None;
        let (world, store, devices) = bench.kill();
        let bench = mk_agent(world, store, devices);
        bench.prepare("viewer").await.unwrap();
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(bench.held().len(), 1, "{broken}");
        bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
        bench.until(|bench| bench.held().is_empty()).await;
    }
    // Only the slot is taken.
    let mut instance = mk_instance("a1", 2);
    for (slot, usage) in [
        (0, "R:default:viewer:viewer-uid:node-a"),
        (1, "R:default:gone:gone-uid:node-a"),
    ] {
        instance
            .spec
            .device_usage
            .insert(format!("gpu-a1-{slot}"), usage.to_owned());
    }
    let bench = mk_bench(&[instance]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.until(|bench| bench.held().len() == 1).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(
        bench.held(),
        ["gpu-a1-0=R:default:viewer:viewer-uid:node-a"]
    );
    bench.prepare("viewer").await.unwrap();
    assert_eq!(
        bench.held(),
        ["gpu-a1-0=R:default:viewer:viewer-uid:node-a"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_given_back_without_the_api_server_and_its_slot_follows() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    *bench.store.broken.lock().unwrap() = true;
    *bench.world.failures.lock().unwrap() = u32::MAX;
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(bench.held().len(), 1);
    let (world, store, devices) = bench.kill();
    let bench = mk_agent(world, store, devices);
    tokio::time::sleep(Duration::from_mins(1)).await;
    *bench.store.broken.lock().unwrap() = false;
    bench.until(|bench| bench.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_gone_and_that_no_container_uses_ends_though_the_kubelet_is_silent() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    let stays = async |what: &str| {
        tokio::time::sleep(Duration::from_mins(20)).await;
        assert_eq!(bench.held().len(), 1, "{what}");
    };
    let viewer = ("default".to_owned(), "viewer".to_owned());
    let users = |users: Option<BTreeSet<_>>| *bench.world.used.lock().unwrap() = users;
    users(Some(BTreeSet::new()));
    stays("the claim has the device").await;
    bench.world.claims.lock().unwrap().clear();
    users(None);
    stays("it is not known who uses it").await;
    users(Some(BTreeSet::from([viewer])));
    stays("a container uses it").await;
    *bench.world.failures.lock().unwrap() = 25;
    users(Some(BTreeSet::new()));
    stays("it is not known whether it is gone").await;
    *bench.world.failures.lock().unwrap() = 0;
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!(bench.held().len(), 1, "a container may still be ending");
    bench.until(|bench| bench.held().is_empty()).await;
    assert!(bench.world.specs.lock().unwrap().is_empty());
    assert!(bench.world.records.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_told_and_keeps_no_pod() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    let (world, store, devices) = bench.kill();
    world.records.lock().unwrap().clear();
    let cut = ("viewer-uid".to_owned(), "cut short".to_owned());
    world.unreadable.lock().unwrap().extend([cut]);
    let bench = mk_agent(world, store, devices);
    let error = bench.prepare("viewer").await.unwrap_err();
    assert!(error.contains("cut short"), "{error}");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(bench.held().len(), 1, "its pod may run");
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    assert!(bench.report.borrow().unreadable.is_empty());
    bench.world.claims.lock().unwrap().clear();
    bench.until(|bench| bench.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_containers_need_is_written_again_where_somebody_removed_it() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    bench.world.specs.lock().unwrap().clear();
    bench
        .world
        .specs
        .lock()
        .unwrap()
        .insert("old".to_owned(), BTreeMap::new());
    bench
        .until(|bench| bench.world.specs.lock().unwrap().contains_key("viewer-uid"))
        .await;
    assert!(!bench.world.specs.lock().unwrap().contains_key("old"));
}

#[tokio::test(start_paused = true)]
async fn a_slot_whose_instance_was_made_anew_is_taken_again() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    // The device was away for a moment.
    bench.store.edit(|set| set.instances.clear());
    bench.store.edit(|set| {
        let mut again = mk_instance("a1", 1);
        again.metadata.uid = "uid-again".to_owned();
        set.instances.insert(again.key(), Arc::new(again));
    });
    assert!(bench.held().is_empty());
    bench.until(|bench| !bench.held().is_empty()).await;
    assert_eq!(
        bench.held(),
        ["gpu-a1-0=R:default:viewer:viewer-uid:node-a"]
    );
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    bench.until(|bench| bench.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn what_a_device_is_by_now_is_given_when_a_claim_is_prepared_again() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    let mut snapshot = DeviceSnapshot::clone(&bench.devices.borrow());
    let view = Arc::make_mut(snapshot.configurations.get_mut(&key("gpu")).unwrap());
    for view in view.devices.values_mut() {
        let mut device = Device::clone(view.device.as_ref().unwrap());
        device
            .properties
            .insert("ID".to_owned(), "moved".to_owned());
        view.device = Some(Arc::new(device));
    }
    bench.devices.send_replace(Arc::new(snapshot));
    bench.prepare("viewer").await.unwrap();
    let env =
        |bench: &Bench| bench.world.specs.lock().unwrap()["viewer-uid"]["gpu-a1"].env["ID"].clone();
    assert_eq!(env(&bench), "moved");
    // The device is away: in the same boot its pod keeps its edits.
    bench
        .devices
        .send_replace(mk_devices(&[], &Health::Healthy));
    bench.prepare("viewer").await.unwrap();
    assert_eq!(env(&bench), "moved");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_while_it_is_not_known_which_claims_there_are() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    let (world, store, devices) = bench.kill();
    *world.broken.lock().unwrap() = Some("folder");
    let bench = mk_agent(world, store, devices);
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap_err();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(bench.held().len(), 1);
    assert!(bench.world.specs.lock().unwrap().contains_key("viewer-uid"));
    *bench.world.broken.lock().unwrap() = None;
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    bench.until(|bench| bench.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_keeps_no_claim_from_being_given_back() {
    let bench = mk_bench(&[mk_instance("a1", 1)]);
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    *bench.world.broken.lock().unwrap() = Some("record");
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    bench.until(|bench| bench.held().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_kubelet_is_told_whether_the_devices_of_claims_work() {
    let bench = mk_bench(&[mk_instance("a1", 1), mk_instance("b2", 1)]);
    let (health, mut told) = watch::channel(Arc::default());
    let claims = bench.claims.clone();
    let telling = async move { claims.tell_health(health).await };
    let _telling = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(telling));
    bench.allocate("viewer", &[mk_allocated("gpu-a1", None)]);
    bench.prepare("viewer").await.unwrap();
    let name = (NODE.to_owned(), "gpu-a1".to_owned());
    let mut until = async |is_healthy: bool, message: &str| {
        let is_so = |list: &Arc<leafhost_kubelet::dra::HealthList>| {
            let device = list.get(&name);
            device.is_some_and(|one| one.is_healthy == is_healthy && one.message == message)
        };
        let list = tokio::time::timeout(Duration::from_secs(5), told.wait_for(is_so)).await;
        assert_eq!(
            list.unwrap().unwrap().len(),
            1,
            "devices that no claim has are told, too"
        );
    };
    until(true, "").await;
    let hot = mk_devices(&["a1"], &Health::Unhealthy("too hot".to_owned()));
    bench.devices.send_replace(hot);
    until(false, "too hot").await;
    bench
        .devices
        .send_replace(mk_devices(&[], &Health::Healthy));
    until(false, "it is missing").await;
    bench.claims.unprepare(mk_ref("viewer")).await.unwrap();
    tokio::time::timeout(
        Duration::from_secs(5),
        told.wait_for(|list| list.is_empty()),
    )
    .await
    .unwrap()
    .unwrap();
}
