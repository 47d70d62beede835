//! What a session can listen for, and so which wakes of an answer can be served.

use std::time::Duration;

use super::MAX_TEXT;
use crate::bindings::leafhost::discovery::types;
use crate::bindings::leafhost::udev::types as udev_types;
use crate::capabilities::udev::{MAX_TERMS, host_rule};
use crate::session::{INSTEAD_OF_EVENTS, Wakes};
use crate::text::Secrets;

/// Whether device events are heard.
#[derive(Clone)]
pub(super) enum Ears {
    /// They are.
    Udev,
    /// The grant is missing.
    NotGranted,
    /// They are granted, and cannot be heard here; says why.
    Deaf(String),
}

impl Ears {
    /// The wakes that can be served, and why the others cannot.
    pub(super) fn wakes(&self, list: Vec<types::Wake>, secrets: &Secrets) -> Wakes {
        let mut wakes = Wakes::default();
        for wake in list {
            let refused = match wake {
                types::Wake::After(millis) => {
                    after(&mut wakes, Duration::from_millis(millis.into()));
                    continue;
                }
                types::Wake::Udev(rule) => match self.udev(rule, &mut wakes) {
                    None => continue,
                    Some(refused) => refused,
                },
                types::Wake::Network => {
                    "network: this version has no network capability".to_owned()
                }
                types::Wake::Multicast(filter) => format!(
                    "multicast {}:{}: this version has no network capability",
                    filter.group, filter.port
                ),
            };
            let refused = secrets.clean(&refused, MAX_TEXT);
            if !wakes.refused.contains(&refused) {
                wakes.refused.push(refused);
            }
        }
        wakes
    }

    fn udev(&self, rule: udev_types::Rule, wakes: &mut Wakes) -> Option<String> {
        let terms: usize = wakes.udev.iter().map(|rule| rule.terms().count()).sum();
        if terms + rule.len() > MAX_TERMS {
            return Some(format!(
                "udev: the rules have more than {MAX_TERMS} terms in all; the first ones are in force"
            ));
        }
        let rule = match host_rule(rule) {
            Ok(rule) => rule,
            Err(error) => return Some(format!("udev: {error}")),
        };
        match self {
            Self::Udev => {
                wakes.udev.push(rule);
                None
            }
            Self::NotGranted => Some("udev: the grant `udev` is missing".to_owned()),
            Self::Deaf(reason) => {
                after(wakes, INSTEAD_OF_EVENTS);
                let seconds = INSTEAD_OF_EVENTS.as_secs();
                Some(format!("udev: {reason}; called every {seconds} s instead"))
            }
        }
    }
}

/// The soonest of several times counts.
fn after(wakes: &mut Wakes, time: Duration) {
    wakes.after = Some(wakes.after.map_or(time, |other| other.min(time)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(value: &str) -> types::Wake {
        types::Wake::Udev(vec![udev_types::Term {
            field: udev_types::Field::Subsystem,
            key: None,
            negated: false,
            value: value.to_owned(),
        }])
    }

    #[test]
    fn what_can_be_heard_is_served_and_the_rest_named() {
        let multicast = types::Wake::Multicast(types::MulticastFilter {
            group: "239.255.255.250".into(),
            port: 3702,
            contains: Vec::new(),
        });
        let list = || {
            vec![
                types::Wake::After(9000),
                types::Wake::After(5000),
                rule("usb"),
                rule("block"),
                rule(&"x".repeat(2000)),
                types::Wake::Network,
                types::Wake::Network,
                multicast.clone(),
            ]
        };
        let deaf = || Ears::Deaf("no netlink".into());
        for (ears, rules, words) in [
            (Ears::Udev, 2, "bytes"),
            (Ears::NotGranted, 0, "the grant `udev` is missing"),
            (deaf(), 0, "no netlink; called every 60 s instead"),
        ] {
            let wakes = ears.wakes(list(), &Secrets::default());
            assert_eq!(wakes.after, Some(Duration::from_secs(5)));
            assert_eq!(wakes.udev.len(), rules);
            let refused = wakes.refused.join("\n");
            assert!(refused.contains(words), "{refused}");
            assert!(refused.contains("multicast 239.255.255.250:3702: this version"));
            assert_eq!(refused.matches("network: ").count(), 1, "{refused}");
        }
        let wakes = deaf().wakes(vec![rule("usb")], &Secrets::default());
        assert_eq!(wakes.after, Some(INSTEAD_OF_EVENTS));
    }

    #[test]
    fn the_rules_of_all_wakes_are_bounded_together() {
        let types::Wake::Udev(rule) = rule("usb") else {
            panic!("a rule");
        };
        let long = types::Wake::Udev(vec![rule[0].clone(); 30]);
        let wakes = Ears::Udev.wakes(vec![long; 10], &Secrets::default());
        assert_eq!(wakes.udev.len(), 8);
        assert_eq!(wakes.refused.len(), 1);
        assert!(wakes.refused[0].contains("more than 256 terms"));
    }
}
