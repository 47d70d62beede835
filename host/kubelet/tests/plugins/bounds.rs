//! Bounds of what a plugin accepts from one client.

use std::time::Duration;

use leafhost_kubelet::{Health, State};

use crate::kubelet::Kubelet;
use crate::plugin::{CAMERAS, Plugin};

#[tokio::test]
async fn an_allocate_has_at_most_four_mebibytes_and_few_are_under_way_on_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let long = "x".repeat(4 << 20);
    let error = kubelet.allocate(CAMERAS, &[&long]).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");

    let may = plugin.answers.may.acquire().await.unwrap();
    let calls = (0..20).map(|_| kubelet.allocate(CAMERAS, &["a"]));
    let calls = futures::future::join_all(calls);
    let mut asked = plugin.answers.asked.subscribe();
    let check = async {
        asked.wait_for(|asked| asked.len() >= 7).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        // The list is the eighth.
        assert_eq!(plugin.answers.asked.borrow().len(), 7);
        drop(may);
    };
    let (answers, ()) = tokio::join!(calls, check);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    plugin.stop().await;
}
