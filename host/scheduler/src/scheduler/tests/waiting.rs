//! Tests of when waiting pods are tried again.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::scheduling::{Observer as _, PodKey};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{Bench, ONE, gpu, pod};

#[tokio::test(start_paused = true)]
async fn a_pod_that_waits_for_one_that_is_deleted_is_tried_again_at_once() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["b"], 1)]);
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&bench.scheduler).run(stop.clone()));
    let (first, second) = (pod("first", ONE), pod("second", ONE));
    assert_eq!(bench.schedules(&first, "a").await, "");
    bench.sees();
    bench.creates(&second);
    // The scheduler does not offer the node that has the free device.
    assert!(bench.filter(&second, &["a"]).node_names.is_empty());
    sleep(Duration::from_secs(1)).await;
    assert!(bench.played.tried.lock().unwrap().is_empty());
    bench.played.pods.lock().unwrap().remove(&first.key);
    bench.scheduler.pod_gone(&first.key);
    sleep(Duration::from_millis(2500)).await;
    let tried = bench.played.tried.lock().unwrap().clone();
    assert_eq!(tried[..], *std::slice::from_ref(&second.key));
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_pod_is_tried_again_once_its_devices_are_free_and_not_more_often() {
    let mut used = gpu("gpu-a1", &["a"], 0);
    let slots = &mut used.spec.device_usage;
    slots.insert("gpu-a1-0".to_owned(), "a".to_owned());
    let bench = Bench::new(&[used]);
    let (first, second) = (pod("first", ONE), pod("second", ONE));
    for pod in [&first, &second] {
        bench.creates(pod);
        assert!(bench.filter(pod, &["a"]).node_names.is_empty());
    }
    let stop = CancellationToken::new();
    let running = tokio::spawn(Arc::clone(&bench.scheduler).run(stop.clone()));
    sleep(Duration::from_secs(10)).await;
    assert!(bench.played.tried.lock().unwrap().is_empty());
    bench
        .scheduler
        .instance(bench.played.set_usage("gpu-a1", ""));
    sleep(Duration::from_secs(4)).await;
    let tried = |key: &PodKey| {
        let all = bench.played.tried.lock().unwrap();
        all.iter().filter(|one| *one == key).count()
    };
    assert_eq!(tried(&first.key), 1);
    assert_eq!(bench.schedules(&first, "a").await, "");
    bench.sees();
    let before = tried(&second.key);
    sleep(Duration::from_secs(20)).await;
    // There is one device, and the first pod has it.
    assert_eq!((tried(&first.key), tried(&second.key)), (1, before));
    stop.cancel();
    running.await.unwrap();
}
