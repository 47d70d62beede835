//! Reviews Configurations before the API server stores them.
//!
//! The broker's pod and job and the services are whole Kubernetes types, which the definition of Configurations does not describe: a
//! misspelt field would be dropped silently when the broker is created. Knows no handler; the caller adds the handler's answer on the
//! details.

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, Operation};
use leafhost_core::brokers::Kind;
use leafhost_core::configuration::{broker_problems, invalid_annotations, unknown_annotations};
use leafhost_core::names::ConfigurationKey;
use serde_json::Value;

mod names;
mod parameters;
mod reservations;

use crate::manifest::embedded::{self, MOST};
pub use reservations::Reserved;

/// Request of the API server to review one object.
#[derive(Debug)]
pub struct Review {
    request: AdmissionRequest<DynamicObject>,
}

impl Review {
    /// Reads the body that the API server posts; the error says why it is not a review.
    pub fn read(body: &[u8]) -> Result<Self, String> {
        let review: AdmissionReview<DynamicObject> =
            serde_json::from_slice(body).map_err(|error| {
                format!("cannot read the AdmissionReview: {error}; expected admission.k8s.io/v1")
            })?;
        // The answer has the API version of the request.
        let request = review.try_into().map_err(|_| {
            "the AdmissionReview has no request; the API server posts one with a request".to_owned()
        })?;
        Ok(Self { request })
    }

    /// Returns the spec of the Configuration to be stored. A deletion has none, and an object that is being deleted is not checked, so that
    /// its finalizers can always be removed.
    fn spec(&self) -> Option<&Value> {
        let object = self.request.object.as_ref()?;
        let is_deleted = object.metadata.deletion_timestamp.is_some();
        let is_ours =
            self.request.kind.group == "akri.sh" && self.request.kind.kind == "Configuration";
        object.data.get("spec").filter(|_| is_ours && !is_deleted)
    }

    /// Returns the name of the handler, and the details for it.
    pub fn details(&self) -> Option<(&str, &str)> {
        let handler = self.spec()?.get("discoveryHandler")?;
        let details = handler.get("discoveryDetails").and_then(Value::as_str);
        Some((handler.get("name")?.as_str()?, details.unwrap_or_default()))
    }

    /// Returns the namespace of the object, or an empty text if it has none.
    pub fn namespace(&self) -> &str {
        self.request.namespace.as_deref().unwrap_or_default()
    }

    /// Returns namespace and name of the Configuration to be created. An invalid name is left for the API server to refuse.
    pub fn created(&self) -> Option<ConfigurationKey> {
        self.spec()?;
        let request = &self.request;
        let name = request.object.as_ref()?.metadata.name.as_deref();
        let key = ConfigurationKey::new(request.namespace.as_deref()?, name?).ok();
        key.filter(|_| request.operation == Operation::Create)
    }

    /// Returns the object that the controller writes, if its kind is one of a broker's objects, and the object to be replaced.
    pub fn broker(&self) -> Option<(Kind, Value, Option<Value>)> {
        let kind = match (&*self.request.kind.group, &*self.request.kind.kind) {
            ("", "Pod") => Kind::Pod,
            ("batch", "Job") => Kind::Job,
            ("", "Service") => Kind::Service,
            ("resource.k8s.io", "ResourceClaimTemplate") => Kind::ClaimTemplate,
            _ => return None,
        };
        let of = |object: &Option<DynamicObject>| serde_json::to_value(object.as_ref()?).ok();
        let before = of(&self.request.old_object);
        Some((kind, of(&self.request.object)?, before))
    }

    /// Drops the objects once they have been read, since the answer does not need them.
    pub fn forget_objects(&mut self) {
        self.request.object = None;
        self.request.old_object = None;
    }

    /// Returns the problems of a Configuration: fields of the broker and the services that Kubernetes would not read, and variables that
    /// agents would not set for workloads. For any other object, returns the problems of its parameters.
    pub fn problems(&self) -> Vec<String> {
        let Some(spec) = self.spec() else {
            return self.parameters();
        };
        let mut problems = embedded::problems(spec);
        problems.extend(variables(spec));
        problems
    }

    /// Returns warnings about annotations of the Configuration that have no effect: misspelt names, and invalid values. They are not
    /// problems, because agents keep the last valid values.
    pub fn warnings(&self) -> Vec<String> {
        let object = self
            .request
            .object
            .as_ref()
            .filter(|_| self.spec().is_some());
        let annotations = object.and_then(|object| object.metadata.annotations.as_ref());
        let Some(annotations) = annotations else {
            return Vec::new();
        };
        let invalid = invalid_annotations(annotations).into_iter();
        let all = invalid.chain(unknown_annotations(annotations));
        all.map(|problem| problem.to_string()).collect()
    }

    /// Returns the problems of the parameters for Leafhost's driver in a claim, a claim template or a device class.
    fn parameters(&self) -> Vec<String> {
        let kind = &self.request.kind;
        let object = self.request.object.as_ref();
        let object = object.filter(|_| kind.group == "resource.k8s.io");
        let object = object.and_then(|object| serde_json::to_value(object).ok());
        object.map_or_else(Vec::new, |object| parameters::problems(&kind.kind, &object))
    }

    /// Builds the answer: a refusal if there are problems. kubectl shows each warning in a line.
    pub fn answer(
        &self,
        problems: &[String],
        warnings: Vec<String>,
    ) -> AdmissionReview<DynamicObject> {
        let mut answer = AdmissionResponse::from(&self.request);
        if !problems.is_empty() {
            answer = answer.deny(problems.join("; "));
            // Code and reason of the API server's own answer to an invalid field.
            answer.result.code = 422;
            "Invalid".clone_into(&mut answer.result.reason);
        }
        answer.warnings = Some(warnings).filter(|warnings| !warnings.is_empty());
        answer.into_review()
    }
}

/// Returns the problems of `brokerProperties`.
fn variables(spec: &Value) -> Vec<String> {
    let properties = spec.get("brokerProperties").cloned();
    let properties = properties.and_then(|properties| serde_json::from_value(properties).ok());
    let problems = properties.map(|properties| broker_problems(&properties));
    let problems = problems.unwrap_or_default().into_iter().take(MOST);
    problems
        .map(|problem| format!("{}: {}", problem.path, problem.message))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(operation: &str, object: &Value) -> Review {
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "operation": operation, "userInfo": {}, "name": "cams", "namespace": "n", "dryRun": false,
                "kind": {"group": "akri.sh", "version": "v0", "kind": "Configuration"},
                "resource": {"group": "akri.sh", "version": "v0", "resource": "configurations"},
                "object": object,
            },
        });
        Review::read(body.to_string().as_bytes()).unwrap()
    }

    fn configuration(spec: &Value) -> Value {
        json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "n"}, "spec": spec})
    }

    #[test]
    fn what_kubernetes_does_not_read_is_named_by_its_field() {
        let pod = |pod: Value| json!({"brokerSpec": {"brokerPodSpec": pod}});
        let container =
            json!([{"name": "c", "image": "i", "resources": {"limits": {"{{PLACEHOLDER}}": "1"}}}]);
        for (spec, problems) in [
            (pod(json!({"containers": container})), vec![]),
            (
                json!({"brokerSpec": null, "instanceServiceSpec": null}),
                vec![],
            ),
            (
                pod(json!({"containers": [{"name": "c", "imagee": "i"}], "nodeSelectors": {}})),
                vec![
                    "brokerSpec.brokerPodSpec.containers[0].imagee: Kubernetes has no such field",
                    "brokerSpec.brokerPodSpec.nodeSelectors: ",
                ],
            ),
            (
                pod(json!({"containers": [{"name": "c", "ports": [{"containerPort": "high"}]}]})),
                vec![
                    "brokerSpec.brokerPodSpec.containers[0].ports[0].containerPort: is \"high\", must be a whole number",
                ],
            ),
            (pod(json!({})), vec![]),
            (
                json!({"brokerSpec": {"brokerJobSpec": {"template": {"spec": {"containers": []}}, "backofLimit": 1}}}),
                vec!["brokerSpec.brokerJobSpec.backofLimit: "],
            ),
            (
                json!({"instanceServiceSpec": {"type": "ClusterIP", "port": 80}, "configurationServiceSpec": {"ports": [{"port": "x"}]}}),
                vec![
                    "instanceServiceSpec.port: ",
                    "configurationServiceSpec.ports[0].port: ",
                ],
            ),
        ] {
            let found = review("CREATE", &configuration(&spec)).problems();
            assert_eq!(found.len(), problems.len(), "{spec}: {found:?}");
            for (found, problem) in found.iter().zip(problems) {
                assert!(found.starts_with(&format!("spec.{problem}")), "{found}");
            }
        }
    }

    #[test]
    fn variables_that_start_or_redirect_programs_are_named() {
        let spec =
            json!({"brokerProperties": {"MODE": "fast", "LD_PRELOAD": "/x", "https_proxy": "y"}});
        let found = review("UPDATE", &configuration(&spec)).problems();
        for (found, name) in found.iter().zip(["LD_PRELOAD", "https_proxy"]) {
            let begin = format!("spec.brokerProperties.{name}: is never set");
            assert!(found.starts_with(&begin), "{found}");
        }
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn an_annotation_without_effect_is_a_warning() {
        let mut object = configuration(&json!({"discoveryHandler": {"name": "udev"}}));
        assert_eq!(review("CREATE", &object).warnings(), [""; 0]);
        object["metadata"]["annotations"] =
            json!({"leafhost.dev/grace": "soon", "leafhost.dev/evikt": "true", "a": "b"});
        let review = review("CREATE", &object);
        let warnings = review.warnings();
        for (warning, words) in warnings.iter().zip([
            "metadata.annotations.leafhost.dev/grace: is \"soon\", must be",
            "metadata.annotations.leafhost.dev/evikt: unknown annotation",
        ]) {
            assert!(warning.starts_with(words), "{warning}");
        }
        assert_eq!((warnings.len(), review.problems().len()), (2, 0));
    }

    #[test]
    fn a_problem_is_a_refusal_and_a_warning_is_none() {
        let review = review(
            "UPDATE",
            &configuration(
                &json!({"discoveryHandler": {"name": "udev", "discoveryDetails": "a: 1"}}),
            ),
        );
        assert_eq!(review.details(), Some(("udev", "a: 1")));
        let answer = serde_json::to_value(review.answer(&[], vec!["w".to_owned()])).unwrap();
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(answer["response"]["uid"], "7");
        assert_eq!(answer["response"]["warnings"], json!(["w"]));
        let answer =
            serde_json::to_value(review.answer(&["a".to_owned(), "b".to_owned()], Vec::new()))
                .unwrap();
        assert_eq!(answer["response"]["allowed"], false);
        assert_eq!(answer["response"]["status"]["message"], "a; b");
        assert_eq!(answer["response"]["status"]["code"], 422);
    }

    #[test]
    fn what_is_deleted_or_of_another_kind_is_not_looked_at() {
        let wrong = json!({"brokerSpec": {"brokerPodSpec": {"a": 1}}});
        let mut deleted = configuration(&wrong);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(review("UPDATE", &deleted).problems(), [""; 0]);
        assert_eq!(review("DELETE", &Value::Null).problems(), [""; 0]);
        let mut other = review("CREATE", &configuration(&wrong));
        other.request.kind.kind = "Instance".into();
        assert_eq!((other.problems().len(), other.details()), (0, None));
    }

    #[test]
    fn an_object_of_a_broker_is_shown_whole_with_the_one_before() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"hostPID": true}});
        for (group, kind, expected) in [
            ("", "Pod", Some(Kind::Pod)),
            ("batch", "Job", Some(Kind::Job)),
            ("", "Service", Some(Kind::Service)),
            ("apps", "Pod", None),
            ("akri.sh", "Configuration", None),
        ] {
            let mut review = review("CREATE", &pod);
            (review.request.kind.group, review.request.kind.kind) = (group.into(), kind.into());
            let broker = review.broker();
            assert_eq!(broker.as_ref().map(|(kind, ..)| *kind), expected);
            if let Some((_, object, before)) = broker {
                assert_eq!((object, before), (pod.clone(), None));
            }
            review.forget_objects();
            assert!(review.broker().is_none());
        }
    }

    #[test]
    fn what_is_no_review_is_refused_with_the_reason() {
        for body in ["", "{", "[]", "{\"request\": 7}"] {
            let error = Review::read(body.as_bytes()).unwrap_err();
            assert!(
                error.starts_with("cannot read the AdmissionReview"),
                "{error}"
            );
        }
        let empty = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
        let error = Review::read(empty.to_string().as_bytes()).unwrap_err();
        assert!(error.contains("has no request"), "{error}");
    }
}
