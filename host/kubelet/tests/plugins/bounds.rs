//! What somebody who is not the kubelet can make a plugin hold and write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use leafhost_kubelet::{Health, ResourceName, State};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tracing::span;

use crate::kubelet::Kubelet;
use crate::plugin::{CAMERAS, Plugin};

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Relaxed);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn connections_that_are_too_many_are_told_once_until_there_are_few_again() {
    let warnings = Arc::new(AtomicUsize::new(0));
    // The test has one thread.
    let _told = tracing::subscriber::set_default(Warnings(Arc::clone(&warnings)));
    let folder = tempfile::tempdir().unwrap();
    let _kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let report = plugin.is(CAMERAS, State::Listed).await;
    let name = ResourceName::new(CAMERAS).unwrap();
    let socket = folder.path().join(&report.resources[&name].socket);
    for told in 1..=2 {
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(UnixStream::connect(&socket).await.unwrap());
        }
        // It was accepted last, and closed without a word.
        let mut nothing = Vec::new();
        let closed = held.last_mut().unwrap().read_to_end(&mut nothing);
        let closed = tokio::time::timeout(Duration::from_mins(1), closed).await;
        assert_eq!(closed.unwrap().unwrap_or(0), 0);
        assert_eq!(warnings.load(Relaxed), told);
        drop(held);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    plugin.stop().await;
}

#[tokio::test]
async fn an_allocate_has_at_most_a_mebibyte_and_few_are_under_way_on_a_connection() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let long = "x".repeat(1 << 20);
    let error = kubelet.allocate(CAMERAS, &[&long]).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");

    let may = plugin.answers.may.acquire().await.unwrap();
    let calls = (0..20).map(|_| kubelet.allocate(CAMERAS, &["a"]));
    let calls = futures::future::join_all(calls);
    let mut asked = plugin.answers.asked.subscribe();
    let look = async {
        asked.wait_for(|asked| asked.len() >= 7).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        // The list is the eighth.
        assert_eq!(plugin.answers.asked.borrow().len(), 7);
        drop(may);
    };
    let (answers, ()) = tokio::join!(calls, look);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    plugin.stop().await;
}
