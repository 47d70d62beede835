//! Registration, and the lists that plugins send.

use std::time::Duration;

use anyhow::{Result, ensure};
use leafhost_kubelet::proto::device_plugin::{AllocateRequest, ContainerAllocateRequest, Empty};
use leafhost_tests::kubelet::faults::Reading;
use leafhost_tests::kubelet::model::{GRACE, Refusal};
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::kubelet::{Kubelet, Plugins, Restart};
use tokio::time::Instant;
use tonic::Code;

use super::{CAMERAS, Node, ids};
use crate::plugin::{Plugin, device};

#[tokio::test]
async fn devices_count_by_health_and_a_plugin_has_one_stream() -> Result<()> {
    let node = Node::with(&["a", "b"]).await?;
    node.plugin
        .list(vec![device("a", true), device("b", false)]);
    node.kubelet.until_capacity(CAMERAS, 2, 1).await?;
    node.plugin.list(vec![device("a", true)]);
    node.kubelet.until_capacity(CAMERAS, 1, 1).await?;
    assert_eq!(node.kubelet.streams(CAMERAS), 1);
    assert_eq!(node.plugin.script.lock().unwrap().listed, 1);
    assert_eq!(node.kubelet.record().lists.len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_ends_is_not_opened_again_and_the_resource_leaves_after_five_minutes()
-> Result<()> {
    let node = Node::with(&["a", "b"]).await?;
    node.plugin.end_streams();
    node.kubelet.until_capacity(CAMERAS, 2, 0).await?;
    node.kubelet
        .pass(GRACE.checked_sub(Duration::from_secs(30)).unwrap());
    assert_eq!(node.kubelet.capacity(CAMERAS), Some((2, 0)));
    let (_, refused) = node
        .kubelet
        .run_pod(&PodSpec::asking("p", CAMERAS, 1))
        .await?;
    assert_eq!(refused, Err(Refusal::NoneHealthy(CAMERAS.to_owned())));
    node.kubelet.pass(Duration::from_secs(31));
    assert_eq!(node.kubelet.capacity(CAMERAS), None);
    assert_eq!(node.plugin.script.lock().unwrap().listed, 1);
    Ok(())
}

#[tokio::test]
async fn a_killed_plugin_is_as_one_whose_stream_ends() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    node.plugin.kill();
    node.kubelet.until_capacity(CAMERAS, 1, 0).await
}

#[tokio::test]
async fn up_to_1_36_the_end_of_an_old_stream_disconnects_the_new_client() -> Result<()> {
    let node = Node::without(&["a"]).await?;
    node.kubelet.know(Plugins::Newest);
    node.kubelet.restart(Restart::default()).await?;
    let folder = node.kubelet.device_plugins();
    node.plugin.appear(&folder).await?;
    node.kubelet.until_capacity(CAMERAS, 1, 1).await?;
    let second = Plugin::new(CAMERAS, &["a", "b"]);
    second.serve(&folder, "second.sock")?;
    second.register(&folder, "second.sock").await?;
    node.kubelet.until_capacity(CAMERAS, 2, 2).await?;
    assert_eq!(node.kubelet.streams(CAMERAS), 2);
    node.plugin.end_streams();
    node.kubelet.until_capacity(CAMERAS, 2, 0).await?;
    until_streams(&node, 0).await
}

#[tokio::test]
async fn a_second_plugin_is_followed_beside_the_first_and_either_may_end() -> Result<()> {
    for first_ends in [true, false] {
        let node = Node::with(&["a"]).await?;
        let folder = node.kubelet.device_plugins();
        let second = Plugin::new(CAMERAS, &["a", "b"]);
        second.serve(&folder, "second.sock")?;
        second.register(&folder, "second.sock").await?;
        node.kubelet.until_capacity(CAMERAS, 2, 2).await?;
        let (ends, stays) = if first_ends {
            (&node.plugin, &second)
        } else {
            (&second, &node.plugin)
        };
        ends.end_streams();
        until_streams(&node, 1).await?;
        assert_eq!(node.kubelet.capacity(CAMERAS), Some((2, 2)));
        node.run("p", 1).await?;
        assert_eq!(stays.allocated().len(), 1);
        assert_eq!(ends.allocated().len(), 0);
        stays.end_streams();
        node.kubelet.until_capacity(CAMERAS, 2, 0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_path_registered_before_its_last_stream_ended_is_refused_for_ever() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let folder = node.kubelet.device_plugins();
    let register = || node.plugin.register(&folder, "plugin.sock");
    let refused = register().await.unwrap_err();
    assert!(refused.message().contains("already connected"), "{refused}");
    // The kubelet has forgotten the client of that stream, and never sees its end.
    node.plugin.end_streams();
    until_streams(&node, 0).await?;
    assert_eq!(node.kubelet.capacity(CAMERAS), Some((1, 1)));
    for _ in 0..3 {
        assert!(register().await.is_err());
    }
    node.kubelet.restart(Restart::default()).await?;
    node.plugin.appear(&folder).await?;
    node.kubelet.until_capacity(CAMERAS, 1, 1).await
}

async fn until_streams(node: &Node, count: usize) -> Result<()> {
    let what = format!("{count} streams are open");
    let check = |kubelet: &Kubelet| {
        let open = kubelet.streams(CAMERAS);
        ensure!(open == count, "{open}");
        Ok(())
    };
    node.kubelet.until(&what, check).await
}

#[tokio::test]
async fn registrations_fail_as_often_as_asked_and_for_what_the_kubelet_refuses() -> Result<()> {
    let node = Node::without(&["a"]).await?;
    let folder = node.kubelet.device_plugins();
    node.plugin.serve(&folder, "plugin.sock")?;
    let faults = node.kubelet.faults();
    faults.refuse_register(2, Code::ResourceExhausted, "too many");
    faults.fail_dial(1);
    let register = || node.plugin.register(&folder, "plugin.sock");
    for expected in [
        Code::ResourceExhausted,
        Code::ResourceExhausted,
        Code::Unknown,
    ] {
        assert_eq!(register().await.unwrap_err().code(), expected);
    }
    node.plugin.script.lock().unwrap().no_options = true;
    assert_eq!(register().await.unwrap_err().code(), Code::Unknown);
    let bad = Plugin::new("cameras", &["a"]);
    assert!(bad.register(&folder, "plugin.sock").await.is_err());
    assert_eq!(node.plugin.script.lock().unwrap().listed, 0);
    assert_eq!(node.kubelet.capacities(), [].into());

    node.plugin.script.lock().unwrap().no_options = false;
    register().await?;
    node.kubelet.until_capacity(CAMERAS, 1, 1).await?;
    let refused = node.kubelet.record().registrations;
    let refused: Vec<bool> = refused.iter().map(|one| one.refused.is_some()).collect();
    assert_eq!(refused, [true, true, true, true, true, false]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_socket_nobody_serves_is_dialled_for_ten_seconds() -> Result<()> {
    let node = Node::without(&["a"]).await?;
    let start = Instant::now();
    let refused = node
        .plugin
        .register(&node.kubelet.device_plugins(), "no.sock")
        .await;
    assert_eq!(refused.unwrap_err().code(), Code::Unknown);
    assert_eq!(start.elapsed().as_secs(), 10);
    Ok(())
}

#[tokio::test]
async fn a_dead_reader_takes_no_list_until_it_is_revived() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    node.kubelet.faults().read(Reading::Dead);
    // The kubelet still takes the message that it already waits for.
    node.plugin.list(vec![device("a", false)]);
    node.kubelet.until_capacity(CAMERAS, 1, 0).await?;
    node.plugin.list(vec![device("a", true)]);
    // Other calls still work.
    let mut direct = node.kubelet.dial(CAMERAS).await?;
    direct.get_device_plugin_options(Empty {}).await?;
    assert_eq!(node.kubelet.capacity(CAMERAS), Some((1, 0)));
    node.kubelet
        .faults()
        .read(Reading::Slow(Duration::from_millis(10)));
    node.kubelet.until_capacity(CAMERAS, 1, 1).await
}

#[tokio::test]
async fn calls_the_kubelet_would_not_make_can_be_made() -> Result<()> {
    let node = Node::with(&["a"]).await?;
    let mut direct = node.kubelet.dial(CAMERAS).await?;
    let mut second = direct.list_and_watch(Empty {}).await?.into_inner();
    assert_eq!(second.message().await?.unwrap().devices.len(), 1);
    let request = ContainerAllocateRequest {
        devices_ids: vec!["nobody".to_owned()],
    };
    direct
        .allocate(AllocateRequest {
            container_requests: vec![request],
        })
        .await?;
    assert_eq!(node.plugin.allocated(), [ids(&["nobody"])]);
    assert_eq!(node.kubelet.streams(CAMERAS), 1, "its own");
    Ok(())
}
