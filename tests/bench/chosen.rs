//! Cost of a scheduler that chooses devices by the descriptions of pods, on a node with a real kubelet.
//!
//! The time of an Allocate's answer is in the agent's log. That log, the API server's audit log and the watches share one clock.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use k8s_openapi::jiff::Timestamp;
use leafhost_tests::accounts::{account, rights, token};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{Cluster, Namespace, Node, Pod, Timed};
use leafhost_tests::scheduling::{
    AGENT, ALLOCATED, DEVICES, LOCKED, Scheduling, exactly, indices, of, values,
};
use leafhost_tests::wait::{pass, within};
use serde_json::{Value, json};

use crate::histogram::Histogram;
use crate::joined::{agent, collection, instances, seconds, until_instances};
use crate::scheduled::{METRICS, metrics};
use crate::statistics::{ms, quantile};
use crate::table::Line;

const CONFIGURATION: &str = "gpus";
const GPUS: usize = 10;
/// Number of rounds in which ten pods are created at once.
const ROUNDS: usize = 5;
/// Number of pods that are created one by one.
const TIMES: usize = 40;
/// Number of pods that wait for the end of another one.
const WAITS: usize = 5;
/// Time for which a pod has a device that another one waits for.
const LIVED: Duration = Duration::from_secs(6);
/// Time within which all writes that a pod causes are done.
const QUIET: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_mins(2);

/// Agent that offers tickets and a scheduler, with the rights that the chart gives them.
struct Site {
    /// Namespace whose pods are deleted while the others run.
    space: Namespace<'static>,
    scheduling: Scheduling,
    home: Home,
    _rights: Rights,
    node: &'static Node,
    cluster: &'static Cluster,
    locks_nodes: bool,
}

/// Number of requests by verb and kind.
type Counts = BTreeMap<String, usize>;

/// Number of writes, by writer.
#[derive(Default)]
struct Written {
    extender: Counts,
    agent: Counts,
    events: usize,
}

/// Rights of the agent's account, removed when this is dropped.
struct Rights(&'static Cluster, String);

impl Drop for Rights {
    fn drop(&mut self) {
        let delete = ["delete", "--wait=false", "--filename", "-"];
        if let Err(error) = self.0.kubectl_with(&delete, &self.1) {
            eprintln!("the rights stay: {error:#}");
        }
    }
}

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let site = Site::start(cluster, false)?;
    let measured = site.lines();
    let mut lines = measured.with_context(|| site.scheduling.log())?;
    drop(site);
    let site = Site::start(cluster, true)?;
    let measured = site.first().and_then(|()| site.at_once());
    lines.push(measured.with_context(|| site.scheduling.log())?);
    Ok(lines)
}

impl Site {
    fn start(cluster: &'static Cluster, locks_nodes: bool) -> Result<Self> {
        let node = cluster.nodes().first().context("no node")?;
        let mut home = agent(cluster, node, &["mock-gpu"])?;
        let space = cluster.namespace("chosen")?;
        let arguments = if locks_nodes { &LOCKED[..] } else { &AGENT };
        let rights = rights(cluster, space.name(), values(arguments))?;
        let rights = Rights(cluster, rights);
        cluster.apply(&rights.1)?;
        home.write("kubeconfig", token(cluster, space.name(), node.name())?)?;
        let kubeconfig = home.path().join("kubeconfig");
        home.join(&kubeconfig);
        home.publish_in(&node.cdi());
        home.start(&[arguments, &["--metrics-listen", METRICS]].concat())?;
        let scheduling = Scheduling::start(cluster, space.name(), arguments)?;
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": CONFIGURATION},
            "spec": {"discoveryHandler": {"name": "mock-gpu", "discoveryDetails": format!("count: {GPUS}")}, "capacity": 1},
        });
        let all = collection(&space, "configurations");
        cluster.api().create(&all, &object)?;
        until_instances(cluster, &space, GPUS, &home)?;
        node.wait_allocatable(DEVICES, 64)?;
        Ok(Self {
            space,
            scheduling,
            home,
            _rights: rights,
            node,
            cluster,
            locks_nodes,
        })
    }

    /// Runs a pod, so that the costs of the first one are not measured.
    fn first(&self) -> Result<()> {
        self.space.run(&self.pod("first", &[0]))?;
        self.end(&["first".to_owned()])
    }

    fn lines(&self) -> Result<Vec<Line>> {
        self.first()?;
        let mut lines = vec![self.at_once()?];
        lines.extend(self.one_by_one()?);
        lines.push(self.writes()?);
        lines.push(self.freed()?);
        Ok(lines)
    }

    /// Returns a pod that asks for one device per index of `gpus`.
    fn pod(&self, name: &str, gpus: &[usize]) -> Pod {
        let requests = json!([exactly("gpus", of("", CONFIGURATION, gpus.len(), gpus))]);
        self.scheduling.pod(name, Some(self.node), &requests)
    }

    /// Runs pods that are created at once, each with a GPU of its own.
    fn at_once(&self) -> Result<Line> {
        let (mut allocated, mut spread, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            let names: Vec<String> = (0..GPUS)
                .map(|index| format!("at-once-{round}-{index}"))
                .collect();
            let pods = names.iter().enumerate();
            let pods: Vec<Pod> = pods.map(|(index, name)| self.pod(name, &[index])).collect();
            let (moment, before) = (self.cluster.audit().now()?, self.served().len());
            let begun = Instant::now();
            std::thread::scope(|scope| {
                let each = pods.iter();
                let each: Vec<_> = each
                    .map(|pod| scope.spawn(|| self.space.create(pod)))
                    .collect();
                each.into_iter().try_for_each(|thread| {
                    let created = thread.join().map_err(|_| anyhow!("a thread panicked"));
                    created?.map(drop)
                })
            })?;
            let last = within(TIMEOUT, "all are allocated", || {
                let served = self.served();
                let own = served.get(before..).unwrap_or_default();
                ensure!(own.len() == GPUS, "{} of {GPUS}", own.len());
                let last = own.iter().map(|(time, _)| time.clone()).max();
                last.context("none")
            })?;
            for name in &names {
                self.space.wait_running(name)?;
            }
            running.push(begun.elapsed());
            for (index, name) in names.iter().enumerate() {
                let log = self.space.wait_logs(name, "main", "PATH=")?;
                let has = indices(&log);
                ensure!(has == [index].into(), "{name} has {has:?}");
            }
            let log = self.cluster.audit().timed(moment)?;
            let created = log.iter().filter(|one| {
                one.request.verb == "create"
                    && one.request.resource == "pods"
                    && one.request.namespace == self.space.name()
            });
            let created: BTreeSet<&String> = created.map(|one| &one.received).collect();
            let (first, youngest) = (created.first(), created.last());
            let first = first.context("none was created")?;
            allocated.push(between(first, &last)?);
            spread.push(between(first, youngest.context("none was created")?)?);
            self.end(&names)?;
        }
        let failed = self.refused("at-once-")?;
        allocated.sort();
        spread.sort();
        running.sort();
        let how = if self.locks_nodes {
            "the same with `--node-lock`".to_owned()
        } else {
            format!("{GPUS} pods at once on one node, each describes another GPU")
        };
        let pods = GPUS * ROUNDS;
        Ok(Line {
            what: format!(
                "{how}: first created → all Allocates answered, median of {ROUNDS} / pods of {pods} that found no node at first"
            ),
            value: format!("{} / {failed}", seconds(quantile(&allocated, 0.5))),
            target: if self.locks_nodes {
                "– / 0"
            } else {
                "≤ 1.2 s / 0"
            }
            .into(),
            reference: format!(
                "worst {}; the last was created after {}, all run: median {}",
                seconds(quantile(&allocated, 1.0)),
                ms(quantile(&spread, 0.5)),
                seconds(quantile(&running, 0.5))
            ),
        })
    }

    /// Counts the pods with this prefix for which the scheduler reported a failure of Filter or Bind.
    fn refused(&self, prefix: &str) -> Result<usize> {
        let list = self.cluster.get(&self.space.collection("events"))?;
        let events = list.get("items").and_then(Value::as_array);
        let failed = events.context("no items")?.iter().filter_map(|event| {
            let is_failure = event.get("reason") == Some(&json!("FailedScheduling"));
            let name = event.pointer("/involvedObject/name")?.as_str()?;
            (is_failure && name.starts_with(prefix)).then_some(name)
        });
        Ok(failed.collect::<BTreeSet<_>>().len())
    }

    /// Runs one pod after the other.
    fn one_by_one(&self) -> Result<[Line; 3]> {
        let (mut all, mut bindings) = (Vec::new(), Vec::new());
        let mut inside = Counts::new();
        let (earlier, binds) = (self.allocations()?, calls(&self.scheduling, "bind")?);
        for number in 0..TIMES {
            let name = format!("one-{number}");
            let (moment, before) = (self.cluster.audit().now()?, self.allocations()?);
            self.space.run(&self.pod(&name, &[number % GPUS]))?;
            let took = self.allocations()?.since(&before);
            ensure!(
                (took.count() - 1.0).abs() < 0.5,
                "{} Allocates",
                took.count()
            );
            let uid = self.uid(&name)?;
            let served = self.served();
            let mut served = served.iter().filter(|(_, line)| line.contains(&uid));
            let (served, _) = served.next().context("the log has no Allocate")?;
            let log = self.cluster.audit().timed(moment)?;
            let instance = self.instance(&name)?;
            let reserved = self.of_scheduler(&log, ("patch", "instances", &instance))?;
            let bound = self.of_scheduler(&log, ("create", "pods/binding", &name))?;
            all.push(between(&reserved, served)?);
            bindings.push(between(&bound, served)?);
            let end: Timestamp = served.parse()?;
            let start = end.checked_sub(took.sum())?;
            for one in self
                .of_agent(&log)
                .filter(|one| one.request.verb != "watch")
            {
                let received: Timestamp = one.received.parse()?;
                if start <= received && received <= end {
                    let what = format!("{} {}", one.request.verb, one.request.resource);
                    *inside.entry(what).or_default() += 1;
                }
            }
            self.end(&[name])?;
        }
        let total = self.allocations()?;
        let alone = total.since(&earlier);
        let binds = calls(&self.scheduling, "bind")?.since(&binds);
        all.sort();
        bindings.sort();
        let requests: usize = inside.values().sum();
        Ok([
            Line {
                what: format!(
                    "Bind → Allocate answered, one pod at a time: its reservation arrives at the API server → the agent has answered, median / worst of {TIMES}"
                ),
                value: format!("{} / {}", ms(quantile(&all, 0.5)), ms(quantile(&all, 1.0))),
                target: "≤ 25 ms / –".into(),
                reference: format!(
                    "from when the Binding arrives {} / {}; Bind as the extender counts it: mean {}",
                    ms(quantile(&bindings, 0.5)),
                    ms(quantile(&bindings, 1.0)),
                    ms(binds.mean())
                ),
            },
            Line {
                what: "Allocate of a ticket: mean / p99, by the buckets of the agent's metrics"
                    .into(),
                value: format!("{} / {}", ms(total.mean()), total.quantile(0.99)),
                target: "– / ≤ 10 ms".into(),
                reference: format!(
                    "{} in sum; one by one mean {}, p99 {}",
                    total.count(),
                    ms(alone.mean()),
                    alone.quantile(0.99)
                ),
            },
            Line {
                what: format!(
                    "requests of the agent to the API server from the start of an Allocate to its answer, {TIMES} Allocates"
                ),
                value: requests.to_string(),
                target: "0".into(),
                reference: format!("of those in the audit log, but for watches; {inside:?}"),
            },
        ])
    }

    /// Counts the writes of extender and agent for one pod.
    fn writes(&self) -> Result<Line> {
        let gpus = [0, 1];
        let moment = self.cluster.audit().now()?;
        self.space.run(&self.pod("writes", &gpus))?;
        pass(QUIET)?;
        let start = self.written(moment)?;
        let moment = self.cluster.audit().now()?;
        self.end(&["writes".to_owned()])?;
        pass(QUIET)?;
        let end = self.written(moment)?;
        let sum = |of: &Counts| of.values().sum::<usize>();
        Ok(Line {
            what: format!(
                "writes for a pod with {} devices until it runs and after its end: of the extender / of the agent",
                gpus.len()
            ),
            value: format!(
                "{} / {}",
                sum(&start.extender) + sum(&end.extender),
                sum(&start.agent) + sum(&end.agent)
            ),
            target: format!("≤ {} / –", gpus.len() + 1),
            reference: format!(
                "{:?} and {:?} / {:?} and {:?}; Events apart, with those of kube-scheduler: {}",
                start.extender,
                end.extender,
                start.agent,
                end.agent,
                start.events + end.events
            ),
        })
    }

    /// Counts writes since `moment`. Those of the extender's account are its own except for Events: the audit log has nothing else that
    /// kube-scheduler writes with it.
    fn written(&self, moment: u64) -> Result<Written> {
        let (agent, scheduler) = (self.agent(), self.scheduling.user());
        let mut written = Written::default();
        for (request, count) in self.cluster.audit().since(moment)? {
            let counts = if request.user == agent {
                &mut written.agent
            } else if request.user == scheduler {
                &mut written.extender
            } else {
                continue;
            };
            if request.resource == "events" {
                written.events += count;
            } else if request.is_write() {
                let what = format!("{} {}", request.verb, request.resource);
                *counts.entry(what).or_default() += count;
            }
        }
        Ok(written)
    }

    /// Measures the time that a pod waits for a device after that became free.
    fn freed(&self) -> Result<Line> {
        let (api, pods) = (self.cluster.api(), self.space.collection("pods"));
        let all = collection(&self.space, "instances");
        let (mut after_free, mut after_request) = (Vec::new(), Vec::new());
        for number in 0..WAITS {
            let (holder, waiting) = (format!("holder-{number}"), format!("waiting-{number}"));
            self.space.run(&self.pod(&holder, &[0]))?;
            self.space.create(&self.pod(&waiting, &[0]))?;
            self.space.wait_unschedulable(&waiting)?;
            pass(LIVED)?;
            let (instance, uid) = (self.instance(&holder)?, self.uid(&holder)?);
            let own = format!("P:{uid}:");
            let requested = Instant::now();
            let (free, bound) = std::thread::scope(|scope| {
                let free = scope.spawn(|| {
                    api.watch(&all, &instance, |_, object| {
                        let usage = object.pointer("/spec/deviceUsage");
                        let usage = usage.context("no usage")?.to_string();
                        ensure!(!usage.contains(&own), "{usage}");
                        Ok(Instant::now())
                    })
                });
                let bound = scope.spawn(|| {
                    self.space.until(&waiting, "it is bound", |pod| {
                        let node = pod.pointer("/spec/nodeName");
                        node.context("it is not").map(|_| Instant::now())
                    })
                });
                let deleted = api.delete(&format!("{pods}/{holder}?gracePeriodSeconds=1"));
                let panicked = || anyhow!("a watch panicked");
                let free = free.join().map_err(|_| panicked());
                let bound = bound.join().map_err(|_| panicked());
                deleted.and_then(|_| Ok((free??, bound??)))
            })?;
            after_free.push(bound.saturating_duration_since(free));
            after_request.push(bound.saturating_duration_since(requested));
            self.space.wait_running(&waiting)?;
            self.end(&[waiting])?;
        }
        after_free.sort();
        after_request.sort();
        Ok(Line {
            what: format!(
                "a device becomes free in its Instance → the pod that waits for it is bound, median / worst of {WAITS}"
            ),
            value: format!(
                "{} / {}",
                seconds(quantile(&after_free, 0.5)),
                seconds(quantile(&after_free, 1.0))
            ),
            target: "– / ≤ 2 s".into(),
            reference: format!(
                "it has waited for {} s; after the request to delete the pod that had it: median {}, worst {}",
                LIVED.as_secs(),
                seconds(quantile(&after_request, 0.5)),
                seconds(quantile(&after_request, 1.0))
            ),
        })
    }

    /// Deletes pods and waits until all slots are free.
    fn end(&self, names: &[String]) -> Result<()> {
        for name in names {
            self.space.delete(name)?;
        }
        within(TIMEOUT, "all slots are free", || {
            for instance in instances(self.cluster, &self.space)? {
                let usage = instance.pointer("/spec/deviceUsage");
                let used = usage.and_then(Value::as_object).into_iter().flatten();
                let used: Vec<_> = used.filter(|(_, by)| **by != json!("")).collect();
                ensure!(used.is_empty(), "{used:?}");
            }
            Ok(())
        })
    }

    /// Returns the lines of the agent's log about answered Allocates, with their times.
    fn served(&self) -> Vec<(String, String)> {
        let log = self.home.log();
        let lines = log
            .lines()
            .filter(|line| line.contains("allocated the devices that a scheduler has reserved"));
        lines
            .filter_map(|line| Some((line.split_whitespace().next()?.to_owned(), line.to_owned())))
            .collect()
    }

    fn allocations(&self) -> Result<Histogram> {
        Histogram::read(&metrics(self.node)?, "leafhost_allocation_seconds", "")
    }

    fn uid(&self, pod: &str) -> Result<String> {
        let pod = self.space.pod(pod)?;
        let uid = pod.pointer("/metadata/uid").and_then(Value::as_str);
        Ok(uid.context("no uid")?.to_owned())
    }

    /// Returns the only Instance that a pod was given.
    fn instance(&self, pod: &str) -> Result<String> {
        let pod = self.space.pod(pod)?;
        let given = pod.pointer("/metadata/annotations");
        let given = given.and_then(|all| all.get(ALLOCATED)?.as_str());
        let given: BTreeMap<String, Vec<String>> =
            serde_json::from_str(given.context("nothing is allocated")?)?;
        let mut all = given.into_values().flatten();
        all.next().context("no Instance")
    }

    /// Returns the user name of the agent.
    fn agent(&self) -> String {
        let space = self.space.name();
        format!("system:serviceaccount:{space}:{}", account(space))
    }

    fn of_agent<'l>(&self, log: &'l [Timed]) -> impl Iterator<Item = &'l Timed> {
        let agent = self.agent();
        log.iter().filter(move |one| one.request.user == agent)
    }

    /// Returns the time at which the API server received the first successful request of the extender with this verb, resource and name.
    fn of_scheduler(
        &self,
        log: &[Timed],
        (verb, resource, name): (&str, &str, &str),
    ) -> Result<String> {
        let user = self.scheduling.user();
        let own = log.iter().filter(|one| {
            let request = &one.request;
            let is_it =
                request.verb == verb && request.resource == resource && request.name == name;
            is_it && request.user == user && request.code < 300
        });
        let first = own.map(|one| one.received.clone()).min();
        first.with_context(|| format!("the audit log has no {verb} of {resource}/{name}"))
    }
}

/// Returns the histogram of the extender's calls of a verb.
pub fn calls(scheduling: &Scheduling, verb: &str) -> Result<Histogram> {
    let url = format!("http://{}/metrics", scheduling.address());
    let text = ureq::get(&url).call()?.body_mut().read_to_string()?;
    let name = "leafhost_scheduler_call_seconds";
    Histogram::read(&text, name, &format!("verb=\"{verb}\""))
}

/// Returns the time between two times in logs of this machine.
pub fn between(from: &str, to: &str) -> Result<Duration> {
    let (from, to): (Timestamp, Timestamp) = (from.parse()?, to.parse()?);
    let time = to.duration_since(from);
    Duration::try_from(time).with_context(|| format!("{to} is before {from}"))
}
