//! Searches devices for all containers of a pod at once: either everything they ask for is found, or nothing.
//!
//! The search is complete within a bound of steps and deterministic: the same devices in the same order give the same choice.

use std::collections::BTreeSet;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::scheduling::ContainerKind;

use crate::device_attributes::DeviceAttributes;
use crate::request::{Alternative, ContainerRequest, Request};

/// Upper bound of steps of one search. One step looks at one device or sorts about eight.
pub const STEPS: u32 = 200_000;

/// Device with a free slot.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Name of the Configuration.
    pub configuration: &'a str,
    /// Name of the Instance; devices that are otherwise alike are tried in the order of their names.
    pub name: &'a str,
    /// Attributes and capacities of the device.
    pub attributes: &'a DeviceAttributes,
    /// True if other nodes may use the device, too.
    pub is_shared: bool,
    /// Number of further pods that may use the device after this one.
    pub left: u32,
}

/// Device chosen for a request of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Choice {
    /// Index of the container in the slice of [`ContainerRequest`].
    pub asked: usize,
    /// Index of the request in [`ContainerRequest::requests`].
    pub request: usize,
    /// Index of the alternative in [`Request::alternatives`].
    pub alternative: usize,
    /// Index of the candidate.
    pub candidate: usize,
}

/// Reason that a search found no choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// No choice of these devices meets all requests.
    #[error("no choice of these devices meets all of it")]
    Impossible,
    /// The bound of steps was reached before a choice was found or ruled out.
    #[error("a choice was not found in time; ask for less at once, or by narrower expressions")]
    GaveUp,
}

/// Chooses devices for all requests in at most `left` and at most [`STEPS`] steps, and subtracts the steps taken from `left`. `fits` returns true if
/// the candidate satisfies all expressions of the alternative; it is called only for candidates of the alternative's Configuration.
pub fn choose(
    asked: &[ContainerRequest],
    candidates: &[Candidate<'_>],
    left: &mut u32,
    mut fits: impl FnMut(&Alternative, usize) -> bool,
) -> Result<Vec<Choice>, NoChoice> {
    let alternatives: Vec<Vec<Vec<Vec<bool>>>> = asked
        .iter()
        .map(|one| {
            let of = |alternative: &Alternative,
                      fits: &mut dyn FnMut(&Alternative, usize) -> bool| {
                let all = candidates.iter().enumerate();
                all.map(|(index, candidate)| {
                    candidate.configuration == alternative.configuration && fits(alternative, index)
                })
                .collect()
            };
            let requests = one.requests.iter();
            requests
                .map(|request| {
                    request
                        .alternatives
                        .iter()
                        .map(|alternative| of(alternative, &mut fits))
                        .collect()
                })
                .collect()
        })
        .collect();
    let kinds = kinds(asked, candidates, &alternatives);
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| {
        let found = candidates.get(*index);
        // Devices that only this node has go first, to spare shared ones; used devices go before unused ones, to keep whole devices free.
        found.map(|one| (one.is_shared, one.left, one.name))
    });
    let mut search = Search {
        asked,
        candidates,
        alternatives: &alternatives,
        kinds: &kinds,
        order: &order,
        chosen: Vec::new(),
        steps: 0,
        most: STEPS.min(*left),
    };
    let is_found = search.container(0);
    *left = left.saturating_sub(search.steps);
    if is_found {
        Ok(search.chosen)
    } else if search.steps > search.most {
        Err(NoChoice::GaveUp)
    } else {
        Err(NoChoice::Impossible)
    }
}

/// Candidates that fit, by container, request, alternative and candidate.
type Fits = [Vec<Vec<Vec<bool>>>];

/// Numbers the candidates so that those with the same number are interchangeable: they fit the same alternatives and have the same values of constrained
/// attributes.
fn kinds(
    asked: &[ContainerRequest],
    candidates: &[Candidate<'_>],
    alternatives: &Fits,
) -> Vec<usize> {
    let attributes: BTreeSet<&str> = asked
        .iter()
        .flat_map(|one| one.constraints.iter().map(|found| found.attribute.as_str()))
        .collect();
    let mut known: Vec<(Vec<bool>, Vec<Option<&AttributeValue>>)> = Vec::new();
    let mut kinds = Vec::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate() {
        let fit = alternatives.iter().flatten().flatten();
        let fit: Vec<bool> = fit
            .filter_map(|alternative| alternative.get(index).copied())
            .collect();
        let values = attributes.iter();
        let values: Vec<_> = values
            .map(|name| candidate.attributes.attribute(name))
            .collect();
        let place = known.iter().position(|(a, b)| *a == fit && *b == values);
        kinds.push(place.unwrap_or_else(|| {
            known.push((fit, values));
            known.len() - 1
        }));
    }
    kinds
}

struct Search<'a> {
    asked: &'a [ContainerRequest],
    candidates: &'a [Candidate<'a>],
    alternatives: &'a Fits,
    kinds: &'a [usize],
    order: &'a [usize],
    chosen: Vec<Choice>,
    steps: u32,
    most: u32,
}

impl Search<'_> {
    /// Chooses for the containers from `asked` on. Returns true if all are served.
    fn container(&mut self, asked: usize) -> bool {
        asked >= self.asked.len() || self.request(asked, 0)
    }

    /// Chooses for the requests of a container from `request` on, then for the containers after it. Returns true if all are served.
    fn request(&mut self, asked: usize, request: usize) -> bool {
        let Some(found) = self.find(asked, request) else {
            return self.container(asked + 1);
        };
        let alternatives = found.alternatives.len();
        (0..alternatives).any(|alternative| self.device(asked, request, alternative, 0, 0))
    }

    /// Chooses the remaining devices of an alternative, of which `made` are chosen, then for the requests after it. Candidates before `from` in the order have
    /// already been tried in place of the previous devices. Returns true if all are served.
    fn device(
        &mut self,
        asked: usize,
        request: usize,
        alternative: usize,
        made: u32,
        from: usize,
    ) -> bool {
        let Some((_, of)) = self.alternative(asked, request, alternative) else {
            return false;
        };
        if made >= of.count {
            return self.request(asked, request + 1);
        }
        let mut tried = BTreeSet::new();
        self.steps += u32::try_from(self.order.len() / 8).unwrap_or(u32::MAX);
        for (place, candidate) in self.in_order().into_iter().enumerate().skip(from) {
            self.steps += 1;
            if self.steps > self.most {
                return false;
            }
            let choice = Choice {
                asked,
                request,
                alternative,
                candidate,
            };
            let is_used = self.is_used(candidate);
            let is_news = is_used || tried.insert(self.kinds.get(candidate));
            if is_news && self.is_possible(choice) {
                self.chosen.push(choice);
                // Chosen candidates stand first in the order, and the others keep their relative order.
                let next = if is_used { 0 } else { place + 1 };
                if self.device(asked, request, alternative, made + 1, next) {
                    return true;
                }
                self.chosen.pop();
            }
        }
        false
    }

    /// Returns the candidates in the order in which they are tried. Those that are chosen already come first, as a container that ends earlier may
    /// share them.
    fn in_order(&self) -> Vec<usize> {
        let mut order = self.order.to_vec();
        if !self.chosen.is_empty() {
            order.sort_by_key(|candidate| !self.is_used(*candidate));
        }
        order
    }

    fn find(&self, asked: usize, request: usize) -> Option<&Request> {
        self.asked.get(asked)?.requests.get(request)
    }

    fn alternative(
        &self,
        asked: usize,
        request: usize,
        alternative: usize,
    ) -> Option<(&Request, &Alternative)> {
        let found = self.find(asked, request)?;
        Some((found, found.alternatives.get(alternative)?))
    }

    fn is_used(&self, candidate: usize) -> bool {
        self.chosen.iter().any(|one| one.candidate == candidate)
    }

    fn is_possible(&self, choice: Choice) -> bool {
        let fits = self.alternatives.get(choice.asked);
        let fits = fits.and_then(|requests| requests.get(choice.request));
        let fits = fits.and_then(|alternatives| alternatives.get(choice.alternative));
        let fits = fits.and_then(|alternative| alternative.get(choice.candidate));
        fits == Some(&true) && self.is_apart(choice) && self.is_alike(choice)
    }

    /// Returns true if no container that runs at the same time has the device.
    fn is_apart(&self, choice: Choice) -> bool {
        let Some(own) = self.asked.get(choice.asked) else {
            return false;
        };
        let mut others = self.chosen.iter();
        !others.any(|other| {
            other.candidate == choice.candidate
                && self
                    .asked
                    .get(other.asked)
                    .is_some_and(|other| run_together(other, own))
        })
    }

    /// Returns true if the constraints of the container still hold with the device.
    fn is_alike(&self, choice: Choice) -> bool {
        let Some(own) = self.asked.get(choice.asked) else {
            return false;
        };
        let concerned =
            |choice: &Choice| self.alternative(choice.asked, choice.request, choice.alternative);
        let value = |candidate: usize, name: &str| {
            let candidate = self.candidates.get(candidate);
            candidate.and_then(|candidate| candidate.attributes.attribute(name))
        };
        own.constraints.iter().all(|constraint| {
            let is_of = |choice: &Choice| {
                let found = concerned(choice);
                found
                    .is_some_and(|(request, alternative)| constraint.concerns(request, alternative))
            };
            if !is_of(&choice) {
                return true;
            }
            let Some(mine) = value(choice.candidate, &constraint.attribute) else {
                return false;
            };
            let mut others = self.chosen.iter();
            let other = others.find(|other| other.asked == choice.asked && is_of(other));
            other.is_none_or(|other| value(other.candidate, &constraint.attribute) == Some(mine))
        })
    }
}

/// Returns true if two containers run at the same time. `first` must be the earlier one or the same.
fn run_together(first: &ContainerRequest, second: &ContainerRequest) -> bool {
    first.place == second.place || first.kind != ContainerKind::Init
}

#[cfg(test)]
mod tests;
