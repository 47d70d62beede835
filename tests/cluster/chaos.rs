//! Pods of two nodes start and end while Configurations move between namespaces, nodes are disconnected or recreated, and agents, kubelets, the
//! controller and the API server end: no slot is allocated twice, and no pod is refused while a slot is free.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Node, Pod};
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::scheduling::wait;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::{configure_with, name_of};
use leafhost_tests::wait::within;

use crate::away::Own;
use crate::crowd::{Crowd, Failure, INSTANCES, Kind, Rules, Wish};
use crate::device::Site;
use crate::disturbances::{Controllers, Disturbance, Disturbed, Lasting, OUTAGE};

/// Names of the Configurations. Each has three devices with two slots.
const NAMES: [&str; 2] = ["east", "west"];
const CAPACITY: usize = 2;
/// Number of pods per node at a time. All nodes together want fewer slots than one Configuration has.
const PODS: usize = 2;
/// Upper bound for a pod's wait for a slot; its Configuration may be moving.
const PATIENCE: Duration = Duration::from_secs(20);
/// Minimum number of pods that ran per pod that was refused.
const RAN_PER_REFUSAL: usize = 50;
/// With this grace: a slot whose pod ends while agent and kubelet restart is freed only after it.
const AGENT: [&str; 2] = ["--slot-grace", "30s"];

const ALL: [Disturbance; 9] = [
    // It moves to another namespace.
    Disturbance::Changed,
    Disturbance::CutOff,
    Disturbance::NodeMadeAgain,
    Disturbance::AgentKilled,
    Disturbance::AgentStopped,
    Disturbance::KubeletKilled,
    Disturbance::ControllerKilled,
    Disturbance::ServerKilled,
    Disturbance::EtcdKilled,
];

#[test]
fn two_minutes_of_chaos_give_no_slot_twice() -> Result<()> {
    chaos(Duration::from_mins(2), 6)
}

/// Runs for `SOAK_ROUNDS` minutes with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes an hour: make soak"]
fn soak_an_hour_of_chaos_gives_no_slot_twice() -> Result<()> {
    let minutes = random::rounds(60);
    chaos(Duration::from_mins(minutes), random::seed()?)
}

fn chaos(lasting: Duration, seed: u64) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let mut random = Random::new(seed);
    let own = Own::start(2)?;
    let cluster = own.0;
    cluster.define()?;
    let homes = [cluster.namespace("first")?, cluster.namespace("second")?];
    let pods = cluster.namespace("pods")?;
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(2)? {
        let mut site = Site::joined(cluster, taken, &pods)?;
        site.home.start(&AGENT)?;
        sites.push(site);
    }
    let recorder = Recorder::start_anywhere(cluster)?;
    let controllers = Controllers::start(cluster, &pods)?;
    let apply = |which: usize, place: usize| {
        let name = NAMES.get(which).context("no such Configuration")?;
        let home = homes.get(place).context("no such namespace")?;
        let devices: Vec<String> = (0..3).map(|number| format!("{name}-{number}")).collect();
        let resources = ("leafhost.dev/resources", "configuration");
        let annotations: &[_] = if which == 0 { &[resources] } else { &[] };
        let capacity = u32::try_from(CAPACITY)?;
        configure_with(cluster, home.name(), name, capacity, &devices, annotations)
    };
    // Index in `homes` of each Configuration's namespace.
    let mut places = [0, 1];
    for (which, place) in places.iter().enumerate() {
        apply(which, *place)?;
    }
    let mut move_away = |random: &mut Random| {
        let which = usize::try_from(random.below(2))?;
        let (name, place) = (NAMES[which], places[which]);
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/configurations/{name}",
            homes[place].name()
        );
        cluster.api().delete(&path)?;
        places[which] = 1 - place;
        wait(Duration::from_millis(random.below(3000)));
        apply(which, places[which])
    };
    let nodes: Vec<&Node> = sites.iter().map(|site| site.node).collect();
    let wishes = |crowd: &Crowd<'_>, worker: usize, name: &str, random: &mut Random| {
        wish(crowd, nodes[worker % nodes.len()], name, random)
    };
    let rules = Rules {
        size: 2 * PODS,
        pods: None,
        capacity: CAPACITY,
        patience: OUTAGE,
        gives_up: Some(PATIENCE),
        phase: "Running",
        lasts: (500, 5000),
        freed: OUTAGE,
        accepts: |_| true,
    };
    let crowd = Crowd::new(cluster, &pods, INSTANCES, rules, &wishes);
    let mut disturbed = Disturbed {
        cluster,
        sites: &mut sites,
        agent: &AGENT,
        controllers: Some(controllers),
        scheduling: None,
        change: Some(&mut move_away),
        offered: &NAMES,
        random: random.split(),
        pause: (1000, 4000),
        down: 4000,
    };
    let tally = crowd.run(recorder, &mut random, || {
        disturbed.go_on(&ALL, Lasting::Time(lasting), &crowd)
    })?;
    ensure!(tally.grants.len() >= 2 * PODS, "next to nothing ran");
    let refused = tally.failed.iter().filter(|one| is_refused(one)).count();
    ensure!(
        refused * RAN_PER_REFUSAL <= tally.grants.len(),
        "{refused} pods were refused while a slot was free"
    );
    Ok(())
}

/// Returns a pod that wants any device of a Configuration, or one Instance.
fn wish(crowd: &Crowd<'_>, node: &Node, name: &str, random: &mut Random) -> Result<Wish> {
    let which = usize::try_from(random.below(2))?;
    let configuration = NAMES[which];
    let (mut resource, mut kind) = (configuration.to_owned(), Kind::Any(configuration));
    if which == 1 && random.below(3) == 0 {
        let all = within(OUTAGE, "the Instances are listed", || crowd.instances())?;
        let own = all.iter().map(name_of);
        let own: BTreeSet<&str> = own.filter(|one| one.starts_with(configuration)).collect();
        let own: Vec<&str> = own.into_iter().collect();
        if let Some(instance) = random.pick(&own) {
            (resource, kind) = ((*instance).to_owned(), Kind::Instance);
        }
    }
    let main = Container::new("main").device(&format!("akri.sh/{resource}"), 1);
    let pod = Pod::new(name, &[main]).on(node);
    Ok(Wish { pod, kind })
}

/// Returns true if an agent refused a pod while a slot was free; false if the kubelet refused it for lack of an agent.
fn is_refused(failure: &Failure) -> bool {
    let lost = ["error reading from server", "transport", "connection error"];
    let why = &failure.why;
    failure.had_free && why.contains("rpc error") && !lost.iter().any(|lost| why.contains(lost))
}
