//! Admission of pods: their devices, and the entries in PodResources and the checkpoint.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use leafhost_kubelet::records::{Error, PodResources, pod_exists};
use leafhost_tests::kubelet::faults::Trouble;
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::{Kind, Phase, PodSpec};
use leafhost_tests::kubelet::{Blocking, ClockHold};
use tokio::time::Instant;
use tonic::Code;

use super::{CAMERAS, Node, ids};
use crate::plugin::{Plugin, device, near};

#[tokio::test]
async fn a_pod_gets_what_the_plugin_prefers_and_the_books_show_it() -> Result<()> {
    let node = Node::with(&["a", "b", "c"]).await?;
    node.plugin.list(vec![
        device("a", true),
        near(device("b", true), &[0, 1]),
        device("c", true),
    ]);
    node.kubelet
        .until("the new list", |kubelet| {
            ensure!(kubelet.devices(CAMERAS)["b"].topology.is_some());
            Ok(())
        })
        .await?;
    node.plugin.script.lock().unwrap().preferred = vec!["b".to_owned(), "unknown".to_owned()];
    let uid = node.run("p", 1).await?;
    assert_eq!(node.held(&uid), ids(&["b"]));
    assert_eq!(node.plugin.allocated(), [ids(&["b"])]);
    let answer = node.kubelet.answer(&uid, "main", CAMERAS).unwrap();
    assert_eq!(answer.annotations["b"], "given");
    assert_eq!(
        node.listed().await?,
        [("b".to_owned(), "p".to_owned(), "main".to_owned())]
    );
    assert_eq!(node.saved(), [(uid, "main".to_owned(), ids(&["b"]))]);
    Ok(())
}

#[tokio::test]
async fn ids_of_an_init_container_go_to_the_others_and_podresources_leaves_it_out() -> Result<()> {
    let node = Node::with(&["a", "b", "c"]).await?;
    let spec = PodSpec::new("p")
        .with(Kind::Init, "init", &[(CAMERAS, 1)])
        .with(Kind::Sidecar, "side", &[(CAMERAS, 1)])
        .with(Kind::App, "main", &[(CAMERAS, 1)]);
    let (uid, admitted) = node.kubelet.run_pod(&spec).await?;
    admitted?;
    let of = |container| node.kubelet.held(&uid, container, CAMERAS);
    // The sidecar keeps the device that it has reused.
    assert_eq!(of("init"), of("side"));
    assert!(of("main").is_disjoint(&of("side")));
    let listed = node.listed().await?.into_iter();
    let containers: BTreeSet<_> = listed.map(|(_, _, container)| container).collect();
    assert_eq!(containers, ids(&["main", "side"]));
    assert_eq!(node.saved().len(), 3);

    let spec = PodSpec::new("q")
        .with(Kind::Init, "init", &[(CAMERAS, 1)])
        .with(Kind::App, "main", &[(CAMERAS, 1)]);
    let (other, admitted) = node.kubelet.run_pod(&spec).await?;
    admitted?;
    let last = node.kubelet.held(&other, "main", CAMERAS);
    assert_eq!(node.plugin.allocated()[3..], [last.clone(), last]);
    Ok(())
}

#[tokio::test]
async fn an_ended_pod_is_swept_by_list_and_leaves_the_checkpoint_with_the_next_message()
-> Result<()> {
    let node = Node::with(&["a"]).await?;
    let uid = node.run("p", 1).await?;
    node.kubelet.end_pod(&uid);
    assert_eq!(node.held(&uid), ids(&["a"]));
    assert_eq!(node.listed().await?, []);
    assert_eq!(node.held(&uid), ids(&[]));
    assert_eq!(node.saved().len(), 1);
    node.plugin.list(vec![device("a", true), device("b", true)]);
    node.kubelet.until_capacity(CAMERAS, 2, 2).await?;
    node.kubelet
        .until("the checkpoint without the pod", |_| {
            ensure!(node.saved().is_empty());
            Ok(())
        })
        .await
}

#[tokio::test]
async fn the_folder_of_a_pod_goes_when_it_is_deleted() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let uid = node.run("p", 1).await?;
    let exists = || pod_exists(node.kubelet.root(), &uid);
    node.kubelet.end_pod(&uid);
    assert_eq!(exists(), Some(true));
    node.kubelet.delete_pod(&uid)?;
    assert_eq!(exists(), Some(false));
    // Its ID is free for the next allocation.
    let next = node.run("q", 1).await?;
    assert_eq!(node.held(&next), ids(&["a"]));
    Ok(())
}

#[tokio::test]
async fn podresources_fails_as_asked() -> Result<()> {
    let node = Node::without(&[]).await?;
    let client = PodResources::new(node.kubelet.pod_resources());
    client.list().await?;
    let trouble = |trouble| node.kubelet.faults().trouble_pod_resources(trouble);
    trouble(Some(Trouble::Error(Code::ResourceExhausted, String::new())));
    assert!(matches!(client.list().await, Err(Error::Limited { .. })));
    trouble(Some(Trouble::Slow(Duration::from_millis(5))));
    client.list().await?;
    node.kubelet.stop().await;
    let error = client.list().await.unwrap_err();
    let expected = "cannot reach PodResources at ";
    assert!(error.to_string().starts_with(expected), "{error:?}");
    trouble(None);
    node.kubelet.start().await?;
    client.list().await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_pod_fails_and_leaves_nothing_in_use() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    node.plugin.script.lock().unwrap().refuses = true;
    let spec = PodSpec::asking("p", CAMERAS, 1);
    let (uid, refused) = node.kubelet.run_pod(&spec).await?;
    let Err(Refusal::Plugin { call, code, .. }) = refused else {
        bail!("{refused:?}");
    };
    assert_eq!((call, code), ("Allocate", Code::Unavailable));
    assert!(matches!(
        node.kubelet.pod(&uid).unwrap().phase,
        Phase::Failed(_)
    ));
    node.plugin.script.lock().unwrap().refuses = false;
    node.run("q", 1).await?;

    let node = Node::with(&["a"]).await?;
    node.plugin.script.lock().unwrap().no_preference = true;
    let (_, refused) = node.kubelet.run_pod(&spec).await?;
    assert!(
        matches!(&refused, Err(Refusal::Plugin { call, .. }) if *call == "GetPreferredAllocation"),
        "{refused:?}"
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_held_clock_stands_still_while_sockets_are_waited_for() -> Result<()> {
    let start = Instant::now();
    let hold = ClockHold::new();
    let node = Node::with(&["a"]).await?;
    node.run("p", 1).await?;
    assert_eq!(start.elapsed(), Duration::ZERO);
    drop(hold);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!(start.elapsed().as_secs(), 3600);
    Ok(())
}

#[test]
fn a_test_without_async_can_drive_it() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let kubelet = Blocking::start(folder.path())?;
    let plugin = Plugin::new(CAMERAS, &["a"]);
    kubelet.wait(plugin.appear(&kubelet.device_plugins()))?;
    kubelet.wait(kubelet.until_capacity(CAMERAS, 1, 1))?;
    let (uid, admitted) = kubelet.wait(kubelet.run_pod(&PodSpec::asking("p", CAMERAS, 1)))?;
    admitted?;
    assert_eq!(kubelet.held(&uid, "main", CAMERAS), ids(&["a"]));
    Ok(())
}
