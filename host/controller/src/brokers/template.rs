//! What a Configuration says of its brokers.

use leafhost_core::configuration::Spec;
use leafhost_core::names;
use serde_json::{Value, json};

/// What stands for the resource of the Instance in a pod's requests and limits, as in Akri.
pub const PLACEHOLDER: &str = "{{PLACEHOLDER}}";

/// The pod or job that each Instance gets.
#[derive(Debug)]
pub struct Template<'a> {
    pub kind: TemplateKind,
    /// A `PodSpec` or a `JobSpec`.
    pub spec: &'a Value,
    /// The digest of all that a broker is made of.
    pub made_of: String,
    /// How many slots a pod asks for.
    pub slots: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TemplateKind {
    /// A pod on each node that sees the device.
    Pod,
    /// A job for the device.
    Job,
}

impl<'a> Template<'a> {
    /// That of a Configuration, if it has one.
    pub fn of(spec: &'a Spec) -> Option<Self> {
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
        Some(Self {
            kind,
            spec: template,
            // A container has the properties that were there when it got its device.
            made_of: made_of(&json!([template, spec.broker_properties])),
            slots: pod.map_or(0, slots),
        })
    }
}

/// The digest of what an object is made of: of what somebody wrote, so that another version of this program changes nothing.
pub fn made_of(spec: &Value) -> String {
    names::digest(&spec.to_string())
}

/// The slots that a pod has at a time: containers run together, init containers one after the other.
fn slots(pod: &Value) -> usize {
    let of = |list: &str| {
        let containers = pod.get(list).and_then(Value::as_array);
        containers.into_iter().flatten().map(|container| {
            let amount =
                |kind: &str| number(container.get("resources")?.get(kind)?.get(PLACEHOLDER)?);
            amount("limits").or_else(|| amount("requests")).unwrap_or(0)
        })
    };
    let together: usize = of("containers").sum();
    together.max(of("initContainers").max().unwrap_or(0))
}

fn number(amount: &Value) -> Option<usize> {
    match amount {
        Value::String(text) => text.parse().ok(),
        amount => usize::try_from(amount.as_u64()?).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(broker: &Value, properties: &Value) -> Spec {
        let spec = json!({"discoveryHandler": {"name": "udev"}, "brokerSpec": broker, "brokerProperties": properties});
        serde_json::from_value(spec).unwrap()
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
                let spec = spec(&broker, &json!({}));
                let template = Template::of(&spec).unwrap();
                assert_eq!((template.kind, template.slots), (kind, slots), "{pod}");
            }
        }
        assert!(Template::of(&spec(&json!({}), &json!({}))).is_none());
    }

    #[test]
    fn another_template_and_other_properties_make_another_broker() {
        let digest = |broker: &Value, properties: &Value| {
            Template::of(&spec(broker, properties)).unwrap().made_of
        };
        let pod = json!({"brokerPodSpec": {"containers": []}});
        let first = digest(&pod, &json!({}));
        assert_eq!(digest(&pod, &json!({})), first);
        assert_ne!(digest(&pod, &json!({"A": "1"})), first);
        assert_ne!(digest(&json!({"brokerPodSpec": {}}), &json!({})), first);
    }
}
