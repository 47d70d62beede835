//! Makes what a write says beside its object: who writes, and which state of the object it assumes.

use kube::api::{DeleteParams, PatchParams, PostParams, Preconditions};

/// Creates or replaces in the name of a field manager.
pub fn put_by(manager: &str) -> PostParams {
    PostParams {
        field_manager: Some(manager.to_owned()),
        ..PostParams::default()
    }
}

/// Patches in the name of a field manager.
pub fn patch_by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.to_owned()),
        ..PatchParams::default()
    }
}

/// Deletes only the object with that uid, and only in that version where there is one.
pub fn delete_only(uid: Option<String>, resource_version: Option<String>) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions {
            uid,
            resource_version,
        }),
        ..DeleteParams::default()
    }
}
