//! The broker part of a Configuration.

use leafhost_core::brokers::Object;
use leafhost_core::configuration::{Backend, Manifest};
use leafhost_core::names;
use serde_json::{Value, json};

/// Placeholder for the Instance's resource in the requests and limits of a pod, as in Akri.
pub const PLACEHOLDER: &str = "{{PLACEHOLDER}}";

/// Pod or job that each Instance gets.
#[derive(Debug)]
pub struct Template<'a> {
    pub kind: TemplateKind,
    /// A `PodSpec` or a `JobSpec`.
    pub spec: &'a Value,
    /// Digest of all inputs of a broker.
    pub made_of: String,
    /// Number of slots that a pod asks for.
    pub slots: usize,
    /// True if pods get the device through a claim.
    pub has_claim: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// One pod on each node that sees the device.
    Pod,
    /// One job for the device.
    Job,
}

impl<'a> Template<'a> {
    /// Returns the broker template of a Configuration, if it has one.
    pub fn of(manifest: &'a Manifest) -> Option<Self> {
        let spec = &manifest.spec;
        let is_dra = Backend::of(&manifest.metadata.annotations) == Backend::Dra;
        let broker = spec.broker_spec.as_ref()?;
        let has = |name: &str| broker.get(name).filter(|spec| !spec.is_null());
        let (kind, template) = match (has("brokerPodSpec"), has("brokerJobSpec")) {
            (Some(pod), _) => (TemplateKind::Pod, pod),
            (None, Some(job)) => (TemplateKind::Job, job),
            (None, None) => return None,
        };
        let pod = match kind {
            TemplateKind::Pod => Some(template),
            TemplateKind::Job => template.pointer("/template/spec"),
        };
        let amounts = pod.map_or((0, 0), amounts);
        // All containers of a pod share its claim.
        let slots = if is_dra { amounts.1 } else { amounts.0 };
        let has_claim = is_dra && slots > 0;
        // A container keeps the broker properties that were set when it got its device.
        let of = if has_claim {
            json!([template, spec.broker_properties, "dra"])
        } else {
            json!([template, spec.broker_properties])
        };
        Some(Self {
            kind,
            spec: template,
            made_of: made_of(&of),
            slots,
            has_claim,
        })
    }

    /// Returns true if an object was made from another template. Objects of Akri's controller have no digest, so they count as current.
    pub fn is_other(&self, object: &Object) -> bool {
        let made_of = object.made_of.as_ref();
        made_of.is_some_and(|made_of| *made_of != self.made_of)
    }
}

/// Returns the digest of an object's inputs. It covers what the user wrote, so that a new version of this program rewrites nothing.
pub fn made_of(spec: &Value) -> String {
    names::digest(&spec.to_string())
}

/// Returns the slots that a pod holds at a time (containers run together, init containers one after the other), and the largest number that
/// one container asks for.
fn amounts(pod: &Value) -> (usize, usize) {
    let of = |list: &str| {
        let containers = pod.get(list).and_then(Value::as_array);
        containers.into_iter().flatten().map(|container| {
            let amount =
                |kind: &str| number(container.get("resources")?.get(kind)?.get(PLACEHOLDER)?);
            amount("limits").or_else(|| amount("requests")).unwrap_or(0)
        })
    };
    let most_of_init = of("initContainers").max().unwrap_or(0);
    let together = of("containers").sum::<usize>().max(most_of_init);
    let most = of("containers").max().unwrap_or(0).max(most_of_init);
    (together, most)
}

fn number(amount: &Value) -> Option<usize> {
    match amount {
        Value::String(text) => text.parse().ok(),
        amount => usize::try_from(amount.as_u64()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::configuration::ALLOCATION_ANNOTATION;

    use super::*;
    use crate::brokers::tests::fixture::manifest;

    fn mk_manifest(broker: &Value, properties: &Value) -> Manifest {
        manifest(&json!({"brokerSpec": broker, "brokerProperties": properties}))
    }

    fn container(amount: &Value) -> Value {
        json!({"name": "c", "resources": {"limits": {PLACEHOLDER: amount, "cpu": "1"}}})
    }

    #[test]
    fn a_pod_asks_for_the_slots_of_its_containers_together_or_of_one_init_container() {
        for (pod, slots) in [
            (json!({}), 0),
            (
                json!({"containers": [{"name": "c", "resources": null}], "initContainers": null}),
                0,
            ),
            (
                json!({"containers": [container(&json!("1")), container(&json!(2))]}),
                3,
            ),
            (
                json!({"containers": [{"resources": {"requests": {PLACEHOLDER: "1"}}}]}),
                1,
            ),
            (
                json!({"containers": [container(&json!("1"))], "initContainers": [container(&json!("4")), container(&json!("1"))]}),
                4,
            ),
        ] {
            let (as_pod, as_job) = (
                json!({"brokerPodSpec": pod}),
                json!({"brokerPodSpec": null, "brokerJobSpec": {"template": {"spec": pod}}}),
            );
            for (broker, kind) in [(as_pod, TemplateKind::Pod), (as_job, TemplateKind::Job)] {
                let manifest = mk_manifest(&broker, &json!({}));
                let template = Template::of(&manifest).unwrap();
                assert_eq!((template.kind, template.slots), (kind, slots), "{pod}");
            }
        }
        assert!(Template::of(&mk_manifest(&json!({}), &json!({}))).is_none());
    }

    #[test]
    fn another_template_and_other_properties_make_another_broker() {
        let digest = |broker: &Value, properties: &Value| {
            let manifest = mk_manifest(broker, properties);
            Template::of(&manifest).unwrap().made_of
        };
        let pod = json!({"brokerPodSpec": {"containers": []}});
        let first = digest(&pod, &json!({}));
        assert_eq!(digest(&pod, &json!({})), first);
        assert_ne!(digest(&pod, &json!({"A": "1"})), first);
        assert_ne!(digest(&json!({"brokerPodSpec": {}}), &json!({})), first);
    }

    #[test]
    fn with_devices_of_the_scheduler_the_containers_of_a_pod_share_a_claim() {
        let pod = json!({"containers": [container(&json!("1")), container(&json!(2))]});
        let mut manifest = mk_manifest(&json!({"brokerPodSpec": pod}), &json!({}));
        let before = Template::of(&manifest).unwrap().made_of;
        let dra = (ALLOCATION_ANNOTATION.to_owned(), "dra".to_owned());
        manifest.metadata.annotations.extend([dra.clone()]);
        let template = Template::of(&manifest).unwrap();
        assert_eq!((template.slots, template.has_claim), (2, true));
        assert_ne!(template.made_of, before);
        let mut plain = mk_manifest(&json!({"brokerPodSpec": {"containers": []}}), &json!({}));
        let before = Template::of(&plain).unwrap().made_of;
        plain.metadata.annotations.extend([dra]);
        let template = Template::of(&plain).unwrap();
        assert!(!template.has_claim);
        assert_eq!(template.made_of, before);
    }
}
