//! Tests of writes that the API server did not answer.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_binding_of_which_nothing_was_heard_keeps_its_devices_until_it_cannot_land_any_more() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    *bench.played.ends.lock().unwrap() = Ends::Lost;
    let first = pod("first", ONE);
    let lost = bench.schedules(&first, "a").await;
    assert!(lost.contains("no answer"), "{lost}");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
    // The scheduler tries again and gets the same devices.
    *bench.played.ends.lock().unwrap() = Ends::Well;
    assert_eq!(bench.schedules(&first, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_without_an_answer_is_used_though_no_watch_has_shown_it() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0), gpu("gpu-b2", &["a"], 1)]);
    let first = pod("first", ONE);
    bench.creates(&first);
    bench.filter(&first, &["a"]);
    bench.played.unheard.store(1, Ordering::Relaxed);
    let error = bench.bind(&first, "a").await;
    assert!(error.contains("cannot determine whether"), "{error}");
    assert_eq!(bench.bind(&first, "a").await, "");
    let usages = ["gpu-a1", "gpu-b2"].map(|name| bench.played.usage(name));
    assert_eq!(usages, ["P:uid-first:a", ""]);
    let given = bench.played.binds.lock().unwrap()[0].clone();
    assert_eq!(given["main"], ["gpu-a1"]);
}

#[tokio::test(start_paused = true)]
async fn a_release_without_an_answer_is_read_before_the_pod_is_bound() {
    let bench = Bench::new(&[gpu("gpu-a1", &["a"], 0)]);
    *bench.played.ends.lock().unwrap() = Ends::Refused;
    let first = pod("first", ONE);
    bench.creates(&first);
    bench.filter(&first, &["a"]);
    bench.played.unheard.store(2, Ordering::Relaxed);
    bench.bind(&first, "a").await;
    let refused = bench.bind(&first, "a").await;
    assert!(refused.contains("it is bound already"), "{refused}");
    assert_eq!(bench.played.usage("gpu-a1"), "");
    *bench.played.ends.lock().unwrap() = Ends::Well;
    assert_eq!(bench.bind(&first, "a").await, "");
    assert_eq!(bench.played.usage("gpu-a1"), "P:uid-first:a");
}
