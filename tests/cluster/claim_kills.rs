//! Pods with claims and with the extended resource start and end on two nodes while agents, kubelets and the controller are killed and the backend of
//! their Configuration changes back and forth: no slot is allocated twice, none is lost, and no pod with a claim fails.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Pod};
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::scheduling::wait;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::configure_with;
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use crate::away::Own;
use crate::crowd::{Crowd, INSTANCES, Kind, Rules, Wish};
use crate::device::Site;
use crate::disturbances::{Controllers, Disturbance, Disturbed, Lasting};

const CONFIGURATION: &str = "cameras";
const CAPACITY: usize = 3;
/// Upper bound for a pod to run, or to be deleted: a kubelet retries a failed Prepare after about 90 seconds.
const PATIENCE: Duration = Duration::from_mins(6);
/// With this grace: a slot whose pod ends while agent and kubelet restart is freed only after it.
const AGENT: [&str; 2] = ["--slot-grace", "30s"];

const ALL: [Disturbance; 5] = [
    Disturbance::AgentKilled,
    Disturbance::KubeletKilled,
    Disturbance::ControllerKilled,
    // Device plugins allocate its devices for a while.
    Disturbance::Changed,
    Disturbance::AgentStopped,
];

#[test]
fn claims_and_kills_give_no_slot_twice_and_lose_none() -> Result<()> {
    kills(3, 30, 11)
}

/// Runs `SOAK_ROUNDS` pods with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_claims_and_kills_give_no_slot_twice_and_lose_none() -> Result<()> {
    kills(20, random::rounds(300), random::seed()?)
}

fn kills(cameras: usize, pods: usize, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let mut random = Random::new(seed);
    let own = Own::start(2)?;
    let cluster = own.0;
    cluster.define()?;
    let space = cluster.namespace("crowd")?;
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(2)? {
        let mut site = Site::joined(cluster, taken, &space)?;
        let folder = site.node.cdi();
        site.home.publish_in(&folder);
        site.home.start(&AGENT)?;
        sites.push(site);
    }
    let recorder = Recorder::start_anywhere(cluster)?;
    let controllers = Controllers::start(cluster, &space)?;
    let cameras: Vec<String> = (0..cameras)
        .map(|number| format!("camera-{number}"))
        .collect();
    let configure = |allocation: &str| {
        let annotations = [("leafhost.dev/allocation", allocation)];
        let (home, capacity) = (space.name(), u32::try_from(CAPACITY)?);
        configure_with(
            cluster,
            home,
            CONFIGURATION,
            capacity,
            &cameras,
            &annotations,
        )
    };
    configure("dra")?;
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "a-camera", "namespace": space.name()},
        "spec": {"spec": {"devices": {"requests": [{"name": "camera", "exactly": {"deviceClassName": "cameras.akri.sh"}}]}}},
    });
    cluster.apply(&template.to_string())?;
    let mut turn = |random: &mut Random| {
        configure("device-plugin")?;
        wait(Duration::from_millis(5000 + random.below(4000)));
        configure("dra")
    };
    let wishes = |_: &Crowd<'_>, _: usize, name: &str, random: &mut Random| Ok(wish(name, random));
    let rules = Rules {
        size: 12,
        pods: Some(pods),
        capacity: CAPACITY,
        patience: PATIENCE,
        gives_up: None,
        phase: "Running",
        lasts: (500, 4000),
        freed: PATIENCE,
        accepts: |failure| failure.kind != Kind::Claim,
    };
    let crowd = Crowd::new(cluster, &space, INSTANCES, rules, &wishes);
    let mut disturbed = Disturbed {
        cluster,
        sites: &mut sites,
        agent: &AGENT,
        controllers: Some(controllers),
        scheduling: None,
        change: Some(&mut turn),
        offered: &[],
        random: random.split(),
        pause: (2000, 4000),
        down: 4000,
    };
    crowd.run(recorder, &mut random, || {
        disturbed.go_on(&ALL, Lasting::Pods, &crowd)
    })?;
    within(PATIENCE, "no claim and no CDI file of one is left", || {
        let claims = format!(
            "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims",
            space.name()
        );
        let left = cluster.get(&claims)?;
        let left = left["items"].as_array().context("no items")?;
        ensure!(left.is_empty(), "{left:#?}");
        for site in &sites {
            for file in fs::read_dir(site.node.cdi())? {
                let file = file?.path();
                let is_of_claim = file.to_string_lossy().contains("claim-");
                ensure!(!is_of_claim, "{}", file.display());
            }
        }
        Ok(())
    })
    .with_context(|| space.state())
}

/// Returns a pod, mostly one with a claim.
fn wish(name: &str, random: &mut Random) -> Wish {
    let main = Container::new("main");
    // A kubelet may be denied the claim of an extended resource for a moment, and retries after 80 seconds.
    if random.below(8) > 0 {
        let claims: Value = json!([{"name": "camera", "resourceClaimTemplateName": "a-camera"}]);
        let pod = Pod::new(name, &[main.claim("camera")]).with("resourceClaims", claims);
        let kind = Kind::Claim;
        return Wish { pod, kind };
    }
    let pod = Pod::new(name, &[main.device("akri.sh/cameras", 1)]);
    let kind = Kind::Any(CONFIGURATION);
    Wish { pod, kind }
}
