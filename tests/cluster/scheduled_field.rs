//! Failures of other device schedulers, shown not to happen here: a pod that disappears at a bad moment blocks no other pod.
//!
//! | failure elsewhere | tests that show it does not happen here |
//! |---|---|
//! | F1: a pod deleted before its Allocate leaves a lock, and all pods of the node wait | [`deleted_before_admission`], [`gone_while_nobody_looks`] |
//! | F2: the object of a pod that has ended or was rejected remains, and so does the lock | [`ended_and_kept`], [`gone_while_nobody_looks`] |
//! | F3: a lock expires while its pod still waits, and the next pod gets its devices | [`behind_a_kubelet`]; unit `what_is_reserved_is_over_with_its_pod_and_never_by_age_alone` |
//! | F4: a pod frees the devices of another one whose name has the same prefix | `scheduled_said::names` |
//! | F5: a pod with two kinds of devices waits for itself | `scheduled_said::kinds` |
//! | F6: two pods in which only init containers ask get the devices of one | `scheduled_said::init_containers_alone` |
//! | F7: a node trusts annotations that users write | `scheduled_said::forged`; `attacks` |
//! | F8: pods are admitted in another order than they were bound | [`behind_a_kubelet`], [`name_again`], `scheduled_crowd` |
//! | F9: containers are identified by position, and one that asks for nothing shifts the others | `scheduled_said::containers` |
//! | F10: the kubelet's IDs are other devices than those chosen | [`Field::has`], in all of these tests |
//! | F11: two replicas that choose at once choose the same device | `scheduled_twin::compete` |
//! | F12: Filter runs again and changes the choice for a bound pod | `scheduled_said::forged`; the annotation itself: `attacks` |
//! | F13: Bind fails, and the reservation remains | [`unbindable`]; unit `what_was_reserved_is_given_back_if_the_pod_surely_is_not_bound` |
//! | F14: a deleted pod stays in memory, and its node is full forever | [`gone_while_nobody_looks`] |
//! | F15: a second replica with an old cache allocates devices twice | `scheduled_twin::compete`; units `an_extender_that_starts_anew_goes_on_with_what_the_one_before_has_reserved`, `slots_of_pods_that_are_gone_come_back_and_an_old_cache_frees_none` |
//! | F16: the record of a live pod cannot be read, and its devices count as free | `scheduled_said::unreadable`; unit `a_kubelet_that_has_just_started_or_cannot_be_read_frees_nothing` |
//! | F17: a handshake between components is stuck until an administrator edits it | [`agent_killed`]; `scheduled_kills` |
//! | F18: a pod goes to a scheduler that chooses nothing, and fails on its node | `scheduled_said::refused` |
//! | F19: pods bound to a node at once wait for each other | `scheduled_crowd` |
//! | F20: only the first of a pod's two resources is decided | `scheduled_said::beside` |
//! | F21: a refused pod is retried minutes later | [`late_device`], [`unbindable`] |
//! | F22: a Bind that timed out has succeeded | unit `a_binding_of_which_nothing_was_heard_keeps_its_devices_until_it_cannot_land_any_more` |

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::scheduling::{AGENT, ALLOCATED, DEVICES, Scheduling, exactly, of};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::disturbances::Paused;
use crate::scheduled::{start, until_free};
use crate::scheduled_twin;

/// Upper bound for a pod to get a free device; other schedulers need minutes.
const SOON: Duration = Duration::from_secs(20);

/// Agents on two nodes and a scheduler, with GPUs of one Configuration.
pub struct Field {
    pub scheduling: Scheduling,
    pub agents: Agents,
    /// Name of the Configuration.
    pub gpus: String,
    /// Arguments of the agents.
    arguments: &'static [&'static str],
}

impl Field {
    pub fn start(
        cluster: &'static Cluster,
        name: &str,
        gpus: &str,
        arguments: &'static [&'static str],
    ) -> Result<Self> {
        let (agents, scheduling) = start(cluster, name, gpus, arguments)?;
        Ok(Self {
            scheduling,
            agents,
            gpus: gpus.to_owned(),
            arguments,
        })
    }

    /// Gives each node `count` GPUs.
    pub fn grow(&self, count: usize) -> Result<()> {
        let object = json!({
            "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": self.gpus, "namespace": self.space().name()},
            "spec": {"discoveryHandler": {"name": "mock-gpu", "discoveryDetails": format!("count: {count}")}, "capacity": 1},
        });
        self.agents.cluster.apply(&object.to_string())?;
        eventually("both nodes have their GPUs", || {
            let found = self.agents.instances(&self.gpus)?.len();
            ensure!(found == 2 * count, "{found} GPUs");
            Ok(())
        })
        .with_context(|| self.space().state())
    }

    pub fn space(&self) -> &Namespace<'static> {
        &self.agents.space
    }

    /// Returns the first node, on which all pods except the crowds run.
    pub fn node(&self) -> &'static Node {
        self.agents.sites[0].node
    }

    /// Returns requests for one of these GPUs.
    pub fn one(&self, indices: &[usize]) -> Value {
        self.some(1, indices)
    }

    /// Returns requests for `count` of these GPUs.
    pub fn some(&self, count: usize, indices: &[usize]) -> Value {
        json!({"requests": [exactly("gpu", of("", &self.gpus, count, indices))]})
    }

    /// Returns a pod for the first node with these init containers and containers; `says` is its annotation of devices.
    pub fn pod(&self, name: &str, containers: [&[Container]; 2], says: &Value) -> Pod {
        let [init, containers] = containers;
        let pod = Pod::new(name, containers).init(init).on(self.node());
        let pod = pod.annotated(DEVICES, &says.to_string());
        pod.with("schedulerName", json!(self.space().name()))
    }

    /// Returns a pod for the first node with one container that asks for this GPU.
    pub fn gpu(&self, name: &str, index: usize) -> Pod {
        let says = json!({"main": self.one(&[index])});
        self.pod(name, [&[], &[asks("main")]], &says)
    }

    /// Waits until a pod is bound.
    pub fn bound(&self, pod: &str) -> Result<()> {
        let is_bound = |object: &Value| {
            let node = object["spec"]["nodeName"].as_str();
            node.map(drop).context("it is not bound")
        };
        let bound = self.space().until(pod, "it is bound", is_bound);
        bound.with_context(|| self.scheduling.log())
    }

    /// Waits until a pod runs; checks that it has this GPU and no other.
    pub fn runs(&self, pod: &str, index: usize) -> Result<()> {
        self.running(pod)?;
        let has = self.has(self.space(), pod)?;
        let own = has.get("main").cloned().unwrap_or_default();
        ensure!(own == [index].into(), "{pod} has {own:?}, not {index}");
        Ok(())
    }

    /// Waits until a pod runs.
    pub fn running(&self, pod: &str) -> Result<()> {
        let running = self.space().wait_running(pod);
        running
            .map(drop)
            .with_context(|| self.scheduling.log())
            .with_context(|| self.used())
    }

    /// Returns the slots in use, and their holders in the agents' status.
    fn used(&self) -> String {
        let mut lines = Vec::new();
        for instance in self.agents.instances(&self.gpus).unwrap_or_default() {
            let usage = instance["spec"]["deviceUsage"].as_object();
            if usage.is_some_and(|usage| usage.values().any(|user| user != "")) {
                let (name, status) = (&instance["metadata"]["name"], &instance["status"]);
                lines.push(format!("{name}: {usage:?}, {status}"));
            }
        }
        lines.join("\n")
    }

    /// Waits until a pod runs or has ended; returns its phase and the reason.
    pub fn outcome(&self, pod: &str) -> Result<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let outcome = self.space().until(pod, "it runs or has ended", |object| {
            let status = &object["status"];
            let phase = text(&status["phase"]);
            ensure!(phase != "Pending", "it is {phase}");
            let why = format!("{}: {}", text(&status["reason"]), text(&status["message"]));
            Ok((phase, why))
        });
        outcome.with_context(|| self.scheduling.log())
    }

    /// Checks that each container of a pod has, by its variables, the GPUs that the scheduler has chosen, and that they are reserved for the pod.
    /// Returns their indices by container.
    pub fn has(
        &self,
        space: &Namespace<'_>,
        name: &str,
    ) -> Result<BTreeMap<String, BTreeSet<usize>>> {
        let pod = space.pod(name)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (uid, node) = (
            text(&pod["metadata"]["uid"]),
            text(&pod["spec"]["nodeName"]),
        );
        let said = text(&pod["metadata"]["annotations"][ALLOCATED]);
        let chosen: BTreeMap<String, Vec<String>> = serde_json::from_str(&said)
            .with_context(|| format!("{name} says {said:?} of what it was given"))?;
        let instances = self.agents.instances(&self.gpus)?;
        let mut all = BTreeMap::new();
        for (kind, is_app) in [("initContainers", false), ("containers", true)] {
            for container in pod["spec"][kind].as_array().into_iter().flatten() {
                let container = text(&container["name"]);
                let log = space.wait_logs(name, &container, "PATH=")?;
                let (mut expected, mut indices) = (BTreeSet::new(), BTreeSet::new());
                for instance in chosen.get(&container).into_iter().flatten() {
                    let mut own = instances.iter();
                    // The container may have devices of other Configurations.
                    let Some(object) = own.find(|one| one["metadata"]["name"] == **instance) else {
                        continue;
                    };
                    let spec = &object["spec"];
                    let mut users = spec["deviceUsage"].as_object().into_iter().flatten();
                    let holder = format!("P:{uid}:{node}");
                    ensure!(
                        !is_app || users.any(|(_, user)| *user == *holder),
                        "{name}, {holder}, has not reserved {instance}: {:#}",
                        spec["deviceUsage"]
                    );
                    ensure!(spec["nodes"] == json!([node]), "{name} on {node}: {spec:#}");
                    let attributes = &spec["leafhost"]["attributes"];
                    expected.insert(text(&attributes["uuid"]["string"]));
                    let index = attributes["index"]["int"].as_u64().context("no index")?;
                    indices.insert(usize::try_from(index)?);
                }
                let has = variables(&log, "MOCK_GPU_UUID_");
                ensure!(
                    has == expected,
                    "container {container} of {name} has {has:?}, chosen are {expected:?} of {said}\n{log}\n{}",
                    self.scheduling.log()
                );
                all.insert(container, indices);
            }
        }
        Ok(all)
    }

    /// Waits until no pod has this GPU of the first node.
    pub fn until_unused(&self, index: usize) -> Result<()> {
        eventually("the device is free", || {
            for instance in self.agents.instances(&self.gpus)? {
                let spec = &instance["spec"];
                if spec["nodes"] == json!([self.node().name()])
                    && spec["leafhost"]["attributes"]["index"]["int"] == index
                {
                    let users = spec["deviceUsage"].as_object().into_iter().flatten();
                    let users: Vec<_> = users.filter(|(_, user)| *user != "").collect();
                    ensure!(users.is_empty(), "{users:?}");
                    return Ok(());
                }
            }
            anyhow::bail!("there is no such device")
        })
        .with_context(|| self.scheduling.log())
        .with_context(|| self.space().state())
    }

    /// Deletes all pods at once, and waits until they are gone and all slots are free.
    pub fn clear(&self) -> Result<()> {
        let pods = self.space().collection("pods");
        let api = self.agents.cluster.api();
        api.delete(&format!("{pods}?gracePeriodSeconds=1"))?;
        eventually("the pods are gone", || {
            let list = self.agents.cluster.get(&pods)?;
            let left = list["items"].as_array().map_or(0, Vec::len);
            ensure!(left == 0, "{left} are there");
            Ok(())
        })
        .with_context(|| self.space().state())?;
        until_free(&self.agents, &self.gpus)?;
        until_free(&self.agents, "steady")
    }
}

/// Returns a container that asks for devices.
pub fn asks(name: &str) -> Container {
    Container::new(name).device(DEVICES, 1)
}

/// Returns the values of a container's variables whose names have this prefix.
pub fn variables(log: &str, prefix: &str) -> BTreeSet<String> {
    let lines = log.lines().filter_map(|line| line.split_once('='));
    let own = lines.filter(|(name, _)| name.starts_with(prefix));
    own.map(|(_, value)| value.trim_matches('\'').to_owned())
        .collect()
}

/// Prints the time since `since` and checks that it is less than `SOON`.
pub fn soon(what: &str, since: Instant) -> Result<()> {
    let took = since.elapsed();
    println!("{what} {took:?} after");
    ensure!(took < SOON, "{what} only {took:?} after");
    Ok(())
}

#[test]
fn pods_that_go_in_between_hold_up_no_other() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut field = Field::start(cluster, "scheduled-field", "field", &AGENT)?;
    late_device(&field)?;
    behind_a_kubelet(&field)?;
    deleted_before_admission(&field)?;
    ended_and_kept(&field)?;
    unbindable(&field)?;
    name_again(&field)?;
    scheduled_twin::compete(&field)?;
    agent_killed(&mut field)?;
    gone_while_nobody_looks(&mut field)
}

/// Checks F21: a pod for which no node has a device runs once there is one.
fn late_device(field: &Field) -> Result<()> {
    field.space().create(&field.gpu("early", 19))?;
    field.space().wait_unschedulable("early")?;
    let begun = Instant::now();
    field.grow(20)?;
    field.runs("early", 19)?;
    soon("F21: a refused pod runs, its device being found,", begun)?;
    field.clear()
}

/// Checks F3 and F8: pods that were bound while their kubelet was stopped each get their own devices, in any order of admission, and however long the
/// stop took.
fn behind_a_kubelet(field: &Field) -> Result<()> {
    let paused = Paused::new(field.node())?;
    // Bound in another order than that of their names and devices.
    let numbers: Vec<usize> = (0..20).map(|number| number * 7 % 20).collect();
    let begun = Instant::now();
    for number in &numbers {
        let pod = field.gpu(&format!("behind-{number}"), *number);
        field.space().create(&pod)?;
    }
    for number in &numbers {
        field.bound(&format!("behind-{number}"))?;
    }
    println!(
        "F19: 20 pods are bound to a node {:?} after",
        begun.elapsed()
    );
    drop(paused);
    let begun = Instant::now();
    for number in &numbers {
        field.runs(&format!("behind-{number}"), *number)?;
    }
    println!(
        "F3, F8: 20 pods run with their own {:?} after",
        begun.elapsed()
    );
    field.clear()
}

/// Checks F1: the reservation of a pod that is deleted before its kubelet has seen it is released, and only the next pod gets the device.
fn deleted_before_admission(field: &Field) -> Result<()> {
    let space = field.space();
    let paused = Paused::new(field.node())?;
    space.create(&field.gpu("gone", 0))?;
    field.bound("gone")?;
    space.create(&field.gpu("next", 0))?;
    space.wait_unschedulable("next")?;
    space.delete_now("gone")?;
    let begun = Instant::now();
    field.bound("next")?;
    soon(
        "F1: the next pod is bound, another one being deleted,",
        begun,
    )?;
    drop(paused);
    let begun = Instant::now();
    field.runs("next", 0)?;
    soon("F1: it runs, the kubelet going on,", begun)?;
    field.clear()
}

/// Checks F2: pods that have ended release their devices while their objects remain.
pub fn ended_and_kept(field: &Field) -> Result<()> {
    let space = field.space();
    let says = |index: usize| json!({"main": field.one(&[index])});
    let done = field.pod("done", [&[], &[asks("main").script("env")]], &says(0));
    let late = field.gpu("late", 1);
    space.create(&done)?;
    space.create(&late.with("activeDeadlineSeconds", json!(1)))?;
    for (index, name, phase) in [(0, "done", "Succeeded"), (1, "late", "Failed")] {
        space
            .wait_phase(name, phase)
            .with_context(|| field.scheduling.log())?;
        let begun = Instant::now();
        let next = format!("after-{name}");
        space.create(&field.gpu(&next, index))?;
        field.runs(&next, index)?;
        soon(
            &format!("F2: the next pod runs, one that is {phase} still being there,"),
            begun,
        )?;
        space.pod(name).context("its object is to stay")?;
    }
    field.clear()
}

/// Checks F13: the reservation of a pod whose Binding is refused is released; the pod is bound once that is allowed.
pub fn unbindable(field: &Field) -> Result<()> {
    let (space, cluster) = (field.space(), field.agents.cluster);
    let name = format!("{}-unbindable", space.name());
    let of = |kind: &str, spec: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let policy = of(
        "ValidatingAdmissionPolicy",
        json!({
            "matchConstraints": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": space.name()}},
                "resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"]}]},
            "matchConditions": [{"name": "unbindable", "expression": "object.metadata.name.startsWith('unbindable')"}],
            "validations": [{"expression": "false", "message": "this pod is not to be bound"}],
        }),
    );
    let binding = of(
        "ValidatingAdmissionPolicyBinding",
        json!({"policyName": name, "validationActions": ["Deny"]}),
    );
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    cluster.apply(&both.to_string())?;
    // The pod does not exist: the policy is asked first.
    let probe = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "unbindable-probe"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": field.node().name()}});
    let path = format!("{}/unbindable-probe/binding", space.collection("pods"));
    eventually("the policy is in effect", || {
        let create = ["create", "--raw", &path, "--filename", "-"];
        let done = cluster.kubectl_with(&create, &probe.to_string());
        let error = done.err().context("it is bound")?.to_string();
        ensure!(error.contains("not to be bound"), "{error}");
        Ok(())
    })?;
    space.create(&field.gpu("unbindable", 2))?;
    eventually("the scheduler says that it cannot bind the pod", || {
        let list = cluster.get(&space.collection("events"))?;
        let mut all = list["items"].as_array().into_iter().flatten();
        let refused = all.any(|event| {
            event["reason"] == "DevicesRefused" && event["involvedObject"]["name"] == "unbindable"
        });
        ensure!(refused, "no event says so");
        Ok(())
    })
    .with_context(|| field.scheduling.log())
    .with_context(|| space.state())?;
    let begun = Instant::now();
    space.create(&field.gpu("next", 2))?;
    field.runs("next", 2)?;
    soon(
        "F13: the next pod runs, another one's Binding being refused,",
        begun,
    )?;
    let waiting = space.pod("unbindable")?;
    ensure!(waiting["spec"]["nodeName"].is_null(), "{waiting:#}");
    let kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy";
    cluster.kubectl(&["delete", kinds, &name])?;
    space.delete("next")?;
    let begun = Instant::now();
    field.runs("unbindable", 2)?;
    println!("F21: the refused one runs {:?} after", begun.elapsed());
    field.clear()
}

/// Checks F8: a pod with the name of a deleted one gets its own devices, or is refused; it never gets those of the other pod.
pub fn name_again(field: &Field) -> Result<()> {
    let space = field.space();
    // The first pod is still ending when the second one is created.
    space.create(&field.gpu("again", 0))?;
    field.runs("again", 0)?;
    space.delete_now("again")?;
    let begun = Instant::now();
    space.create(&field.gpu("again", 1))?;
    field.runs("again", 1)?;
    soon("F8: a pod of the same name runs with its own", begun)?;
    field.until_unused(0)?;
    space.delete("again")?;
    // The kubelet has seen neither.
    let paused = Paused::new(field.node())?;
    space.create(&field.gpu("again", 2))?;
    field.bound("again")?;
    space.delete_now("again")?;
    space.create(&field.gpu("again", 3))?;
    field.bound("again")?;
    drop(paused);
    let begun = Instant::now();
    let (phase, why) = field.outcome("again")?;
    println!(
        "F8: a pod of the same name is {phase} {:?} after: {why}",
        begun.elapsed()
    );
    if phase == "Failed" {
        // The kubelet does not distinguish the two, so it may have asked for the deleted one.
        ensure!(why.contains("no pod that the kubelet admits"), "{why}");
        space.delete("again")?;
        space.create(&field.gpu("again", 3))?;
    }
    field.runs("again", 3)?;
    field.clear()
}

/// Checks F17: after a kill of the agent nothing is left for an administrator to repair.
pub fn agent_killed(field: &mut Field) -> Result<()> {
    let node = field.node();
    let before = node.heartbeat()?;
    let home = &mut field.agents.sites[0].home;
    home.stop(Signal::SIGKILL)?;
    let begun = Instant::now();
    home.start(field.arguments)?;
    field.agents.sites[0].until_listed()?;
    node.wait_allocatable_after(before.as_deref(), DEVICES, 64)?;
    field.space().create(&field.gpu("next", 0))?;
    field.runs("next", 0)?;
    soon("F17: the next pod runs, the agent being killed,", begun)?;
    field.clear()
}

/// Checks F1, F2 and F14: all devices of a node are reserved for pods that are deleted or rejected while kubelet and extender are down; afterwards
/// the next pods get them.
fn gone_while_nobody_looks(field: &mut Field) -> Result<()> {
    const LABEL: &str = "leafhost.dev/test-field";
    let node = field.node();
    field.grow(5)?;
    let cluster = field.agents.cluster;
    let label = |value: &str| {
        let label = format!("{LABEL}{value}");
        cluster.kubectl(&["label", "node", node.name(), &label, "--overwrite"])
    };
    label("=yes")?;
    node.stop_kubelet(Signal::SIGKILL)?;
    for index in 0..4 {
        let name = format!("gone-{index}");
        field.space().create(&field.gpu(&name, index))?;
    }
    let selector = json!({"kubernetes.io/hostname": node.name(), LABEL: "yes"});
    let rejected = field.gpu("rejected", 4).with("nodeSelector", selector);
    field.space().create(&rejected)?;
    for index in 0..4 {
        field.bound(&format!("gone-{index}"))?;
    }
    field.bound("rejected")?;
    // The kubelet will find that the pod's node selector no longer matches.
    label("-")?;
    let Field {
        scheduling, agents, ..
    } = field;
    std::thread::scope(|scope| {
        let space = &agents.space;
        let deleting = scope
            .spawn(move || (0..4).try_for_each(|index| space.delete_now(&format!("gone-{index}"))));
        scheduling.replace_extender(Duration::from_secs(1))?;
        let deleted = deleting.join();
        deleted.map_err(|_| anyhow::anyhow!("a thread panicked"))?
    })?;
    let deleted = Instant::now();
    let before = node.heartbeat()?;
    node.start_kubelet()?;
    node.wait_ready()?;
    node.wait_allocatable_after(before.as_deref(), DEVICES, 64)?;
    let (phase, why) = field.outcome("rejected")?;
    println!("F2: the kubelet has rejected a pod, {phase}: {why}");
    ensure!(phase == "Failed", "it is to be rejected");
    let begun = Instant::now();
    for index in 0..5 {
        field
            .space()
            .create(&field.gpu(&format!("next-{index}"), index))?;
    }
    for index in 0..5 {
        field.runs(&format!("next-{index}"), index)?;
    }
    println!(
        "F1, F14: the next pods run {:?} after the deletions",
        deleted.elapsed()
    );
    soon(
        "F1, F2, F14: five pods run, the kubelet being ready,",
        begun,
    )?;
    field.clear()
}
