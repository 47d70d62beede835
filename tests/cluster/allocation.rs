//! Allocation for pods: environment variables and slots.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};

use crate::device::{Site, used_slots, variable};

#[test]
fn a_pod_gets_the_devices_variables_and_its_slot_is_released() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("gets")?;
    site.configure("gets", 2, &["one"])?;
    site.home.start(&[])?;
    let name = site.instances(1)?.remove(0);
    let resource = format!("akri.sh/{name}");
    site.until_amounts(&resource, 2, 2)?;
    site.until_amounts("akri.sh/gets", 1, 1)?;
    let pod = Pod::new("a", &[Container::new("main").device(&resource, 1)]).on(site.node);
    space.run(&pod)?;
    space.wait_logs("a", "main", "DEBUG_ECHO_DESCRIPTION=one\n")?;
    let hash = name.trim_start_matches("gets-").to_uppercase();
    space.wait_logs("a", "main", &format!("DEBUG_ECHO_DESCRIPTION_{hash}=one\n"))?;
    site.until_held_by(&space, &["a"])?;
    let used = used_slots(&site.home.status()?);
    ensure!(
        used.values().all(|node| node == site.node.name()),
        "{used:?}"
    );
    space.delete("a")?;
    site.until_held_by(&space, &[])?;
    Ok(())
}

#[test]
fn two_containers_that_request_a_configuration_get_two_devices() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("two")?;
    site.configure("two", 1, &["one", "another"])?;
    site.home.start(&[])?;
    site.until_amounts("akri.sh/two", 2, 2)?;
    let containers = ["a", "b"].map(|name| Container::new(name).device("akri.sh/two", 1));
    space.run(&Pod::new("pod", &containers).on(site.node))?;
    let mut seen = BTreeSet::new();
    for container in ["a", "b"] {
        let log = space.wait_logs("pod", container, "DEBUG_ECHO_DESCRIPTION=")?;
        seen.extend(variable(&log, "DEBUG_ECHO_DESCRIPTION"));
    }
    assert_eq!(seen, ["one", "another"].map(str::to_owned).into());
    assert_eq!(site.until_held_by(&space, &["pod"])?.len(), 2);
    Ok(())
}

/// Returns the message of a pod that the kubelet has refused.
fn refused(pod: &serde_json::Value) -> Result<&str> {
    let text = |pointer| pod.pointer(pointer).and_then(serde_json::Value::as_str);
    ensure!(
        text("/status/phase") == Some("Failed")
            && text("/status/reason") == Some("UnexpectedAdmissionError"),
        "{:#}",
        pod.get("status").context("no status")?
    );
    text("/status/message").context("no message")
}

#[test]
fn a_pod_whose_second_container_is_refused_fails_and_keeps_no_slot() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("leak")?;
    site.configure("leak", 1, &["one"])?;
    site.home.start(&["--slot-grace", "5s"])?;
    let resource = site.only_resource(1)?;
    site.until_amounts("akri.sh/leak", 1, 1)?;
    // The scheduler sees two resources, but both stand for one slot.
    let containers = [
        Container::new("first").device(&resource, 1),
        Container::new("second").device("akri.sh/leak", 1),
    ];
    space.create(&Pod::new("pod", &containers).on(site.node))?;
    let pod = space.wait_phase("pod", "Failed")?;
    let message = refused(&pod)?;
    ensure!(message.contains("akri.sh/leak"), "{message}");
    site.until_held_by(&space, &[])?;
    site.until_amounts(&resource, 1, 1)?;
    let next = [Container::new("main").device(&resource, 1)];
    space.run(&Pod::new("next", &next).on(site.node))?;
    site.until_held_by(&space, &["next"])?;
    Ok(())
}

#[test]
fn of_two_pods_that_race_for_the_last_slot_one_gets_it() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("race")?;
    site.configure("race", 1, &["one"])?;
    site.home.start(&["--slot-grace", "5s"])?;
    let resource = site.only_resource(1)?;
    for round in 0..3 {
        site.until_amounts(&resource, 1, 1)?;
        site.until_amounts("akri.sh/race", 1, 1)?;
        let names = [format!("a{round}"), format!("b{round}")];
        for (name, resource) in names.iter().zip([&*resource, "akri.sh/race"]) {
            let main = Container::new("main").device(resource, 1);
            space.create(&Pod::new(name, &[main]).on(site.node))?;
        }
        let mut winners = Vec::new();
        for name in &names {
            let pod = space.until(name, "it runs or does not", |pod| {
                let phase = pod
                    .pointer("/status/phase")
                    .and_then(|phase| phase.as_str());
                let waits = pod.pointer("/status/conditions/0/reason");
                ensure!(
                    matches!(phase, Some("Running" | "Failed"))
                        || waits.is_some_and(|reason| reason == "Unschedulable"),
                    "{pod:#}"
                );
                Ok(pod.clone())
            })?;
            match pod
                .pointer("/status/phase")
                .and_then(|phase| phase.as_str())
            {
                Some("Running") => winners.push(&**name),
                Some("Failed") => {
                    let message = refused(&pod)?;
                    ensure!(
                        message.contains("is used by")
                            || message.contains("has a free slot")
                            || message.contains("Available: 0")
                            || message.contains("no healthy devices present"),
                        "{message}"
                    );
                }
                // The other pod may stay Pending and run after the first one.
                _ => {}
            }
        }
        ensure!(winners.len() == 1, "{winners:?} run");
        site.until_held_by(&space, &winners)?;
        for name in &names {
            space.delete(name)?;
        }
        site.until_held_by(&space, &[])?;
    }
    Ok(())
}

#[test]
fn ten_pods_at_once_get_ten_slots() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("ten")?;
    site.configure("ten", 10, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(10)?;
    let names: Vec<String> = (0..10).map(|number| format!("pod-{number}")).collect();
    for name in &names {
        let main = Container::new("main").device(&resource, 1);
        space.create(&Pod::new(name, &[main]).on(site.node))?;
    }
    for name in &names {
        space.wait_running(name)?;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(site.until_held_by(&space, &names)?.len(), 10);
    Ok(())
}

#[test]
fn a_changed_capacity_applies_at_once_and_used_slots_beyond_it_stay() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("live")?;
    site.configure("live", 1, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(1)?;
    site.configure("live", 5, &["one"])?;
    site.until_amounts(&resource, 5, 5)?;
    let pod =
        |name: &str| Pod::new(name, &[Container::new("main").device(&resource, 1)]).on(site.node);
    let names = ["a", "b", "c", "d"];
    for name in names {
        space.create(&pod(name))?;
    }
    for name in names {
        space.wait_running(name)?;
    }
    let held = site.until_held_by(&space, &names)?;

    site.configure("live", 2, &["one"])?;
    site.node.wait_allocatable(&resource, 4)?;
    assert_eq!(site.until_held_by(&space, &names)?, held);
    // No slot of the new capacity is free until three of the four are released.
    space.delete("a")?;
    space.delete("b")?;
    site.until_held_by(&space, &["c", "d"])?;
    site.node.wait_allocatable(&resource, 2)?;
    space.create(&pod("e"))?;
    space.wait_unschedulable("e")?;
    space.delete("c")?;
    space.wait_running("e")?;
    site.until_held_by(&space, &["d", "e"])?;
    site.node.wait_allocatable(&resource, 2)
}
