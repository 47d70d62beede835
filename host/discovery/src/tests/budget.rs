//! Limits on the text of all sessions together.

use super::*;

fn wordy(mebibytes: usize) -> Vec<Device> {
    let device = |number: usize| {
        let mut device = local(&number.to_string());
        device.properties.insert("A".into(), "x".repeat(256_000));
        device
    };
    (0..mebibytes << 2).map(device).collect()
}

/// Waits until the last answer of `i` exceeds the budget.
async fn is_told(bench: &Bench) {
    wait_for(&bench.report, |report| {
        let told = report.failures().into_iter().map(|one| one.to_string());
        told.filter(|text| text.contains("unavailable: its devices would have"))
            .any(|text| text.contains("at most 64 MiB"))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_beyond_the_budget_is_told_and_the_session_is_opened_again() {
    let udev = FakeHandler::new("udev@1");
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let configurations: Vec<_> = names.map(|name| configured(name, "udev", "")).into();
    let bench = start(&configurations, &[("udev.wasm", &udev)]);
    bench.statuses(&["udev.wasm: Waiting"]).await;
    idle().await;
    let (full, one) = (wordy(8), [local("1")]);
    assert!(udev.say("i", complete(&one)));
    bench.has("i", &["1"]).await;
    for name in &names[..8] {
        assert!(udev.say(name, complete(&full)));
    }
    wait_for(&bench.devices, |snapshot| {
        let all = snapshot.configurations.values();
        all.filter(|view| view.devices.len() == 32).count() == 8
    })
    .await;
    let opened = udev.opened().len();
    assert!(udev.say("i", complete(&wordy(3))));
    is_told(&bench).await;
    assert_eq!(bench.has_now("i"), ["1"], "the answer before stays");
    bench.statuses(&["udev.wasm: Active"]).await;
    assert!(!udev.say("i", complete(&wordy(3))), "its session has ended");
    pass(2).await;
    assert_eq!(udev.opened().len(), opened + 1);
    assert!(udev.say("i", complete(&wordy(3))));
    is_told(&bench).await;

    assert!(udev.say("a", complete(&one)));
    bench.has("a", &["1"]).await;
    pass(5).await;
    assert!(udev.say("i", complete(&wordy(3))));
    wait_for(&bench.devices, |snapshot| {
        snapshot.configurations[&key("i")].devices.len() == 12
    })
    .await;
}
