//! Report as a document, for `-o json` and the text output.

use anyhow::{Result, bail};
use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::Device;
use leafhost_core::left_out::LeftOut;
use leafhost_core::names::{ConfigurationKey, DigestLength, cdi_name, device_hash, instance_name};
use leafhost_core::ports::Handler;
use leafhost_core::session::{CallStats, Devices, Explanation, Outcome, Report};
use serde::Serialize;

#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Document {
    pub handler: String,
    pub version: String,
    /// SHA-256 of the handler's bytes.
    pub digest: String,
    pub node: String,
    /// Configuration given to the handler, as `namespace/name`.
    pub configuration: String,
    /// Result: `ok`, `invalid-details`, `unavailable`, or the reason of the fault.
    pub result: String,
    /// Error, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    pub invalid_details: Vec<FieldProblem>,
    /// Extent of the answer: `complete`, `partial` or `unchanged`; absent without an answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extent: Option<&'static str>,
    pub devices: Vec<Found>,
    pub departed: Vec<String>,
    /// Devices of the answer that were rejected.
    pub left_out: Vec<LeftOut>,
    /// Number of further rejected devices.
    pub left_out_dropped: u64,
    /// Explanations of candidates that are not devices.
    pub skipped: Vec<Explanation>,
    /// Number of further explanations.
    pub skipped_dropped: u64,
    /// Cost of the call; absent if there was none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call: Option<CallStats>,
}

/// Device with the names of its Instance and CDI device.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    #[serde(flatten)]
    pub device: Device,
    pub instance: String,
    pub cdi_name: String,
}

impl Document {
    /// Creates the document of a report.
    pub fn new(
        handler: &dyn Handler,
        node: &str,
        configuration: &ConfigurationKey,
        report: Report,
    ) -> Self {
        let facts = handler.facts();
        let mut document = Self {
            handler: facts.description.name.clone(),
            version: facts.description.version.clone(),
            digest: facts.digest.0.clone(),
            node: node.to_owned(),
            configuration: configuration.to_string(),
            result: "ok".to_owned(),
            skipped: report.explained,
            skipped_dropped: report.explained_dropped,
            call: Some(report.call),
            ..Self::default()
        };
        match report.outcome {
            Outcome::Discovered(discovery) => {
                let (extent, devices) = match discovery.devices {
                    Devices::Unchanged => ("unchanged", Vec::new()),
                    Devices::Complete(devices) => ("complete", devices),
                    Devices::Partial(devices) => ("partial", devices),
                };
                document.extent = Some(extent);
                document.devices = devices
                    .into_iter()
                    .map(|device| Found::new(device, node, configuration.name()))
                    .collect();
                document.departed = discovery.departed;
                document.left_out = discovery.left_out.shown;
                document.left_out_dropped = discovery.left_out.more;
            }
            Outcome::InvalidDetails(problems) => {
                "invalid-details".clone_into(&mut document.result);
                document.invalid_details = problems;
            }
            Outcome::Unavailable(what) => {
                "unavailable".clone_into(&mut document.result);
                document.error = Some(what);
            }
            Outcome::Faulted(fault) => {
                fault.reason.label().clone_into(&mut document.result);
                document.error = Some(fault.message);
            }
        }
        document
    }

    /// Returns an error if there was no answer. `origin` names the source of the details.
    pub fn failure(&self, origin: &str) -> Result<()> {
        let error = self.error.as_deref().unwrap_or("no reason given");
        match self.result.as_str() {
            "ok" => Ok(()),
            "invalid-details" => {
                let problems = self.invalid_details.iter().map(ToString::to_string);
                let problems: Vec<String> = problems.collect();
                bail!("{} refuses {origin}: {}", self.handler, problems.join("; "))
            }
            "unavailable" => bail!("{} is unavailable: {error}", self.handler),
            reason => bail!("the call of {} failed ({reason}): {error}", self.handler),
        }
    }
}

impl Found {
    fn new(device: Device, node: &str, configuration: &str) -> Self {
        let local_to = (!device.shared).then_some(node);
        let hash = device_hash(&device.id, local_to, DigestLength::Three);
        Self {
            instance: instance_name(configuration, &hash),
            cdi_name: cdi_name(configuration, &hash),
            device,
        }
    }
}
