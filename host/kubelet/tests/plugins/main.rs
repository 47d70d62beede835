//! Device plugins against a kubelet, over real sockets.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use leafhost_kubelet::proto::device_plugin::{
    AllocateRequest, ContainerPreferredAllocationRequest, Empty, PreferredAllocationRequest,
};
use leafhost_kubelet::{Health, State};

#[cfg(test)]
mod bounds;
#[cfg(test)]
mod dra;
#[cfg(test)]
mod kubelet;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod plugin;
#[cfg(test)]
mod starting;

use kubelet::Kubelet;
use plugin::{CAMERAS, Plugin, allocate, files, problem, replace_checkpoint};

#[tokio::test]
async fn a_resource_is_registered_once_and_its_list_followed() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Unhealthy)]);
    kubelet
        .listed(CAMERAS, &[("a", "Healthy"), ("b", "Unhealthy")])
        .await;
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Healthy)]);
    kubelet
        .listed(CAMERAS, &[("a", "Healthy"), ("b", "Healthy")])
        .await;
    let answer = kubelet.allocate(CAMERAS, &["a", "b"]).await.unwrap();
    assert_eq!(answer.container_responses[0].envs[CAMERAS], "a,b");
    plugin.is(CAMERAS, State::Listed).await;
    assert_eq!(kubelet.registrations(CAMERAS), 1);
    plugin.stop().await;
    assert_eq!(files(folder.path()), ["kubelet.sock"]);
}

#[tokio::test]
async fn a_restarted_kubelet_gets_one_registration_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    let names: Vec<String> = (0..20).map(|n| format!("akri.sh/r{n}")).collect();
    for name in &names {
        plugin.offer(name, &[("a", Health::Healthy)]);
    }
    for _ in 0..3 {
        for name in &names {
            kubelet.listed(name, &[("a", "Healthy")]).await;
            plugin.is(name, State::Listed).await;
            assert_eq!(kubelet.registrations(name), 1, "{name}");
        }
        kubelet.kill().await;
        plugin.is(&names[0], State::Waiting).await;
        kubelet = Kubelet::start(folder.path()).await;
    }
    plugin.stop().await;
}

#[tokio::test]
async fn a_stream_that_the_kubelet_ends_is_registered_again_once() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    for count in 1..3 {
        kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
        plugin.is(CAMERAS, State::Listed).await;
        assert_eq!(kubelet.registrations(CAMERAS), count);
        kubelet.drop_stream(CAMERAS);
        plugin.is(CAMERAS, State::Waiting).await;
    }
    plugin.stop().await;
}

/// Checks that a client that a person starts is not taken for the kubelet.
#[tokio::test]
async fn a_second_stream_neither_ends_the_first_nor_matters_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let second = kubelet.api(CAMERAS).list_and_watch(Empty {}).await;
    let mut second = second.unwrap().into_inner();
    assert_eq!(second.message().await.unwrap().unwrap().devices[0].id, "a");
    plugin.offer(CAMERAS, &[("b", Health::Healthy)]);
    let both = [("a", "Unhealthy"), ("b", "Healthy")];
    kubelet.listed(CAMERAS, &both).await;
    assert_eq!(second.message().await.unwrap().unwrap().devices.len(), 2);
    drop(second);
    plugin.offer(CAMERAS, &[("b", Health::Unhealthy)]);
    let both = [("a", "Unhealthy"), ("b", "Unhealthy")];
    kubelet.listed(CAMERAS, &both).await;
    assert_eq!(kubelet.registrations(CAMERAS), 1);
    plugin.stop().await;
}

#[tokio::test]
async fn a_refused_registration_is_told_in_the_kubelets_words_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let refusal = tonic::Status::unknown("the ResourceName is invalid\n");
    *kubelet.state.refusal.lock().unwrap() = Some(refusal);
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let report = plugin.is(CAMERAS, State::Failed).await;
    assert_eq!(
        problem(&report, CAMERAS),
        "the kubelet refused the registration: \"the ResourceName is invalid \"; see the kubelet's log; retrying"
    );
    *kubelet.state.refusal.lock().unwrap() = None;
    plugin.is(CAMERAS, State::Listed).await;
    assert!(kubelet.registrations(CAMERAS) >= 2);
    plugin.stop().await;
}

#[tokio::test]
async fn a_kubelet_that_never_asks_for_the_list_is_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    kubelet.state.asks_no_lists.store(true, Relaxed);
    let plugin = Plugin::start(folder.path(), |config| {
        config.times.list = Duration::from_millis(200);
    });
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let report = plugin.is(CAMERAS, State::Failed).await;
    assert!(problem(&report, CAMERAS).contains("has not asked for the list"));
    kubelet.state.asks_no_lists.store(false, Relaxed);
    plugin.is(CAMERAS, State::Listed).await;
    plugin.stop().await;
}

#[tokio::test]
async fn what_is_not_ours_is_never_touched() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let file = folder.path().join("leafhost-cameras.sock");
    std::fs::write(&file, "precious").unwrap();
    let served = folder.path().join("leafhost-gpus.sock");
    let other = tokio::net::UnixListener::bind(&served).unwrap();
    let foreign = folder.path().join("other-left.sock");
    drop(std::os::unix::net::UnixListener::bind(&foreign).unwrap());
    let orphan = folder.path().join("leafhost-left.sock");
    drop(std::os::unix::net::UnixListener::bind(&orphan).unwrap());
    let ours = folder.path().join("leafhost-nics.sock");
    drop(std::os::unix::net::UnixListener::bind(&ours).unwrap());

    let plugin = Plugin::start(folder.path(), |_| {});
    for name in [CAMERAS, "akri.sh/gpus", "akri.sh/nics"] {
        plugin.offer(name, &[("a", Health::Healthy)]);
    }
    kubelet.listed("akri.sh/nics", &[("a", "Healthy")]).await;
    let report = plugin.is(CAMERAS, State::Failed).await;
    assert!(problem(&report, CAMERAS).contains("leafhost-cameras.sock exists and is not a socket"));
    let report = plugin.is("akri.sh/gpus", State::Failed).await;
    assert!(problem(&report, "akri.sh/gpus").contains("another process serves"));
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    assert!(foreign.exists() && served.exists() && !orphan.exists());

    std::fs::remove_file(&file).unwrap();
    drop(other);
    kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
    kubelet.listed("akri.sh/gpus", &[("a", "Healthy")]).await;
    plugin.stop().await;
    assert_eq!(files(folder.path()), ["kubelet.sock", "other-left.sock"]);
}

#[tokio::test]
async fn a_folder_may_appear_later_and_be_replaced() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("kubelet/device-plugins");
    // Only inotify may help.
    let plugin = Plugin::start(&folder, |config| config.times.backstop = Duration::MAX / 4);
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let report = plugin.reports(|report| !report.problems.is_empty()).await;
    assert!(
        report.problems[0].starts_with("no kubelet here: "),
        "{report:?}"
    );
    std::fs::create_dir_all(&folder).unwrap();
    let kubelet = Kubelet::start(&folder).await;
    kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
    let report = plugin.is(CAMERAS, State::Listed).await;
    assert!(report.problems.is_empty() && report.kubelet.is_some());

    kubelet.kill().await;
    std::fs::remove_dir_all(&folder).unwrap();
    plugin.reports(|report| !report.problems.is_empty()).await;
    std::fs::create_dir_all(&folder).unwrap();
    let kubelet = Kubelet::start(&folder).await;
    kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
    assert_eq!(kubelet.registrations(CAMERAS), 1);
    plugin.stop().await;
}

#[tokio::test]
async fn an_id_withdrawn_during_a_late_allocate_stays_listed() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |config| {
        config.times.linger = Duration::from_millis(300);
    });
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let may = plugin.answers.may.acquire().await.unwrap();
    let mut asked = plugin.answers.asked.subscribe();
    let mut api = kubelet.api(CAMERAS);
    let call = tokio::spawn(async move { api.allocate(allocate(&["a"])).await });
    asked.wait_for(|asked| !asked.is_empty()).await.unwrap();
    // First the device goes, then the whole resource.
    plugin.offer(CAMERAS, &[("b", Health::Healthy)]);
    let both = [("a", "Unhealthy"), ("b", "Healthy")];
    kubelet.listed(CAMERAS, &both).await;
    plugin.offer(CAMERAS, &[("b", Health::Unhealthy)]);
    plugin.withdraw(CAMERAS);
    kubelet
        .listed(CAMERAS, &[("a", "Unhealthy"), ("b", "Unhealthy")])
        .await;
    assert!(folder.path().join("leafhost-cameras.sock").exists());
    drop(may);
    let answer = call.await.unwrap().unwrap().into_inner();
    assert_eq!(answer.container_responses[0].envs[CAMERAS], "a");
    // The resource ends, is forgotten when nothing can be in flight, and its socket is gone.
    plugin.reports(|report| report.resources.is_empty()).await;
    assert_eq!(files(folder.path()), ["kubelet.sock"]);
    plugin.stop().await;
}

#[tokio::test]
async fn a_resource_that_comes_back_lists_what_may_be_under_way() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    plugin.withdraw(CAMERAS);
    plugin.is(CAMERAS, State::Waiting).await;
    plugin.offer(CAMERAS, &[("b", Health::Healthy)]);
    let both = [("a", "Unhealthy"), ("b", "Healthy")];
    kubelet.listed(CAMERAS, &both).await;
    assert_eq!(kubelet.registrations(CAMERAS), 2);
    plugin.stop().await;
}

#[tokio::test]
async fn a_withdrawn_resource_of_which_no_id_was_ever_healthy_is_forgotten_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer("akri.sh/ill", &[("ill-0", Health::Unhealthy)]);
    kubelet
        .listed("akri.sh/ill", &[("ill-0", "Unhealthy")])
        .await;
    plugin.withdraw("akri.sh/ill");
    plugin.reports(|report| report.resources.is_empty()).await;
    plugin.stop().await;
}

#[tokio::test]
async fn an_allocation_outlives_its_call_and_holds_its_ids() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |config| {
        config.times.allocate = Duration::from_millis(100);
        config.times.linger = Duration::from_millis(100);
    });
    plugin.offer(CAMERAS, &[("a", Health::Healthy), ("b", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let may = plugin.answers.may.acquire().await.unwrap();
    let error = kubelet.allocate(CAMERAS, &["a"]).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::DeadlineExceeded);
    plugin.offer(CAMERAS, &[("b", Health::Healthy)]);
    let both = [("a", "Unhealthy"), ("b", "Healthy")];
    kubelet.listed(CAMERAS, &both).await;
    assert_eq!(plugin.answers.done.load(Relaxed), 0);
    drop(may);
    kubelet.listed(CAMERAS, &[("b", "Healthy")]).await;
    assert_eq!(plugin.answers.done.load(Relaxed), 1);
    plugin.stop().await;
}

#[tokio::test]
async fn what_an_allocate_may_not_name_is_refused_before_the_allocator() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    let devices = [("a", Health::Healthy), ("taken", Health::Healthy)];
    plugin.offer(CAMERAS, &devices);
    plugin.is(CAMERAS, State::Listed).await;
    let many: Vec<String> = (0..10_000).map(|n| format!("{n:063}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let cases: [(&[&str], _, &str); 4] = [
        (&[], tonic::Code::InvalidArgument, "names 0"),
        (&many, tonic::Code::InvalidArgument, "names 10000"),
        (
            &["a", "x"],
            tonic::Code::NotFound,
            "the agent does not offer \"x\"",
        ),
        (&["taken"], tonic::Code::ResourceExhausted, "used on node b"),
    ];
    for (ids, code, words) in cases {
        let error = kubelet.allocate(CAMERAS, ids).await.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(words), "{error}");
    }
    let none = AllocateRequest::default();
    let error = kubelet.api(CAMERAS).allocate(none).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    assert_eq!(plugin.answers.asked.borrow().len(), 1, "only the taken one");

    let mut two = allocate(&["a"]);
    two.container_requests
        .extend(allocate(&["a"]).container_requests);
    let answer = kubelet.api(CAMERAS).allocate(two).await.unwrap();
    assert_eq!(answer.into_inner().container_responses.len(), 2);
    plugin.stop().await;
}

/// Available ids, ids that must be included, number of ids, and the answer.
type Preference = (
    &'static [&'static str],
    &'static [&'static str],
    i32,
    &'static [&'static str],
);

#[tokio::test]
async fn a_preference_is_always_answered() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let cases: [Preference; 6] = [
        (&["a", "b", "c"], &[], 2, &["c", "b"]),
        (&["a", "b", "c"], &["a"], 2, &["a", "c"]),
        (&["a", "b"], &["a", "a"], 9, &["a", "b"]),
        (&["a", "b"], &["a", "b"], 1, &["a"]),
        (&["a"], &[], -1, &[]),
        (&[], &[], i32::MAX, &[]),
    ];
    let strings = |ids: &[&str]| ids.iter().map(ToString::to_string).collect();
    for (available, must, allocation_size, wanted) in cases {
        let container = ContainerPreferredAllocationRequest {
            available_device_i_ds: strings(available),
            must_include_device_i_ds: strings(must),
            allocation_size,
        };
        let request = PreferredAllocationRequest {
            container_requests: vec![container],
        };
        let answer = kubelet.api(CAMERAS).get_preferred_allocation(request).await;
        let answer = answer.unwrap().into_inner();
        assert_eq!(answer.container_responses[0].device_i_ds, wanted);
    }
    plugin.stop().await;
}

/// Sends as many ids as the longest list has: half of its bytes are ids.
#[tokio::test]
async fn a_preference_among_thirty_thousand_ids_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let ids: Vec<String> = (0..30_000).map(|n| format!("{n:063}")).collect();
    let last = ids.last().cloned();
    let request = PreferredAllocationRequest {
        container_requests: vec![ContainerPreferredAllocationRequest {
            available_device_i_ds: ids,
            must_include_device_i_ds: Vec::new(),
            allocation_size: 1,
        }],
    };
    let answer = kubelet.api(CAMERAS).get_preferred_allocation(request).await;
    let chosen = &answer.unwrap().into_inner().container_responses[0].device_i_ds;
    assert_eq!(chosen.first(), last.as_ref());
    plugin.stop().await;
}

#[tokio::test]
async fn a_list_is_sent_once_more_on_request_and_a_new_checkpoint_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::start(folder.path(), |config| {
        config.times.backstop = Duration::MAX / 4;
    });
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Waiting).await;
    assert!(!plugin.handle.resend());
    let kubelet = Kubelet::start(folder.path()).await;
    plugin.is(CAMERAS, State::Listed).await;
    kubelet.listed(CAMERAS, &[("a", "Healthy")]).await;
    let mut lists = kubelet.state.lists.subscribe();
    assert!(plugin.handle.resend());
    lists.changed().await.unwrap();

    let mut changes = plugin.handle.checkpoint_changes();
    for _ in 0..2 {
        let before = *changes.borrow_and_update();
        replace_checkpoint(folder.path());
        changes.changed().await.unwrap();
        assert!(*changes.borrow() > before);
    }
    plugin.stop().await;
}

#[tokio::test]
async fn names_too_long_for_a_socket_and_names_that_collide_are_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("d".repeat(30));
    std::fs::create_dir(&deep).unwrap();
    let kubelet = Kubelet::start(&deep).await;
    let plugin = Plugin::start(&deep, |_| {});
    let long = format!("akri.sh/{}", "n".repeat(63));
    for name in [long.as_str(), CAMERAS, "other.sh/cameras"] {
        plugin.offer(name, &[("a", Health::Healthy)]);
        kubelet.listed(name, &[("a", "Healthy")]).await;
    }
    // Each has two names.
    assert_eq!(files(&deep).len(), 7);
    plugin.stop().await;
}

#[tokio::test]
async fn a_relabelled_kubelet_socket_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let before = plugin.is(CAMERAS, State::Listed).await.kubelet;
    let socket = folder.path().join("kubelet.sock");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o700)).unwrap();
    // Each noticed checkpoint shows that the folder was read again.
    let mut changes = plugin.handle.checkpoint_changes();
    for _ in 0..3 {
        changes.borrow_and_update();
        replace_checkpoint(folder.path());
        changes.changed().await.unwrap();
    }
    plugin.offer("akri.sh/gpus", &[("b", Health::Healthy)]);
    let report = plugin.is("akri.sh/gpus", State::Listed).await;
    assert_eq!(report.kubelet, before);
    assert_eq!(kubelet.registrations(CAMERAS), 1);
    plugin.stop().await;
}

/// Replaces a kubelet that hangs, so that its streams stay open. In this case alone the plugin ends them.
#[tokio::test]
async fn a_kubelet_whose_predecessor_keeps_its_streams_gets_one_registration() {
    let folder = tempfile::tempdir().unwrap();
    let first = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    let before = plugin.is(CAMERAS, State::Listed).await.kubelet;
    let second = Kubelet::start(folder.path()).await;
    second.listed(CAMERAS, &[("a", "Healthy")]).await;
    plugin.reports(|report| report.kubelet != before).await;
    plugin.is(CAMERAS, State::Listed).await;
    assert_eq!(first.registrations(CAMERAS), 1);
    assert_eq!(second.registrations(CAMERAS), 1);
    plugin.stop().await;
}

#[tokio::test]
async fn an_allocate_under_way_is_answered_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let kubelet = Kubelet::start(folder.path()).await;
    let plugin = Plugin::start(folder.path(), |_| {});
    plugin.offer(CAMERAS, &[("a", Health::Healthy)]);
    plugin.is(CAMERAS, State::Listed).await;
    let may = plugin.answers.may.acquire().await.unwrap();
    let mut asked = plugin.answers.asked.subscribe();
    let mut api = kubelet.api(CAMERAS);
    let call = tokio::spawn(async move { api.allocate(allocate(&["a"])).await });
    asked.wait_for(|asked| !asked.is_empty()).await.unwrap();
    plugin.shutdown.cancel();
    kubelet.listed(CAMERAS, &[("a", "Unhealthy")]).await;
    drop(may);
    assert!(call.await.unwrap().is_ok());
    plugin.stop().await;
}

#[tokio::test]
async fn a_folder_that_is_none_is_named() {
    let above = tempfile::tempdir().unwrap();
    let folder = above.path().join("device-plugins");
    std::fs::write(&folder, "").unwrap();
    let plugin = Plugin::start(&folder, |_| {});
    let report = plugin.reports(|report| !report.problems.is_empty()).await;
    assert!(report.problems[0].contains("is not a folder"), "{report:?}");
    plugin.stop().await;
}
