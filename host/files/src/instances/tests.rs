use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::Health;
use leafhost_core::instance::{Edit, Instance, InstanceKey, NodeStatus};
use leafhost_core::ports::StoreError;
use serde_json::json;
use tempfile::TempDir;

use super::*;

fn mk_instance(name: &str) -> Instance {
    serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "configurationName": "a", "shared": true, "nodes": ["edge-1"], "brokerProperties": {"A": "1: \"x\"\n"},
            "leafhost": {"id": "dev", "attributes": {"speed": {"int": 3}, "model": {"string": "yes"}}}
        },
        "status": {"nodes": {"edge-1": {"health": "Unhealthy", "reason": "hot"}}}
    }))
    .unwrap()
}

fn mk_create(name: &str) -> Change {
    Change::Create(Box::new(mk_instance(name)))
}

fn key(name: &str) -> InstanceKey {
    mk_instance(name).key()
}

async fn mk_store() -> (TempDir, FileInstances) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    (folder, store)
}

async fn open(folder: &TempDir) -> FileInstances {
    FileInstances::open(folder.path().join("instances"))
        .await
        .unwrap()
}

fn get(store: &FileInstances, name: &str) -> Option<Arc<Instance>> {
    store
        .instances()
        .borrow()
        .instances
        .get(&key(name))
        .cloned()
}

fn path(folder: &TempDir, name: &str) -> PathBuf {
    folder.path().join(format!("instances/default/{name}.yaml"))
}

#[tokio::test]
async fn what_is_created_is_the_same_after_a_restart() {
    let (folder, store) = mk_store().await;
    let long = "n".repeat(253);
    let results = store.apply(vec![mk_create("a-1"), mk_create(&long)]).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let before = store.instances().borrow().clone();
    let instance = get(&store, "a-1").unwrap();
    assert_eq!(
        uuid::Uuid::parse_str(&instance.metadata.uid)
            .unwrap()
            .get_version_num(),
        4
    );
    assert!(
        instance
            .metadata
            .creation_timestamp
            .as_ref()
            .unwrap()
            .ends_with('Z')
    );
    assert_eq!(
        instance
            .spec
            .leafhost
            .as_ref()
            .unwrap()
            .attributes
            .get("speed"),
        Some(&AttributeValue::Int(3))
    );
    drop(store);
    let store = open(&folder).await;
    assert_eq!(store.instances().borrow().clone(), before);
    assert!(store.problems.is_empty());
    let text = fs::read_to_string(path(&folder, "a-1")).unwrap();
    assert!(
        text.contains("speed:\n        int: 3"),
        "no YAML tags: {text}"
    );
}

#[tokio::test]
async fn edits_meet_the_newest_object_and_nothing_is_written_for_no_difference() {
    let (folder, store) = mk_store().await;
    store.apply(vec![mk_create("a-1")]).await;
    let first = get(&store, "a-1").unwrap();
    let update = |edits: Vec<Edit>| Change::Update {
        key: key("a-1"),
        uid: first.metadata.uid.clone(),
        edits,
    };
    let mut seen = store.instances();
    seen.mark_unchanged();
    let text = fs::read_to_string(path(&folder, "a-1")).unwrap();
    store
        .apply(vec![update(vec![Edit::AddNode("edge-1".into())])])
        .await;
    assert!(!seen.has_changed().unwrap());
    assert_eq!(fs::read_to_string(path(&folder, "a-1")).unwrap(), text);

    let status = NodeStatus::new(Health::Healthy);
    let results = store
        .apply(vec![
            update(vec![Edit::AddNode("edge-2".into())]),
            update(vec![Edit::Status {
                node: "edge-2".into(),
                status,
            }]),
        ])
        .await;
    assert!(results.iter().all(Result::is_ok));
    let second = get(&store, "a-1").unwrap();
    assert_eq!(second.spec.nodes, ["edge-1", "edge-2"]);
    assert_eq!(second.status.nodes.len(), 2);
    assert_eq!(second.metadata.uid, first.metadata.uid);
    assert!(version(&second) > version(&first));
}

#[tokio::test]
async fn another_object_under_the_name_is_left_alone() {
    let (folder, store) = mk_store().await;
    store.apply(vec![mk_create("a-1")]).await;
    let uid = "other".to_owned();
    let results = store
        .apply(vec![
            mk_create("a-1"),
            Change::Update {
                key: key("a-1"),
                uid: uid.clone(),
                edits: vec![Edit::AddNode("edge-2".into())],
            },
            Change::Update {
                key: key("a-2"),
                uid: uid.clone(),
                edits: vec![],
            },
            Change::Delete {
                key: key("a-1"),
                uid: uid.clone(),
                resource_version: String::new(),
            },
            Change::Delete {
                key: key("a-2"),
                uid,
                resource_version: String::new(),
            },
        ])
        .await;
    let labels = results[..4].iter().map(|result| match result {
        Ok(_) => "ok",
        Err(error) => error.label(),
    });
    assert_eq!(
        labels.collect::<Vec<_>>(),
        ["exists", "gone", "gone", "gone"]
    );
    assert!(results[4].is_ok());
    let stored = get(&store, "a-1").unwrap().metadata.clone();
    let outdated = Change::Delete {
        key: key("a-1"),
        uid: stored.uid.clone(),
        resource_version: "0".into(),
    };
    let results = store.apply(vec![outdated]).await;
    assert!(matches!(results[0], Err(StoreError::Conflict { .. })));
    let results = store
        .apply(vec![
            Change::Delete {
                key: key("a-1"),
                uid: stored.uid,
                resource_version: stored.resource_version,
            },
            mk_create("a-1"),
            mk_create("a-3"),
        ])
        .await;
    assert!(results.iter().all(Result::is_ok));
    let created = get(&store, "a-3").unwrap();
    let results = store
        .apply(vec![Change::Delete {
            key: key("a-3"),
            uid: created.metadata.uid.clone(),
            resource_version: created.metadata.resource_version.clone(),
        }])
        .await;
    assert!(results[0].is_ok() && get(&store, "a-3").is_none());
    assert!(path(&folder, "a-1").exists() && !path(&folder, "a-3").exists());
}

#[tokio::test]
async fn what_is_half_written_is_never_read_back() {
    let (folder, store) = mk_store().await;
    store
        .apply(vec![mk_create("a-1"), mk_create("a-2"), mk_create("a-3")])
        .await;
    drop(store);
    let whole = fs::read(path(&folder, "a-1")).unwrap();
    fs::write(path(&folder, "a-1"), &whole[..whole.len() / 3]).unwrap();
    fs::rename(path(&folder, "a-2"), path(&folder, "renamed")).unwrap();
    fs::write(folder.path().join("instances/default/.new-x.tmp"), &whole).unwrap();
    let store = open(&folder).await;
    let names: Vec<_> = store
        .instances()
        .borrow()
        .instances
        .keys()
        .map(|key| key.name.clone())
        .collect();
    assert_eq!(names, ["a-3"]);
    let sources: Vec<_> = store
        .problems
        .iter()
        .map(|problem| problem.source.clone())
        .collect();
    assert_eq!(sources.len(), 2);
    assert!(sources[0].ends_with("a-1.yaml.broken") && sources[1].ends_with("renamed.yaml.broken"));
    let left: BTreeSet<_> = fs::read_dir(folder.path().join("instances/default"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(
        left,
        ["a-1.yaml.broken", "a-3.yaml", "renamed.yaml.broken"]
            .map(String::from)
            .into()
    );
    assert!(store.apply(vec![mk_create("a-1")]).await[0].is_ok());
}

#[tokio::test]
async fn a_write_that_fails_leaves_what_was_and_names_file_and_remedy() {
    let (folder, store) = mk_store().await;
    store.apply(vec![mk_create("a-1")]).await;
    // A folder where the file belongs, and a file where the namespace's folder belongs: refused to root as well.
    fs::create_dir_all(path(&folder, "a-2").join("x")).unwrap();
    fs::write(folder.path().join("instances/blocked"), "").unwrap();
    let mut blocked = mk_instance("a-4");
    blocked.metadata.namespace = "blocked".into();
    let before = get(&store, "a-1");
    let results = store
        .apply(vec![
            mk_create("a-2"),
            Change::Create(Box::new(blocked)),
            mk_create("a-3"),
        ])
        .await;
    assert!(results[2].is_ok());
    for (result, words) in [(&results[0], "a-2.yaml"), (&results[1], "blocked/a-4.yaml")] {
        let text = result.as_ref().unwrap_err().to_string();
        assert!(
            text.contains(words) && text.contains("--state-dir"),
            "{text}"
        );
    }
    assert_eq!(get(&store, "a-1"), before);
    assert!(get(&store, "a-2").is_none() && get(&store, "a-3").is_some());
    let temporary = fs::read_dir(folder.path().join("instances/default"))
        .unwrap()
        .filter(|entry| {
            entry
                .as_ref()
                .unwrap()
                .file_name()
                .to_string_lossy()
                .ends_with(".tmp")
        })
        .count();
    assert_eq!(temporary, 0);
}

#[tokio::test]
async fn an_update_without_edits_tells_whether_an_instance_can_be_written() {
    let (folder, store) = mk_store().await;
    store.apply(vec![mk_create("a-1")]).await;
    let before = get(&store, "a-1").unwrap();
    let trial = || {
        vec![Change::Update {
            key: key("a-1"),
            uid: before.metadata.uid.clone(),
            edits: Vec::new(),
        }]
    };
    let there = folder.path().join("instances/default");
    let aside = folder.path().join("aside");
    fs::rename(&there, &aside).unwrap();
    fs::write(&there, "no folder").unwrap();
    assert!(store.apply(trial()).await[0].is_err());
    fs::remove_file(&there).unwrap();
    fs::rename(&aside, &there).unwrap();
    assert!(store.apply(trial()).await[0].is_ok());
    assert_eq!(get(&store, "a-1").unwrap().spec, before.spec);
}

#[tokio::test]
async fn a_thousand_instances_are_created_in_seconds_and_an_edit_shares_the_others() {
    let (folder, store) = mk_store().await;
    let started = std::time::Instant::now();
    let changes = (0..1000).map(|n| mk_create(&format!("a-{n}"))).collect();
    assert!(store.apply(changes).await.iter().all(Result::is_ok));
    let elapsed = started.elapsed();
    println!("1,000 creates took {elapsed:?}");
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    let before = get(&store, "a-1").unwrap();
    let edited = get(&store, "a-2").unwrap();
    store
        .apply(vec![Change::Update {
            key: key("a-2"),
            uid: edited.metadata.uid.clone(),
            edits: vec![Edit::AddNode("edge-2".into())],
        }])
        .await;
    assert!(Arc::ptr_eq(&before, &get(&store, "a-1").unwrap()));
    drop(store);
    let store = open(&folder).await;
    assert_eq!(store.instances().borrow().instances.len(), 1000);
}

#[tokio::test]
async fn a_caller_that_gives_up_loses_no_write() {
    let (_folder, store) = mk_store().await;
    {
        let mut apply = store.apply(vec![mk_create("a-1")]);
        // Handed over at the first poll, then dropped.
        assert!(futures::poll!(&mut apply).is_pending());
    }
    let mut seen = store.instances();
    let wait = seen.wait_for(|set| set.instances.contains_key(&key("a-1")));
    assert!(
        tokio::time::timeout(Duration::from_secs(10), wait)
            .await
            .is_ok()
    );
}
