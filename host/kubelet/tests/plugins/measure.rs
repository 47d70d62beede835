//! Prints the cost of many resources: `cargo test -p leafhost-kubelet --test plugins -- --ignored --nocapture measure`.

use std::process::Stdio;
use std::time::Instant;

use std::path::Path;
use std::sync::Arc;

use leafhost_kubelet::{Device, Health, Offers, ResourceName};

use crate::kubelet::Kubelet;
use crate::plugin::Plugin;

const FOLDER: &str = "LEAFHOST_MEASURE_FOLDER";
const COUNT: &str = "LEAFHOST_MEASURE_COUNT";

fn kilobytes_of(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let number = line.unwrap().split_whitespace().nth(1).unwrap();
    number.parse().unwrap()
}

/// Runs the plugin alone in a process, so that its memory can be told from the kubelet's.
#[tokio::test]
#[ignore = "is started by measure::many_resources"]
async fn serve_many() {
    let (Ok(folder), Ok(count)) = (std::env::var(FOLDER), std::env::var(COUNT)) else {
        return;
    };
    let plugin = Plugin::start(Path::new(&folder), |_| {});
    // Memory of the process before it does anything.
    println!("empty {}", kilobytes_of(std::process::id()));
    let mut offers = Offers::new();
    for n in 0..count.parse::<u32>().unwrap() {
        let device = Device {
            health: Health::Healthy,
            numa: None,
        };
        let ids = (0..2).map(|slot| (format!("r{n}-{slot}"), device.clone()));
        let name = ResourceName::new(format!("akri.sh/r{n}")).unwrap();
        offers.insert(name, Arc::new(ids.collect()));
    }
    plugin.offers.send_replace(Arc::new(offers));
    plugin.task.await.unwrap();
}

#[tokio::test]
#[ignore = "prints numbers; it has no verdict"]
async fn many_resources() {
    for count in [100_u32, 1000] {
        let folder = tempfile::tempdir().unwrap();
        let mut kubelet = Kubelet::start(folder.path()).await;
        let start = Instant::now();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "measure::serve_many", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(COUNT, count.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        all_listed(&kubelet, count).await;
        println!(
            "{count}: process started to all listed {:?}",
            start.elapsed()
        );
        println!("{count}: plugin has {} kB", kilobytes_of(child.id()));
        for restart in 1..=3 {
            kubelet.kill().await;
            let start = Instant::now();
            kubelet = Kubelet::start(folder.path()).await;
            all_listed(&kubelet, count).await;
            let took = start.elapsed();
            let most = kubelet.state.registered.borrow().values().max().copied();
            println!("{count}: kubelet.sock created to all listed {took:?}, restart {restart}");
            println!("{count}: at most {most:?} registrations of one resource");
            println!("{count}: plugin has {} kB", kilobytes_of(child.id()));
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout);
        let empty = output.lines().find(|line| line.contains("empty"));
        println!("{count}: before {empty:?}");
    }
}

async fn all_listed(kubelet: &Kubelet, count: u32) {
    let mut lists = kubelet.state.lists.subscribe();
    let count = usize::try_from(count).unwrap();
    drop(lists.wait_for(|lists| lists.len() == count).await.unwrap());
}
