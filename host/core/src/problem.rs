//! Current problems that need an operator: a reason, the affected object, and a message with the remedy.
//!
//! Publishers pass these values on; text is created only for display.

use std::path::PathBuf;

use jiff::Timestamp;

use crate::configuration::FieldProblem;
use crate::instance::InstanceKey;
use crate::names::{ConfigurationKey, GROUP};
use crate::node_report::ReportedProblem;
use crate::ports::SourceProblem;
use crate::text::{abridge, clean, few};

/// Maximum number of names in one message.
const NAMED: usize = 10;

/// Current problem. The name of a variant is the reason, in the format of the reasons of Kubernetes conditions and
/// Events.
#[derive(
    Debug,
    Clone,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    thiserror::Error,
    strum::IntoStaticStr,
    strum::EnumDiscriminants,
)]
#[strum_discriminants(
    name(Reason),
    doc = "Reason of a [`Problem`]: the problem in one word.",
    derive(PartialOrd, Ord, strum::EnumString, strum::IntoStaticStr),
    allow(missing_docs, reason = "each message of a problem explains it")
)]
#[allow(missing_docs, reason = "each message explains its fields")]
pub enum Problem {
    // Machine.
    #[error(
        "cannot receive device events ({error}): instead, the agent calls the handlers that wait for them once a minute"
    )]
    NoDeviceEvents { error: String },
    #[error(
        "no udevd here: ID_* properties and tags are missing; install udev, or run the agent in the host's network namespace"
    )]
    NoUdevd,
    #[error(
        "cannot list the network interfaces ({error}): handlers with the grant `network` reach nothing; let the agent open netlink sockets (AF_NETLINK)"
    )]
    NoNetworkInterfaces { error: String },
    #[error(
        "not root: the agent writes CDI specs to {}, where container runtimes do not look by default; start it as root, or give podman --cdi-spec-dir",
        cdi_dir.display()
    )]
    NotRoot { cdi_dir: PathBuf },
    #[error(
        "no podman on the PATH: the agent writes CDI specs anyway; install podman 4.1 or newer to use them"
    )]
    NoPodman,

    // Input of operators.
    #[error("{0}")]
    InvalidSource(SourceProblem),
    #[error("{0}")]
    NoEffect(SourceProblem),
    #[error(
        "not used: it is beyond the limit of {cap}; an agent first takes those that it had before, then the oldest; remove Configurations that you do not need, or let one find more devices"
    )]
    TooManyConfigurations {
        configuration: ConfigurationKey,
        cap: String,
    },
    #[error("{field}; the handler is not called")]
    PropertyUnavailable {
        configuration: ConfigurationKey,
        field: FieldProblem,
    },
    #[error(
        "{configuration} has the name of {owner}, which had it first: its devices are not offered to {consumer}; rename one of them"
    )]
    NameTaken {
        configuration: ConfigurationKey,
        /// Configuration that has the name, itself or by an Instance.
        owner: String,
        consumer: &'static str,
    },
    #[error(
        "Instance {instance} has the name of {owner}, which goes before it: its device is not offered to the kubelet; rename one of the Configurations"
    )]
    InstanceNameTaken {
        instance: InstanceKey,
        owner: String,
    },

    // Brokers.
    #[error("cannot write {object}: {error}{}; the controller tries again", and_more(*more))]
    BrokerNotWritten {
        configuration: ConfigurationKey,
        object: String,
        error: String,
        more: usize,
    },
    #[error(
        "{object}{} already exists and belongs to another owner, so it is left unchanged; delete it, or rename the Configuration",
        and_more(*more)
    )]
    BrokerNameTaken {
        configuration: ConfigurationKey,
        object: String,
        more: usize,
    },
    #[error(
        "spec.brokerSpec: brokers ask for the resources of Instances, which the annotation leafhost.dev/resources: configuration leaves out; remove the annotation"
    )]
    BrokerResourceNotOffered { configuration: ConfigurationKey },
    #[error(
        "pods whose device is gone are not restarted: {error}; set controller.restartPods=true in the chart, which starts the controller with --restart-pods and allows it to evict pods, or remove the annotation leafhost.dev/restart-pods"
    )]
    PodsNotRestarted {
        configuration: ConfigurationKey,
        error: String,
    },

    // Handlers and their answers.
    #[error("handler {handler:?} is not loaded yet")]
    HandlerLoading {
        configuration: ConfigurationKey,
        handler: String,
    },
    #[error(
        "spec.discoveryHandler.name: no handler is named {handler:?}; {}{}",
        add(known),
        not_loaded(refused)
    )]
    HandlerNotFound {
        configuration: ConfigurationKey,
        handler: String,
        known: Vec<String>,
        refused: Vec<String>,
    },
    #[error(
        "handler {handler:?} failed for too long and was removed; the agent calls it again at {retry}, or at once when its file is replaced"
    )]
    HandlerRemoved {
        configuration: ConfigurationKey,
        handler: String,
        retry: Timestamp,
    },
    #[error(
        "handler {handler:?} comes from {}: each of them gets this Configuration's properties, including credentials; remove those that you do not want",
        sources.join(" and ")
    )]
    HandlerAmbiguous {
        configuration: ConfigurationKey,
        handler: String,
        sources: Vec<String>,
    },
    #[error(
        "handler {handler:?} comes from {source_name}, too, which was accepted after {first}: it gets none of this Configuration's properties, and adds only devices that {first} does not have, once that has answered; remove it, or write `name: {handler}` into its grants file if it is to be trusted as {first} is"
    )]
    SourceNotTrusted {
        configuration: ConfigurationKey,
        handler: String,
        source_name: String,
        first: String,
    },
    #[error(
        "handler {handler:?} comes from {source_name}, and its name belongs to {owner}, which is gone: {source_name} gets none of this Configuration's properties; restore {owner}, or write `name: {handler}` into the grants file of {source_name} if it is to be trusted as {owner} was"
    )]
    SourceNotOwner {
        configuration: ConfigurationKey,
        handler: String,
        source_name: String,
        owner: String,
    },
    #[error("{source_name} refuses the details, existing devices stay: {}", few(fields.iter().map(shown), 3))]
    InvalidDetails {
        configuration: ConfigurationKey,
        source_name: String,
        fields: Vec<FieldProblem>,
    },
    #[error("no devices from {source_name}: {result}: {error}")]
    DiscoveryFailed {
        configuration: ConfigurationKey,
        source_name: String,
        result: &'static str,
        error: String,
    },
    #[error("{} of {loser} {} not used, because {winner} has the same", some(*devices, example), is_or_are(*devices))]
    DevicesDuplicated {
        configuration: ConfigurationKey,
        loser: String,
        winner: String,
        devices: usize,
        example: String,
    },
    #[error(
        "{source_name} found {over} devices beyond its limit of {most} devices with {mebibytes} MiB of text; they are not used; `limits.devices` in the grants raises their number"
    )]
    TooManyDevices {
        configuration: ConfigurationKey,
        source_name: String,
        over: usize,
        most: usize,
        mebibytes: usize,
    },
    #[error(
        "handler output is unstable: at most {most} changes of devices are passed on in an hour, {waiting} wait{}; make ids and values of the handler stable, or change the details",
        such_as(example.as_deref())
    )]
    DevicesUnstable {
        configuration: ConfigurationKey,
        most: usize,
        waiting: usize,
        example: Option<String>,
    },
    #[error(
        "{} found by other Configurations, too: {} is the hardware {}, which {} found; it may be handed out twice",
        if *devices == 1 { "1 device was".to_owned() } else { format!("{devices} devices were") },
        quoted(example),
        quoted(hardware),
        few(others, 3)
    )]
    HardwareShared {
        configuration: ConfigurationKey,
        devices: usize,
        example: String,
        hardware: String,
        others: Vec<String>,
    },
    #[error(
        "{} {} not used: Instances of other devices have {name} and all longer names it could have; give it another id, or remove the handler that invents the others",
        some(*devices, example),
        is_or_are(*devices)
    )]
    NoFreeName {
        configuration: ConfigurationKey,
        devices: usize,
        example: String,
        name: String,
    },

    // Instances and the state of the agent.
    #[error("{error}{}", and_more(*more))]
    InstancesNotWritten { error: String, more: usize },
    #[error(
        "cannot watch Instances: {error}; the agent uses the Instances that it read last, until the watch works again"
    )]
    InstancesNotWatched { error: String },
    #[error("cannot claim slots, so the agent offers no free slots until it can: {error}")]
    SlotsNotClaimed { error: String },
    #[error(
        "no free slot of Instance {instance}{} is offered until it can be written again: {error}",
        and_more(*more)
    )]
    InstanceNotClaimed {
        instance: InstanceKey,
        error: String,
        more: usize,
    },
    #[error("{error}")]
    LedgerNotWritten { error: String },
    #[error(
        "devices of {configuration} are not offered to the scheduler, which the annotation leafhost.dev/allocation requests: {why}"
    )]
    DraUnavailable {
        configuration: ConfigurationKey,
        why: String,
    },
    #[error("there is no DeviceClass {class} for the devices of {configuration}: {why}")]
    ClassNotMade {
        configuration: ConfigurationKey,
        class: String,
        why: String,
    },
    #[error(
        "a device of a slice has at most 32 attributes and capacities, each name once with or without leafhost.dev/; left out are {}; let the handler report fewer",
        few(names, NAMED)
    )]
    AttributesLeftOut { names: Vec<String> },
    #[error("cannot write the ResourceSlices of this node: {error}")]
    SlicesNotWritten { error: String },
    #[error(
        "cannot read the records of claims {}: their devices stay taken; delete the pods that use them, which releases the claims",
        few(claims, NAMED)
    )]
    ClaimRecordUnreadable { claims: Vec<String> },
    #[error("kubectl get dh may be out of date for this node: {error}")]
    ReportNotWritten { error: String },
    #[error(
        "the Instances' properties and attributes are left out here, because they have {mebibytes} MiB; read them in the Instances"
    )]
    StatusTruncated { mebibytes: usize },

    // Offers to container runtimes.
    #[error(
        "metadata.name {:?} cannot be a CDI class, so the devices are not offered to container runtimes; use a name of at least two letters, digits, '.' and '-' that begins with a letter and ends with a letter or digit",
        configuration.name()
    )]
    InvalidCdiClass { configuration: ConfigurationKey },
    #[error(
        "{devices} devices are not offered to container runtimes: the CDI spec {GROUP}/{} would have more than {mebibytes} MiB; give the devices fewer or shorter properties, or split the Configuration",
        configuration.name()
    )]
    CdiSpecTooLarge {
        configuration: ConfigurationKey,
        devices: usize,
        mebibytes: usize,
    },
    #[error("{error}")]
    CdiSpecNotWritten {
        /// `None` if the whole folder is affected.
        configuration: Option<ConfigurationKey>,
        error: String,
    },

    // Kubelet.
    #[error("{error}")]
    KubeletUnavailable { error: String },
    #[error(
        "{} is missing although the kubelet runs, so no new resource can be offered to it; restart the kubelet",
        socket.display()
    )]
    KubeletSocketMissing { socket: PathBuf },
    #[error("pods do not get {resource}: {error}")]
    ResourceFailed {
        configuration: ConfigurationKey,
        resource: String,
        error: String,
    },
    #[error(
        "resource {resource} is not offered to the kubelet: {error}; give the Configuration a shorter name"
    )]
    InvalidResourceName { resource: String, error: String },
    #[error(
        "{over} of {all} Instances have no resource of their own, because a node gets at most {most} (--instance-resources); pods reach them through their Configuration's resource"
    )]
    TooManyResources {
        over: usize,
        all: usize,
        most: usize,
    },
    #[error(
        "{over} Instances have no resource of their own, because this node has offered {names} names already and its Node object keeps every name; pods reach them through their Configuration's resource. Devices whose ids keep changing use up these names"
    )]
    ResourceNamesExhausted { over: usize, names: usize },
    #[error(
        "slot {slot} is held by {holder} ({device_id}) and claimed by {claim:?}; delete that pod or the pod of the claim"
    )]
    SlotClaimedTwice {
        slot: String,
        holder: String,
        device_id: String,
        claim: String,
    },
    #[error(
        "pods have slots of Instances that are withdrawn: {}; where the device is gone their containers cannot be started again; reconnect the device, or delete the pod",
        few(slots, NAMED)
    )]
    InstanceWithdrawn { slots: Vec<String> },
    #[error(
        "the kubelet has lost its record of slots whose pods still exist, and no other pod gets these slots: {}; replace those pods before you restart the agent",
        few(slots, NAMED)
    )]
    SlotRecordLost { slots: Vec<String> },
    #[error(
        "the kubelet, which was restarted, has no record of slots that this node had before: {}; they are offered again when no pod has been seen to have them for {grace_seconds} s (--slot-grace)",
        few(slots, NAMED)
    )]
    SlotRecordMissing {
        slots: Vec<String>,
        grace_seconds: u64,
    },
}

/// Object that a problem affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Subject<'a> {
    /// Machine that the agent runs on.
    Node,
    /// Configuration.
    #[strum(to_string = "Configuration {0}")]
    Configuration(&'a ConfigurationKey),
    /// Instance.
    #[strum(to_string = "Instance {0}")]
    Instance(&'a InstanceKey),
    /// File, or object that operators write.
    #[strum(to_string = "source {0}")]
    Source(&'a str),
    /// Resource that is offered to the kubelet.
    #[strum(to_string = "resource {0}")]
    Resource(&'a str),
}

impl Problem {
    /// Returns the reason: stable, in CamelCase.
    pub fn reason(&self) -> &'static str {
        self.into()
    }

    /// Returns the affected object.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::InvalidSource(problem) | Self::NoEffect(problem) => {
                match &problem.configuration {
                    Some(configuration) => Subject::Configuration(configuration),
                    None => Subject::Source(&problem.source),
                }
            }
            Self::TooManyConfigurations { configuration, .. }
            | Self::PropertyUnavailable { configuration, .. }
            | Self::NameTaken { configuration, .. }
            | Self::BrokerNotWritten { configuration, .. }
            | Self::BrokerNameTaken { configuration, .. }
            | Self::BrokerResourceNotOffered { configuration }
            | Self::PodsNotRestarted { configuration, .. }
            | Self::HandlerLoading { configuration, .. }
            | Self::HandlerNotFound { configuration, .. }
            | Self::HandlerRemoved { configuration, .. }
            | Self::HandlerAmbiguous { configuration, .. }
            | Self::SourceNotTrusted { configuration, .. }
            | Self::SourceNotOwner { configuration, .. }
            | Self::InvalidDetails { configuration, .. }
            | Self::DiscoveryFailed { configuration, .. }
            | Self::DevicesDuplicated { configuration, .. }
            | Self::TooManyDevices { configuration, .. }
            | Self::DevicesUnstable { configuration, .. }
            | Self::HardwareShared { configuration, .. }
            | Self::NoFreeName { configuration, .. }
            | Self::InvalidCdiClass { configuration }
            | Self::DraUnavailable { configuration, .. }
            | Self::ClassNotMade { configuration, .. }
            | Self::CdiSpecTooLarge { configuration, .. }
            | Self::ResourceFailed { configuration, .. }
            | Self::CdiSpecNotWritten {
                configuration: Some(configuration),
                ..
            } => Subject::Configuration(configuration),
            Self::InstanceNameTaken { instance, .. }
            | Self::InstanceNotClaimed { instance, .. } => Subject::Instance(instance),
            Self::InvalidResourceName { resource, .. } => Subject::Resource(resource),
            _ => Subject::Node,
        }
    }
}

impl From<&Problem> for ReportedProblem {
    fn from(problem: &Problem) -> Self {
        Self {
            reason: problem.reason().to_owned(),
            message: problem.to_string(),
        }
    }
}

fn shown(field: &FieldProblem) -> String {
    abridge(&field.to_string(), 300)
}

fn add(known: &[String]) -> String {
    if known.is_empty() {
        return "there is none at all; add its .wasm file to the handlers".to_owned();
    }
    format!(
        "there are {}; correct the name or add the handler's .wasm file",
        known.join(", ")
    )
}

fn not_loaded(refused: &[String]) -> String {
    if refused.is_empty() {
        return String::new();
    }
    format!(" ({} did not load)", refused.join(", "))
}

fn some(devices: usize, example: &str) -> String {
    match devices {
        1 => format!("device {}", quoted(example)),
        _ => format!("{devices} devices (such as {})", quoted(example)),
    }
}

/// Returns the id of a device in quotes, shortened to fit into a sentence.
fn quoted(id: &str) -> String {
    format!("\"{}\"", clean(id, 64))
}

fn is_or_are(devices: usize) -> &'static str {
    if devices == 1 { "is" } else { "are" }
}

fn such_as(example: Option<&str>) -> String {
    example.map_or_else(String::new, |id| format!(" (such as of {})", quoted(id)))
}

fn and_more(more: usize) -> String {
    match more {
        0 => String::new(),
        _ => format!(" (and {more} more)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_has_a_reason_a_subject_and_a_message() {
        let configuration = ConfigurationKey::new("default", "cams").unwrap();
        let problem = Problem::HandlerNotFound {
            configuration: configuration.clone(),
            handler: "udve".into(),
            known: vec!["debugEcho".into(), "udev".into()],
            refused: vec!["x.wasm".into()],
        };
        assert_eq!(problem.reason(), "HandlerNotFound");
        assert_eq!(problem.subject().to_string(), "Configuration default/cams");
        assert_eq!(
            problem.to_string(),
            "spec.discoveryHandler.name: no handler is named \"udve\"; there are debugEcho, udev; correct the name or add the handler's .wasm file (x.wasm did not load)"
        );
        let source = |configuration| {
            Problem::InvalidSource(SourceProblem {
                source: "a.yaml".into(),
                configuration,
                ..SourceProblem::default()
            })
        };
        assert_eq!(source(None).subject(), Subject::Source("a.yaml"));
        let problem = source(Some(configuration.clone()));
        assert_eq!(problem.subject(), Subject::Configuration(&configuration));
        assert_eq!(Problem::NoPodman.subject(), Subject::Node);
    }
}
