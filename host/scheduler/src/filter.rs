//! Finds the nodes that have the devices a pod wants, the devices it would take there, and the reasons that other nodes do not fit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use leafhost_core::instance::InstanceKey;
use leafhost_select::{
    Alternative, Candidate, Choice, ContainerRequest, Expression, NoChoice, STEPS, Verdicts, choose,
};

use crate::world::{Device, Number, Reservation, World};

/// Reason that a node does not fit. The texts name no node, so that a scheduler can count equal ones.
pub type Reason = String;

/// Node that fits, with the devices that the pod would take there.
pub type Fitting = (String, Vec<Number>);

/// Judge of the cluster's devices for one pod.
pub struct Evaluator<'a> {
    world: &'a World,
    verdicts: &'a mut Verdicts,
    asked: &'a [ContainerRequest],
    alternatives: Vec<ParsedAlternative<'a>>,
    /// Namespace that owns the name of each Configuration the pod asks for.
    owners: BTreeMap<&'a str, Option<&'a str>>,
    /// Slots that are already reserved for the pod, on any node.
    own: Vec<&'a Reservation>,
    /// True if devices are chosen only from those reserved for the pod.
    is_own_only: bool,
    /// Remaining search steps for all nodes together.
    left: u32,
}

/// Way to meet a request, with its parsed expressions.
struct ParsedAlternative<'a> {
    alternative: &'a Alternative,
    expressions: Vec<Arc<Expression>>,
}

/// Devices that a pod takes on a node.
pub struct NodeDevices {
    /// Choices of devices for the requests of the pod.
    pub choices: Vec<Choice>,
    /// Number of the device of each choice, in the same order.
    pub devices: Vec<Number>,
}

impl<'a> Evaluator<'a> {
    /// Creates an evaluator for the pod with the uid `uid`. The expressions of `asked` must have been parsed by `verdicts` before.
    pub fn new(
        world: &'a World,
        verdicts: &'a mut Verdicts,
        uid: &str,
        asked: &'a [ContainerRequest],
    ) -> Self {
        let all = asked.iter().flat_map(|one| &one.requests);
        let all: Vec<&Alternative> = all.flat_map(|request| &request.alternatives).collect();
        let names = all.iter().map(|one| one.configuration.as_str());
        let owners = names.map(|name| (name, world.owner(name))).collect();
        let alternatives = all.into_iter().map(|alternative| ParsedAlternative {
            alternative,
            expressions: alternative
                .expressions
                .iter()
                .filter_map(|text| verdicts.expression(text).ok())
                .collect(),
        });
        let alternatives = alternatives.collect();
        Self {
            own: world.reserved_for(uid),
            is_own_only: false,
            left: 10 * STEPS,
            world,
            verdicts,
            asked,
            alternatives,
            owners,
        }
    }

    /// Restricts the choice to devices that are reserved for the pod.
    pub fn of_own(mut self) -> Self {
        self.is_own_only = true;
        self
    }

    /// Returns the Configurations that the pod asks for, by name and namespace. Omits names without an owner.
    pub fn owned(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let owners = self.owners.iter();
        owners.filter_map(|(name, space)| Some((*name, (*space)?)))
    }

    /// Chooses devices on a node, except for the slots `taken` that other pods are about to take there.
    pub fn take(&mut self, node: &str, taken: &[Number]) -> Result<NodeDevices, Reason> {
        let world = self.world;
        let reserved: Vec<&InstanceKey> = self
            .own
            .iter()
            .filter(|one| one.node == node)
            .map(|one| &one.device)
            .collect();
        let is_own_only = self.is_own_only;
        let left = |number: Number, device: &Device| {
            let others = taken.iter().filter(|other| **other == number).count();
            let has = |key: &&&InstanceKey| ***key == device.instance.key();
            let own = reserved.iter().filter(has).count();
            let free = if is_own_only { 0 } else { device.free.len() };
            (free + own).saturating_sub(others)
        };
        // A device without a free slot remains a candidate only if the pod already has a slot of it.
        let least = (false, usize::from(reserved.is_empty()));
        if let Some(alternative) = self.only_alternative()
            && let Some(found) = self.take_any(alternative, node, least, left)
        {
            return Ok(found);
        }
        let own = self.owned().flat_map(|of| world.of_node(node, of));
        let own: Vec<(Number, &Device)> = own.collect();
        let free: Vec<(Number, &Device)> = own
            .iter()
            .copied()
            .filter(|(number, device)| left(*number, device) > 0)
            .collect();
        if self.only_alternative().is_some() {
            return Err(self.why(&own, &free));
        }
        let candidates: Vec<Candidate<'_>> = free
            .iter()
            .map(|(number, device)| Candidate {
                configuration: &device.instance.spec.configuration_name,
                name: &device.instance.metadata.name,
                attributes: &device.attributes,
                is_shared: device.instance.spec.shared,
                left: u32::try_from(left(*number, device) - 1).unwrap_or(u32::MAX),
            })
            .collect();
        let asked = self.asked;
        let mut steps = self.left;
        let choices = choose(asked, &candidates, &mut steps, |alternative, index| {
            let number = free.get(index).map(|(number, _)| *number);
            number.is_some_and(|number| self.fits(alternative, number))
        });
        self.left = steps;
        match choices {
            Ok(choices) => {
                let devices = choices.iter();
                let devices = devices.filter_map(|one| Some(free.get(one.candidate)?.0));
                Ok(NodeDevices {
                    devices: devices.collect(),
                    choices,
                })
            }
            Err(NoChoice::Impossible) => Err(self.why(&own, &free)),
            Err(error @ NoChoice::GaveUp) => Err(error.to_string()),
        }
    }

    /// Returns the only alternative of a pod with one request and no constraints. Such a pod takes any devices that fit.
    fn only_alternative(&self) -> Option<&'a Alternative> {
        let [only] = self.asked else {
            return None;
        };
        let ([request], []) = (&only.requests[..], &only.constraints[..]) else {
            return None;
        };
        let [alternative] = &request.alternatives[..] else {
            return None;
        };
        Some(alternative)
    }

    /// Chooses devices of a node for a single alternative; `None` if too few fit. No device has a lower rank than `least`.
    fn take_any(
        &mut self,
        alternative: &Alternative,
        node: &str,
        least: (bool, usize),
        left: impl Fn(Number, &Device) -> usize,
    ) -> Option<NodeDevices> {
        let world = self.world;
        let space = (*self.owners.get(&*alternative.configuration)?)?;
        let all = world.of_node(node, (&alternative.configuration, space));
        let fitting = all.filter(|(number, device)| {
            left(*number, device) > 0 && self.fits(alternative, *number)
        });
        let count = usize::try_from(alternative.count).unwrap_or(usize::MAX);
        let rank = |device: &Device| (device.instance.spec.shared, device.free.len());
        let mut chosen: Vec<(Number, &Device)> = Vec::new();
        let mut has_least = true;
        for (number, device) in fitting {
            has_least &= rank(device) <= least;
            chosen.push((number, device));
            // No later device can have a lower rank, and equal ones are taken in the order of their names.
            if has_least && chosen.len() == count {
                break;
            }
        }
        if chosen.len() < count {
            return None;
        }
        chosen.sort_by_key(|(_, device)| rank(device));
        let chosen = chosen.into_iter().take(count);
        let devices: Vec<Number> = chosen.map(|(number, _)| number).collect();
        let choices = (0..devices.len()).map(|candidate| Choice {
            asked: 0,
            request: 0,
            alternative: 0,
            candidate,
        });
        Some(NodeDevices {
            choices: choices.collect(),
            devices,
        })
    }

    /// Returns true if all expressions of an alternative are true for a device.
    fn fits(&mut self, alternative: &Alternative, number: Number) -> bool {
        let mut all = self.alternatives.iter();
        let parsed = all.find(|parsed| std::ptr::eq(parsed.alternative, alternative));
        let (Some(parsed), Some(device)) = (parsed, self.world.device(number)) else {
            return false;
        };
        let is_read = parsed.expressions.len() == alternative.expressions.len();
        let at = (number, device.version);
        is_read
            && parsed
                .expressions
                .iter()
                .all(|expression| self.verdicts.fits(expression, at, &device.attributes))
    }

    /// Returns the reason that a node cannot meet the requests, naming the first request that fails.
    fn why(&mut self, own: &[(Number, &Device)], free: &[(Number, &Device)]) -> Reason {
        for one in self.asked {
            for request in &one.requests {
                let name = format!("{}/{}", one.container, request.name);
                // Reason of the alternative that comes nearest; none if one can be met.
                let mut nearest = (0, None);
                for alternative in &request.alternatives {
                    let configuration = &alternative.configuration;
                    let is_of =
                        |device: &Device| device.instance.spec.configuration_name == *configuration;
                    let mut fitting = |all: &[(Number, &Device)]| {
                        let all = all.iter().filter(|(_, device)| is_of(device));
                        all.filter(|(number, _)| self.fits(alternative, *number))
                            .count()
                    };
                    let (there, left) = (fitting(own), fitting(free));
                    let count = usize::try_from(alternative.count).unwrap_or(usize::MAX);
                    let found = if left >= count {
                        (4, None)
                    } else if there >= count {
                        let why = format!("devices for request {name} are in use");
                        (3, Some(why))
                    } else if own.iter().any(|(_, device)| is_of(device)) {
                        let why = format!("not enough devices satisfy request {name}");
                        (2, Some(why))
                    } else {
                        let why = format!(
                            "no device of Configuration {configuration} for request {name}"
                        );
                        (1, Some(why))
                    };
                    if found.0 > nearest.0 {
                        nearest = found;
                    }
                }
                if let (_, Some(why)) = nearest {
                    return why;
                }
            }
        }
        "devices satisfy each request, but not all of them together".to_owned()
    }
}

/// Returns the nodes that fit, each with the devices that a pod takes there, and the reasons why the others do not.
pub fn filter<'n>(
    evaluator: &mut Evaluator<'_>,
    nodes: impl Iterator<Item = &'n str>,
    taken: &HashMap<&str, Vec<Number>>,
) -> (Vec<Fitting>, BTreeMap<String, Reason>) {
    let none = Vec::new();
    let mut fitting = Vec::new();
    let mut refused = Vec::new();
    for node in nodes {
        let taken = taken.get(node).unwrap_or(&none);
        match evaluator.take(node, taken) {
            Ok(found) => fitting.push((node.to_owned(), found.devices)),
            Err(why) => refused.push((node, !taken.is_empty(), why)),
        }
    }
    let is_full = fitting.is_empty();
    let mut failed = BTreeMap::new();
    for (node, is_taken, why) in refused {
        // If no node fits otherwise, the pod competes with pods that have passed but are not bound yet.
        let again = (is_full && is_taken).then(|| evaluator.take(node, &none));
        match again.unwrap_or(Err(why)) {
            Ok(found) => fitting.push((node.to_owned(), found.devices)),
            Err(why) => drop(failed.insert(node.to_owned(), why)),
        }
    }
    (fitting, failed)
}
