//! A Configuration that is deleted in one namespace and applied in another: the kubelet knows no namespace, and its pods keep their slots.

use super::*;
use leafhost_core::names::ConfigurationKey;

/// Returns `cams-a` of the second namespace.
fn moved(usage: &[(u32, &str)]) -> Instance {
    let mut instance = instance("cams", "a", 2, usage);
    instance.metadata.namespace = "second".into();
    instance.metadata.uid = "second".into();
    instance
}

/// Starts with a pod that has `slot` through `resource`, then moves the Configuration. `is_early`: the new Instance is created before the
/// old one is gone.
async fn rig(resource: &str, id: &str, usage: &[(u32, &str)], is_early: bool) -> Rig {
    let rig = Rig::cams(2, &[]).await;
    rig.allocate(resource, &[id]).await.unwrap();
    rig.kubelet.run("p", &[device_id(resource, id)]);
    rig.kubelet.notify();
    pass(10).await;
    let mut fixture = Fixture::default();
    fixture.devices.read = true;
    fixture.configure("second", "cams");
    let key = ConfigurationKey::new("second", "cams").unwrap();
    fixture.see(&key, "a", |_| {});
    if is_early {
        rig.put(moved(usage));
    }
    rig.devices.send_replace(Arc::new(fixture.devices));
    idle().await;
    let first = instance("cams", "a", 2, &[]).key();
    if is_early && usage.is_empty() {
        assert!(
            rig.allocate("cams-a", &["cams-a-0"]).await.is_err() || resource == "cams-a",
            "the first Instance says that it is in use"
        );
    }
    rig.store.edit(|set| drop(set.instances.remove(&first)));
    idle().await;
    if !is_early {
        rig.put(moved(usage));
    }
    idle().await;
    rig
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_is_claimed_of_the_instance_that_has_the_name_now() {
    for is_early in [true, false] {
        for (resource, id, usage) in [
            ("cams-a", "cams-a-0", NODE),
            ("cams", "cams-0", "C:cams-0:node-a"),
        ] {
            let rig = rig(resource, id, &[], is_early).await;
            assert_eq!(rig.usage("cams-a-0"), usage);
            assert_eq!(rig.problems(), Vec::<String>::new());
            // Another pod can get only the other slot.
            rig.allocate("cams", &["cams-1"]).await.unwrap();
            assert_eq!(rig.usage("cams-a-1"), "C:cams-1:node-a");
            assert!(rig.allocate("cams", &["cams-2"]).await.is_err());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_has_and_the_instance_that_has_the_name_now_gives_elsewhere_is_a_conflict() {
    for is_early in [true, false] {
        let rig = rig("cams", "cams-0", &[(0, "C:cams-9:node-b")], is_early).await;
        let problems = rig.problems().join("\n");
        assert!(
            problems.contains("cams-a-0 is held by default/p") && problems.contains("node-b"),
            "{problems}"
        );
        assert_eq!(rig.usage("cams-a-0"), "C:cams-9:node-b");
        rig.allocate("cams", &["cams-1"]).await.unwrap();
        assert_eq!(rig.usage("cams-a-1"), "C:cams-1:node-a");
    }
}
