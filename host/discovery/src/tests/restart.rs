//! Devices that the store knows from an earlier run.

use super::*;

fn earlier(devices: &[(&str, &str, bool)]) -> InstanceSet {
    let instance = |(configuration, id, shared): &(&str, &str, bool)| {
        let instance: leafhost_core::instance::Instance =
            serde_json::from_value(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": format!("{configuration}-{id}"), "namespace": "default"},
                "spec": {"configurationName": configuration, "shared": shared, "nodes": ["node-a"],
                         "leafhost": {"id": id}},
            }))
            .unwrap();
        (instance.key(), Arc::new(instance))
    };
    InstanceSet::read(devices.iter().map(instance).collect())
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_only_a_complete_answer_withdraws() {
    let udev = FakeHandler::new("udev@1");
    let instances = earlier(&[("a", "1", false), ("a", "2", false), ("a", "3", true)]);
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("udev.wasm", &udev)],
        &instances,
    );
    bench.has("a", &["1*", "2*", "3*"]).await;
    for outcome in [
        fault(),
        report(Outcome::Unavailable("x".into())),
        found(Devices::Partial(vec![local("1")])),
    ] {
        idle().await;
        udev.say("a", outcome);
    }
    bench.has("a", &["1", "2*", "3*"]).await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1", "3?*"]).await;
    pass(299).await;
    assert_eq!(bench.has_now("a"), ["1", "3?*"]);
    pass(2).await;
    assert_eq!(bench.has_now("a"), ["1"]);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_files_that_are_not_read_yet_are_waited_for() {
    let udev = FakeHandler::new("udev@1");
    let instances = earlier(&[("a", "1", false), ("a", "2", false)]);
    let bench = start_with(&[configured("a", "udev", "")], &[], &instances);
    let all = handler_set(&[("udev.wasm", &udev)]);
    let some = HandlerSet {
        complete: false,
        ..HandlerSet::clone(&all)
    };
    bench.handlers.send_replace(Arc::new(some));
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1", "2*"]).await;
    bench.handlers.send_replace(all);
    bench.has("a", &["1"]).await;
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_slower_source_is_waited_for() {
    let (one, two) = (FakeHandler::new("udev@1"), FakeHandler::new("udev@2"));
    let instances = earlier(&[("a", "1", false), ("a", "2", false)]);
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("1.wasm", &one), ("2.wasm", &two)],
        &instances,
    );
    idle().await;
    one.say("a", complete(&[local("1")]));
    bench.has("a", &["1", "2*"]).await;
    two.say("a", complete(&[local("2")]));
    bench.has("a", &["1", "2"]).await;
}

#[tokio::test(start_paused = true)]
async fn devices_of_a_handler_that_never_shows_up_go_after_the_eviction_time() {
    let instances = earlier(&[("a", "1", false)]);
    let bench = start_with(&[configured("a", "udev", "")], &[], &instances);
    bench.has("a", &["1*"]).await;
    pass(299).await;
    assert_eq!(bench.has_now("a"), ["1*"]);
    pass(2).await;
    assert_eq!(bench.has_now("a"), Vec::<String>::new());
}

#[test]
fn instances_of_the_store_are_known_by_their_node() {
    let instances = earlier(&[("a", "1", false)]);
    let clock = Clock::new(Timestamp::UNIX_EPOCH);
    assert_eq!(known(&instances, "node-a", &clock).len(), 1);
    assert!(known(&instances, "node-b", &clock).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_behind_when_a_device_went_missing_does_not_end_its_grace() {
    let udev = FakeHandler::new("udev@1");
    let mut instances = earlier(&[("a", "1", true)]);
    for instance in instances.instances.values_mut() {
        let status = serde_json::json!({"health": "Healthy", "missingSince": "1970-01-01T00:01:00Z",
            "missingUptime": {"boot": format!("{:032x}", 7), "seconds": 60}});
        Arc::make_mut(instance)
            .status
            .nodes
            .insert("node-a".into(), serde_json::from_value(status).unwrap());
    }
    let clock = Clock::new("2026-01-01T00:00:00Z".parse().unwrap());
    let clock = clock.booted(7, Duration::from_secs(70));
    let bench = start_at(
        clock,
        &[configured("a", "udev", "")],
        &[("udev.wasm", &udev)],
        &instances,
    );
    idle().await;
    udev.say("a", complete(&[local("2")]));
    bench.has("a", &["1?*", "2"]).await;
    pass(289).await;
    assert_eq!(bench.has_now("a"), ["1?*", "2"]);
    pass(2).await;
    assert_eq!(bench.has_now("a"), ["2"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_discovered_before_the_store_has_been_read() {
    let udev = FakeHandler::new("udev@1");
    let unread = InstanceSet::default();
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("udev.wasm", &udev)],
        &unread,
    );
    idle().await;
    assert!(!bench.devices.borrow().read);
    bench
        .instances
        .send_replace(Arc::new(earlier(&[("a", "1", false)])));
    bench.has("a", &["1*"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_departs_before_all_has_been_told_is_gone() {
    let udev = FakeHandler::new("udev@1");
    let bench = start_with(
        &[configured("a", "udev", "")],
        &[("udev.wasm", &udev)],
        &earlier(&[("a", "1", false), ("a", "2", false)]),
    );
    idle().await;
    let mut partial = found(Devices::Partial(vec![local("3")]));
    if let Outcome::Discovered(discovery) = &mut partial.outcome {
        discovery.departed = vec!["1".into()];
    }
    udev.say("a", partial);
    bench.has("a", &["2*", "3"]).await;
    let is_gone = |id: &str| {
        let snapshot = Arc::clone(&bench.devices.borrow());
        snapshot.device(&key("a"), &local(id).key()).is_gone()
    };
    assert!(is_gone("1"));
    assert!(!is_gone("2") && !is_gone("3") && !is_gone("never seen"));
}
