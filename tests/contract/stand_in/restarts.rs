//! Restarts, kills and the crash of the kubelet.

use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_tests::kubelet::Restart;
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::{Phase, PodSpec};
use tokio::task::JoinHandle;
use tonic::Code;

use super::{CAMERAS, Node, ids};
use crate::plugin::device;

type Admission = JoinHandle<Result<(String, Result<(), Refusal>)>>;

/// Starts the admission of a pod and returns once the plugin has answered; the kubelet holds the answer.
async fn held_answer(node: &Node) -> Result<Admission> {
    node.kubelet.faults().hold_answers(true);
    let kubelet = node.kubelet.clone();
    let pod = tokio::spawn(async move { kubelet.run_pod(&PodSpec::asking("p", CAMERAS, 1)).await });
    node.kubelet
        .until("the plugin's answer", |kubelet| {
            ensure!(kubelet.record().answers.len() == 1);
            Ok(())
        })
        .await?;
    Ok(pod)
}

#[tokio::test]
async fn an_id_that_leaves_the_list_before_the_answer_is_processed_crashes_the_kubelet()
-> Result<()> {
    let node = Node::with(&["a", "b"]).await?;
    node.plugin.script.lock().unwrap().preferred = vec!["a".to_owned()];
    let pod = held_answer(&node).await?;
    node.plugin.list(vec![device("b", true)]);
    node.kubelet.until_capacity(CAMERAS, 1, 1).await?;
    node.kubelet.faults().hold_answers(false);
    let (_, refused) = pod.await??;
    assert!(matches!(refused, Err(Refusal::Crashed(_))), "{refused:?}");
    assert_eq!(node.kubelet.record().crashes.len(), 1);
    let folder = node.kubelet.device_plugins();
    let refused = node.plugin.register(&folder, "plugin.sock").await;
    assert_eq!(refused.unwrap_err().code(), Code::Unavailable);
    node.kubelet.start().await
}

#[tokio::test]
async fn an_id_that_turns_unhealthy_before_the_answer_is_processed_does_no_harm() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let pod = held_answer(&node).await?;
    node.plugin.list(vec![device("a", false)]);
    node.kubelet.until_capacity(CAMERAS, 1, 0).await?;
    node.kubelet.faults().hold_answers(false);
    let (uid, admitted) = pod.await??;
    assert_eq!(admitted, Ok(()));
    assert_eq!(node.held(&uid), ids(&["a"]));
    Ok(())
}

#[tokio::test]
async fn after_a_restart_pods_keep_their_ids_and_others_do_not_get_them() -> Result<()> {
    let node = Node::with(&["a", "b"]).await?;
    let uid = node.run("p", 1).await?;
    let had = node.held(&uid);
    let folder = node.kubelet.device_plugins();
    node.kubelet.restart(Restart::default()).await?;
    assert!(!folder.join("plugin.sock").exists());
    assert_eq!(node.kubelet.capacity(CAMERAS), Some((0, 0)));
    assert_eq!(node.held(&uid), had);
    assert_eq!(node.kubelet.readmit().await?, [].into(), "it runs");

    node.plugin.appear(&folder).await?;
    node.kubelet.until_capacity(CAMERAS, 2, 2).await?;
    let other = node.run("q", 1).await?;
    assert!(node.held(&other).is_disjoint(&had));
    let (_, refused) = node
        .kubelet
        .run_pod(&PodSpec::asking("r", CAMERAS, 1))
        .await?;
    assert!(
        matches!(refused, Err(Refusal::TooFew { .. })),
        "{refused:?}"
    );
    assert_eq!(node.kubelet.record().starts, 2);
    Ok(())
}

#[tokio::test]
async fn after_a_restart_a_pod_that_does_not_run_is_rejected_unless_its_device_is_healthy()
-> Result<()> {
    for (appears, healthy, expected) in [
        (false, true, Some(Refusal::NoneHealthy(CAMERAS.to_owned()))),
        (
            true,
            false,
            Some(Refusal::HeldUnhealthy(CAMERAS.to_owned())),
        ),
        (true, true, None),
    ] {
        let node = Node::with(&["a", "b"]).await?;
        node.plugin.script.lock().unwrap().preferred = vec!["a".to_owned()];
        let uid = node.run("p", 1).await?;
        node.kubelet.end_container(&uid, "main");
        node.kubelet.restart(Restart::default()).await?;
        if appears {
            node.plugin
                .list(vec![device("a", healthy), device("b", true)]);
            node.plugin.appear(&node.kubelet.device_plugins()).await?;
            let allocatable = 1 + usize::from(healthy);
            node.kubelet.until_capacity(CAMERAS, 2, allocatable).await?;
        }
        let rejected = node.kubelet.readmit().await?;
        assert_eq!(rejected.get(&uid), expected.as_ref());
        let failed = matches!(node.kubelet.pod(&uid).unwrap().phase, Phase::Failed(_));
        assert_eq!(failed, expected.is_some());
    }
    Ok(())
}

#[tokio::test]
async fn without_its_checkpoint_the_kubelet_gives_a_running_pods_id_away() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let uid = node.run("p", 1).await?;
    node.kubelet
        .restart(Restart {
            lose_checkpoint: true,
            ..Restart::default()
        })
        .await?;
    assert_eq!(node.kubelet.capacity(CAMERAS), None);
    node.plugin.appear(&node.kubelet.device_plugins()).await?;
    node.kubelet.until_capacity(CAMERAS, 1, 1).await?;
    let other = node.run("q", 1).await?;
    assert_eq!(node.held(&other), ids(&["a"]));
    // The container that ran first asks for a device again when it restarts, and gets none.
    assert!(node.kubelet.start_container(&uid, "main").await.is_err());
    Ok(())
}

#[tokio::test]
async fn a_restarted_kubelet_lists_and_sweeps_no_pods_before_it_knows_them() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let uid = node.run("p", 1).await?;
    node.kubelet
        .restart(Restart {
            without_pods: true,
            ..Restart::default()
        })
        .await?;
    assert_eq!(node.listed().await?, []);
    assert_eq!(node.held(&uid), ids(&["a"]), "not swept");
    node.kubelet.learn_pods()?;
    assert_eq!(node.listed().await?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_socket_made_again_while_the_folder_is_cleared_is_removed_too() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let folder = node.kubelet.device_plugins();
    node.plugin.serve(&folder, "z.sock")?;
    let restart = node.kubelet.restart(Restart {
        pause: Duration::from_millis(200),
        ..Restart::default()
    });
    let rebind = async {
        loop {
            tokio::task::yield_now().await;
            if !folder.join("kubelet.sock").exists() {
                std::fs::remove_file(folder.join("z.sock"))?;
                return node.plugin.serve(&folder, "z.sock");
            }
        }
    };
    let (restarted, rebound) = tokio::join!(restart, rebind);
    restarted?;
    rebound?;
    assert!(!folder.join("z.sock").exists());
    assert!(folder.join("kubelet.sock").exists());
    Ok(())
}

#[tokio::test]
async fn a_kill_cuts_an_allocation_off() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let pod = held_answer(&node).await?;
    node.kubelet.stop().await;
    let (_, refused) = pod.await??;
    assert_eq!(refused, Err(Refusal::Ended("Allocate")));
    Ok(())
}
