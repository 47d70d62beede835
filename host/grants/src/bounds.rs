//! Checks the devices of an answer, as handlers report them, against the contract, the secrets and the grants.

use std::collections::BTreeSet;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::{self, Device, Health};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::{LeftOut, LeftOuts};
use leafhost_core::text::clean;

use crate::{Grants, Resolved, Secrets};

/// Maximum length to which the id of a device that was left out is shown, in bytes.
const SHOWN_ID: usize = 256;
/// Maximum length to which a reason is shown, in bytes.
const SHOWN_REASON: usize = 1024;

/// Device in the form that a handler reports.
pub trait Reported {
    /// Converts the device. Also returns the problem that the converted device does not show, if there is one: a name that is specified
    /// twice. The problem quotes texts as they are, so that a secret in it is recognized.
    fn into_device(self, shared: bool) -> (Device, Option<String>);
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
    ///
    /// # Errors
    /// Returns a [`Fault`] if there are more devices, or more text, than the grants allow.
    pub fn devices<R: Reported>(
        &self,
        list: Vec<R>,
        left_out: &mut LeftOuts,
    ) -> Result<Vec<Device>, Fault> {
        let limits = &self.grants.limits;
        let too_large = |what| Err(Fault::new(FaultReason::AnswerTooLarge, what));
        if list.len() > usize::try_from(limits.devices).unwrap_or(usize::MAX) {
            return too_large(format!(
                "the answer has {} devices, at most {}; `limits.devices` in the grants raises it",
                list.len(),
                limits.devices
            ));
        }
        let list = list.into_iter().map(|raw| raw.into_device(self.shared));
        let list: Vec<(Device, Option<String>)> = list.collect();
        let text: usize = list.iter().map(|(device, _)| device.text()).sum();
        if text > usize::try_from(limits.answer).unwrap_or(usize::MAX) {
            return too_large(format!(
                "the devices of the answer have {text} bytes of text, at most {}; give the devices fewer or shorter texts",
                limits.answer
            ));
        }
        let mut ids = BTreeSet::new();
        let is_new = list.iter().map(|(device, _)| ids.insert(&device.id));
        let is_new: Vec<bool> = is_new.collect();
        let mut devices = Vec::with_capacity(list.len());
        for ((device, twice), is_new) in list.into_iter().zip(is_new) {
            let id = device.id.clone();
            let checked = if is_new {
                self.device(device, twice)
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
        Ok(devices)
    }

    fn device(&self, mut device: Device, twice: Option<String>) -> Result<Device, Rejection> {
        if device.text() > device::MAX_TEXT {
            return Err(format!("has more than {} bytes of text", device::MAX_TEXT).into());
        }
        // Secrets are checked first: later errors quote texts escaped, and a secret would not be recognized in that form.
        if let Some(name) = self.secret_in(&device) {
            let reason = format!("has the value of the secret property {name}, or a part of it");
            return Err(reason.into());
        }
        if let Some(problem) = twice.or_else(|| device.problem()) {
            return Err(problem.into());
        }
        if let Health::Unhealthy(reason) = &mut device.health {
            *reason = clean(reason, SHOWN_REASON);
        }
        self.hand_out(&mut device)?;
        Ok(device)
    }

    /// Returns the name of a secret property that the device shows.
    fn secret_in(&self, device: &Device) -> Option<&str> {
        if self.secrets.is_empty() {
            return None;
        }
        let text = device.texts().find_map(|text| self.secrets.find(text));
        text.or_else(|| {
            device.attributes.values().find_map(|value| match value {
                AttributeValue::Int(number) => self.secrets.find_number(*number),
                _ => None,
            })
        })
    }
}
