//! Pods that describe their devices, while agents, kubelets and the extender of their scheduler are killed: each has what was chosen for it, and no
//! device is given twice or lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use leafhost_tests::cluster::{self, Cluster, Namespace, Pod};
use leafhost_tests::contest::{Grant, crowds};
use leafhost_tests::random::{self, Random};
use leafhost_tests::scheduling::{AGENT, exactly, of, wait};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::scheduled::{given, start, until_free};

/// Bounds how long a pod may take to run, and to be gone, while everything is being killed.
const PATIENCE: Duration = Duration::from_mins(3);
/// How many pods are there at a time.
const CROWD: usize = 14;

#[test]
fn pods_get_what_was_chosen_for_them_while_everything_is_killed() -> Result<()> {
    kills("scheduled-kills", 30, 2036)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_pods_get_what_was_chosen_for_them_while_everything_is_killed() -> Result<()> {
    kills("scheduled-soak", random::rounds(400), random::seed()?)
}

/// Lets so many pods come and go, while agents, kubelets and the extender are killed at moments that the seed says.
fn kills(name: &str, pods: usize, seed: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut random = Random::new(seed);
    let (mut agents, mut scheduling) = start(cluster, name, "crowd", &AGENT)?;
    let (left, is_over) = (AtomicUsize::new(pods), AtomicBool::new(false));
    let (grants, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let any = json!([exactly("gpu", of("", "crowd", 1, &[0, 1, 2, 3, 4]))]);
    let template = |name: &str| scheduling.pod(name, None, &any);
    let pods_of: Vec<Vec<(String, Pod)>> = (0..CROWD)
        .map(|worker| {
            let rounds = (0..pods).map(|round| format!("pod-{worker}-{round}"));
            rounds.map(|name| (name.clone(), template(&name))).collect()
        })
        .collect();
    let space = &agents.space;
    let sites = &mut agents.sites;
    let mut happened = 0;
    let outcome = std::thread::scope(|scope| {
        let workers: Vec<_> = pods_of
            .iter()
            .map(|own| {
                let (mut random, left, is_over) = (random.split(), &left, &is_over);
                let (grants, failed) = (&grants, &failed);
                scope.spawn(move || {
                    for (name, pod) in own {
                        let taken =
                            left.fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                                left.checked_sub(1)
                            });
                        if taken.is_err() || is_over.load(Ordering::Acquire) {
                            break;
                        }
                        match one(cluster, space, (name, pod), &mut random)? {
                            Ok(grant) => grants.lock().unwrap().push(grant),
                            Err(why) => failed.lock().unwrap().push(why),
                        }
                    }
                    Ok::<(), anyhow::Error>(())
                })
            })
            .collect();
        let mut killing = || -> Result<()> {
            for round in 0.. {
                if left.load(Ordering::Acquire) == 0 {
                    break;
                }
                wait(Duration::from_millis(1000 + random.below(3000)));
                let pause = Duration::from_millis(random.below(3000));
                let some = usize::try_from(random.below(2))?;
                let site = sites.get_mut(some).context("no such node")?;
                match round % 3 {
                    0 => {
                        site.home.stop(Signal::SIGKILL)?;
                        wait(pause);
                        site.home.start(&AGENT)?;
                    }
                    1 => scheduling.replace_extender(pause)?,
                    _ => {
                        site.node.stop_kubelet(Signal::SIGKILL)?;
                        wait(pause);
                        site.node.start_kubelet()?;
                        site.node.wait_ready()?;
                    }
                }
                happened = round + 1;
            }
            Ok(())
        };
        let killed = killing();
        is_over.store(killed.is_err(), Ordering::Release);
        for worker in workers {
            let ended = worker.join();
            ended.map_err(|_| anyhow!("a thread panicked"))??;
        }
        killed
    });
    outcome
        .with_context(|| scheduling.log())
        .with_context(|| space.state())?;
    until_free(&agents, "crowd")?;
    let (grants, failed) = (grants.into_inner().unwrap(), failed.into_inner().unwrap());
    println!(
        "{} pods ran, {} failed: {failed:#?}; {happened} kills",
        grants.len(),
        failed.len()
    );
    crowds(&grants, 1)?;
    ensure!(grants.len() + failed.len() == pods);
    // While an agent is away, the kubelet fails pods that come: nothing was given to them.
    ensure!(failed.len() * 3 < pods, "{failed:#?}");
    Ok(())
}

/// One pod from its beginning to its end; the inner error says why it has failed.
fn one(
    cluster: &Cluster,
    space: &Namespace<'_>,
    (name, pod): (&str, &Pod),
    random: &mut Random,
) -> Result<Result<Grant, String>> {
    space.create(pod)?;
    let (node, failed) = within(PATIENCE, &format!("{name} runs"), || {
        let pod = space.pod(name)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let status = &pod["status"];
        let why = match status["phase"].as_str() {
            Some("Running") => None,
            Some("Failed") => Some(format!(
                "{name}: {}: {}",
                text(&status["reason"]),
                text(&status["message"])
            )),
            other => bail!("it is {other:?}: {:#}", status["conditions"]),
        };
        Ok((text(&pod["spec"]["nodeName"]), why))
    })?;
    let grant = match failed {
        Some(why) => Err(why),
        None => {
            let (_, instances) = given(cluster, space, name)?;
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
    cluster.api().delete(&path)?;
    within(PATIENCE, &format!("{name} is gone"), || {
        match space.pod(name) {
            Err(error) if format!("{error:#}").contains("NotFound") => Ok(()),
            other => {
                other?;
                bail!("it is there")
            }
        }
    })?;
    Ok(grant)
}
