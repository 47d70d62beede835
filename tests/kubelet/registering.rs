//! Kubelet that refuses, hangs up, clears its folder slowly, or reads no lists.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_kubelet::proto::device_plugin::Empty;
use leafhost_tests::kubelet::faults::Reading;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::kubelet::{Plugins, Restart};
use leafhost_tests::program;
use leafhost_tests::wait::eventually;
use tonic::Code;

use crate::node::{Node, ids, list, resource, text, used};

const ECHO: &str = "akri.sh/echo";
const FAILED: &str = r#"leafhost_kubelet_resources{state="failed"}"#;

#[test]
fn a_refused_registration_is_named_counted_and_tried_again() -> Result<()> {
    let mut node = Node::new()?;
    node.echo(1, &[])?;
    node.home.start(&[])?;
    // Ten times for each resource: long enough to be observed.
    let faults = node.kubelet.faults();
    faults.refuse_register(20, Code::Unknown, "the name is not to my taste");
    node.echo(1, &["foo"])?;
    node.until_problem(ECHO, "not to my taste")?;
    eventually("a metric counts it", || {
        let failed = node.metric(FAILED)?;
        ensure!(failed > 0, "{failed}");
        Ok(())
    })?;
    node.until_listed(2)?;
    let status = node.resource(ECHO)?;
    assert_eq!(text(&status, "/problem"), "");
    eventually("the metric forgets it", || {
        ensure!(node.metric(FAILED)? == 0);
        ensure!(node.metric("leafhost_kubelet_registrations")? == 22);
        Ok(())
    })
}

#[test]
fn a_kubelet_whose_socket_was_deleted_is_to_be_restarted_and_not_taken_for_none() -> Result<()> {
    let node = Node::with(1, &["foo"], &[])?;
    std::fs::remove_file(node.kubelet.device_plugins().join("kubelet.sock"))?;
    let status = node.until_trouble("restart the kubelet")?;
    ensure!(status.pointer("/kubelet/socketMissing") == Some(&true.into()));
    let shown = node.home.leafhost(&["status"])?.good()?;
    ensure!(!shown.contains("kubelet: none"), "{shown}");
    // The kubelet still follows the existing lists.
    let uid = node.run("p", ECHO, 1)?;
    let restart = node.kubelet.restart(Restart::default());
    node.kubelet.wait(restart)?;
    node.until_no_trouble()?;
    node.until_listed(2)?;
    assert_eq!(node.held(&uid, ECHO), ids(["echo-0"]));
    Ok(())
}

/// Serves a hundred resources, each with a socket and a connection, for which 128 descriptors are not enough.
#[test]
fn a_hundred_resources_are_served_whatever_the_shell_lets_open() -> Result<()> {
    let mut node = Node::new()?;
    let names: Vec<String> = (0..100).map(|n| format!("device-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    node.echo(1, &names)?;
    node.home.limit('n', 128);
    node.home.start(&[])?;
    node.until_listed(names.len() + 1)
}

/// Lets the resources compete for descriptors: one may take what another one closes.
#[test]
fn an_agent_whose_resources_want_more_files_than_there_are_answers_each_question_for_its_status()
-> Result<()> {
    let mut node = Node::new()?;
    node.echo(1, &["device-0"])?;
    node.home.start(&[])?;
    node.until_listed(2)?;
    let process = node.home.pid()?;
    let open = std::fs::read_dir(format!("/proc/{process}/fd"))?.count();
    let bound = format!("--nofile={}:{}", open + 40, open + 48);
    program::run("prlimit", ["--pid", &process.to_string(), &bound])?.good()?;
    let names: Vec<String> = (0..200).map(|n| format!("device-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    node.echo(1, &names)?;
    eventually("a resource says what it lacks", || {
        let status = node.home.status()?;
        let lacks = |text: &str| text.contains("open files");
        let mut resources = list(&status, "/kubelet/resources").iter();
        ensure!(
            resources.any(|resource| lacks(text(resource, "/problem"))),
            "{status:#}"
        );
        Ok(())
    })?;
    for question in 0..100 {
        let ended = node.home.leafhost(&["status", "-o", "json"])?;
        ended
            .good()
            .with_context(|| format!("question {question}"))?;
    }
    Ok(())
}

#[test]
fn a_kubelet_that_cannot_dial_back_is_asked_again_after_longer_and_longer_waits() -> Result<()> {
    let mut node = Node::new()?;
    node.echo(1, &["foo"])?;
    node.kubelet.faults().fail_dial(20);
    let start = Instant::now();
    node.home.start(&[])?;
    node.until_problem(ECHO, "cannot dial")?;
    assert_eq!(node.kubelet.record().lists, [], "never asked for a list");
    node.until_listed(2)?;
    // Twenty failures of two resources: one of them has failed at least ten times, and waited 10, 20, … 5,120 ms.
    ensure!(start.elapsed() >= Duration::from_secs(10), "{start:?}");
    let record = node.kubelet.record().registrations;
    assert_eq!(record.len(), 22, "{record:#?}");
    Ok(())
}

#[test]
fn a_list_that_the_kubelet_ends_at_once_or_later_is_registered_again() -> Result<()> {
    for plugins in [Plugins::Newest, Plugins::ByPath] {
        ended_lists(plugins).with_context(|| format!("{plugins:?}"))?;
    }
    Ok(())
}

fn ended_lists(plugins: Plugins) -> Result<()> {
    let mut node = Node::knowing(plugins)?;
    node.echo(2, &["foo"])?;
    node.kubelet.faults().end_lists_after(2, 0);
    node.home.start(&[])?;
    let own = resource(&node.instance("foo")?);
    node.until_listed(2)?;
    let uid = node.run("p", &own, 1)?;
    let had = node.held(&uid, &own);

    for round in 2..4 {
        node.kubelet.faults().end_lists();
        node.until("both are registered again", |_| {
            for name in [ECHO, own.as_str()] {
                let count = node.registers(name);
                ensure!(count == [(1, round + 1)].into(), "{name}: {count:?}");
            }
            Ok(())
        })?;
        node.until_listed(2)?;
        // Held devices stay listed and healthy, and the pod keeps them.
        let last = node.kubelet.record().lists;
        let last = last.iter().rev().find(|list| list.resource == own);
        let devices = &last.context("no list")?.devices;
        assert_eq!(devices.len(), 2);
        assert!(devices.iter().all(|device| device.health == "Healthy"));
        assert_eq!(used(&node.usage()?), had);
    }
    Ok(())
}

#[test]
fn a_folder_cleared_name_by_name_costs_two_registers_at_most() -> Result<()> {
    for plugins in [Plugins::Newest, Plugins::ByPath] {
        cleared_folder(plugins).with_context(|| format!("{plugins:?}"))?;
    }
    Ok(())
}

fn cleared_folder(plugins: Plugins) -> Result<()> {
    let node = Node::knowing(plugins)?.begin(2, &["a", "b", "c", "d"], &[])?;
    let own = resource(&node.instance("a")?);
    let uid = node.run("p", &own, 1)?;
    let had = node.held(&uid, &own);
    for start in 2..4 {
        let slowly = Restart {
            pause: Duration::from_millis(200),
            ..Restart::default()
        };
        node.kubelet.wait(node.kubelet.restart(slowly))?;
        node.until("all lists are followed again", |kubelet| {
            let listed = kubelet.capacities();
            ensure!(
                listed.len() == 5 && listed.values().all(|(capacity, _)| *capacity > 0),
                "{listed:?}"
            );
            Ok(())
        })?;
        for name in node.kubelet.capacities().keys() {
            let registers = node.registers(name);
            ensure!(registers[&start] <= 2, "{name}: {registers:?}");
        }
        assert_eq!(node.kubelet.wait(node.kubelet.readmit())?, [].into());
        assert_eq!(node.held(&uid, &own), had);
        assert_eq!(used(&node.usage()?), had);
        // The first list has the device as healthy.
        let lists = node.kubelet.record().lists;
        let first = lists
            .iter()
            .find(|list| list.resource == own && list.life == start)
            .context("no list")?;
        let ids: Vec<_> = first.devices.iter().map(|device| &device.id).collect();
        assert!(had.iter().all(|id| ids.contains(&id)), "{first:?}");
        assert!(
            first
                .devices
                .iter()
                .all(|device| device.health == "Healthy")
        );
    }
    Ok(())
}

#[test]
fn a_second_stream_of_a_list_comes_and_goes_and_the_first_stays() -> Result<()> {
    let node = Node::with(1, &["foo"], &[])?;
    let own = resource(&node.instance("foo")?);
    let slot = format!("{}-0", node.instance("foo")?);
    for _ in 0..3 {
        let message = node.kubelet.wait(async {
            let mut plugin = node.kubelet.dial(&own).await?;
            let mut stream = plugin.list_and_watch(Empty {}).await?.into_inner();
            anyhow::Ok(stream.message().await?.context("no list")?)
        })?;
        assert_eq!(message.devices[0].id, slot);
    }
    assert_eq!(node.kubelet.streams(&own), 1);
    let uid = node.run("p", &own, 1)?;
    assert_eq!(node.held(&uid, &own), ids([&slot]));
    assert_eq!(node.registers(&own), [(1, 1)].into());
    // The first stream still sends changes.
    node.echo(2, &["foo"])?;
    node.kubelet.wait(node.kubelet.until_capacity(&own, 2, 2))
}

#[test]
fn a_kubelet_that_reads_no_lists_holds_nobody_up() -> Result<()> {
    let node = Node::with(1, &["a", "b"], &[])?;
    let own = resource(&node.instance("a")?);
    for reading in [Reading::Dead, Reading::Slow(Duration::from_secs(2))] {
        node.kubelet.faults().read(reading);
        // The kubelet may take one message that it already waits for.
        for capacity in [7, 3, 9] {
            node.echo(capacity, &["a", "b"])?;
            node.kubelet.wait(async {
                let mut plugin = node.kubelet.dial(&own).await?;
                let mut stream = plugin.list_and_watch(Empty {}).await?.into_inner();
                loop {
                    let message = stream.message().await?.context("the list has ended")?;
                    let healthy = message.devices.iter().filter(|one| one.health == "Healthy");
                    if healthy.count() == capacity {
                        return anyhow::Ok(());
                    }
                }
            })?;
        }
        let start = Instant::now();
        let spec = PodSpec::asking("p", &own, 1);
        let (uid, admitted) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        admitted?;
        ensure!(start.elapsed() < Duration::from_secs(2), "{reading:?}");
        node.delete(&uid)?;
        node.kubelet.faults().read(Reading::Eager);
        node.until("the latest list", |kubelet| {
            let capacity = kubelet.capacity(&own);
            ensure!(matches!(capacity, Some((_, 9))), "{capacity:?}");
            Ok(())
        })?;
        node.echo(1, &["a", "b"])?;
        node.kubelet
            .wait(node.kubelet.until("small again", |kubelet| {
                let healthy = kubelet.devices(&own);
                let healthy = healthy.values().filter(|one| one.health == "Healthy");
                ensure!(healthy.count() == 1);
                Ok(())
            }))?;
    }
    assert_eq!(node.kubelet.record().crashes, [""; 0]);
    Ok(())
}
