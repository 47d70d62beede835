//! Reports the health of devices of prepared claims to the kubelet, which shows it in the status of their pods.

use std::sync::Arc;

use leafhost_core::claim::record::RecordedDevice;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::ports::InstanceSet;
use leafhost_core::usable::{Unusable, usable};
use leafhost_core::wait::{changed, publish};
use leafhost_kubelet::dra::{DeviceHealth, HealthList};
use tokio::sync::watch;

use crate::model::find;
use crate::{ClaimReport, Claims};

impl Claims {
    /// Publishes the health of all devices of claims until the future is dropped.
    pub async fn tell_health(&self, health: watch::Sender<Arc<HealthList>>) {
        let mut devices = self.0.ports.devices.clone();
        let mut instances = self.0.ports.store.instances();
        let mut report = self.0.report.subscribe();
        loop {
            let claims = Arc::clone(&report.borrow_and_update());
            let view = Arc::clone(&devices.borrow_and_update());
            let seen = Arc::clone(&instances.borrow_and_update());
            let list = list(&self.0.node, &claims, &view, &seen);
            publish(&health, Arc::new(list));
            // The senders are dropped only when the agent stops, and this task is dropped with them.
            tokio::select! {
                () = changed(&mut report) => {}
                () = changed(&mut devices) => {}
                () = changed(&mut instances) => {}
            }
        }
    }
}

/// Returns the health of the devices of all claims, without devices of unknown health.
fn list(
    node: &str,
    report: &ClaimReport,
    view: &DeviceSnapshot,
    instances: &InstanceSet,
) -> HealthList {
    if !instances.is_known() {
        return HealthList::new();
    }
    let health_of = |device: &RecordedDevice| {
        let found = match device.slots.first() {
            Some(slot) => instances.instances.get(&slot.key()).cloned(),
            None => find(node, &device.pool, &device.device, instances).map(|found| found.instance),
        };
        let health = match found.map(|instance| usable(node, view, &instance)) {
            Some(Ok(_)) => Ok(()),
            Some(Err(Unusable::Unhealthy { why, .. })) => Err(why),
            Some(Err(Unusable::NotSeen)) => return None,
            Some(Err(Unusable::Gone)) | None => Err("it is missing".to_owned()),
        };
        let name = (device.pool.clone(), device.device.clone());
        let health = DeviceHealth {
            is_healthy: health.is_ok(),
            message: health.err().unwrap_or_default(),
        };
        Some((name, health))
    };
    let records = report.claims.values().filter(|record| !record.is_over);
    records
        .flat_map(|record| &record.devices)
        .filter_map(health_of)
        .collect()
}
