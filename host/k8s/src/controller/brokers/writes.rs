//! Writes the objects of brokers. An object is replaced or deleted only if it is the one that the controller saw.

use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::resource::v1::ResourceClaimTemplate;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PartialObjectMeta, PropagationPolicy};
use kube::core::Request;
use kube::{Api, Client, Error, Resource as _};
use leafhost_core::brokers::{Change, Kind, MADE_OF_ANNOTATION, ObjectKey, Wanted};
use leafhost_core::status_store::WriteError;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::objects::owner;
use crate::answers::{self, Failure};
use crate::controller::cluster::NAME;
use crate::requests::{delete_only, put_by};

/// Timeout of a request. Admission webhooks may be called.
const REQUEST: Duration = Duration::from_secs(10);

/// Writes a change.
pub async fn write(client: &Client, change: &Change) -> Result<(), WriteError> {
    match change {
        Change::Create(wanted) => create(client, &wanted.key, &wanted.body).await,
        Change::Replace { uid, wanted } => replace(client, uid, wanted).await,
        Change::Delete { key, uid } => delete(client, key, uid).await,
    }
}

async fn create(client: &Client, key: &ObjectKey, body: &Value) -> Result<(), WriteError> {
    let api = objects(client, key);
    let data = body.to_string().into_bytes();
    let request = Request::new(api.resource_url()).create(&put_by(NAME), data);
    let Err(failure) = answers::within(REQUEST, strictly(client, request)).await else {
        return Ok(());
    };
    if failure.kind != answers::Kind::Taken {
        return Err(write_error(failure));
    }
    let found = answers::within(REQUEST, api.get_metadata_opt(&key.name)).await;
    let found = found.map_err(write_error)?;
    let uid = body.pointer("/metadata/ownerReferences/0/uid");
    let is_other = |object: &PartialObjectMeta<DynamicObject>| {
        let metadata = object.meta();
        metadata.deletion_timestamp.is_none() && owner(metadata) != uid.and_then(Value::as_str)
    };
    Err(match found {
        Some(object) if is_other(&object) => WriteError::Taken,
        _ => WriteError::Outdated,
    })
}

async fn replace(client: &Client, uid: &str, wanted: &Wanted) -> Result<(), WriteError> {
    let Wanted { key, made_of, body } = wanted;
    let api = objects(client, key);
    let object = answers::within(REQUEST, api.get(&key.name)).await;
    let mut object = object.map_err(write_error)?;
    if object.metadata.uid.as_deref() != Some(uid) {
        return Err(WriteError::Outdated);
    }
    edit(&mut object, made_of, body);
    // The object carries the version that was read, and the API server refuses it if that is not the newest.
    let data =
        serde_json::to_vec(&object).map_err(|error| WriteError::Denied(error.to_string()))?;
    let request = Request::new(api.resource_url()).replace(&key.name, &put_by(NAME), data);
    let answer = answers::within(REQUEST, strictly(client, request)).await;
    answer.map_err(write_error)
}

/// Replaces the spec of an object. If it has no controlling owner, because the former one was deleted without its dependents, adds the
/// wanted owner references.
fn edit(object: &mut DynamicObject, made_of: &str, body: &Value) {
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(MADE_OF_ANNOTATION.to_owned(), made_of.to_owned());
    if owner(&object.metadata).is_none() {
        let wanted = body.pointer("/metadata/ownerReferences").cloned();
        let wanted: Vec<OwnerReference> =
            serde_json::from_value(wanted.unwrap_or_default()).unwrap_or_default();
        let owners = object.metadata.owner_references.get_or_insert_default();
        owners.extend(wanted);
    }
    let data = object.data.as_object_mut();
    if let (Some(data), Some(spec)) = (data, body.get("spec")) {
        // The API server keeps fields that it chose itself, such as the address of a service.
        data.insert("spec".to_owned(), spec.clone());
    }
}

async fn delete(client: &Client, key: &ObjectKey, uid: &str) -> Result<(), WriteError> {
    let params = DeleteParams {
        // A job is deleted only after its pods.
        propagation_policy: (key.kind == Kind::Job).then_some(PropagationPolicy::Foreground),
        ..delete_only(Some(uid.to_owned()), None)
    };
    match answers::within(REQUEST, objects(client, key).delete(&key.name, &params)).await {
        Err(failure) if failure.kind != answers::Kind::Missing => Err(write_error(failure)),
        _ => Ok(()),
    }
}

fn objects(client: &Client, key: &ObjectKey) -> Api<DynamicObject> {
    let resource = match key.kind {
        Kind::Pod => ApiResource::erase::<Pod>(&()),
        Kind::Job => ApiResource::erase::<Job>(&()),
        Kind::Service => ApiResource::erase::<Service>(&()),
        Kind::ClaimTemplate => ApiResource::erase::<ResourceClaimTemplate>(&()),
    };
    Api::namespaced_with(client.clone(), &key.namespace, &resource)
}

/// Sends a request that fails on unknown fields instead of dropping them; kube has no parameter for it.
async fn strictly(
    client: &Client,
    request: Result<http::Request<Vec<u8>>, kube::core::request::Error>,
) -> Result<(), Error> {
    let mut request = request.map_err(Error::BuildRequest)?;
    let uri = format!("{}&fieldValidation=Strict", request.uri()).parse();
    *request.uri_mut() = uri.map_err(|error| Error::HttpError(http::Error::from(error)))?;
    client.request::<IgnoredAny>(request).await.map(drop)
}

/// Converts a failure to a write error. Failures other than conflicts and missing answers are problems of the broker, and are shown with
/// it.
fn write_error(failure: Failure) -> WriteError {
    use answers::Kind;
    let (message, retry_after) = (failure.message, failure.retry_after);
    match (failure.kind, failure.code) {
        (Kind::Taken | Kind::Conflict | Kind::Missing, _) => WriteError::Outdated,
        (_, None | Some(429 | 503 | 504)) => WriteError::NoAnswer {
            message,
            retry_after,
        },
        _ => WriteError::Denied(message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tests::stub::{Answer, Stub};

    fn key(kind: Kind) -> ObjectKey {
        ObjectKey {
            kind,
            namespace: "n".into(),
            name: "a-pod".into(),
        }
    }

    fn create() -> Change {
        Change::Create(Wanted {
            key: key(Kind::Pod),
            made_of: String::new(),
            body: json!({"metadata": {"name": "a-pod", "ownerReferences": [{"uid": "ours"}]}}),
        })
    }

    fn status(code: u16, reason: &str, kind: &str) -> Answer {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
            "message": "said", "details": {"name": "a-pod", "kind": kind, "retryAfterSeconds": if code == 429 { 7 } else { 0 }}});
        Answer::Object(code, status)
    }

    #[tokio::test]
    async fn an_object_of_that_name_is_taken_only_if_somebody_else_has_it() {
        let owner = |uid: &str| json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": true}]);
        for (metadata, expected) in [
            (
                json!({"ownerReferences": owner("ours")}),
                WriteError::Outdated,
            ),
            (
                json!({"ownerReferences": owner("other")}),
                WriteError::Taken,
            ),
            (json!({}), WriteError::Taken),
            (
                json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}),
                WriteError::Outdated,
            ),
        ] {
            let stub = Stub::start(move |request| {
                if request.starts_with("POST") {
                    return status(409, "AlreadyExists", "pods");
                }
                let object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata});
                Answer::Object(200, object)
            })
            .await;
            assert_eq!(write(&stub.client, &create()).await, Err(expected));
        }
    }

    #[tokio::test]
    async fn unknown_fields_are_to_be_refused_and_answers_mean_what_the_api_server_means() {
        let refused = Err(WriteError::Denied("said".into()));
        for (code, reason, kind, expected) in [
            (201, "", "pods", Ok(())),
            (400, "BadRequest", "", refused.clone()),
            (403, "Forbidden", "pods", refused.clone()),
            (404, "NotFound", "namespaces", refused.clone()),
            (422, "Invalid", "pods", refused.clone()),
            (500, "InternalError", "", refused),
            (
                429,
                "TooManyRequests",
                "",
                Err(WriteError::NoAnswer {
                    message: "said".into(),
                    retry_after: Some(Duration::from_secs(7)),
                }),
            ),
        ] {
            let stub = Stub::start(move |_| status(code, reason, kind)).await;
            assert_eq!(write(&stub.client, &create()).await, expected, "{code}");
            let strict = "POST /api/v1/namespaces/n/pods?&fieldManager=leafhost-controller&fieldValidation=Strict";
            assert_eq!(stub.requests(strict), 1);
        }
    }

    #[test]
    fn an_object_that_is_replaced_gets_an_owner_only_if_it_has_none() {
        let owner = |uid: &str, controls: bool| json!({"apiVersion": "v1", "kind": "X", "name": "x", "uid": uid, "controller": controls});
        let next = owner("next", true);
        let (first, other) = (owner("first", true), owner("other", false));
        for (owners, expected) in [
            (json!([]), json!([next])),
            (json!([first]), json!([first])),
            (json!([other]), json!([other, next])),
        ] {
            let there = json!({"metadata": {"name": "a", "ownerReferences": owners}, "spec": {"clusterIP": "c"}});
            let mut object: DynamicObject = serde_json::from_value(there).unwrap();
            let body = json!({"metadata": {"ownerReferences": [next]}, "spec": {"ports": []}});
            edit(&mut object, "digest", &body);
            let edited = serde_json::to_value(&object).unwrap();
            assert_eq!(edited["metadata"]["ownerReferences"], expected);
            assert_eq!(
                edited["metadata"]["annotations"][MADE_OF_ANNOTATION],
                "digest"
            );
            assert_eq!(edited["spec"], body["spec"]);
        }
    }

    #[tokio::test]
    async fn an_object_is_replaced_and_deleted_only_if_it_is_the_one_that_was_seen() {
        let replace = |uid: &str| Change::Replace {
            uid: uid.into(),
            wanted: Wanted {
                key: key(Kind::Service),
                made_of: String::new(),
                body: json!({"spec": {}}),
            },
        };
        let delete = Change::Delete {
            key: key(Kind::Job),
            uid: "u".into(),
        };
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a-pod", "uid": "u"}, "spec": {}});
        let stub = Stub::start(move |request| match request {
            request if request.starts_with("DELETE") => status(404, "NotFound", "jobs"),
            _ => Answer::Object(200, service.clone()),
        })
        .await;
        assert_eq!(write(&stub.client, &replace("u")).await, Ok(()));
        assert_eq!(stub.requests("PUT"), 1);
        assert_eq!(
            write(&stub.client, &replace("v")).await,
            Err(WriteError::Outdated)
        );
        assert_eq!(stub.requests("PUT"), 1);
        assert_eq!(write(&stub.client, &delete).await, Ok(()));
        let stub = Stub::start(|_| status(409, "Conflict", "jobs")).await;
        assert_eq!(
            write(&stub.client, &delete).await,
            Err(WriteError::Outdated)
        );
    }
}
