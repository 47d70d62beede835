use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{Reservation, ResourceNames};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::tests::fakes::{Fake, denied};

fn labels(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn node(all: &[&str], own: &[&str]) -> NodeLabels {
    NodeLabels {
        all: labels(all),
        own: labels(own),
    }
}

fn instances(all: &[(&str, &str, &[&str])]) -> InstanceSet {
    let instance =
        |(number, (namespace, configuration, nodes)): (usize, &(&str, &str, &[&str]))| {
            let instance: Instance = serde_json::from_value(json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": format!("{configuration}-{number}"), "namespace": namespace},
                "spec": {"configurationName": configuration, "nodes": nodes},
            }))
            .unwrap();
            (instance.key(), Arc::new(instance))
        };
    InstanceSet::read(all.iter().enumerate().map(instance).collect())
}

#[test]
fn a_node_has_a_label_for_each_configuration_of_which_it_sees_a_device_unless_it_is_of_others() {
    let long = "a".repeat(64);
    let instances = instances(&[
        ("n", "cams", &["a", "b"]),
        ("n", "cams", &["a"]),
        ("n", "lab.one", &["a"]),
        ("n", &long, &["a"]),
        // Another namespace has the name.
        ("other", "cams", &["c"]),
        // Not the name of a Configuration.
        ("n", "A/b", &["a"]),
    ]);
    let reservation = Reservation {
        namespace: "n".into(),
        created: None,
    };
    let names: ResourceNames = [("cams".to_owned(), reservation)].into();
    let none: [&ConfigurationKey; 0] = [];
    let owners = NameOwners::new(&names, none);
    let (cams, lab) = ("akri.sh/cams", "akri.sh/lab.one");
    for (name, before, expected) in [
        ("a", node(&[], &[]), Some(labels(&[cams, lab]))),
        ("a", node(&[cams], &[cams]), Some(labels(&[cams, lab]))),
        ("a", node(&[cams, lab], &[cams, lab]), None),
        // A label of others stays, whatever its value.
        ("a", node(&[cams], &[]), Some(labels(&[lab]))),
        ("a", node(&[cams, lab], &[lab]), None),
        ("b", node(&[cams], &[cams]), None),
        (
            "b",
            node(&[cams, lab, "akri.sh/old"], &[cams, lab]),
            Some(labels(&[cams])),
        ),
        ("c", node(&[], &[]), None),
        ("c", node(&[cams], &[cams]), Some(labels(&[]))),
        ("c", node(&[cams], &[]), None),
    ] {
        let nodes = [(name.to_owned(), before.clone())].into();
        let planned = plan(&nodes, &instances, &owners);
        assert_eq!(planned.get(name), expected.as_ref(), "{name} {before:?}");
    }
}

/// Starts the task for a shared Instance of nodes `a` and `b`.
fn start() -> (Arc<Fake>, AbortOnDropHandle<()>) {
    let fake = Fake::new(1);
    let nodes = ["a", "b"].map(|node| (node.to_owned(), NodeLabels::default()));
    fake.node_labels.send_replace(Arc::new(nodes.into()));
    let cluster = Arc::clone(&fake);
    let task = tokio::spawn(async move { run(&*cluster, true, &cluster.metrics).await });
    (fake, AbortOnDropHandle::new(task))
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn written(fake: &Fake) -> Vec<(String, BTreeSet<String>)> {
    fake.labelled.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn labels_are_written_once_and_removed_with_the_last_device() {
    let (fake, _task) = start();
    pass(60).await;
    let cams = labels(&["akri.sh/cams"]);
    let both = ["a", "b"].map(|node| (node.to_owned(), cams.clone()));
    let mut found = written(&fake);
    found.sort();
    assert_eq!(found, both);
    pass(600).await;
    assert_eq!(written(&fake).len(), 2);
    fake.edit(|instance| instance.spec.nodes.retain(|node| node == "a"));
    pass(60).await;
    assert_eq!(written(&fake).last(), Some(&("b".to_owned(), labels(&[]))));
    assert_eq!(written(&fake).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn what_is_refused_is_tried_ever_later_and_only_the_leader_writes() {
    let (fake, _task) = start();
    fake.leads.send_replace(false);
    pass(600).await;
    assert_eq!(written(&fake).len(), 0);
    *fake.answer.lock().unwrap() = Some(denied());
    fake.leads.send_replace(true);
    pass(300).await;
    let tried = written(&fake).len();
    assert!((14..=20).contains(&tried), "{tried}");
    *fake.answer.lock().unwrap() = None;
    pass(600).await;
    assert_eq!(written(&fake).len(), tried + 2);
}

#[tokio::test(start_paused = true)]
async fn devices_that_come_and_go_cause_a_write_a_minute_in_the_end() {
    let (fake, _task) = start();
    for second in 0..1_800 {
        pass(1).await;
        fake.edit(|instance| {
            let nodes = ["a", "b"].map(str::to_owned);
            let count = if second % 4 < 2 { 2 } else { 1 };
            instance.spec.nodes = nodes.into_iter().take(count).collect();
        });
    }
    let of_b = written(&fake);
    let of_b = of_b.iter().filter(|(node, _)| node == "b").count();
    assert!(of_b <= 10 + 30, "{of_b}");
}
