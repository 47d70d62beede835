//! Offers this node's local devices to the scheduler, for Configurations with backend `Dra`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::claim::ports::{Offered, SliceFeatures, SliceStore};
use leafhost_core::configuration::Backend;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::slice_device::offered;
use leafhost_core::slices::{Devices, MISSING, Taint, UNHEALTHY};
use leafhost_core::usable::{Unusable, usable};
use leafhost_core::wait::{changed, publish};
use leafhost_kubelet::dra::{DraReport, Registration};
use leafhost_slots::model::name_index::NameIndex;
use tokio::sync::watch;

use crate::status::AllocationView;

/// Interval at which the API server is asked for the features of slices that it keeps: its version may change.
const ASK_AGAIN: Duration = Duration::from_hours(1);

/// Time for a kubelet to register the driver, as it does after each start. A missing registration is reported only after this time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Report on the offer to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OfferReport {
    /// Reason why nothing is offered although a Configuration wants it, with the remedy.
    pub problem: Option<String>,
    /// Number of local devices offered, by Configuration with backend `Dra`.
    pub offered: BTreeMap<ConfigurationKey, usize>,
    /// True if claims share a device with several slots, false if each slot is a device; `None` until it is known.
    pub has_shares: Option<bool>,
    /// Attributes and capacities that do not fit into a slice, as `<instance>: <name>`.
    pub left_out: BTreeSet<String>,
}

impl OfferReport {
    /// Returns the offer of a Configuration's devices to the scheduler, if they are offered.
    pub fn view(&self, key: &ConfigurationKey) -> Option<AllocationView> {
        let sharing = |has_shares| if has_shares { "shares" } else { "slots" };
        self.offered.get(key).map(|offered| AllocationView {
            by: "dra".to_owned(),
            local_devices: *offered,
            sharing: self.has_shares.map(|has| sharing(has).to_owned()),
        })
    }
}

/// Task that offers local devices to the scheduler by their state and use.
pub struct OfferTask {
    /// Name of this node.
    pub node: String,
    /// Devices as discovery sees them.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// Instances, with the use of their slots.
    pub instances: watch::Receiver<Arc<InstanceSet>>,
    /// State of the driver at the kubelet.
    pub registration: watch::Receiver<DraReport>,
    /// Store of slices.
    pub store: Arc<dyn SliceStore>,
    /// Receives the offered devices.
    pub offered: watch::Sender<Offered>,
    /// Receives the report.
    pub report: watch::Sender<Arc<OfferReport>>,
}

impl OfferTask {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut features: Option<SliceFeatures> = None;
        let mut failures = 0;
        let mut was_asked = false;
        let mut unasked: Option<String> = None;
        let mut ask_at = tokio::time::Instant::now();
        let mut told_at = None;
        loop {
            let wanted: BTreeSet<_> = wanted(&self.devices.borrow_and_update()).cloned().collect();
            let registered = self.registered();
            // The report of a missing registration is delayed.
            if registered.is_ok() {
                told_at = None;
            }
            let now = tokio::time::Instant::now();
            let waits = registered.is_err() && *told_at.get_or_insert(now + PATIENCE) > now;
            // Asked at least once: offers of an earlier run may have to be removed.
            let is_due = ask_at <= tokio::time::Instant::now();
            if (!wanted.is_empty() || !was_asked) && registered.is_ok() && is_due {
                let asked = self.store.features().await;
                was_asked |= asked.as_ref().err().is_none_or(|error| !error.is_transient);
                let wait = match asked {
                    Ok(found) => {
                        (features, unasked, failures) = (Some(found), None, 0);
                        ASK_AGAIN
                    }
                    Err(error) => {
                        failures += 1;
                        unasked = Some(error.message);
                        backoff::wait(failures)
                    }
                };
                ask_at = tokio::time::Instant::now() + wait;
            }
            let asks = registered.is_ok() && (!wanted.is_empty() || !was_asked);
            let problem = registered
                .err()
                .or_else(|| unasked.clone().filter(|_| features.is_none()));
            let known = features.filter(|_| problem.is_none());
            self.publish(&wanted, known, problem.filter(|_| !waits));
            tokio::select! {
                () = changed(&mut self.devices) => {}
                () = changed(&mut self.instances) => {}
                () = changed(&mut self.registration) => {}
                () = tokio::time::sleep_until(ask_at), if asks => {}
                () = tokio::time::sleep_until(told_at.unwrap_or(now)), if waits => {}
            }
        }
    }

    /// Returns the reason if the kubelet cannot use the offer.
    fn registered(&mut self) -> Result<(), String> {
        let report = self.registration.borrow_and_update();
        match (&report.problem, &report.registration) {
            (Some(problem), _) => Err(problem.clone()),
            (None, Registration::Registered) => Ok(()),
            (None, Registration::Awaited) => Err(
                "the kubelet has not registered the DRA driver yet; it takes plugins from its folder plugins_registry"
                    .to_owned(),
            ),
            (None, Registration::Lost) => {
                Err("the kubelet has closed its connection to the DRA driver".to_owned())
            }
            (None, Registration::Refused(why)) => {
                Err(format!("the kubelet does not register the DRA driver: {why}"))
            }
        }
    }

    fn publish(
        &mut self,
        wanted: &BTreeSet<ConfigurationKey>,
        features: Option<SliceFeatures>,
        problem: Option<String>,
    ) {
        let view = Arc::clone(&self.devices.borrow());
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let is_known = view.read && instances.is_known();
        let mut report = OfferReport {
            problem: problem.filter(|_| !wanted.is_empty()),
            offered: wanted.iter().map(|key| (key.clone(), 0)).collect(),
            has_shares: features.map(|features| features.shares),
            left_out: BTreeSet::new(),
        };
        let offered = match features.filter(|_| is_known) {
            None => Offered::Unknown,
            // Without such Configurations no existing slices are looked up.
            Some(_) if wanted.is_empty() => Offered::Unwanted,
            Some(features) => {
                let devices = offers(&self.node, &view, &instances, features, &mut report);
                Offered::Devices(Arc::new(devices))
            }
        };
        publish(&self.report, Arc::new(report));
        publish(&self.offered, offered);
    }
}

/// Returns a problem for each Configuration with backend `Dra` on an agent without a cluster, a kubelet or a folder of CDI specs, which
/// offers nothing to the scheduler.
pub fn unavailable(view: &DeviceSnapshot) -> Vec<Problem> {
    let why = "this agent works without a cluster, a kubelet or CDI specs; give it all three, or remove the annotation";
    let problem = |key: &ConfigurationKey| Problem::DraUnavailable {
        configuration: key.clone(),
        why: why.to_owned(),
    };
    wanted(view).map(problem).collect()
}

/// Returns the Configurations whose devices the scheduler allocates.
fn wanted(view: &DeviceSnapshot) -> impl Iterator<Item = &ConfigurationKey> {
    let all = view.configurations.iter();
    let wanted = all.filter(|(_, view)| view.configured.configuration.backend == Backend::Dra);
    wanted.map(|(key, _)| key)
}

/// Returns the local devices to offer; adds their number, and the attributes without room, to the report.
fn offers(
    node: &str,
    view: &DeviceSnapshot,
    instances: &InstanceSet,
    features: SliceFeatures,
    report: &mut OfferReport,
) -> Devices {
    let name_index = NameIndex::new(node, view, instances);
    let mut all = Devices::new();
    for instance in instances.instances.values() {
        let is_here = !instance.spec.shared && instance.is_seen_by(node);
        let Some(key) = instance.configuration().filter(|_| is_here) else {
            continue;
        };
        let view_of = view.configurations.get(&key);
        let configuration = view_of.map(|view| &view.configured.configuration);
        let Some(configuration) = configuration.filter(|one| one.backend == Backend::Dra) else {
            continue;
        };
        if name_index.configurations.get(key.name()) != Some(&key) {
            continue;
        }
        let reason = match usable(node, view, instance) {
            Err(Unusable::Unhealthy { .. }) => Some(UNHEALTHY),
            Err(Unusable::Gone) => Some(MISSING),
            Ok(_) | Err(Unusable::NotSeen) => None,
        };
        if reason.is_some() && !features.taints {
            continue;
        }
        let taint = |key: &str| Taint {
            key: key.to_owned(),
            evicts: configuration.evicts && key == UNHEALTHY,
        };
        let taints = reason.map(taint).into_iter().collect();
        let (devices, over) = offered(&key, instance, &taints, features.shares);
        let count = report.offered.entry(key).or_default();
        *count = count.saturating_add(usize::from(!devices.is_empty()));
        all.extend(devices);
        report.left_out.extend(over);
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use leafhost_core::claim::ports::{ReadError, SliceReport};
    use leafhost_core::device::{Device, Health};
    use leafhost_core::device_view::{ConfigurationDevices, DeviceView};
    use leafhost_core::instance::Instance;
    use leafhost_core::presence::Absent;
    use leafhost_fakes::{configured_as, key};

    use super::*;

    const NODE: &str = "node-a";
    const ALL: SliceFeatures = SliceFeatures {
        shares: true,
        taints: true,
    };

    fn mk_view(configurations: &[(&str, Option<&str>, Health)]) -> DeviceSnapshot {
        let mut snapshot = DeviceSnapshot {
            read: true,
            absent: Absent::GONE,
            ..DeviceSnapshot::default()
        };
        for (name, allocation, health) in configurations {
            let annotations =
                allocation.map(|value| serde_json::json!({"leafhost.dev/allocation": value}));
            let configured = configured_as(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Configuration",
                "metadata": {"name": name, "namespace": "default", "uid": "u", "annotations": annotations.unwrap_or(serde_json::json!({}))},
                "spec": {"discoveryHandler": {"name": "mock-gpu"}, "capacity": 3},
            }));
            let mut device = Device::new("a1", false);
            device.health = health.clone();
            let view = DeviceView {
                device: Some(Arc::new(device.clone())),
                missing_since: None,
            };
            let devices = ConfigurationDevices {
                configured: Arc::new(configured),
                devices: BTreeMap::from([(device.key(), view)]),
                absent: Absent::GONE,
            };
            snapshot.configurations.insert(key(name), Arc::new(devices));
        }
        snapshot
    }

    fn mk_instances(all: &[(&str, &[&str])]) -> InstanceSet {
        let instances = all.iter().map(|(configuration, usage)| {
            let name = format!("{configuration}-a1");
            let usage = usage.iter().enumerate();
            let usage: BTreeMap<String, &str> =
                usage.map(|(slot, text)| (format!("{name}-{slot}"), *text)).collect();
            let instance: Instance = serde_json::from_value(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": name, "namespace": "default", "uid": "u"},
                "spec": {"configurationName": configuration, "capacity": 3, "nodes": [NODE], "deviceUsage": usage, "leafhost": {"id": "a1"}},
            }))
            .unwrap();
            (instance.key(), Arc::new(instance))
        });
        InstanceSet::read(instances.collect())
    }

    #[test]
    fn only_what_the_scheduler_gives_is_offered_without_what_device_plugins_have() {
        let view = mk_view(&[
            ("gpu", Some("dra"), Health::Healthy),
            ("cams", None, Health::Healthy),
            ("plc", Some("device-plugin"), Health::Healthy),
        ]);
        let instances = mk_instances(&[
            ("gpu", &[NODE, "R:lab:viewer:u1:node-a", "C:gpu-0:node-a"]),
            ("cams", &[]),
            ("plc", &[]),
        ]);
        let mut report = OfferReport::default();
        let offered = offers(NODE, &view, &instances, ALL, &mut report);
        assert!(report.left_out.is_empty());
        assert_eq!(report.offered[&key("gpu")], 1);
        assert_eq!(offered.keys().collect::<Vec<_>>(), ["gpu-a1"]);
        assert_eq!(
            offered["gpu-a1"].shares,
            Some(1),
            "those of claims are the scheduler's to count"
        );
        let older = SliceFeatures::default();
        let offered = offers(NODE, &view, &instances, older, &mut report);
        assert_eq!(offered.keys().collect::<Vec<_>>(), ["gpu-a1-1"]);
    }

    /// API server with given answers.
    struct Server(std::sync::Mutex<Vec<Result<SliceFeatures, bool>>>);

    #[async_trait::async_trait]
    impl SliceStore for Server {
        async fn features(&self) -> Result<SliceFeatures, ReadError> {
            let answer = self.0.lock().unwrap().pop().expect("it is asked too often");
            answer.map_err(|is_transient| ReadError {
                message: "no answer".to_owned(),
                is_transient,
            })
        }

        async fn keep(&self, _: watch::Receiver<Offered>, _: watch::Sender<SliceReport>) {}
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_offered_before_the_kubelet_has_the_driver_and_a_failed_question_is_repeated()
     {
        let (registration, registered) = watch::channel(DraReport::default());
        let (devices, view) = watch::channel(Arc::new(mk_view(&[])));
        let instances = mk_instances(&[("gpu", &[])]);
        let (_instances, seen) = watch::channel(Arc::new(instances));
        let (offered, mut offers) = watch::channel(Offered::Unknown);
        let (report, mut reports) = watch::channel(Arc::default());
        // The last one comes first.
        let answers = vec![Ok(ALL), Ok(ALL), Err(true)];
        let server = Arc::new(Server(std::sync::Mutex::new(answers)));
        let task = OfferTask {
            node: NODE.to_owned(),
            devices: view,
            instances: seen,
            registration: registered,
            store: server.clone(),
            offered,
            report,
        };
        let _running = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(task.run()));
        tokio::time::sleep(Duration::from_hours(2)).await;
        assert_eq!(
            server.0.lock().unwrap().len(),
            3,
            "the kubelet does not know the driver"
        );
        let register = |registration: &watch::Sender<DraReport>, state| {
            let problem = None;
            registration.send_replace(DraReport {
                registration: state,
                problem,
            });
        };
        register(&registration, Registration::Registered);
        // Offers of an earlier run are removed, although nothing is wanted.
        let is_unwanted = |offered: &Offered| *offered == Offered::Unwanted;
        drop(offers.wait_for(is_unwanted).await.unwrap());
        assert_eq!(server.0.lock().unwrap().len(), 1);
        let wanted = mk_view(&[("gpu", Some("dra"), Health::Healthy)]);
        devices.send_replace(Arc::new(wanted));
        let is_there = |offered: &Offered| matches!(offered, Offered::Devices(devices) if devices.contains_key("gpu-a1"));
        drop(offers.wait_for(is_there).await.unwrap());
        register(&registration, Registration::Lost);
        let is_unknown = |offered: &Offered| *offered == Offered::Unknown;
        drop(offers.wait_for(is_unknown).await.unwrap());
        let told = reports
            .wait_for(|report| report.problem.is_some())
            .await
            .unwrap();
        assert!(
            told.problem
                .as_ref()
                .unwrap()
                .contains("closed its connection")
        );
    }

    #[test]
    fn an_agent_without_a_scheduler_says_so_where_one_is_wanted() {
        let plain = mk_view(&[("cams", None, Health::Healthy)]);
        assert!(unavailable(&plain).is_empty());
        let wanted = mk_view(&[("gpu", Some("dra"), Health::Healthy)]);
        let problem = unavailable(&wanted)[0].to_string();
        assert!(problem.contains("without a cluster"), "{problem}");
    }

    #[test]
    fn a_device_that_does_not_work_is_tainted_or_left_out() {
        let view = mk_view(&[("gpu", Some("dra"), Health::Unhealthy("hot".to_owned()))]);
        let instances = mk_instances(&[("gpu", &[])]);
        let mut report = OfferReport::default();
        let offered = offers(NODE, &view, &instances, ALL, &mut report);
        let taints: Vec<_> = offered["gpu-a1"]
            .taints
            .iter()
            .map(|taint| &*taint.key)
            .collect();
        assert_eq!(taints, [UNHEALTHY]);
        let older = SliceFeatures::default();
        let offered = offers(NODE, &view, &instances, older, &mut report);
        assert!(offered.is_empty());
    }
}
