//! Checks the reservations of names that the controller creates and deletes.

use kube::core::admission::Operation;
use leafhost_core::names::ConfigurationKey;

use super::Review;
use crate::webhook::origins::Origins;

/// A reservation to be created or deleted.
#[derive(Debug)]
pub struct Reserved {
    /// True for a creation, false for a deletion.
    is_made: bool,
    /// Configuration that the reservation is for; the error names the invalid part.
    configuration: Result<ConfigurationKey, String>,
}

impl Review {
    /// Returns the reservation that the controller creates or deletes, if the review is of one.
    pub fn reserved(&self) -> Option<Reserved> {
        let request = &self.request;
        let (is_made, object) = match request.operation {
            Operation::Create => (true, request.object.as_ref()?),
            Operation::Delete => (false, request.old_object.as_ref()?),
            _ => return None,
        };
        if (&*request.kind.group, &*request.kind.kind) != ("leafhost.dev", "ResourceName") {
            return None;
        }
        let namespace = object.data.pointer("/spec/namespace");
        let namespace = namespace.and_then(|one| one.as_str()).unwrap_or_default();
        let name = object.metadata.name.as_deref().unwrap_or_default();
        Some(Reserved {
            is_made,
            configuration: ConfigurationKey::new(namespace, name)
                .map_err(|error| error.to_string()),
        })
    }
}

impl Reserved {
    /// Returns the reason to refuse the request, if any: only the name of an existing Configuration can be reserved, and only a name
    /// without a Configuration can be freed. Returns an error if the API server does not answer.
    pub async fn check(&self, origins: &Origins) -> Result<Option<String>, String> {
        let key = match &self.configuration {
            Ok(key) => key,
            // An invalid reservation may be deleted.
            Err(error) => return Ok(self.is_made.then(|| error.clone())),
        };
        let is_there = origins.has_configuration(key).await?;
        Ok(match (self.is_made, is_there) {
            (true, false) => Some(format!("spec.namespace: there is no Configuration {key}")),
            (false, true) => Some(format!("the Configuration {key} uses the name")),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};

    fn reserved(operation: &str, kind: &str, name: &str, namespace: &str) -> Option<Reserved> {
        let object = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {"namespace": namespace}});
        let (new, old) = match operation {
            "CREATE" => (Some(&object), None),
            "DELETE" => (None, Some(&object)),
            _ => (Some(&object), Some(&object)),
        };
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "operation": operation, "userInfo": {}, "name": name, "dryRun": false,
                "kind": {"group": "leafhost.dev", "version": "v1alpha1", "kind": kind},
                "resource": {"group": "leafhost.dev", "version": "v1alpha1", "resource": "resourcenames"},
                "object": new, "oldObject": old,
            },
        });
        Review::read(body.to_string().as_bytes())
            .unwrap()
            .reserved()
    }

    #[tokio::test]
    async fn a_name_is_reserved_for_a_configuration_that_there_is_and_freed_without_one() {
        let stub = Stub::start(|request| {
            if request.contains("/namespaces/a/configurations/cams") {
                let object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "cams", "namespace": "a"}});
                return Answer::Object(200, object);
            }
            failure(404, "no such Configuration")
        })
        .await;
        let origins = Origins::new(stub.client.clone());
        for (operation, name, namespace, refused) in [
            ("CREATE", "cams", "a", ""),
            ("CREATE", "cams", "b", "no Configuration b/cams"),
            ("CREATE", "plc", "a", "no Configuration a/plc"),
            ("CREATE", "plc", "", "namespace"),
            ("DELETE", "plc", "a", ""),
            ("DELETE", "cams", "b", ""),
            ("DELETE", "cams", "a", "Configuration a/cams uses the name"),
            ("DELETE", "plc", "", ""),
        ] {
            let reserved = reserved(operation, "ResourceName", name, namespace).unwrap();
            let problem = reserved.check(&origins).await.unwrap();
            let problem = problem.unwrap_or_default();
            assert_eq!(problem.is_empty(), refused.is_empty(), "{problem}");
            assert!(problem.contains(refused), "{problem}");
        }
    }

    #[tokio::test]
    async fn nothing_is_said_while_the_api_server_does_not_tell() {
        let stub = Stub::start(|_| failure(503, "busy")).await;
        let origins = Origins::new(stub.client.clone());
        let reserved = reserved("DELETE", "ResourceName", "cams", "a").unwrap();
        assert!(reserved.check(&origins).await.is_err());
    }

    #[test]
    fn edits_and_other_kinds_are_none() {
        assert!(reserved("UPDATE", "ResourceName", "cams", "a").is_none());
        assert!(reserved("CREATE", "Configuration", "cams", "a").is_none());
    }
}
