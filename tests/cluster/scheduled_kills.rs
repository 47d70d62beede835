//! Pods that describe their devices, while agents, kubelets, their scheduler with its extender, and the API server are killed: each pod has the devices
//! chosen for it, and no device is allocated twice or lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use leafhost_tests::cluster::{Cluster, Namespace, Pod};
use leafhost_tests::contest::{Grant, crowds};
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::scheduling::{AGENT, LOCKED, exactly, of, wait};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::away::Own;
use crate::scheduled::{given, start, until_free};

/// Upper bound for a pod to run, and to be deleted, during the kills.
const PATIENCE: Duration = Duration::from_mins(3);
/// Number of pods at a time.
const CROWD: usize = 14;

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
    let is_over = AtomicBool::new(false);
    let (grants, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let waits = Mutex::new(Vec::new());
    let any = json!([exactly("gpu", of("", "crowd", 1, &[0, 1, 2, 3, 4]))]);
    let template = scheduling.pod("NAME", None, &any);
    let space = &agents.space;
    let sites = &mut agents.sites;
    let mut ended = Instant::now();
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CROWD)
            .map(|worker| {
                let (mut random, is_over, template) = (random.split(), &is_over, &template);
                let (grants, failed, waits) = (&grants, &failed, &waits);
                scope.spawn(move || {
                    for round in 0.. {
                        if is_over.load(Ordering::Acquire) {
                            break;
                        }
                        let name = format!("pod-{worker}-{round}");
                        let pod = template.named(&name);
                        match one(cluster, space, (&name, &pod), &mut random, waits)? {
                            Ok(grant) => grants.lock().unwrap().push(grant),
                            Err(why) => failed.lock().unwrap().push(why),
                        }
                    }
                    Ok::<(), anyhow::Error>(())
                })
            })
            .collect();
        let mut killing = || -> Result<()> {
            for round in 0..kills {
                wait(Duration::from_millis(500 + random.below(2500)));
                let pause = Duration::from_millis(random.below(2000));
                let some = usize::try_from(random.below(2))?;
                let site = sites.get_mut(some).context("no such node")?;
                match round % 4 {
                    0 => {
                        site.home.stop(Signal::SIGKILL)?;
                        wait(pause);
                        site.home.start(arguments)?;
                    }
                    1 => scheduling.replace_extender(pause)?,
                    2 => {
                        cluster.server().kill()?;
                        wait(pause);
                        cluster.server().start_again()?;
                        cluster.wait_served()?;
                        // After some such kills its watches would wait for up to a minute, and no pod would be scheduled until then.
                        scheduling.replace_kube_scheduler()?;
                    }
                    _ => {
                        site.node.stop_kubelet(Signal::SIGKILL)?;
                        wait(pause);
                        site.node.start_kubelet()?;
                        site.node.wait_ready()?;
                    }
                }
                if workers
                    .iter()
                    .any(std::thread::ScopedJoinHandle::is_finished)
                {
                    bail!("a pod has gone wrong after {} kills", round + 1);
                }
            }
            Ok(())
        };
        let killed = killing();
        ended = Instant::now();
        is_over.store(true, Ordering::Release);
        for worker in workers {
            let ended = worker.join();
            ended.map_err(|_| anyhow!("a thread panicked"))??;
        }
        killed
    });
    outcome
        .with_context(|| scheduling.log())
        .with_context(|| space.state())?;
    let settled = ended.elapsed();
    until_free(&agents, "crowd").with_context(|| scheduling.log())?;
    let (grants, failed) = (grants.into_inner().unwrap(), failed.into_inner().unwrap());
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    println!(
        "half of the pods ran or failed within {:?}, all within {:?}",
        waits.get(waits.len() / 2),
        waits.last()
    );
    println!(
        "{} pods ran, {} failed: {failed:#?}; {kills} kills; all pods ended {settled:?} after the last",
        grants.len(),
        failed.len()
    );
    crowds(&grants, 1)?;
    ensure!(grants.len() > kills, "{} pods ran", grants.len());
    // These pods got nothing: their kubelet had no agent, the agent could not read the reservation, or containerd stopped the start of a container when
    // the kubelet that had asked for it was killed.
    let is_refused = |why: &&String| {
        let texts = [
            "no healthy devices present",
            "no pod that the kubelet admits",
            "EOF",
            "connection",
            "code = Unavailable",
            r#"context canceled","reason":"StartError""#,
        ];
        texts.iter().any(|text| why.contains(text))
    };
    let others: Vec<_> = failed.iter().filter(|why| !is_refused(why)).collect();
    ensure!(others.is_empty(), "{others:#?}");
    Ok(())
}

/// Runs one pod from its creation to its end; the inner error is the reason of its failure. Adds to `waits` the time from its creation until it ran
/// or failed.
fn one(
    cluster: &Cluster,
    space: &Namespace<'_>,
    (name, pod): (&str, &Pod),
    random: &mut Random,
    waits: &Mutex<Vec<Duration>>,
) -> Result<Result<Grant, String>> {
    within(PATIENCE, &format!("{name} is made"), || {
        match space.create(pod) {
            // A killed API server may have created it.
            Err(error) if !format!("{error:#}").contains("AlreadyExists") => Err(error),
            _ => Ok(()),
        }
    })?;
    let created = Instant::now();
    let (node, failed) = within(PATIENCE, &format!("{name} runs"), || {
        let pod = space.pod(name)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        let why = match status["phase"].as_str() {
            Some("Running") => None,
            Some("Failed") => Some(format!(
                "{name}: {}: {} {}",
                text(&status["reason"]),
                text(&status["message"]),
                status["containerStatuses"][0]["state"]
            )),
            other => bail!("it is {other:?}: {:#}", status["conditions"]),
        };
        Ok((text(&pod["spec"]["nodeName"]), why))
    })?;
    waits.lock().unwrap().push(created.elapsed());
    let grant = match failed {
        Some(why) => Err(why),
        None => {
            let (_, instances) = within(PATIENCE, &format!("{name} has what was chosen"), || {
                given(cluster, space, name)
            })?;
            let from = Instant::now();
            wait(Duration::from_millis(300 + random.below(2500)));
            Ok(Grant {
                slot: instances.first().cloned().unwrap_or_default(),
                node,
                from,
                until: Instant::now(),
            })
        }
    };
    let path = format!("{}/{name}?gracePeriodSeconds=1", space.collection("pods"));
    within(PATIENCE, &format!("{name} is gone"), || {
        match space.pod(name) {
            Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
            Ok(pod) if pod["metadata"]["deletionTimestamp"].is_null() => {
                cluster.api().delete(&path)?;
                bail!("it is deleted")
            }
            Ok(_) => bail!("it is there"),
            Err(error) => Err(error),
        }
    })?;
    Ok(grant)
}
