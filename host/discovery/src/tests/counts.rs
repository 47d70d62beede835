//! Counted answers and devices.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_partial_answer_is_the_result_until_a_complete_one() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    let result = async |expected: &str, said: Report| {
        udev.say("a", said);
        wait_for(&bench.report, |report| {
            let views = report.configurations.get(&key("a"));
            let mut views = views.into_iter().flat_map(|view| &view.sessions);
            views.any(|view| view.result.label() == expected)
        })
        .await;
    };
    let some = || found(Devices::Partial(Vec::new()));
    result("partial", some()).await;
    result("trap", fault()).await;
    result("partial", found(Devices::Unchanged)).await;
    result("ok", complete(&[])).await;
    let text = leafhost_metrics::render(&bench.registry);
    for (result, number) in [("Partial", 2), ("Fail", 1), ("Success", 1)] {
        let line = format!(
            r#"akri_discovery_response_result{{discovery_handler_name="udev",result="{result}"}} {number}"#
        );
        assert!(text.contains(&line), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn devices_are_counted_by_configuration_and_health() {
    let udev = FakeHandler::new("udev@1");
    let a = configured("a", "udev", "");
    let stored = earlier("a", &["5"]);
    let bench = start_with(&[a], &[("udev.wasm", &udev)], &stored);
    idle().await;
    let counted = |bench: &Bench| {
        bench.metrics.count_devices(&bench.devices.borrow());
        let text = leafhost_metrics::render(&bench.registry);
        ["healthy", "unhealthy", "unknown", "missing"].map(|health| {
            let line = format!(r#"leafhost_devices{{configuration="a",health="{health}"}} "#);
            let mut lines = text.lines();
            lines.find_map(|found| found.strip_prefix(&line)?.parse::<usize>().ok())
        })
    };
    assert_eq!(counted(&bench), [Some(0), Some(0), Some(1), Some(0)]);
    let ill = Device {
        health: leafhost_core::device::Health::Unhealthy("dark".into()),
        ..local("3")
    };
    udev.say("a", complete(&[local("1"), local("2"), ill, shared("5")]));
    bench.has("a", &["1", "2", "3", "5"]).await;
    assert_eq!(counted(&bench), [Some(3), Some(1), Some(0), Some(0)]);
    udev.say("a", complete(&[local("1"), local("2")]));
    bench.has("a", &["1", "2", "5?"]).await;
    assert_eq!(counted(&bench), [Some(2), Some(0), Some(0), Some(1)]);
    bench.configure(&[]);
    bench.has("a", &[]).await;
    assert_eq!(counted(&bench), [None; 4]);
}
