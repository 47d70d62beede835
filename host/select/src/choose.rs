//! Searches for devices for all containers of a pod at once: either everything they ask for is found, or nothing.
//!
//! The search is complete within a bound of steps and deterministic: the same devices in the same order give the same choice.

use std::collections::BTreeSet;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::scheduling::ContainerKind;

use crate::device_attributes::DeviceAttributes;
use crate::request::{Alternative, ContainerRequest, Request};

/// Maximum number of steps of one search. One step looks at one device or sorts about eight.
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
    #[error("no choice of these devices meets all requests and constraints")]
    Impossible,
    /// The bound of steps was reached before a choice was found or ruled out.
    #[error("no choice was found in time; request fewer devices, or use more specific selectors")]
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
    let mut wanted = Vec::new();
    for (asked, own) in asked.iter().enumerate() {
        for (index, request) in own.requests.iter().enumerate() {
            let ways = request.alternatives.iter().map(|alternative| {
                let all = candidates.iter().enumerate();
                let fits = all.map(|(candidate, one)| {
                    one.configuration == alternative.configuration && fits(alternative, candidate)
                });
                Way {
                    alternative,
                    fits: fits.collect(),
                }
            });
            wanted.push(Wanted {
                own,
                request,
                at: (asked, index),
                ways: ways.collect(),
            });
        }
    }
    let kinds = kinds(asked, candidates, &wanted);
    let mut order: Vec<usize> = (0..candidates.len()).collect();
    order.sort_by_key(|index| {
        let found = candidates.get(*index);
        // Devices that only this node has go first, to spare shared ones; used devices go before unused ones, to keep whole devices free.
        found.map(|one| (one.is_shared, one.left, one.name))
    });
    let mut search = Search {
        candidates,
        kinds: &kinds,
        order: &order,
        chosen: Vec::new(),
        steps: 0,
        most: STEPS.min(*left),
    };
    let is_found = search.request(&wanted);
    *left = left.saturating_sub(search.steps);
    if is_found {
        Ok(search.chosen.iter().map(|chosen| chosen.choice).collect())
    } else if search.steps > search.most {
        Err(NoChoice::GaveUp)
    } else {
        Err(NoChoice::Impossible)
    }
}

/// Request of a container, with its alternatives.
struct Wanted<'a> {
    own: &'a ContainerRequest,
    request: &'a Request,
    /// Index of the container, and of the request in it.
    at: (usize, usize),
    ways: Vec<Way<'a>>,
}

/// Alternative of a request, and the candidates that fit.
struct Way<'a> {
    alternative: &'a Alternative,
    fits: Vec<bool>,
}

/// Chosen device, with its request and alternative.
#[derive(Clone, Copy)]
struct Chosen<'a> {
    wanted: &'a Wanted<'a>,
    alternative: &'a Alternative,
    choice: Choice,
}

/// Numbers the candidates so that those with the same number are interchangeable: they fit the same alternatives and have the same values of constrained
/// attributes.
fn kinds(
    asked: &[ContainerRequest],
    candidates: &[Candidate<'_>],
    wanted: &[Wanted<'_>],
) -> Vec<usize> {
    let attributes: BTreeSet<&str> = asked
        .iter()
        .flat_map(|one| one.constraints.iter().map(|found| found.attribute.as_str()))
        .collect();
    let mut known: Vec<(Vec<bool>, Vec<Option<&AttributeValue>>)> = Vec::new();
    let mut kinds = Vec::with_capacity(candidates.len());
    for (index, candidate) in candidates.iter().enumerate() {
        let ways = wanted.iter().flat_map(|one| &one.ways);
        let fit: Vec<bool> = ways.map(|way| way.fits.get(index) == Some(&true)).collect();
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
    candidates: &'a [Candidate<'a>],
    kinds: &'a [usize],
    order: &'a [usize],
    chosen: Vec<Chosen<'a>>,
    steps: u32,
    most: u32,
}

impl<'a> Search<'a> {
    /// Chooses devices for all requests of `left`, in order. Returns true if all are met.
    fn request(&mut self, left: &'a [Wanted<'a>]) -> bool {
        let Some((wanted, left)) = left.split_first() else {
            return true;
        };
        let mut ways = wanted.ways.iter().enumerate();
        ways.any(|(alternative, way)| self.device((wanted, alternative, way), left, 0, 0))
    }

    /// Chooses the remaining devices of an alternative, of which `made` are chosen, then for the requests of `left`. Candidates before `from` in the
    /// order have already been tried in place of the previous devices. Returns true if all are met.
    fn device(
        &mut self,
        (wanted, alternative, way): (&'a Wanted<'a>, usize, &'a Way<'a>),
        left: &'a [Wanted<'a>],
        made: u32,
        from: usize,
    ) -> bool {
        if made >= way.alternative.count {
            return self.request(left);
        }
        let mut tried = BTreeSet::new();
        self.steps += u32::try_from(self.order.len() / 8).unwrap_or(u32::MAX);
        for (place, candidate) in self.in_order().into_iter().enumerate().skip(from) {
            self.steps += 1;
            if self.steps > self.most {
                return false;
            }
            let (asked, request) = wanted.at;
            let chosen = Chosen {
                wanted,
                alternative: way.alternative,
                choice: Choice {
                    asked,
                    request,
                    alternative,
                    candidate,
                },
            };
            let is_used = self.is_used(candidate);
            let is_news = is_used || tried.insert(self.kinds.get(candidate));
            let fits = way.fits.get(candidate) == Some(&true);
            if is_news && fits && self.is_apart(chosen) && self.is_alike(chosen) {
                self.chosen.push(chosen);
                // Chosen candidates stand first in the order, and the others keep their relative order.
                let next = if is_used { 0 } else { place + 1 };
                if self.device((wanted, alternative, way), left, made + 1, next) {
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

    fn is_used(&self, candidate: usize) -> bool {
        let mut chosen = self.chosen.iter();
        chosen.any(|one| one.choice.candidate == candidate)
    }

    /// Returns true if no container that runs at the same time has the device.
    fn is_apart(&self, new: Chosen<'_>) -> bool {
        let mut others = self.chosen.iter();
        !others.any(|other| {
            other.choice.candidate == new.choice.candidate
                && run_together(other.wanted.own, new.wanted.own)
        })
    }

    /// Returns true if the constraints of the container still hold with the device.
    fn is_alike(&self, new: Chosen<'_>) -> bool {
        new.wanted.own.constraints.iter().all(|constraint| {
            let concerns =
                |one: &Chosen<'_>| constraint.concerns(one.wanted.request, one.alternative);
            let value = |one: &Chosen<'_>| {
                let candidate = self.candidates.get(one.choice.candidate)?;
                candidate.attributes.attribute(&constraint.attribute)
            };
            if !concerns(&new) {
                return true;
            }
            let mut others = self.chosen.iter();
            let other =
                others.find(|other| other.choice.asked == new.choice.asked && concerns(other));
            value(&new).is_some() && other.is_none_or(|other| value(other) == value(&new))
        })
    }
}

/// Returns true if two containers run at the same time. `first` must be the earlier one or the same.
fn run_together(first: &ContainerRequest, second: &ContainerRequest) -> bool {
    first.place == second.place || first.kind != ContainerKind::Init
}

#[cfg(test)]
mod tests;
