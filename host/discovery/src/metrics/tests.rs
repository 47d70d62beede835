//! Names, labels and buckets.

use std::time::Duration;

use leafhost_core::session::CallStats;

use super::*;

struct Bench {
    metrics: Metrics,
    registry: Registry,
}

impl Bench {
    fn new() -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::new(&mut registry);
        Self { metrics, registry }
    }

    fn render(&self) -> String {
        leafhost_metrics::render(&self.registry)
    }
}

fn lines(bench: &Bench, start: &str) -> Vec<String> {
    let text = bench.render();
    let lines = text.lines().filter(|line| line.starts_with(start));
    lines.map(str::to_owned).collect()
}

fn called(bench: &Bench, result: CallResult) {
    let session = SessionReport {
        call: CallStats {
            wall: Duration::from_millis(300),
            late: Duration::from_millis(30),
            ..CallStats::default()
        },
        result,
        ..SessionReport::default()
    };
    bench.metrics.called("udev", "video", &session, 2);
}

#[test]
fn names_and_labels_come_out_exactly() {
    let bench = Bench::new();
    called(&bench, CallResult::Ok);
    called(&bench, CallResult::Faulted(FaultReason::Trap));
    for line in [
        "# TYPE akri_discovery_response_result counter",
        r#"akri_discovery_response_result{discovery_handler_name="udev",result="Success"} 1"#,
        r#"akri_discovery_response_result{discovery_handler_name="udev",result="Fail"} 1"#,
        "# TYPE akri_discovery_response_time histogram",
        r#"akri_discovery_response_time_bucket{le="0.25",configuration="video"} 0"#,
        r#"akri_discovery_response_time_bucket{le="0.5",configuration="video"} 2"#,
        "# TYPE leafhost_handler_calls_total counter",
        r#"leafhost_handler_calls_total{handler="udev"} 2"#,
        r#"leafhost_handler_faults_total{handler="udev",reason="trap"} 1"#,
        r#"leafhost_handler_call_seconds_count{handler="udev"} 2"#,
        r#"leafhost_handler_late_seconds_bucket{le="0.025",handler="udev"} 0"#,
        r#"leafhost_handler_late_seconds_bucket{le="0.05",handler="udev"} 2"#,
        r#"leafhost_handler_denied_total{handler="udev"} 4"#,
    ] {
        assert_eq!(lines(&bench, line), [line]);
    }
}

#[test]
fn buckets_are_those_of_akri() {
    let bench = Bench::new();
    called(&bench, CallResult::Ok);
    let bounds: Vec<String> = bench
        .render()
        .lines()
        .filter_map(|line| line.strip_prefix("akri_discovery_response_time_bucket{le=\""))
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    assert_eq!(
        bounds,
        [
            "0.25", "0.5", "1.0", "1.5", "2.0", "3.0", "5.0", "10.0", "60.0", "+Inf"
        ]
    );
}

#[test]
fn labels_of_a_configuration_go_with_it() {
    let bench = Bench::new();
    called(&bench, CallResult::Ok);
    bench.metrics.forget_configuration("video");
    assert!(!bench.render().contains("video"));
}

#[test]
fn labels_of_a_handler_go_with_it() {
    let bench = Bench::new();
    called(&bench, CallResult::Ok);
    for reason in FaultReason::VARIANTS {
        called(&bench, CallResult::Faulted(*reason));
    }
    bench.metrics.forget_handler("udev");
    assert!(!bench.render().contains("udev"));
}
