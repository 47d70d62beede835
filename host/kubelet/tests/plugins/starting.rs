//! A kubelet that is not ready at once. The pause after the end of a stream is an hour here: a resource that waits for it without a stream
//! is never listed.

use std::time::Duration;

use leafhost_kubelet::{Health, PluginConfig, State};
use tonic::Status;

use crate::kubelet::{Kubelet, NotListening};
use crate::plugin::{CAMERAS, Plugin, files, problem};

fn long_quiet_time(config: &mut PluginConfig) {
    config.times.quiet = Duration::from_hours(1);
}

#[tokio::test]
async fn a_kubelet_that_listens_after_its_socket_is_seen_is_tried_again_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(folder.path(), long_quiet_time);
    let names: Vec<String> = (0..20).map(|n| format!("akri.sh/r{n}")).collect();
    for name in &names {
        plugin.offer(name, &[("a", Health::Healthy)]);
    }
    plugin.is(&names[0], State::Waiting).await;
    let kubelet = NotListening::bind(folder.path());
    let report = plugin
        .reports(|report| {
            let mut resources = report.resources.values();
            resources.len() == names.len() && resources.all(|resource| resource.problem.is_some())
        })
        .await;
    assert!(problem(&report, &names[0]).starts_with("no process answers on "));
    assert_eq!(files(folder.path()), ["kubelet.sock"], "nothing is served");
    let kubelet = kubelet.listen();
    for name in &names {
        kubelet.listed(name, &[("a", "Healthy")]).await;
        plugin.is(name, State::Listed).await;
        assert_eq!(kubelet.registrations(name), 1, "{name}");
    }
    plugin.stop().await;
}

#[tokio::test]
async fn a_refused_registration_leaves_no_stream_to_wait_for() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let refusal = Status::unknown("not yet");
    *kubelet.state.refusal.lock().unwrap() = Some(refusal);
    let plugin = Plugin::start(folder.path(), long_quiet_time);
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Failed).await;
    *kubelet.state.refusal.lock().unwrap() = None;
    kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
    plugin.is(CAMERAS, State::Listed).await;
    plugin.stop().await;
}
