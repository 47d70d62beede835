//! Reads a kubelet's folder.

use std::fs;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use leafhost_kubelet::{DevicePluginsTask, PluginConfig};
use tempfile::TempDir;

use super::*;
use crate::AllocateQueue;
use crate::fixture::device_id;

/// Answers with the annotation `slots.leafhost.dev/cams`, in the checkpoint's encoding.
const TO_A: &str = "Ii4KF3Nsb3RzLmxlYWZob3N0LmRldi9jYW1zEhNjYW1zLTA9Y2Ftcy1hLTEgb2Rk"; // cams-0=cams-a-1, and a word that is not a pair
const TO_B: &str = "IioKF3Nsb3RzLmxlYWZob3N0LmRldi9jYW1zEg9jYW1zLTA9Y2Ftcy1iLTA="; // cams-0=cams-b-0
const TO_C: &str = "IioKF3Nsb3RzLmxlYWZob3N0LmRldi9jYW1zEg9jYW1zLTE9Y2Ftcy1jLTA="; // cams-1=cams-c-0

fn records(root: &TempDir) -> KubeletRecords {
    let config = PluginConfig::new(root.path().join("device-plugins"), "leafhost");
    let (_, offers) = watch::channel(Arc::default());
    let (queue, _) = AllocateQueue::new("node-a", watch::channel(Arc::default()).1);
    let (_, plugins) = DevicePluginsTask::new(config, offers, Arc::new(queue.handle.clone()));
    let (_, changes) = watch::channel(0);
    KubeletRecords::new(is_of_slots, root.path().to_owned(), plugins, changes)
}

fn folder(entries: &serde_json::Value) -> TempDir {
    let root = TempDir::new().unwrap();
    fs::create_dir_all(root.path().join("device-plugins")).unwrap();
    let written = serde_json::json!({
        "Data": {"PodDeviceEntries": entries, "RegisteredDevices": {}}, "Checksum": 1,
    });
    fs::write(
        root.path()
            .join("device-plugins/kubelet_internal_checkpoint"),
        written.to_string(),
    )
    .unwrap();
    root
}

fn entry(pod: &str, resource: &str, id: &str, answer: &str) -> serde_json::Value {
    serde_json::json!({
        "PodUID": pod, "ContainerName": "main", "ResourceName": resource, "DeviceIDs": {"-1": [id]}, "AllocResp": answer,
    })
}

#[tokio::test]
async fn the_checkpoint_tells_device_ids_pods_and_the_slots_behind_them() {
    let root = folder(&serde_json::json!([
        entry("u1", "akri.sh/cams", "cams-0", TO_A),
        entry("u2", "akri.sh/cams", "cams-1", TO_C),
        entry("u1", "akri.sh/cams-b", "cams-b-0", ""),
        entry("u1", "vendor.example/gpu", "cams-b-0", ""),
    ]));
    fs::create_dir_all(root.path().join("pods/u1")).unwrap();
    let snapshot = records(&root)
        .read(BTreeSet::from(["u3".to_owned()]), BTreeSet::new())
        .await;
    assert_eq!((snapshot.kubelet_run, &snapshot.listed), (None, &None));
    assert_eq!(snapshot.problems, Vec::new(), "no kubelet is not a problem");
    let checked = snapshot.checkpoint.unwrap();
    assert!(!checked.fresh);
    let device_ids: Vec<_> = checked.entries.keys().map(ToString::to_string).collect();
    assert_eq!(
        device_ids,
        [
            "akri.sh/cams cams-0",
            "akri.sh/cams cams-1",
            "akri.sh/cams-b cams-b-0"
        ]
    );
    let slots: Vec<_> = checked.slots.values().collect();
    assert_eq!(slots, ["cams-a-1", "cams-c-0"]);
    let alive: Vec<_> = snapshot.alive.into_iter().collect();
    let expected = [("u1", true), ("u2", false), ("u3", false)];
    assert_eq!(alive, expected.map(|(uid, alive)| (uid.to_owned(), alive)));
}

#[tokio::test]
async fn a_pod_without_a_volume_is_silent_until_it_is_gone() {
    let root = folder(&serde_json::json!([entry(
        "u1",
        "akri.sh/cams",
        "cams-0",
        TO_A
    )]));
    let records = records(&root);
    let kind = root.path().join("pods/u1/volumes/kubernetes.io~projected");
    for (make, is_silent) in [
        (root.path().join("pods"), false),
        (root.path().join("pods/u1"), true),
        (kind.clone(), true),
        (kind.join("token"), false),
    ] {
        fs::create_dir_all(make).unwrap();
        let snapshot = records.read(BTreeSet::new(), BTreeSet::new()).await;
        assert_eq!(snapshot.is_silent, is_silent);
    }
}

#[tokio::test]
async fn of_two_answers_for_one_id_none_is_believed() {
    let root = folder(&serde_json::json!([
        entry("u1", "akri.sh/cams", "cams-0", TO_A),
        entry("u2", "akri.sh/cams", "cams-0", TO_B),
    ]));
    let snapshot = records(&root).read(BTreeSet::new(), BTreeSet::new()).await;
    let checked = snapshot.checkpoint.unwrap();
    assert_eq!(checked.entries[&device_id("cams", "cams-0")].len(), 2);
    assert!(checked.slots.is_empty());
}

#[tokio::test]
async fn a_kubelet_is_known_before_the_device_plugins_have_looked_for_it() {
    let root = folder(&serde_json::json!([]));
    let records = records(&root);
    assert_eq!(records.kubelet_run(), None);
    let path = root.path().join("device-plugins/kubelet.sock");
    fs::write(&path, "no socket").unwrap();
    assert_eq!(records.kubelet_run(), None);
    fs::remove_file(&path).unwrap();
    let _listener = UnixListener::bind(&path).unwrap();
    let first = records.kubelet_run();
    assert!(first.is_some());
    let snapshot = records.read(BTreeSet::new(), BTreeSet::new()).await;
    // PodResources is elsewhere and does not answer.
    assert!(!snapshot.is_answer());
    assert!(
        snapshot.problems[0].to_string().contains("PodResources"),
        "{:?}",
        snapshot.problems
    );
    fs::rename(&path, root.path().join("old.sock")).unwrap();
    let _second = UnixListener::bind(&path).unwrap();
    assert_ne!(records.kubelet_run(), first);
}

#[tokio::test]
async fn nothing_is_concluded_from_a_checkpoint_that_cannot_be_read_or_is_missing() {
    let root = folder(&serde_json::json!([]));
    let path = root
        .path()
        .join("device-plugins/kubelet_internal_checkpoint");
    fs::write(&path, "{").unwrap();
    let snapshot = records(&root).read(BTreeSet::new(), BTreeSet::new()).await;
    assert_eq!(snapshot.checkpoint, None);
    assert!(
        snapshot.problems[0].to_string().contains("checkpoint"),
        "{:?}",
        snapshot.problems
    );
    fs::remove_file(&path).unwrap();
    let snapshot = records(&root).read(BTreeSet::new(), BTreeSet::new()).await;
    assert_eq!((snapshot.checkpoint, snapshot.problems), (None, Vec::new()));
}
