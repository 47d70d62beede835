//! Computes the pods, jobs, services and claim templates that are wanted, and the writes that are missing. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use leafhost_core::brokers::{
    CONFIGURATION_LABEL, Change, INSTANCE_LABEL, Kind, Object, ObjectKey, Phase, Wanted,
};
use leafhost_core::cluster::NodeState;
use leafhost_core::configuration::{Manifest, RESOURCES_ANNOTATION, Resources};
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::{ConfigurationKey, digest};
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::ResourceNames;
use leafhost_core::slot::{DeviceUsage, slot_number};
use serde_json::Value;

use super::body::{self, Owner};
use super::restarts::Restarts;
use super::template::{Template, TemplateKind, made_of};
use crate::names::of_manifests;

/// Time the scheduler gets to place a pod; after that, the slot that the pod waits for may be promised to another node, too.
const UNPLACED: SignedDuration = SignedDuration::from_secs(30);

/// State of the cluster from which a plan is computed.
#[derive(Debug)]
pub struct World<'a> {
    /// Manifests of all Configurations.
    pub manifests: &'a BTreeMap<ConfigurationKey, Arc<Manifest>>,
    /// Instances of all Configurations.
    pub instances: &'a BTreeMap<InstanceKey, Arc<Instance>>,
    /// Pods, jobs and services of brokers.
    pub objects: &'a BTreeMap<ObjectKey, Arc<Object>>,
    /// Nodes that have a Node object.
    pub nodes: &'a BTreeMap<String, NodeState>,
    /// Names that namespaces have reserved.
    pub names: &'a ResourceNames,
}

/// Outcome of a planning pass.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes to make, each with the Configuration that it serves.
    pub changes: Vec<(ConfigurationKey, Change)>,
    /// Problems of Configurations.
    pub problems: Vec<Problem>,
    /// Time at which to plan again even if nothing changes.
    pub next: Option<Timestamp>,
    /// Pods that are wanted.
    pub pods: BTreeSet<ObjectKey>,
}

type Objects<'a> = Vec<(&'a ObjectKey, &'a Object)>;

struct Planner<'a> {
    world: &'a World<'a>,
    restarts: &'a mut Restarts,
    now: Timestamp,
    /// Objects of brokers, by namespace and uid of the owner. Owner references across namespaces are not allowed, so objects in other
    /// namespaces do not count.
    made: BTreeMap<(&'a str, &'a str), Objects<'a>>,
    /// Labels of running pods: namespace, label, value.
    running: BTreeSet<(&'a str, &'static str, &'a str)>,
    plan: Plan,
}

/// An Instance whose Configuration exists.
#[derive(Clone, Copy)]
struct Subject<'a> {
    key: &'a ConfigurationKey,
    manifest: &'a Manifest,
    instance: &'a Instance,
}

/// Computes the writes that are due.
pub fn plan(world: &World<'_>, restarts: &mut Restarts, now: Timestamp) -> Plan {
    let mut planner = Planner {
        world,
        restarts,
        now,
        made: BTreeMap::new(),
        running: BTreeSet::new(),
        plan: Plan::default(),
    };
    for (key, object) in world.objects {
        if let Some(owner) = object.owner.as_deref().filter(|_| object.is_made) {
            let owner = (key.namespace.as_str(), owner);
            planner.made.entry(owner).or_default().push((key, object));
        }
        if key.kind == Kind::Pod && object.phase == Phase::Running && !object.is_deleting {
            let labels = [
                (INSTANCE_LABEL, &object.instance),
                (CONFIGURATION_LABEL, &object.configuration),
            ];
            for (label, value) in labels {
                let value = value.as_deref();
                let running = value.map(|value| (key.namespace.as_str(), label, value));
                planner.running.extend(running);
            }
        }
    }
    planner.all();
    planner.plan
}

impl<'a> Planner<'a> {
    fn all(&mut self) {
        let world = self.world;
        // The pods of other namespaces would get the device of the namespace that has the name, with its variables.
        let owners = of_manifests(world.names, world.manifests);
        let of = |(key, manifest): (&'a ConfigurationKey, &'a Arc<Manifest>)| {
            // The objects of a Configuration that is being deleted go with it.
            let is_deleting = manifest.metadata.deletion_timestamp.is_some();
            let is_taken = owners.taken_from(key.namespace(), key.name()).is_some();
            let template = || Template::of(manifest).filter(|_| !is_taken);
            (!is_deleting).then(|| (key, (manifest, template())))
        };
        let templates: BTreeMap<_, _> = world.manifests.iter().filter_map(of).collect();
        let mut served = BTreeSet::new();
        for instance in world.instances.values() {
            let metadata = &instance.metadata;
            let key = instance.configuration();
            let Some((key, (manifest, template))) =
                key.and_then(|key| templates.get_key_value(&key))
            else {
                continue;
            };
            // An Instance that is being deleted, or that belongs to an earlier Configuration of this name, goes with all its objects.
            let mut references = metadata.owner_references.iter();
            let is_owned =
                references.any(|owner| Some(&owner.uid) == manifest.metadata.uid.as_ref());
            if !is_owned || metadata.deletion_timestamp.is_some() {
                continue;
            }
            let subject = Subject {
                key,
                manifest,
                instance,
            };
            let taken = owners.taken_from(&metadata.namespace, &metadata.name);
            let template = template.as_ref().filter(|_| taken.is_none());
            if self.instance(subject, template) {
                served.insert(*key);
            }
        }
        for (key, (manifest, template)) in &templates {
            let spec = manifest.spec.configuration_service_spec.as_ref();
            let spec = spec.filter(|_| served.contains(key));
            self.service(key, Owner::configuration(manifest), spec);
            let offered = template
                .as_ref()
                .is_none_or(|template| offers(manifest, template));
            if !offered {
                let configuration = (*key).clone();
                let problem = Problem::BrokerResourceNotOffered { configuration };
                self.plan.problems.push(problem);
            }
        }
    }

    /// Plans the objects of an Instance. Returns true if the Instance has a broker.
    fn instance(&mut self, subject: Subject<'a>, template: Option<&Template<'_>>) -> bool {
        let metadata = &subject.instance.metadata;
        let owner = (metadata.namespace.as_str(), metadata.uid.as_str());
        let wanted = |kind| template.filter(|template| template.kind == kind);
        // Pods wait for their claim template.
        let claims = self.made_for(owner, Kind::ClaimTemplate);
        let may_begin = self.claims(subject, template, &claims);
        let pods = self.made_for(owner, Kind::Pod);
        self.pods(subject, wanted(TemplateKind::Pod), pods, may_begin);
        let jobs = self.made_for(owner, Kind::Job);
        self.jobs(subject, wanted(TemplateKind::Job), &jobs, may_begin);
        let is_served = template.is_some() && !subject.instance.spec.nodes.is_empty();
        let service = subject.manifest.spec.instance_service_spec.as_ref();
        let owner = Owner::instance(subject.instance);
        self.service(subject.key, owner, service.filter(|_| is_served));
        is_served
    }

    /// Returns the objects of an owner, given by namespace and uid, that have this kind.
    fn made_for(&self, owner: (&str, &str), kind: Kind) -> Objects<'a> {
        let made = self.made.get(&owner).into_iter().flatten();
        made.filter(|(key, _)| key.kind == kind).copied().collect()
    }

    /// Plans the claim template. Returns true if it exists as the brokers need it, or if none is needed.
    fn claims(
        &mut self,
        subject: Subject<'a>,
        template: Option<&Template<'_>>,
        there: &[(&'a ObjectKey, &'a Object)],
    ) -> bool {
        let template = template.filter(|template| template.has_claim);
        let wanted = template.map(|template| body::claims(subject.instance, template));
        let is_right = |(key, object): &(&ObjectKey, &Object)| {
            let is_it = |wanted: &Wanted| {
                wanted.key == **key && object.made_of.as_ref() == Some(&wanted.made_of)
            };
            wanted.as_ref().is_some_and(is_it) && !object.is_deleting
        };
        let mut is_there = false;
        for one in there {
            if is_right(one) {
                is_there = true;
            } else if !one.1.is_deleting {
                self.delete(subject.key, one.0, one.1);
            }
        }
        match wanted {
            Some(wanted) if !is_there => {
                // The name is free once the old template is gone.
                if there.is_empty() && !subject.instance.spec.nodes.is_empty() {
                    self.write(subject.key, Change::Create(wanted));
                }
                false
            }
            _ => true,
        }
    }

    fn pods(
        &mut self,
        subject: Subject<'a>,
        template: Option<&Template<'_>>,
        there: Objects<'a>,
        may_begin: bool,
    ) {
        let instance = subject.instance;
        let nodes = template.map_or(&[][..], |_| &instance.spec.nodes);
        let wanted: BTreeMap<ObjectKey, &str> = nodes
            .iter()
            .map(|node| (body::pod_key(instance, node), node.as_str()))
            .collect();
        let mut taken = BTreeSet::new();
        let mut live = Vec::new();
        for (key, object) in there {
            taken.insert(key);
            if object.is_deleting {
                continue;
            }
            let (Some(node), Some(template)) = (wanted.get(key), template) else {
                self.delete(subject.key, key, object);
                continue;
            };
            let is_other = template.is_other(object);
            if let Phase::Ended(ran) = object.phase {
                let due = self.restarts.due(key, &object.uid, ran, self.now);
                if due <= self.now || is_other {
                    self.delete(subject.key, key, object);
                } else {
                    self.by(due);
                }
            } else if is_other {
                self.delete(subject.key, key, object);
            } else {
                live.push((*node, key, object));
            }
        }
        if let Some(template) = template {
            self.surplus(subject, template.slots, &mut live);
            let mut missing: Vec<(&ObjectKey, &str)> = wanted
                .iter()
                .filter(|(key, node)| !taken.contains(key) && self.world.nodes.contains_key(**node))
                .map(|(key, node)| (key, *node))
                .collect();
            // If there are fewer slots than nodes, the order of nodes differs between Instances.
            missing.sort_by_cached_key(|(key, _)| digest(&key.name));
            let mut slots = Slots::of(instance, template.slots);
            slots.free = slots.free.saturating_sub(self.promised(&slots, &live));
            for (_, node) in missing {
                if !may_begin || !offers(subject.manifest, template) || !slots.take() {
                    break;
                }
                let wanted = body::pod(instance, node, template);
                self.write(subject.key, Change::Create(wanted));
            }
        }
        self.plan.pods.extend(wanted.into_keys());
    }

    /// Returns the number of slots that pods without a slot will take.
    fn promised(&mut self, slots: &Slots<'_>, live: &[(&str, &ObjectKey, &Object)]) -> usize {
        let mut pods = 0_usize;
        for (node, _, object) in live {
            let is_waiting = match object.phase {
                _ if slots.holders.contains(node) => false,
                Phase::Unschedulable(since) => match since.checked_add(UNPLACED) {
                    Ok(over) if over > self.now => {
                        self.by(over);
                        true
                    }
                    _ => false,
                },
                _ => true,
            };
            pods += usize::from(is_waiting);
        }
        pods.saturating_mul(slots.each)
    }

    /// Plans the deletion of the pods that exceed the number of slots, those on slots beyond the capacity first.
    fn surplus(
        &mut self,
        subject: Subject<'a>,
        each: usize,
        live: &mut Vec<(&'a str, &'a ObjectKey, &'a Object)>,
    ) {
        let slots = Slots::of(subject.instance, each);
        let Some(most) = slots.capacity.checked_div(each) else {
            return;
        };
        let has_slot = |(_, _, object): &(&str, &ObjectKey, &Object)| {
            !matches!(object.phase, Phase::Unschedulable(_))
        };
        let having = live.iter().filter(|pod| has_slot(pod)).count();
        live.sort_by_key(|pod| {
            let (node, key, object) = pod;
            let is_beyond = slots.beyond.contains(node);
            (
                !has_slot(pod),
                is_beyond,
                object.phase != Phase::Running,
                *key,
            )
        });
        if having > most {
            for (_, key, object) in live.drain(most..having) {
                self.delete(subject.key, key, object);
            }
        }
    }

    fn jobs(
        &mut self,
        subject: Subject<'a>,
        template: Option<&Template<'_>>,
        there: &[(&'a ObjectKey, &'a Object)],
        may_begin: bool,
    ) {
        for (key, object) in there {
            if !object.is_deleting && template.is_none_or(|template| template.is_other(object)) {
                self.delete(subject.key, key, object);
            }
        }
        // A job that is being deleted exists until its pods are gone.
        let Some(template) = template.filter(|_| there.is_empty() && may_begin) else {
            return;
        };
        let instance = subject.instance;
        let mut slots = Slots::of(instance, template.slots);
        if !instance.spec.nodes.is_empty() && offers(subject.manifest, template) && slots.take() {
            let generation = subject.manifest.metadata.generation.unwrap_or_default();
            let wanted = body::job(instance, generation, template);
            self.write(subject.key, Change::Create(wanted));
        }
    }

    /// Plans the service of an owner. A service is created once a pod runs and stays, with its address, while brokers are wanted. An
    /// orphaned service is adopted by the next owner of that name.
    fn service(&mut self, key: &ConfigurationKey, owner: Owner<'_>, spec: Option<&Value>) {
        let there = self.made_for((key.namespace(), owner.uid), Kind::Service);
        let wanted = spec.map(|spec| body::service(owner, spec, &made_of(spec)));
        let orphan = wanted.as_ref().filter(|_| there.is_empty());
        let orphan = orphan.and_then(|wanted| self.world.objects.get_key_value(&wanted.key));
        let orphan = orphan.filter(|(_, object)| object.is_made && object.owner.is_none());
        let mut is_there = false;
        for (at, object) in there
            .into_iter()
            .chain(orphan.map(|(at, object)| (at, &**object)))
        {
            is_there = true;
            if object.is_deleting {
                continue;
            }
            match &wanted {
                Some(wanted) if wanted.key == *at => {
                    let is_right = object.made_of.as_ref() == Some(&wanted.made_of);
                    if !is_right || object.owner.is_none() {
                        let change = Change::Replace {
                            uid: object.uid.clone(),
                            wanted: wanted.clone(),
                        };
                        self.write(key, change);
                    }
                }
                _ => self.delete(key, at, object),
            }
        }
        let (label, value) = owner.label();
        if let Some(wanted) = wanted.filter(|_| !is_there) {
            let pod = (wanted.key.namespace.as_str(), label, value.as_str());
            if self.running.contains(&pod) {
                self.write(key, Change::Create(wanted));
            }
        }
    }

    fn delete(&mut self, configuration: &ConfigurationKey, key: &ObjectKey, object: &Object) {
        let change = Change::Delete {
            key: key.clone(),
            uid: object.uid.clone(),
        };
        self.write(configuration, change);
    }

    fn write(&mut self, configuration: &ConfigurationKey, change: Change) {
        self.plan.changes.push((configuration.clone(), change));
    }

    fn by(&mut self, moment: Timestamp) {
        let next = self.plan.next.get_or_insert(moment);
        *next = moment.min(*next);
    }
}

/// Returns true if nodes offer the resource that the broker asks for.
fn offers(manifest: &Manifest, template: &Template<'_>) -> bool {
    let text = manifest.metadata.annotations.get(RESOURCES_ANNOTATION);
    let resources = text.and_then(|text| Resources::parse(text).ok());
    template.slots == 0 || template.has_claim || resources.is_none_or(Resources::has_instances)
}

struct Slots<'a> {
    capacity: usize,
    /// Number of free slots.
    free: usize,
    /// Number of slots that a broker takes.
    each: usize,
    /// Nodes that hold slots, through the Instance's resource or a claim.
    holders: BTreeSet<&'a str>,
    /// Nodes that hold slots beyond the capacity.
    beyond: BTreeSet<&'a str>,
}

impl<'a> Slots<'a> {
    fn of(instance: &'a Instance, each: usize) -> Self {
        let capacity = usize::try_from(instance.spec.capacity).unwrap_or(usize::MAX);
        let mut slots = Self {
            capacity,
            free: capacity,
            each,
            holders: BTreeSet::new(),
            beyond: BTreeSet::new(),
        };
        for (id, usage) in &instance.spec.device_usage {
            if usage.is_empty() {
                continue;
            }
            // The last part of a claim's usage is its node.
            let is_claim = matches!(usage.parse(), Ok(DeviceUsage::Claim { .. }));
            let holder = if is_claim {
                usage.rsplit(':').next().unwrap_or(usage)
            } else {
                usage
            };
            slots.holders.insert(holder);
            let is_within = slot_number(&instance.metadata.name, id)
                .is_some_and(|number| number < instance.spec.capacity);
            if is_within {
                slots.free = slots.free.saturating_sub(1);
            } else {
                slots.beyond.insert(holder);
            }
        }
        slots
    }

    /// Takes the slots of one broker. Returns false if too few are free.
    fn take(&mut self) -> bool {
        let left = self.free.checked_sub(self.each);
        self.free = left.unwrap_or(self.free);
        left.is_some()
    }
}

#[cfg(test)]
mod tests;
