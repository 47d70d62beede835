//! Checks the devices of an answer, as handlers report them, against the contract, the secrets and the grants.

use std::collections::BTreeSet;

use leafhost_core::device::{self, Device};
use leafhost_core::left_out::{LeftOut, LeftOuts};

use crate::{Grants, Resolved, Secrets};

/// Maximum length to which the id of a device that was left out is shown, in bytes.
const SHOWN_ID: usize = 256;
/// Maximum length to which a reason is shown, in bytes.
const SHOWN_REASON: usize = 1024;

/// Device in the form that a handler reports.
pub trait Reported {
    /// Returns the id.
    fn id(&self) -> &str;

    /// Returns all texts as received.
    fn texts(&self) -> impl Iterator<Item = &String>;

    /// Returns all numbers as received.
    fn numbers(&self) -> impl Iterator<Item = i64> {
        std::iter::empty()
    }

    /// Converts the device.
    ///
    /// # Errors
    /// Returns the reason if that is not possible.
    fn into_device(self, shared: bool) -> Result<Device, String>;

    /// Returns the number of bytes of text.
    fn text(&self) -> usize {
        self.texts().map(String::len).sum()
    }
}

/// Reason why a device is left out.
pub(crate) struct Rejection {
    /// Message for the operator.
    pub reason: String,
    /// Property or path in the container that the grants do not allow.
    pub ungranted: Option<String>,
}

impl From<String> for Rejection {
    fn from(reason: String) -> Self {
        Self {
            reason,
            ungranted: None,
        }
    }
}

/// Rules that the devices of an answer are checked against.
pub struct Bounds<'a> {
    /// Grants with the paths that may be handed out.
    pub grants: &'a Grants,
    /// Default for devices that do not say whether they are shared.
    pub shared: bool,
    /// Secrets that no device may show.
    pub secrets: &'a Secrets,
    /// Device nodes that `udev` in the grants stands for.
    pub udev_nodes: &'a BTreeSet<String>,
    /// Resolves the links of a path.
    pub resolve: &'a (dyn Fn(&str) -> std::io::Result<Resolved> + Sync),
}

impl Bounds<'_> {
    /// Converts the devices; leaves out those that break a rule. Blocks if they have paths.
    pub fn devices<R: Reported>(&self, list: Vec<R>, left_out: &mut LeftOuts) -> Vec<Device> {
        let mut ids = BTreeSet::new();
        let is_new: Vec<bool> = list.iter().map(|raw| ids.insert(raw.id())).collect();
        let mut devices = Vec::with_capacity(list.len());
        for (raw, is_new) in list.into_iter().zip(is_new) {
            let id = raw.id().to_owned();
            let checked = if is_new {
                self.device(raw)
            } else {
                let reason = "the id was there before in the same answer; the first one counts";
                Err(reason.to_owned().into())
            };
            match checked {
                Ok(device) => devices.push(device),
                Err(Rejection { reason, ungranted }) => {
                    left_out.add(&id, || LeftOut {
                        id: self.secrets.clean(&id, SHOWN_ID),
                        reason: self.secrets.clean(&reason, SHOWN_REASON),
                    });
                    left_out.ungranted.extend(ungranted.map(|item| (id, item)));
                }
            }
        }
        devices
    }

    fn device<R: Reported>(&self, raw: R) -> Result<Device, Rejection> {
        if raw.text() > device::MAX_TEXT {
            return Err(format!("has more than {} bytes of text", device::MAX_TEXT).into());
        }
        // Secrets are checked first: later errors quote texts escaped, and a secret would not be recognized in that form.
        if let Some(name) = self.secret_in(&raw) {
            let reason = format!("has the value of the secret property {name}, or a part of it");
            return Err(reason.into());
        }
        let mut device = raw.into_device(self.shared)?;
        if let Some(problem) = device.problem() {
            return Err(problem.into());
        }
        self.hand_out(&mut device)?;
        Ok(device)
    }

    /// Returns the name of a secret property that the device shows.
    fn secret_in<R: Reported>(&self, raw: &R) -> Option<&str> {
        if self.secrets.is_empty() {
            return None;
        }
        let text = raw.texts().find_map(|text| self.secrets.find(text));
        text.or_else(|| {
            raw.numbers()
                .find_map(|number| self.secrets.find_number(number))
        })
    }
}
