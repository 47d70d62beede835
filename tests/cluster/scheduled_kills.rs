//! Pods that describe their devices, while agents, kubelets, their scheduler with its extender, and the API server are killed: each pod has the devices
//! chosen for it, and no device is allocated twice or lost.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::scheduling::{AGENT, LOCKED, exactly, of};
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::wait::TIMEOUT;
use serde_json::json;

use crate::away::Own;
use crate::crowd::{Crowd, Failure, INSTANCES, Kind, Rules, Wish};
use crate::disturbances::{Disturbance, Disturbed, Lasting};
use crate::scheduled::start;

/// Upper bound for a pod to run, and to be deleted, during the kills.
const PATIENCE: Duration = Duration::from_mins(3);

const ALL: [Disturbance; 4] = [
    Disturbance::AgentKilled,
    Disturbance::ExtenderKilled,
    Disturbance::ServerKilled,
    Disturbance::KubeletKilled,
];

#[test]
fn pods_get_what_was_chosen_for_them_while_everything_is_killed() -> Result<()> {
    kills("scheduled-kills", 16, 2036, &AGENT)
}

#[test]
#[ignore = "takes an hour: make soak"]
fn soak_pods_get_what_was_chosen_for_them_while_everything_is_killed() -> Result<()> {
    let kinds: [(_, &[_]); 2] = [("scheduled-soak", &AGENT), ("locked-soak", &LOCKED)];
    for (name, arguments) in kinds {
        kills(name, random::rounds(500), random::seed()?, arguments)?;
    }
    Ok(())
}

/// Starts and ends pods while agents with these arguments, kubelets, the extender, and the API server with the kube-scheduler
/// are killed `kills` times, at moments from the seed.
fn kills(name: &str, kills: usize, seed: u64, arguments: &[&str]) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(2)?;
    let cluster = own.0;
    let mut random = Random::new(seed);
    let (mut agents, mut scheduling) = start(cluster, name, "crowd", arguments)?;
    let any = json!([exactly("gpu", of("", "crowd", 1, &[0, 1, 2, 3, 4]))]);
    let template = scheduling.pod("NAME", None, &any);
    let wishes = |_: &Crowd<'_>, _: usize, name: &str, _: &mut Random| {
        let (pod, kind) = (template.named(name), Kind::Chosen);
        Ok(Wish { pod, kind })
    };
    let rules = Rules {
        size: 14,
        pods: None,
        capacity: 1,
        patience: PATIENCE,
        gives_up: None,
        phase: "Running",
        lasts: (300, 2500),
        freed: TIMEOUT,
        accepts: is_accepted,
    };
    let recorder = Recorder::start_anywhere(cluster)?;
    let crowd = Crowd::new(cluster, &agents.space, INSTANCES, rules, &wishes);
    let mut disturbed = Disturbed {
        cluster,
        sites: &mut agents.sites,
        agent: arguments,
        controllers: None,
        scheduling: Some(&mut scheduling),
        change: None,
        offered: &[],
        random: random.split(),
        pause: (500, 2500),
        down: 2000,
    };
    let ran = crowd.run(recorder, &mut random, || {
        disturbed.go_on(&ALL, Lasting::Events(kills), &crowd)
    });
    let ran = ran.with_context(|| scheduling.log())?.grants.len();
    ensure!(ran > kills, "{ran} pods ran");
    Ok(())
}

/// Returns true for pods that got nothing: their kubelet had no agent, the agent could not read the reservation, or containerd stopped the start of a
/// container when the kubelet that had asked for it was killed.
fn is_accepted(failure: &Failure) -> bool {
    let texts = [
        "no healthy devices present",
        "no pod that the kubelet admits",
        "EOF",
        "connection",
        "code = Unavailable",
        r#"context canceled","reason":"StartError""#,
    ];
    let (why, state) = (&failure.why, &failure.state);
    texts
        .iter()
        .any(|text| why.contains(text) || state.contains(text))
}
