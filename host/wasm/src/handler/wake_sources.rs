//! Decides which wakes of an answer can be served: those whose source is granted and available.

use std::net::IpAddr;
use std::time::Duration;

use leafhost_grants::Secrets;
use leafhost_net::{Group, Policy};

use super::MAX_TEXT;
use crate::bindings::leafhost::discovery::types;
use crate::bindings::leafhost::udev::types as udev_types;
use crate::capabilities::udev::{MAX_TERMS, host_rule};
use crate::session::{Filter, WakeConditions};
use crate::timeouts::INSTEAD_OF_EVENTS;

/// Maximum number of strings per filter.
const MAX_STRINGS: usize = 8;
/// Maximum number of strings in all filters of an answer: each datagram is searched for them.
const MAX_ALL_STRINGS: usize = 64;
/// Maximum length of a `contains` string, in bytes.
const MAX_STRING: usize = 64;

/// Maximum length of a shown group address, in bytes; no valid address is longer.
const MAX_GROUP: usize = 64;

pub(super) struct WakeSources {
    pub(super) devices: DeviceEvents,
    /// Network policy, or the reason why nothing is allowed.
    pub(super) network: Result<Policy, String>,
}

pub(super) enum DeviceEvents {
    /// Granted and available.
    Available,
    NotGranted,
    /// Granted, but the agent cannot receive them; holds the reason.
    Unavailable(String),
}

impl WakeSources {
    /// Returns the wakes that can be served, and the reasons why the others cannot.
    pub(super) fn wakes(&self, list: Vec<types::Wake>, secrets: &Secrets) -> WakeConditions {
        let mut wakes = WakeConditions::default();
        for wake in list {
            let served = match wake {
                types::Wake::After(millis) => {
                    after(&mut wakes, Duration::from_millis(millis.into()));
                    Ok(())
                }
                types::Wake::Udev(rule) => self
                    .udev(rule, &mut wakes)
                    .map_err(|reason| format!("udev: {reason}")),
                types::Wake::Network => match &self.network {
                    Ok(_) => {
                        wakes.network = true;
                        Ok(())
                    }
                    Err(reason) => Err(format!("network: {reason}")),
                },
                types::Wake::Multicast(filter) => {
                    self.multicast(&filter, &mut wakes).map_err(|reason| {
                        let group = secrets.clean(&filter.group, MAX_GROUP);
                        format!("multicast {group}:{}: {reason}", filter.port)
                    })
                }
            };
            let Err(refused) = served else {
                continue;
            };
            let refused = secrets.clean(&refused, MAX_TEXT);
            if !wakes.refused.contains(&refused) {
                wakes.refused.push(refused);
            }
        }
        wakes
    }

    fn udev(&self, rule: udev_types::Rule, wakes: &mut WakeConditions) -> Result<(), String> {
        let terms: usize = wakes.udev.iter().map(|rule| rule.terms().count()).sum();
        if terms + rule.len() > MAX_TERMS {
            return Err(format!(
                "the rules have more than {MAX_TERMS} terms in all; the first ones are in effect"
            ));
        }
        let rule = host_rule(rule).map_err(|error| error.to_string())?;
        match &self.devices {
            DeviceEvents::Available => {
                wakes.udev.push(rule);
                Ok(())
            }
            DeviceEvents::NotGranted => Err("the grant `udev` is missing".to_owned()),
            DeviceEvents::Unavailable(reason) => {
                after(wakes, INSTEAD_OF_EVENTS);
                let seconds = INSTEAD_OF_EVENTS.as_secs();
                Err(format!("{reason}; called every {seconds} s instead"))
            }
        }
    }

    fn multicast(
        &self,
        filter: &types::MulticastFilter,
        wakes: &mut WakeConditions,
    ) -> Result<(), String> {
        let policy = self.network.as_ref().map_err(Clone::clone)?;
        let address: IpAddr = filter
            .group
            .parse()
            .map_err(|_| "that is not an IP address".to_owned())?;
        let address = address.to_canonical();
        policy
            .listen(address, filter.port)
            .map_err(|denied| denied.0)?;
        let strings = &filter.contains;
        let fits = |string: &Vec<u8>| (1..=MAX_STRING).contains(&string.len());
        if !(1..=MAX_STRINGS).contains(&strings.len()) || !strings.iter().all(fits) {
            return Err(format!(
                "`contains` must be 1 to {MAX_STRINGS} strings of 1 to {MAX_STRING} bytes"
            ));
        }
        let before: usize = wakes.multicast.iter().map(Filter::strings).sum();
        if before + strings.len() > MAX_ALL_STRINGS {
            return Err(format!(
                "the filters have more than {MAX_ALL_STRINGS} strings in all; the first ones are in effect"
            ));
        }
        let group = Group::new(address, filter.port);
        wakes
            .multicast
            .push(Filter::new(group, &filter.group, strings));
        Ok(())
    }
}

/// Sets the time of `wakes`, unless a shorter one is set.
fn after(wakes: &mut WakeConditions, time: Duration) {
    wakes.after = Some(wakes.after.map_or(time, |other| other.min(time)));
}

#[cfg(test)]
mod tests;
