//! Configurations that are not accepted because there are too many.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_configuration_that_is_left_out_withdraws_nothing() {
    let udev = FakeHandler::new("udev@1");
    let bench = start(&[configured("a", "udev", "")], &[("udev.wasm", &udev)]);
    idle().await;
    udev.say("a", complete(&[local("1")]));
    bench.has("a", &["1"]).await;
    let left_out = leafhost_core::ports::LeftOutConfiguration {
        handler: "udev".into(),
        generation: None,
        cap: "1 Configuration".into(),
    };
    bench
        .configurations
        .send_replace(Arc::new(ConfigurationSet {
            complete: true,
            left_out: [(key("a"), left_out)].into(),
            ..ConfigurationSet::default()
        }));
    wait_for(&bench.devices, |snapshot| {
        snapshot.configurations.is_empty() && snapshot.presence(&key("a")) == Presence::Unknown
    })
    .await;
}
