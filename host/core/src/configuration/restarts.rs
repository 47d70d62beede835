//! Restart of pods whose device is gone.

use std::collections::BTreeMap;

use super::{ALLOCATION_ANNOTATION, Backend, EVICT_ANNOTATION, FieldProblem};

/// Annotation that asks the controller to evict pods whose device is gone: `true` or `false`.
pub const RESTART_PODS_ANNOTATION: &str = "leafhost.dev/restart-pods";

/// Returns true if [`RESTART_PODS_ANNOTATION`] asks for it. Only [`Backend::DevicePlugin`] supports it: devices that the
/// scheduler allocates have [`EVICT_ANNOTATION`].
pub fn read(
    annotations: &BTreeMap<String, String>,
    backend: Backend,
) -> Result<bool, FieldProblem> {
    let Some(text) = annotations.get(RESTART_PODS_ANNOTATION) else {
        return Ok(false);
    };
    let problem = |message: String| {
        let path = format!("metadata.annotations.{RESTART_PODS_ANNOTATION}");
        Err(FieldProblem::new(path, message))
    };
    match (text.as_str(), backend) {
        ("false", _) => Ok(false),
        ("true", Backend::DevicePlugin) => Ok(true),
        ("true", Backend::Dra) => problem(format!(
            "has no effect with {ALLOCATION_ANNOTATION}: dra; use {EVICT_ANNOTATION} there, or remove one of them"
        )),
        _ => problem(format!("is {text:?}, must be \"true\" or \"false\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_restarted_only_if_the_annotation_is_true_and_the_kubelet_allocates_the_devices() {
        for (value, backend, expected) in [
            (None, Backend::DevicePlugin, Ok(false)),
            (Some("false"), Backend::DevicePlugin, Ok(false)),
            (Some("false"), Backend::Dra, Ok(false)),
            (Some("true"), Backend::DevicePlugin, Ok(true)),
            (
                Some("true"),
                Backend::Dra,
                Err("has no effect with leafhost.dev/allocation: dra"),
            ),
            (
                Some("yes"),
                Backend::DevicePlugin,
                Err("is \"yes\", must be \"true\" or \"false\""),
            ),
        ] {
            let annotation =
                value.map(|value| (RESTART_PODS_ANNOTATION.to_owned(), value.to_owned()));
            let found = read(&annotation.into_iter().collect(), backend);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{value:?}"),
                (Err(problem), Err(text)) => {
                    let path = "metadata.annotations.leafhost.dev/restart-pods";
                    assert_eq!(problem.path, path);
                    assert!(problem.message.contains(text), "{}", problem.message);
                }
                (found, _) => panic!("{value:?}: {found:?}"),
            }
        }
    }
}
