//! Many devices on a real kubelet: time to registration, time after a kubelet restart, and cost at rest.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{self, Node};
use leafhost_tests::program::processor_time;
use leafhost_tests::wait::{pass, within};
use nix::sys::signal::Signal;

use crate::statistics::metric as number;
use crate::table::Line;

/// Returns a metric that is a count.
fn metric(address: &str, name: &str) -> Result<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of some thousands"
    )]
    Ok(number(address, name)? as u64)
}

const PORT: u16 = 9479;
/// Time for which the agent is observed at rest.
const REST: Duration = Duration::from_secs(30);
const TIMEOUT: Duration = Duration::from_mins(3);

pub fn measure() -> Result<Vec<Line>> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(Vec::new());
    };
    let node = cluster.nodes().first().context("no node")?;
    let mut lines = Vec::new();
    for (devices, target) in [(100, "≤ 0.3 s"), (1_000, "≤ 3 s")] {
        lines.extend(many(node, devices, target)?);
    }
    Ok(lines)
}

fn many(node: &'static Node, devices: u64, target: &str) -> Result<Vec<Line>> {
    let mut home = Home::on(node)?;
    home.add_handler("debug-echo")?;
    let metrics = format!("{}:{PORT}", node.address());
    home.start(&["--instance-resources", "1000", "--metrics-listen", &metrics])?;
    let descriptions: Vec<String> = (0..devices).map(|n| format!("device-{n}")).collect();
    let configuration = format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: many{devices}}}\nspec:\n  capacity: 2\n  discoveryHandler:\n    name: debugEcho\n    discoveryDetails: '{{shared: false, descriptions: [{}]}}'\n",
        descriptions.join(", ")
    );
    let written = Instant::now();
    home.write("configurations/many.yaml", configuration)?;
    // One resource per device and one for the Configuration.
    let all = devices + 1;
    let first = within(TIMEOUT, "an Instance", || {
        ensure!(metric(&metrics, "akri_instance_count{")? > 0);
        Ok(Instant::now())
    })?;
    let listed = until_listed(&metrics, all, 0)?;
    let begun = metric(&metrics, "leafhost_kubelet_registrations")?;
    let mut lines = vec![Line {
        what: format!("{devices} new devices: first Instance → every ListAndWatch open"),
        value: seconds(listed - first),
        target: target.into(),
        reference: format!(
            "from the Configuration's file: {}",
            seconds(listed - written)
        ),
    }];
    if devices > 100 {
        lines.push(at_rest(&home)?);
    } else {
        // The kubelet's own work until its node is ready is not measured.
        node.stop_kubelet(Signal::SIGTERM)?;
        node.start_kubelet()?;
        let again = until_listed(&metrics, all, begun)?;
        let made = fs::metadata(node.device_plugins().join("kubelet.sock"))?;
        let made = SystemTime::UNIX_EPOCH
            + Duration::new(made.ctime().try_into()?, made.ctime_nsec().try_into()?);
        let since = made.elapsed()?.saturating_sub(again.elapsed());
        node.wait_ready()?;
        let ready = made.elapsed()?;
        let registers = metric(&metrics, "leafhost_kubelet_registrations")? - begun;
        lines.push(Line {
            what: format!("kubelet.sock created → last of {devices} ListAndWatch open"),
            value: seconds(since),
            target: "≤ 1 s".into(),
            reference: format!(
                "{registers} Registers for {all} resources; the kubelet has said that its node is ready after {}",
                seconds(ready)
            ),
        });
    }
    home.stop(Signal::SIGTERM)?;
    Ok(lines)
}

/// Waits until `count` resources are listed, each registered again since `before`; returns the time.
fn until_listed(metrics: &str, count: u64, before: u64) -> Result<Instant> {
    within(TIMEOUT, "every list is followed", || {
        let listed = metric(metrics, "leafhost_kubelet_resources{state=\"listed\"")?;
        let registered = metric(metrics, "leafhost_kubelet_registrations")?;
        ensure!(
            listed >= count && registered >= before + count,
            "{listed} of {count}, {registered} registrations"
        );
        Ok(Instant::now())
    })
}

fn at_rest(home: &Home) -> Result<Line> {
    let pid = home.pid()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let rss: u64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next())
        .context("no VmRSS")?
        .parse()?;
    // The agent keeps listed IDs for 30 s and then removes them in one last step.
    pass(REST + Duration::from_secs(5))?;
    let before = processor_time(pid)?;
    let begun = Instant::now();
    pass(REST)?;
    let used = processor_time(pid)?.saturating_sub(before);
    let share = used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0;
    Ok(Line {
        what: "1,000 devices at rest: resident memory / share of a core".into(),
        value: format!("{} MB / {share:.2} %", rss / 1024),
        target: "≤ 60 MB / < 0.1 %".into(),
        reference: format!("over {} s", REST.as_secs()),
    })
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
