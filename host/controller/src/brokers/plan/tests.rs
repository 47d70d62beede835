use std::time::Duration;

use leafhost_core::resource_names::Reservation;
use serde_json::json;

use super::super::template::PLACEHOLDER;
use super::*;
use crate::brokers::tests::fixture::{Site, instance, key, pod_spec};

const NOTHING: [&str; 0] = [];

/// An edit of the site and the changes expected after it.
type Case = (fn(&mut Site), &'static [&'static str]);

/// Returns a site with a shared device that both nodes see, whose pods run and whose services exist.
fn running() -> Site {
    let mut site = Site::with_pods();
    site.add(instance("cams-1", true, &["a", "b"], 2));
    let mut made = site.step();
    made.sort();
    assert_eq!(made, ["+a-cams-1-pod", "+b-cams-1-pod"]);
    site.run("cams-1", &[("a-cams-1-pod", "a"), ("b-cams-1-pod", "b")]);
    assert_eq!(site.step(), ["+cams-1-svc", "+cams-svc"]);
    assert_eq!(site.step(), NOTHING);
    site
}

fn ended() -> Phase {
    Phase::Ended(Duration::from_secs(1))
}

#[test]
fn each_node_gets_a_pod_and_services_come_when_one_runs() {
    running();
}

#[test]
fn a_local_device_has_a_pod_of_its_own_name() {
    let mut site = Site::with_pods();
    site.add(instance("cams-1", false, &["a"], 1));
    assert_eq!(site.step(), ["+cams-1-pod"]);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn nothing_is_made_for_what_is_not_there() {
    // The Configuration asks for no broker.
    let mut site = Site::new(&json!({"instanceServiceSpec": {}}));
    site.add(instance("cams-1", true, &["a"], 1));
    assert_eq!(site.step(), NOTHING);
    // The node has left the cluster, or no node sees the device.
    let mut site = Site::with_pods();
    site.add(instance("cams-1", true, &["gone"], 1));
    site.add(instance("cams-2", true, &[], 1));
    assert_eq!(site.step(), NOTHING);
    // The Instance belongs to an earlier Configuration of this name, or one of the two is being deleted: the objects go with their owner.
    let before = |site: &mut Site| {
        site.edit("cams-1", |one| {
            one.metadata.owner_references[0].uid = "before".into();
        });
    };
    let deleted = |site: &mut Site| {
        site.edit("cams-1", |one| {
            one.metadata.deletion_timestamp = Some("now".into());
        });
    };
    let deleted_with_all = |site: &mut Site| {
        for manifest in site.manifests.values_mut() {
            Arc::make_mut(manifest).metadata.deletion_timestamp = Some("now".into());
        }
    };
    let changes: [Case; 4] = [
        (before, &["-cams-svc"]),
        (deleted, &["-cams-svc"]),
        (deleted_with_all, &NOTHING),
        (|site| site.manifests.clear(), &NOTHING),
    ];
    for (change, steps) in changes {
        let mut site = Site::with_pods();
        site.add(instance("cams-1", true, &["a"], 1));
        change(&mut site);
        assert_eq!(site.step(), NOTHING);
        let mut site = running();
        change(&mut site);
        assert_eq!(site.step(), steps);
    }
}

#[test]
fn a_deleted_pod_is_made_again_when_its_slot_is_free_and_its_services_stay() {
    let mut site = running();
    site.change(Kind::Pod, "a-cams-1-pod", |pod| pod.is_deleting = true);
    assert_eq!(site.step(), NOTHING);
    site.objects.remove(&key(Kind::Pod, "a-cams-1-pod"));
    assert_eq!(site.step(), NOTHING);
    site.hold("cams-1", 0, "");
    assert_eq!(site.step(), ["+a-cams-1-pod"]);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn a_pod_that_has_ended_is_replaced_at_once_and_its_successor_later() {
    let mut site = Site::with_pods();
    site.add(instance("cams-1", false, &["a"], 1));
    site.step();
    for wait in [0, 10, 20] {
        site.change(Kind::Pod, "cams-1-pod", |pod| pod.phase = ended());
        if wait > 0 {
            let plan = site.plan();
            assert!(plan.changes.is_empty());
            let left = plan.next.unwrap().duration_since(site.now);
            assert_eq!(left, SignedDuration::from_secs(wait));
            site.now += left;
        }
        assert_eq!(site.step(), ["-cams-1-pod"]);
        assert_eq!(site.step(), ["+cams-1-pod"]);
    }
}

#[test]
fn no_more_pods_are_made_than_slots_are_free_and_each_asks_for() {
    for (capacity, limit, held, pods) in [
        (1, "1", &[][..], 1),
        (2, "1", &[], 2),
        (2, "2", &[], 1),
        (3, "2", &[], 1),
        (1, "2", &[], 0),
        (2, "1", &["c"], 1),
        (2, "1", &["C:cams-0:c"], 1),
        (1, "1", &["c"], 0),
    ] {
        let spec =
            json!({"containers": [{"name": "c", "resources": {"limits": {PLACEHOLDER: limit}}}]});
        let mut site = Site::new(&json!({"brokerSpec": {"brokerPodSpec": spec}}));
        site.add(instance("cams-1", true, &["a", "b"], capacity));
        for (slot, holder) in held.iter().enumerate() {
            site.hold("cams-1", slot, holder);
        }
        assert_eq!(site.step().len(), pods, "{capacity} {limit} {held:?}");
        assert_eq!(site.step(), NOTHING);
    }
    // A broker that asks for no slot needs none.
    let mut site = Site::new(&json!({"brokerSpec": {"brokerPodSpec": {"containers": []}}}));
    site.add(instance("cams-1", true, &["a", "b"], 1));
    assert_eq!(site.step().len(), 2);
}

#[test]
fn a_slot_that_a_pod_waits_for_is_promised_to_it_unless_it_finds_no_place_for_long() {
    let mut site = Site::with_pods();
    site.add(instance("cams-1", true, &["a", "b"], 1));
    let first = site.step();
    assert_eq!(first.len(), 1);
    let name = first[0][1..].to_owned();
    let since = site.now;
    site.change(Kind::Pod, &name, |pod| {
        pod.phase = Phase::Unschedulable(since);
    });
    let plan = site.plan();
    assert!(plan.changes.is_empty());
    assert_eq!(plan.next, Some(since + UNPLACED));
    site.now += UNPLACED;
    assert_eq!(site.step().len(), 1);
    // The other pod holds the slot now, and the first waits for it.
    let node = if name.starts_with('a') { "b" } else { "a" };
    site.run("cams-1", &[(&format!("{node}-cams-1-pod"), node)]);
    assert_eq!(site.step(), ["+cams-1-svc", "+cams-svc"]);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn the_pods_of_nodes_that_leave_go_and_services_of_a_device_that_nobody_sees() {
    let mut site = running();
    site.edit("cams-1", |one| one.spec.nodes = vec!["b".into()]);
    assert_eq!(site.step(), ["-a-cams-1-pod"]);
    assert_eq!(site.step(), NOTHING);
    site.edit("cams-1", |one| one.spec.nodes.clear());
    assert_eq!(site.step(), ["-b-cams-1-pod", "-cams-1-svc", "-cams-svc"]);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn the_service_of_a_configuration_goes_with_its_last_instance() {
    let mut site = running();
    site.instances.clear();
    assert_eq!(site.step(), ["-cams-svc"]);
}

#[test]
fn a_smaller_capacity_ends_the_pods_with_the_last_slots() {
    let mut site = running();
    site.hold("cams-1", 0, "b");
    site.hold("cams-1", 1, "a");
    site.edit("cams-1", |one| one.spec.capacity = 1);
    assert_eq!(site.step(), ["-a-cams-1-pod"]);
    assert_eq!(site.step(), NOTHING);
    site.hold("cams-1", 1, "");
    assert_eq!(site.step(), NOTHING);
    site.edit("cams-1", |one| one.spec.capacity = 2);
    assert_eq!(site.step(), ["+a-cams-1-pod"]);
}

#[test]
fn an_edited_template_replaces_pods_and_changes_services_in_place() {
    let mut site = running();
    let mut spec = pod_spec();
    spec["containers"][0]["image"] = json!("other");
    site.configure(&json!({"brokerSpec": {"brokerPodSpec": spec},
        "instanceServiceSpec": {"ports": [{"port": 81}]}, "configurationServiceSpec": {"ports": [{"port": 80}]}}));
    assert_eq!(
        site.step(),
        ["-a-cams-1-pod", "-b-cams-1-pod", "=cams-1-svc"]
    );
    // The slots of the deleted pods are not free yet.
    assert_eq!(site.step(), NOTHING);
    site.edit("cams-1", |one| one.spec.device_usage.clear());
    assert_eq!(site.step().len(), 2);
    site.run("cams-1", &[("a-cams-1-pod", "a"), ("b-cams-1-pod", "b")]);
    assert_eq!(site.step(), NOTHING);
    site.configure(&json!({}));
    assert_eq!(
        site.step(),
        ["-a-cams-1-pod", "-b-cams-1-pod", "-cams-1-svc", "-cams-svc"]
    );
}

#[test]
fn what_akri_made_stays_and_its_service_is_brought_up_to_date() {
    let mut site = running();
    for (kind, name) in [(Kind::Pod, "a-cams-1-pod"), (Kind::Service, "cams-svc")] {
        site.change(kind, name, |object| object.made_of = None);
    }
    assert_eq!(site.step(), ["=cams-svc"]);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn a_service_that_was_kept_when_its_configuration_was_deleted_belongs_to_the_next_one() {
    let mut site = running();
    site.change(Kind::Service, "cams-svc", |object| object.owner = None);
    assert_eq!(site.step(), ["=cams-svc"]);
    assert_eq!(site.step(), NOTHING);
    // A service that the controller did not create has the name.
    site.change(Kind::Service, "cams-svc", |object| {
        object.owner = None;
        object.is_made = false;
    });
    let changes = site.plan().changes;
    assert!(
        matches!(&changes[..], [(_, Change::Create(_))]),
        "{changes:?}"
    );
}

#[test]
fn what_somebody_else_made_is_not_touched() {
    let mut site = running();
    for (name, owner, is_made) in [
        ("x", Some("uid-cams-1"), false),
        ("y", Some("other"), true),
        ("z", None, true),
    ] {
        let mut object = Object::clone(&site.objects[&key(Kind::Pod, "a-cams-1-pod")]);
        object.owner = owner.map(str::to_owned);
        object.is_made = is_made;
        site.objects.insert(key(Kind::Pod, name), Arc::new(object));
    }
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn what_another_namespace_has_the_name_of_gets_no_broker_and_loses_the_one_it_has() {
    let reservation = |namespace: &str| Reservation {
        namespace: namespace.into(),
        created: Some(Timestamp::UNIX_EPOCH),
    };
    // Name of the Configuration, and name of its Instance.
    for name in ["cams", "cams-8120fe"] {
        let mut site = Site::with_pods();
        site.names.insert(name.into(), reservation("other"));
        site.add(instance("cams-8120fe", false, &["a"], 1));
        assert_eq!(site.step(), NOTHING, "{name}");
        site.names.insert(name.into(), reservation("n"));
        assert_eq!(site.step(), ["+cams-8120fe-pod"], "{name}");
        site.names.insert(name.into(), reservation("other"));
        assert_eq!(site.step(), ["-cams-8120fe-pod"], "{name}");
    }
    // Other Instances of the Configuration keep their pods.
    let mut site = Site::with_pods();
    site.names
        .insert("cams-8120fe".into(), reservation("other"));
    site.add(instance("cams-8120fe", false, &["a"], 1));
    site.add(instance("cams-a19705", false, &["a"], 1));
    assert_eq!(site.step(), ["+cams-a19705-pod"]);
}

#[test]
fn a_job_runs_once_for_each_template() {
    let job = |image: &str| {
        json!({"brokerSpec": {"brokerJobSpec": {"template": {"spec": {"containers": [
            {"name": "c", "image": image, "resources": {"limits": {PLACEHOLDER: "1"}}}]}}}}})
    };
    let mut site = Site::new(&job("first"));
    site.add(instance("cams-1", true, &["a", "b"], 1));
    assert_eq!(site.step(), ["+cams-1-7-job"]);
    site.hold("cams-1", 0, "a");
    assert_eq!(site.step(), NOTHING);
    site.hold("cams-1", 0, "");
    // The generation changes, the template does not.
    for manifest in site.manifests.values_mut() {
        Arc::make_mut(manifest).metadata.generation = Some(8);
    }
    assert_eq!(site.step(), NOTHING);
    site.configure(&job("second"));
    for manifest in site.manifests.values_mut() {
        Arc::make_mut(manifest).metadata.generation = Some(9);
    }
    site.change(Kind::Job, "cams-1-7-job", |job| job.is_deleting = true);
    assert_eq!(site.step(), NOTHING);
    site.change(Kind::Job, "cams-1-7-job", |job| job.is_deleting = false);
    assert_eq!(site.step(), ["-cams-1-7-job"]);
    site.hold("cams-1", 0, "a");
    assert_eq!(site.step(), NOTHING);
    site.hold("cams-1", 0, "");
    assert_eq!(site.step(), ["+cams-1-9-job"]);
    // The Configuration asks for a pod instead of a job.
    site.configure(&json!({"brokerSpec": {"brokerPodSpec": pod_spec()}}));
    let changes = site.step();
    assert_eq!(changes.len(), 2);
    assert_eq!(changes[1], "-cams-1-9-job");
}

#[test]
fn what_names_an_owner_of_another_namespace_belongs_to_nobody_here() {
    let job = json!({"brokerSpec": {"brokerJobSpec": {"template": {"spec": {"containers": [{"name": "c"}]}}}}});
    for (spec, kind, expected) in [
        (job, Kind::Job, "+cams-1-7-job"),
        (
            json!({"brokerSpec": {"brokerPodSpec": pod_spec()}}),
            Kind::Pod,
            "+cams-1-pod",
        ),
    ] {
        let mut site = Site::new(&spec);
        site.add(instance("cams-1", false, &["a"], 1));
        assert_eq!(site.step(), [expected]);
        // A user of another namespace creates the same object with the uid of this namespace's Instance.
        let ours = key(kind, &expected[1..]);
        let theirs = ObjectKey {
            namespace: "tenant".into(),
            ..ours.clone()
        };
        let object = site.objects.remove(&ours).unwrap();
        site.objects.insert(theirs, object);
        assert_eq!(site.step(), [expected]);
        assert_eq!(site.step(), NOTHING);
    }
    let mut site = running();
    let spare = Site::new(&json!({})).manifests;
    for name in ["cams-1-svc", "cams-svc"] {
        let mut theirs = key(Kind::Service, name);
        let object = site.objects.remove(&theirs).unwrap();
        theirs.namespace = "tenant".into();
        site.objects.insert(theirs, object);
    }
    assert_eq!(site.step(), ["+cams-1-svc", "+cams-svc"]);
    // Objects of the other namespace are not deleted, either.
    site.manifests = spare;
    let deleted = site.step();
    assert!(deleted.contains(&"-cams-svc".to_owned()), "{deleted:?}");
    let theirs = site.objects.keys();
    assert_eq!(theirs.filter(|key| key.namespace == "tenant").count(), 2);
}

#[test]
fn a_broker_whose_resource_is_not_offered_is_told() {
    let mut site = Site::with_pods();
    site.add(instance("cams-1", true, &["a"], 1));
    for (text, is_told) in [
        ("configuration", true),
        ("instances", false),
        ("both", false),
    ] {
        for manifest in site.manifests.values_mut() {
            let annotation = (RESOURCES_ANNOTATION.to_owned(), text.to_owned());
            Arc::make_mut(manifest)
                .metadata
                .annotations
                .extend([annotation]);
        }
        let plan = site.plan();
        assert_eq!(plan.problems.len(), usize::from(is_told), "{text}");
        assert_eq!(plan.changes.is_empty(), is_told, "{text}");
    }
}

/// Prints the duration of a pass over 1,000 Instances on two nodes each, with their pods and services.
#[test]
fn a_pass_over_a_thousand_instances_takes_less_than_a_second() {
    let mut site = Site::with_pods();
    let names: Vec<String> = (0..1_000).map(|n| format!("cams-{n:06x}")).collect();
    for name in &names {
        site.add(instance(name, true, &["a", "b"], 2));
    }
    let timed = |what: &str, site: &mut Site| {
        let start = std::time::Instant::now();
        let changes = site.plan().changes.len();
        let took = start.elapsed();
        println!("{what}: {changes} changes in {took:?}");
        assert!(took < Duration::from_secs(1), "{what}: {took:?}");
    };
    timed("pods are created", &mut site);
    site.step();
    for name in &names {
        let pods = [
            (format!("a-{name}-pod"), "a"),
            (format!("b-{name}-pod"), "b"),
        ];
        site.run(name, &[(&pods[0].0, pods[0].1), (&pods[1].0, pods[1].1)]);
    }
    timed("services are created", &mut site);
    site.step();
    timed("nothing changes", &mut site);
    assert_eq!(site.step(), NOTHING);
}

#[test]
fn with_devices_of_the_scheduler_a_template_of_claims_comes_before_the_pods() {
    let mut site = Site::with_pods();
    let annotate = |site: &mut Site, value: &str| {
        for manifest in site.manifests.values_mut() {
            let annotation = ("leafhost.dev/allocation".to_owned(), value.to_owned());
            Arc::make_mut(manifest)
                .metadata
                .annotations
                .extend([annotation]);
        }
    };
    annotate(&mut site, "dra");
    site.add(instance("cams-1", true, &["a", "b"], 2));
    assert_eq!(site.step(), ["+cams-1-claims"]);
    let mut made = site.step();
    made.sort();
    assert_eq!(made, ["+a-cams-1-pod", "+b-cams-1-pod"]);
    site.change(Kind::Pod, "a-cams-1-pod", |pod| pod.phase = Phase::Running);
    site.hold("cams-1", 0, "R:n:a-cams-1-pod-x:u:a");
    assert_eq!(site.step(), ["+cams-1-svc", "+cams-svc"]);
    assert_eq!(site.step(), NOTHING);
    // The deleted template is created again, and the pods stay.
    site.objects
        .remove(&key(Kind::ClaimTemplate, "cams-1-claims"));
    assert_eq!(site.step(), ["+cams-1-claims"]);
    assert_eq!(site.step(), NOTHING);
    annotate(&mut site, "device-plugin");
    let mut gone = site.step();
    gone.sort();
    assert_eq!(gone, ["-a-cams-1-pod", "-b-cams-1-pod", "-cams-1-claims"]);
}
