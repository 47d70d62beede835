//! Checks whether a new Configuration may have its name.

use std::time::Duration;

use kube::Api;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, Reservation, ResourceNames, configuration_of};

use crate::answers;
use crate::crd::ResourceName;
use crate::webhook::origins::Origins;

/// Timeout of a request.
const REQUEST: Duration = Duration::from_secs(3);

impl Origins {
    /// Checks the name of a Configuration to be created, with at most two requests. Returns the reason to refuse the name, if any; the error
    /// says why the name was not checked.
    pub async fn check_name(&self, key: &ConfigurationKey) -> Result<Option<String>, String> {
        let (namespace, name) = (key.namespace(), key.name());
        let covering = configuration_of(name);
        let mut names = ResourceNames::default();
        for one in std::iter::once(name).chain(covering) {
            let found = self.reservation(one).await;
            let found = found.map_err(|error| format!("metadata.name: not checked: {error}"))?;
            if let Some(found) = found {
                names.insert(one.to_owned(), found);
            }
        }
        Ok(judge(&names, namespace, name))
    }

    async fn reservation(&self, name: &str) -> Result<Option<Reservation>, String> {
        let names: Api<ResourceName> = Api::all(self.client.clone());
        let found = answers::within(REQUEST, names.get_opt(name)).await;
        let found = found.map_err(|failure| failure.describe())?;
        Ok(found.map(|found| Reservation {
            namespace: found.spec.namespace,
            created: found.metadata.creation_timestamp.map(|time| time.0),
        }))
    }
}

/// Returns the reason to refuse the name, if any. Of other namespaces it reveals only that one of them has the name.
fn judge(names: &ResourceNames, namespace: &str, name: &str) -> Option<String> {
    let owners = NameOwners::new(names, []);
    let owner = owners.owner(name)?;
    let is_own = owner.namespace == namespace;
    match (is_own, owner.is_instance) {
        // The namespace already has the name.
        (true, false) => None,
        (true, true) => Some(format!(
            "metadata.name: Instances of Configuration {} can have this name; choose a name that does not end with '-' and 6, 10 or 16 hex digits",
            owner.configuration
        )),
        (false, false) => Some(
            "metadata.name: another namespace has this name, and each resource name of nodes belongs to one namespace; choose another name"
                .to_owned(),
        ),
        (false, true) => Some(
            "metadata.name: Instances of another namespace can have this name; choose a name that does not end with '-' and 6, 10 or 16 hex digits"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::tests::stub::{Answer, Stub, failure};
    use crate::webhook::admission::Review;

    fn review(operation: &str, name: &str) -> Review {
        let object = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": name, "namespace": "a"}, "spec": {}});
        let body = json!({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {
                "uid": "7", "operation": operation, "userInfo": {}, "name": name, "namespace": "a", "dryRun": false,
                "kind": {"group": "akri.sh", "version": "v0", "kind": "Configuration"},
                "resource": {"group": "akri.sh", "version": "v0", "resource": "configurations"},
                "object": object,
            },
        });
        Review::read(body.to_string().as_bytes()).unwrap()
    }

    /// Starts a stub with these reservations: name, namespace and creation time.
    async fn server(all: &'static [(&'static str, &'static str, &'static str)]) -> Stub {
        Stub::start(move |request| {
            let name = request.rsplit('/').next().unwrap_or_default();
            match all.iter().find(|(one, ..)| *one == name) {
                Some((name, namespace, created)) => {
                    Answer::Object(200, object(name, namespace, created))
                }
                None => failure(404, "no such name"),
            }
        })
        .await
    }

    fn object(name: &str, namespace: &str, created: &str) -> Value {
        json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "ResourceName",
            "metadata": {"name": name, "creationTimestamp": created}, "spec": {"namespace": namespace}})
    }

    #[tokio::test]
    async fn a_name_of_another_namespace_or_of_an_instance_is_refused() {
        const EARLY: &str = "2026-01-01T00:00:00Z";
        const LATE: &str = "2026-02-01T00:00:00Z";
        let stub = server(&[
            ("own", "a", EARLY),
            ("other", "b", EARLY),
            ("own-8120fe", "a", EARLY),
            ("other-8120fe", "a", LATE),
        ])
        .await;
        let check = Origins::new(stub.client.clone());
        for (name, words) in [
            ("new", ""),
            ("new-a19705", ""),
            ("own", ""),
            ("own-a19", ""),
            ("own-8120fe", ""),
            (
                "own-a19705",
                "Instances of Configuration own can have this name; choose a name",
            ),
            ("other", "another namespace has this name"),
            (
                "other-a19705",
                "Instances of another namespace can have this name; choose a name",
            ),
            ("other-8120fe", "Instances of another namespace"),
        ] {
            let key = review("CREATE", name).created().unwrap();
            let answer = check.check_name(&key).await;
            let problem = answer.unwrap().unwrap_or_default();
            assert_eq!(problem.is_empty(), words.is_empty(), "{name}: {problem}");
            assert!(problem.contains(words), "{name}: {problem}");
            assert!(!problem.contains("namespace b"), "{problem}");
        }
        assert_eq!(review("UPDATE", "other").created(), None);
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_looked_up_is_a_warning() {
        let stub = Stub::start(|_| failure(403, "no right")).await;
        let check = Origins::new(stub.client.clone());
        let key = review("CREATE", "new-a19705").created().unwrap();
        let answer = check.check_name(&key).await;
        let warning = answer.unwrap_err();
        assert!(
            warning.starts_with("metadata.name: not checked: "),
            "{warning}"
        );
        assert_eq!(stub.requests(""), 1);
    }
}
