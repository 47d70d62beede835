//! Parameters of write requests: the field manager, and the state of the object that the write assumes.

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
