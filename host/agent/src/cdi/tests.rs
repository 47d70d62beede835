//! CDI specs, as computed and as written to the folder.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use leafhost_cdi::{Readers, Spec};
use leafhost_core::device::{Device, DeviceNode, Mount};
use leafhost_core::device_view::{ConfigurationDevices, DeviceView};
use leafhost_core::ports::{Change, ConfiguredDiscovery};
use leafhost_core::presence::Absent;
use leafhost_core::resource_names::Reservation;
use leafhost_fakes::{configured, configured_as, key, wait_for};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::plan::Reservations;
use crate::plan::plan;

const NODE: &str = "node-a";

/// Returns the snapshot, and the Instances that are planned for it.
fn home(views: Vec<(ConfiguredDiscovery, Vec<Device>)>) -> (DeviceSnapshot, InstanceSet) {
    let mut snapshot = DeviceSnapshot {
        read: true,
        absent: Absent::GONE,
        ..DeviceSnapshot::default()
    };
    for (configured, devices) in views {
        let views = devices.into_iter().map(|device| {
            let view = DeviceView {
                device: Some(Arc::new(device.clone())),
                missing_since: None,
            };
            (device.key(), view)
        });
        let view = ConfigurationDevices {
            devices: views.collect(),
            configured: Arc::new(configured),
            absent: Absent::GONE,
        };
        let key = view.configured.configuration.key.clone();
        snapshot.configurations.insert(key, Arc::new(view));
    }
    let mut set = InstanceSet::read(BTreeMap::new());
    for change in plan(NODE, &snapshot, &set, &Reservations::default(), false).changes {
        if let Change::Create(instance) = change {
            set.instances.insert(instance.key(), Arc::new(*instance));
        }
    }
    (snapshot, set)
}

fn cams(devices: Vec<Device>) -> (DeviceSnapshot, InstanceSet) {
    home(vec![(configured("cams", "udev", ""), devices)])
}

fn camera(id: &str) -> Device {
    let mut device = Device::new(id, true);
    device.properties.insert("ID".into(), id.into());
    device.nodes.push(DeviceNode {
        container_path: format!("/dev/{id}"),
        host_path: format!("/dev/{id}"),
        permissions: "rw".into(),
    });
    device
}

fn env<'a>(spec: &'a Spec, name: &str) -> &'a [String] {
    let device = spec
        .devices
        .iter()
        .find(|device| device.name == name)
        .unwrap();
    &device.container_edits.env
}

fn names(spec: &Spec) -> Vec<&str> {
    spec.devices
        .iter()
        .map(|device| device.name.as_str())
        .collect()
}

fn folder(dir: &tempfile::TempDir) -> SpecDir {
    SpecDir::new(dir.path(), "akri.sh", "leafhost", Readers::Everybody).unwrap()
}

fn specs(folder: &SpecDir) -> BTreeMap<String, Spec> {
    let classes = folder.classes().unwrap().into_iter();
    classes
        .filter_map(|class| Some((class.clone(), folder.read(&class).unwrap()?)))
        .collect()
}

/// Runs one pass; returns its report and the specs in the folder.
fn passed(
    folder: &SpecDir,
    home: &(DeviceSnapshot, InstanceSet),
) -> (CdiReport, BTreeMap<String, Spec>) {
    let stop = CancellationToken::new();
    let (report, _) = pass(NODE, folder, &home.0, &home.1, &stop);
    (report, specs(folder))
}

#[test]
fn a_device_has_its_variables_in_both_forms_of_akri() {
    let dir = tempfile::tempdir().unwrap();
    let with_own = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams"},
        "spec": {"discoveryHandler": {"name": "udev"}, "brokerProperties": {"MODE": "fast"}},
    }));
    let (report, specs) = passed(
        &folder(&dir),
        &home(vec![(with_own, vec![camera("foo1"), camera("foo0")])]),
    );
    let spec = &specs["cams"];
    assert_eq!(spec.kind, "akri.sh/cams");
    assert_eq!(report.kinds[&key("cams")], "akri.sh/cams");
    assert_eq!(names(spec), ["8120fe", "a19705", "all"]);
    assert_eq!(
        env(spec, "8120fe"),
        ["ID=foo0", "ID_8120FE=foo0", "MODE=fast", "MODE_8120FE=fast"]
    );
    assert_eq!(
        env(spec, "all"),
        [
            "ID=foo0",
            "ID_8120FE=foo0",
            "MODE=fast",
            "MODE_8120FE=fast",
            "ID_A19705=foo1",
            "MODE_A19705=fast"
        ],
        "the plain form is that of the first id"
    );
    let all = spec.devices.last().unwrap();
    let nodes: Vec<_> = all
        .container_edits
        .device_nodes
        .iter()
        .map(|node| node.path.as_str())
        .collect();
    assert_eq!(nodes, ["/dev/foo0", "/dev/foo1"]);
}

#[test]
fn a_spec_that_would_be_too_large_has_the_first_devices_and_says_how_many_are_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(&dir);
    let wordy = |number: usize| {
        let mut device = camera(&format!("foo{number:03}"));
        // Each line end takes two bytes.
        let text = "\n".repeat(30 << 10);
        device.properties.insert("TEXT".into(), text);
        device
    };
    let home = cams((0..200).map(wordy).collect());
    let (report, specs) = passed(&folder, &home);
    let there = specs["cams"].devices.len() - 1;
    assert!((100..199).contains(&there), "{there}");
    let file = fs::read(folder.path("cams")).unwrap();
    assert!(
        (24 << 20..32 << 20).contains(&file.len()),
        "{} bytes",
        file.len()
    );
    let ids: Vec<&str> = env(&specs["cams"], "all")
        .iter()
        .filter(|variable| variable.starts_with("ID_"))
        .filter_map(|variable| Some(variable.split_once('=')?.1))
        .collect();
    let first: Vec<String> = (0..there).map(|n| format!("foo{n:03}")).collect();
    assert_eq!(ids, first);
    let problem = report.problems[0].to_string();
    assert!(
        problem.contains(&format!("{} devices are not offered", 200 - there))
            && problem.contains("32 MiB")
            && problem.contains("split the Configuration"),
        "{problem}"
    );
    let written = fs::metadata(folder.path("cams")).unwrap();
    let (again, _) = passed(&folder, &home);
    assert_eq!(again, report);
    let now = fs::metadata(folder.path("cams")).unwrap();
    assert_eq!(written.modified().unwrap(), now.modified().unwrap());
}

#[test]
fn what_devices_have_in_common_is_in_all_once() {
    let dir = tempfile::tempdir().unwrap();
    let with_common = |id: &str, permissions: &str| {
        let mut device = Device::new(id, true);
        device.nodes.push(DeviceNode {
            container_path: "/dev/ctl".into(),
            host_path: "/dev/ctl".into(),
            permissions: permissions.into(),
        });
        device.mounts.push(Mount {
            container_path: "/run/udev".into(),
            host_path: "/run/udev".into(),
            read_only: true,
        });
        device
    };
    let (_, specs) = passed(
        &folder(&dir),
        &cams(vec![with_common("foo0", "r"), with_common("foo1", "w")]),
    );
    let all = &specs["cams"].devices.last().unwrap().container_edits;
    assert_eq!((all.device_nodes.len(), all.mounts.len()), (1, 1));
    assert_eq!(all.device_nodes[0].permissions.as_deref(), Some("rw"));
}

#[test]
fn ten_thousand_devices_are_offered_in_seconds() {
    let (snapshot, instances) = cams((0..10_000).map(|n| camera(&format!("c{n}"))).collect());
    let started = std::time::Instant::now();
    let wanted = spec::wanted(NODE, &snapshot, &instances);
    let (spec, _) = wanted.offers["cams"].spec("cams", None);
    let spec = spec.unwrap();
    let all = spec.devices.last().unwrap();
    assert_eq!(all.container_edits.device_nodes.len(), 10_000);
    assert_eq!(all.container_edits.env.len(), 10_001);
    assert!(
        started.elapsed() < Duration::from_secs(20),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn a_device_that_brings_nothing_is_offered_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (report, specs) = passed(&folder(&dir), &cams(vec![Device::new("foo0", true)]));
    assert_eq!(report.problems, []);
    assert_eq!(
        env(&specs["cams"], "8120fe"),
        ["LEAFHOST_DEVICE_8120FE=akri.sh/cams=8120fe"]
    );
}

#[test]
fn an_entry_stays_until_its_device_is_reported_again_or_withdrawn() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(&dir);
    let (mut snapshot, mut instances) = cams(vec![camera("foo0"), camera("foo1")]);
    let (_, before) = passed(&folder, &(snapshot.clone(), instances.clone()));
    let view = Arc::make_mut(snapshot.configurations.get_mut(&key("cams")).unwrap());
    view.devices
        .values_mut()
        .for_each(|view| view.device = None);
    let (_, after) = passed(&folder, &(snapshot.clone(), instances.clone()));
    assert_eq!(after, before, "nothing has been reported since the start");

    let view = Arc::make_mut(snapshot.configurations.get_mut(&key("cams")).unwrap());
    view.devices.retain(|key, _| key.id == "foo1");
    let (_, withdrawn) = passed(&folder, &(snapshot.clone(), instances.clone()));
    assert_eq!(
        names(&withdrawn["cams"]),
        ["a19705", "all"],
        "the Instance need not be deleted first"
    );
    instances.instances.clear();
    let (report, none) = passed(&folder, &(snapshot, instances));
    assert_eq!((none.len(), report.kinds.len()), (0, 0));
}

#[test]
fn files_of_deleted_configurations_go_when_all_have_been_read() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(&dir);
    passed(&folder, &cams(vec![camera("foo0")]));
    let nothing = |absent| DeviceSnapshot {
        absent,
        ..DeviceSnapshot::default()
    };
    let unknown = std::collections::BTreeSet::from([key("cams")]);
    for (snapshot, left) in [
        (nothing(Absent::UNKNOWN), 1),
        (nothing(Absent::Gone { unknown }), 1),
        (nothing(Absent::GONE), 0),
    ] {
        let (_, specs) = passed(&folder, &(snapshot, InstanceSet::read(BTreeMap::new())));
        assert_eq!(specs.len(), left);
    }
}

#[test]
fn a_name_that_is_no_cdi_class_is_named_and_the_others_are_offered() {
    let dir = tempfile::tempdir().unwrap();
    let views = vec![
        (configured("1st", "udev", ""), vec![camera("foo0")]),
        (configured("cams", "udev", ""), vec![camera("foo0")]),
    ];
    let (report, specs) = passed(&folder(&dir), &home(views));
    assert_eq!(specs.keys().collect::<Vec<_>>(), ["cams"]);
    let configuration = key("1st");
    assert_eq!(
        report.problems,
        [Problem::InvalidCdiClass { configuration }]
    );
}

#[test]
fn a_name_too_long_for_a_file_is_a_problem_and_the_others_are_offered() {
    let dir = tempfile::tempdir().unwrap();
    let long = "c".repeat(236);
    let views = vec![
        (configured(&long, "udev", ""), vec![camera("foo0")]),
        (configured("cams", "udev", ""), vec![camera("foo0")]),
    ];
    let home = home(views);
    let (report, specs) = passed(&folder(&dir), &home);
    assert_eq!(specs.keys().collect::<Vec<_>>(), ["cams"]);
    let problem = report.problems[0].to_string();
    assert!(problem.contains("choose a shorter name"), "{problem}");
}

#[test]
fn of_two_configurations_of_one_kind_the_older_wins_and_keeps_it() {
    let dir = tempfile::tempdir().unwrap();
    let edge = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "edge"},
        "spec": {"discoveryHandler": {"name": "udev"}},
    }));
    let views = vec![
        (configured("cams", "udev", ""), vec![camera("foo1")]),
        (edge, vec![camera("foo0")]),
    ];
    let (snapshot, mut instances) = home(views);
    for (key, instance) in &mut instances.instances {
        let made = if key.namespace == "edge" {
            "2026-01-01T00:00:00Z"
        } else {
            "2026-02-01T00:00:00Z"
        };
        Arc::make_mut(instance).metadata.creation_timestamp = Some(made.into());
    }
    let (report, specs) = passed(&folder(&dir), &(snapshot, instances));
    assert_eq!(names(&specs["cams"]), ["8120fe", "all"]);
    assert!(
        report.problems[0]
            .to_string()
            .starts_with("default/cams has the name of edge/cams"),
        "{report:?}"
    );
}

#[test]
fn a_kind_whose_name_is_reserved_is_that_of_its_namespace_alone() {
    let edge = || {
        configured_as(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "edge"},
            "spec": {"discoveryHandler": {"name": "udev"}},
        }))
    };
    for (namespace, devices) in [
        ("default", Some("a19705")),
        ("edge", Some("8120fe")),
        // Its Configuration was deleted a moment ago.
        ("other", None),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let views = vec![
            (edge(), vec![camera("foo0")]),
            (configured("cams", "udev", ""), vec![camera("foo1")]),
        ];
        let (mut snapshot, instances) = home(views);
        let reservation = Reservation {
            namespace: namespace.into(),
            created: None,
        };
        snapshot.names = Arc::new([("cams".to_owned(), reservation)].into_iter().collect());
        let (report, specs) = passed(&folder(&dir), &(snapshot, instances));
        let found = specs.get("cams").map(|spec| names(spec)[0]);
        assert_eq!(found, devices);
        let told = format!("has the name of {namespace}/cams, which had it first");
        assert_eq!(report.problems.len(), 2 - usize::from(devices.is_some()));
        assert!(report.problems[0].to_string().contains(&told), "{report:?}");
    }
}

#[test]
fn of_two_configurations_of_one_kind_and_age_the_first_namespace_wins() {
    let dir = tempfile::tempdir().unwrap();
    let edge = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "edge"},
        "spec": {"discoveryHandler": {"name": "udev"}},
    }));
    let loser = edge.configuration.key.clone();
    let views = vec![
        (edge, vec![camera("foo0")]),
        (configured("cams", "udev", ""), vec![camera("foo1")]),
    ];
    let (report, specs) = passed(&folder(&dir), &home(views));
    assert_eq!(names(&specs["cams"]), ["a19705", "all"]);
    assert!(
        report.problems[0]
            .to_string()
            .starts_with(&format!("{loser} has the name of default/cams")),
        "{report:?}"
    );
}

#[test]
fn unhealthy_devices_stay_listed() {
    let dir = tempfile::tempdir().unwrap();
    let mut device = camera("foo0");
    device.health = leafhost_core::device::Health::Unhealthy("hot".into());
    let (_, specs) = passed(&folder(&dir), &cams(vec![device]));
    assert_eq!(names(&specs["cams"]), ["8120fe", "all"]);
}

#[test]
fn an_equal_spec_is_not_written_and_a_damaged_one_is() {
    let dir = tempfile::tempdir().unwrap();
    let folder = folder(&dir);
    let home = cams(vec![camera("foo0")]);
    let (_, specs) = passed(&folder, &home);
    let file = folder.path("cams");
    let inode = |path: &std::path::Path| {
        use std::os::unix::fs::MetadataExt as _;
        fs::metadata(path).unwrap().ino()
    };
    let before = inode(&file);
    passed(&folder, &home);
    assert_eq!(inode(&file), before);
    fs::write(&file, "{").unwrap();
    assert_eq!(passed(&folder, &home).1, specs);
}

struct Bench {
    report: watch::Receiver<Arc<CdiReport>>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    instances: watch::Sender<Arc<InstanceSet>>,
    _task: AbortOnDropHandle<Result<(), SourceEnded>>,
}

fn start(dir: &tempfile::TempDir, home: (DeviceSnapshot, InstanceSet)) -> Bench {
    let (devices, d) = watch::channel(Arc::new(home.0));
    let (instances, i) = watch::channel(Arc::new(home.1));
    let (task, report) = CdiTask::new(NODE.into(), (folder(dir), None), d, i);
    let task = tokio::spawn(task.run(CancellationToken::new()));
    Bench {
        report,
        devices,
        instances,
        _task: AbortOnDropHandle::new(task),
    }
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_is_none_is_a_problem_with_a_remedy_and_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    fs::remove_dir(&path).unwrap();
    fs::write(&path, "").unwrap();
    let bench = start(&dir, cams(vec![camera("foo0")]));
    let seen = wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    assert!(
        seen.problems[0].to_string().contains("--cdi-dir"),
        "{seen:?}"
    );
    fs::remove_file(&path).unwrap();
    wait_for(&bench.report, |report| {
        report.problems.is_empty() && !report.kinds.is_empty()
    })
    .await;
    assert_eq!(specs(&folder(&dir)).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_another_agent_holds_is_left_alone_until_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let other = folder(&dir);
    let held = other.lock().unwrap();
    let theirs = passed(&other, &cams(vec![camera("foo1")])).1;
    let bench = start(&dir, cams(vec![camera("foo0")]));
    let seen = wait_for(&bench.report, |report| !report.problems.is_empty()).await;
    let text = seen.problems[0].to_string();
    let pid = format!("in use by the agent with pid {}", std::process::id());
    assert!(text.contains(&pid), "{text}");
    assert_eq!(specs(&other), theirs);
    drop(held);
    wait_for(&bench.report, |report| {
        report.problems.is_empty() && !report.kinds.is_empty()
    })
    .await;
    assert_ne!(specs(&other), theirs);
    assert!(other.lock().is_err(), "it is held from then on");
}

#[tokio::test(start_paused = true)]
async fn a_file_that_somebody_removed_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let bench = start(&dir, cams(vec![camera("foo0")]));
    wait_for(&bench.report, |report| !report.kinds.is_empty()).await;
    let file = folder(&dir).path("cams");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);
    fs::remove_file(&file).unwrap();
    tokio::time::timeout(BACKSTOP * 3, async {
        while !file.exists() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
    .await
    .expect("the file is back");
}

#[tokio::test(start_paused = true)]
async fn devices_that_appear_one_after_another_are_written_together() {
    let dir = tempfile::tempdir().unwrap();
    let bench = start(&dir, cams(vec![camera("foo0")]));
    wait_for(&bench.report, |report| !report.kinds.is_empty()).await;
    let mut cameras = vec![camera("foo0")];
    let mut written = BTreeSet::new();
    while cameras.len() < 50 {
        cameras.push(camera(&format!("foo{}", cameras.len())));
        let (devices, instances) = cams(cameras.clone());
        bench.devices.send_replace(Arc::new(devices));
        bench.instances.send_replace(Arc::new(instances));
        tokio::time::sleep(SPACING / 25).await;
        written.insert(names(&specs(&folder(&dir))["cams"]).len());
    }
    assert!(written.len() <= 4, "{written:?}");
    let count = || names(&specs(&folder(&dir))["cams"]).len();
    tokio::time::timeout(SPACING * 3, async {
        while count() < 50 + 1 {
            tokio::time::sleep(SPACING / 25).await;
        }
    })
    .await
    .expect("all are there");
}
