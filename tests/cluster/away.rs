//! The API server is down for a while, and agents and kubelets start meanwhile: pods, slots and Instances stay as they are.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{Cluster, Setup};
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::device::{Site, used_slots};
use crate::pair::{Pair, resource, used};

/// Cluster of one test alone, which ends with it.
pub struct Own(pub &'static Cluster);

impl Own {
    pub fn start(nodes: u8) -> Result<Self> {
        Self::start_with(&Setup {
            nodes,
            ..Setup::default()
        })
    }

    /// Starts a cluster with this setup.
    pub fn start_with(setup: &Setup) -> Result<Self> {
        Ok(Self(Box::leak(Box::new(Cluster::start_with(setup)?))))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if let Err(error) = self.0.stop() {
            eprintln!("the cluster does not end: {error:#}");
        }
    }
}

/// Kind of an absence of the API server.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Absence {
    /// The API server accepts connections and does not answer.
    Paused,
    Killed,
    /// The API server and etcd end, and start again with etcd's data.
    WithEtcd,
}

impl Absence {
    fn begin(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Paused => cluster.server().signal(Signal::SIGSTOP),
            Self::Killed => cluster.server().kill(),
            Self::WithEtcd => {
                cluster.server().kill()?;
                cluster.etcd().kill()
            }
        }
    }

    fn end(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Paused => cluster.server().signal(Signal::SIGCONT)?,
            Self::Killed => cluster.server().start_again()?,
            Self::WithEtcd => {
                cluster.etcd().start_again()?;
                cluster.server().start_again()?;
            }
        }
        cluster.wait_served()
    }
}

#[test]
fn agents_and_kubelets_that_start_without_the_api_server_keep_pods_slots_and_instances()
-> Result<()> {
    // Longer than an agent keeps a slot that no pod holds.
    away(
        &[Absence::Paused, Absence::WithEtcd],
        Duration::from_secs(6),
        &["--slot-grace", "5s"],
    )
}

#[test]
#[ignore = "takes ten minutes: make soak"]
fn soak_the_api_server_is_away_for_ten_minutes() -> Result<()> {
    away(&[Absence::Killed], Duration::from_mins(10), &[])
}

/// Keeps only the slots of the site's node: an agent keeps no others, and offers no free slot without the API server.
fn slots_of(site: &Site, mut slots: BTreeMap<String, String>) -> BTreeMap<String, String> {
    slots.retain(|_, holder| holder == site.node.name());
    slots
}

fn away(absences: &[Absence], lasting: Duration, arguments: &[&str]) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(2)?;
    let cluster = own.0;
    let mut pair = Pair::start(cluster, "away", arguments)?;
    let devices = ["one", "two"];
    pair.configure(2, &devices, "{MODE: fast}")?;
    let found = pair.until("both nodes see both devices", &devices, |_| true)?;
    let pods = ["on-a", "on-b"];
    for (node, pod) in pods.iter().enumerate() {
        pair.space.run(&pair.pod(pod, node, &found["one"])?)?;
    }
    let before = pair.until("both have a slot", &devices, |one| {
        let expected = if one["spec"]["leafhost"]["id"] == "one" {
            2
        } else {
            0
        };
        used(one).len() == expected
    })?;
    let slots: BTreeMap<String, String> = used(&before["one"])
        .into_iter()
        .map(|(slot, holder)| (slot.to_owned(), holder.to_owned()))
        .collect();
    let containers = [
        pair.space.container(pods[0])?,
        pair.space.container(pods[1])?,
    ];
    for site in &pair.sites {
        site.until_listed()?;
    }
    pair.until_holders(2)?;
    let mut written = pair.writes()?;
    for absence in absences {
        println!("{absence:?}");
        for site in &pair.sites {
            let kept = site.home.path().join("state/cluster/instances.json");
            eventually("the agent has kept the slots", || {
                let kept: Value = serde_json::from_slice(&fs::read(&kept)?)?;
                let kept = slots_of(site, used_slots(&json!({"instances": kept})));
                ensure!(kept == slots_of(site, slots.clone()), "{kept:?}");
                Ok(())
            })?;
        }
        let heartbeat = pair.sites[1].node.heartbeat()?;
        let given = pair.sites[0].given()?;
        absence.begin(cluster)?;
        let begun = Instant::now();
        for site in &mut pair.sites {
            site.home.stop(Signal::SIGKILL)?;
        }
        pair.sites[1].node.stop_kubelet(Signal::SIGKILL)?;
        pair.sites[1].node.start_kubelet_after(heartbeat)?;
        for site in &mut pair.sites {
            site.home.start(arguments)?;
            let what = "it serves what it knew last";
            let expected = slots_of(site, slots.clone());
            site.home.until(what, |status| {
                slots_of(site, used_slots(status)) == expected
            })?;
        }
        // The agent serves the kubelet that has not restarted again.
        pair.sites[0].until_listed()?;
        within(lasting * 2, "the absence lasts", || {
            ensure!(begun.elapsed() >= lasting, "not long enough");
            Ok(())
        })?;
        for site in &pair.sites {
            let now = slots_of(site, used_slots(&site.home.status()?));
            assert_eq!(now, slots_of(site, slots.clone()), "{absence:?}");
        }
        assert_eq!(pair.sites[0].given()?, given, "{absence:?}");
        absence.end(cluster)?;
        println!("it was away for {:?}", begun.elapsed());
        let back = Instant::now();

        let resource = resource(&found["two"]);
        for site in &pair.sites {
            // Without the API server no free slot was offered.
            let before = site.node.heartbeat()?;
            site.node.wait_ready()?;
            site.until_listed()?;
            let before = before.as_deref();
            site.node.wait_allocatable_after(before, &resource, 2)?;
        }
        println!("all is listed after {:?}", back.elapsed());
        // A pod on each node takes and frees a slot. Any write that was pending would have reached the API server before.
        for (node, pod) in ["next-a", "next-b"].iter().enumerate() {
            pair.space.run(&pair.pod(pod, node, &found["two"])?)?;
            pair.space.delete(pod)?;
        }
        let name = found["two"]["metadata"]["name"]
            .as_str()
            .unwrap_or_default();
        let count = written.entry(name.to_owned()).or_default();
        *count += 4;
        // Each pod may also be recorded and removed once.
        let most = *count + 4;
        pair.until_holders(2)?;
        eventually("only the slots of two pods are written", || {
            let now = pair.writes()?;
            let of_pods = now.get(name).copied().unwrap_or_default();
            let count = written.entry(name.to_owned()).or_default();
            if (*count..=most).contains(&of_pods) {
                *count = of_pods;
            }
            ensure!(now == written, "written: {now:?}, expected: {written:?}");
            Ok(())
        })?;
        let after = pair.instances()?;
        let same = |one: &Value| (one["metadata"]["uid"].clone(), one["spec"].clone());
        for device in devices {
            assert_eq!(same(&after[device]), same(&before[device]), "{absence:?}");
        }
        for (pod, container) in pods.iter().zip(&containers) {
            assert_eq!(pair.space.container(pod)?, *container, "{absence:?}: {pod}");
        }
    }
    Ok(())
}
