//! Parameters of write requests: the field manager, the state of the object that the write assumes, and the object of an Event.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};

/// Returns parameters to create or replace under a field manager.
pub fn put_by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// Returns parameters to patch under a field manager.
pub fn patch_by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}

/// Returns parameters to delete only the object with this uid and, if given, in this version.
pub fn delete_only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version,
        }),
        ..DeleteParams::default()
    }
}

/// Returns the reference of an Event to an object with this namespace and name.
pub fn reference(
    api_version: &str,
    kind: &str,
    (namespace, name): (&str, &str),
    uid: &str,
) -> ObjectReference {
    ObjectReference {
        api_version: Some(api_version.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}
