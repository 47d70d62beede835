//! Backends that allocate the devices of a Configuration to pods.

use std::collections::BTreeMap;

use super::{FieldProblem, or_default};

/// Annotation that selects the backend: `device-plugin` or `dra`.
pub const ALLOCATION_ANNOTATION: &str = "leafhost.dev/allocation";
/// Annotation that turns on eviction of pods whose device does not work: `true` or `false`.
pub const EVICT_ANNOTATION: &str = "leafhost.dev/evict";

/// Mechanism that allocates the devices of a Configuration to pods. Each device has exactly one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Backend {
    /// Device plugin API of the kubelet.
    #[default]
    DevicePlugin,
    /// Dynamic Resource Allocation: the scheduler chooses the device.
    Dra,
}

impl Backend {
    /// Returns the backend in `annotations`, or the default if the annotation is absent or invalid.
    pub fn of(annotations: &BTreeMap<String, String>) -> Self {
        read(annotations).0
    }

    /// Parses the value of [`ALLOCATION_ANNOTATION`].
    fn parse(text: &str) -> Result<Self, FieldProblem> {
        match text {
            "device-plugin" => Ok(Self::DevicePlugin),
            "dra" => Ok(Self::Dra),
            _ => Err(FieldProblem::new(
                format!("metadata.annotations.{ALLOCATION_ANNOTATION}"),
                format!("is {text:?}, must be \"device-plugin\" or \"dra\""),
            )),
        }
    }
}

/// Parses the annotations on allocation. Returns the backend, whether pods are evicted when their device does not work,
/// and the problems found.
pub fn read(annotations: &BTreeMap<String, String>) -> (Backend, bool, Vec<FieldProblem>) {
    let mut problems = Vec::new();
    let backend = annotations.get(ALLOCATION_ANNOTATION);
    let backend = or_default(backend.map(|text| Backend::parse(text)), &mut problems);
    let evicts = annotations.get(EVICT_ANNOTATION);
    let evicts = evicts.map(|text| parse_evict(text, backend));
    let evicts = or_default(evicts, &mut problems);
    (backend, evicts, problems)
}

/// Parses the value of [`EVICT_ANNOTATION`]. Only [`Backend::Dra`] supports it: device plugins evict no pods.
fn parse_evict(text: &str, backend: Backend) -> Result<bool, FieldProblem> {
    let problem = |message: String| {
        let path = format!("metadata.annotations.{EVICT_ANNOTATION}");
        Err(FieldProblem::new(path, message))
    };
    match (text, backend) {
        ("false", _) => Ok(false),
        ("true", Backend::Dra) => Ok(true),
        ("true", Backend::DevicePlugin) => problem(format!(
            "needs {ALLOCATION_ANNOTATION}: dra; add it, or remove this one"
        )),
        _ => problem(format!("is {text:?}, must be \"true\" or \"false\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_say_who_gives_the_devices_and_whether_pods_are_evicted() {
        let dra = (ALLOCATION_ANNOTATION, "dra");
        for (annotations, expected, said) in [
            (&[][..], (Backend::DevicePlugin, false), ""),
            (&[dra], (Backend::Dra, false), ""),
            (&[dra, (EVICT_ANNOTATION, "true")], (Backend::Dra, true), ""),
            (
                &[(ALLOCATION_ANNOTATION, "both")],
                (Backend::DevicePlugin, false),
                "must be \"device-plugin\" or \"dra\"",
            ),
            (
                &[(EVICT_ANNOTATION, "true")],
                (Backend::DevicePlugin, false),
                "needs leafhost.dev/allocation: dra",
            ),
            (
                &[dra, (EVICT_ANNOTATION, "yes")],
                (Backend::Dra, false),
                "must be \"true\" or \"false\"",
            ),
        ] {
            let all = annotations.iter();
            let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let (backend, evicts, problems) = read(&all.collect());
            assert_eq!((backend, evicts), expected, "{annotations:?}");
            let errors: String = problems.into_iter().map(|one| one.message).collect();
            assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
            assert!(errors.contains(said), "{errors}");
        }
    }
}
