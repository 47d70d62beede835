//! Backends that allocate the devices of a Configuration to pods, and the restart of pods whose device does not work.

use std::collections::BTreeMap;

use super::FieldProblem;
use super::annotation::value;

/// Annotation that selects the backend: `device-plugin` or `dra`.
pub const ALLOCATION_ANNOTATION: &str = "leafhost.dev/allocation";
/// Annotation that turns on eviction of pods whose device does not work: `true` or `false`. Only [`Backend::Dra`]
/// supports it: device plugins evict no pods.
pub const EVICT_ANNOTATION: &str = "leafhost.dev/evict";
/// Annotation that asks the controller to evict pods whose device is gone: `true` or `false`. Only
/// [`Backend::DevicePlugin`] supports it: devices that the scheduler allocates have [`EVICT_ANNOTATION`].
pub const RESTART_PODS_ANNOTATION: &str = "leafhost.dev/restart-pods";

/// Mechanism that allocates the devices of a Configuration to pods. Each device has exactly one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "kebab-case")]
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
        let (backend, ..) = read(annotations, &mut Vec::new());
        backend
    }

    /// Parses the value of [`ALLOCATION_ANNOTATION`].
    fn parse(text: &str) -> Result<Self, String> {
        text.parse()
            .map_err(|_| format!("is {text:?}, must be \"device-plugin\" or \"dra\""))
    }
}

/// Reads the annotations on allocation: the backend, true if pods are evicted when their device does not work, and true
/// if the controller evicts pods whose device is gone. Adds the problems found.
pub fn read(
    annotations: &BTreeMap<String, String>,
    problems: &mut Vec<FieldProblem>,
) -> (Backend, bool, bool) {
    let backend = value(annotations, ALLOCATION_ANNOTATION, Backend::parse, problems);
    let is_dra = backend == Backend::Dra;
    let parse = |text: &str| {
        let impossible = "needs leafhost.dev/allocation: dra; add it, or remove this one";
        parse_switch(text, is_dra, impossible)
    };
    let evicts = value(annotations, EVICT_ANNOTATION, parse, problems);
    let parse = |text: &str| {
        let impossible = "has no effect with leafhost.dev/allocation: dra; use leafhost.dev/evict there, or remove one of them";
        parse_switch(text, !is_dra, impossible)
    };
    let restarts = value(annotations, RESTART_PODS_ANNOTATION, parse, problems);
    (backend, evicts, restarts)
}

/// Parses `true` or `false`. Fails with `impossible` for `true` unless `is_possible`.
fn parse_switch(text: &str, is_possible: bool, impossible: &str) -> Result<bool, String> {
    match text {
        "false" => Ok(false),
        "true" if is_possible => Ok(true),
        "true" => Err(impossible.to_owned()),
        _ => Err(format!("is {text:?}, must be \"true\" or \"false\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_say_who_gives_the_devices_and_whether_pods_are_evicted() {
        let dra = (ALLOCATION_ANNOTATION, "dra");
        let restarts = |value| (RESTART_PODS_ANNOTATION, value);
        let plugin = (Backend::DevicePlugin, false, false);
        for (annotations, expected, said) in [
            (&[][..], plugin, ""),
            (&[dra], (Backend::Dra, false, false), ""),
            (
                &[dra, (EVICT_ANNOTATION, "true")],
                (Backend::Dra, true, false),
                "",
            ),
            (
                &[(ALLOCATION_ANNOTATION, "both")],
                plugin,
                "metadata.annotations.leafhost.dev/allocation: is \"both\", must be \"device-plugin\" or \"dra\"",
            ),
            (
                &[(EVICT_ANNOTATION, "true")],
                plugin,
                "metadata.annotations.leafhost.dev/evict: needs leafhost.dev/allocation: dra",
            ),
            (
                &[dra, (EVICT_ANNOTATION, "yes")],
                (Backend::Dra, false, false),
                "must be \"true\" or \"false\"",
            ),
            (&[restarts("false")], plugin, ""),
            (&[dra, restarts("false")], (Backend::Dra, false, false), ""),
            (
                &[restarts("true")],
                (Backend::DevicePlugin, false, true),
                "",
            ),
            (
                &[dra, restarts("true")],
                (Backend::Dra, false, false),
                "metadata.annotations.leafhost.dev/restart-pods: has no effect with leafhost.dev/allocation: dra",
            ),
            (
                &[restarts("yes")],
                plugin,
                "is \"yes\", must be \"true\" or \"false\"",
            ),
        ] {
            let all = annotations.iter();
            let all = all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            let mut problems = Vec::new();
            let found = read(&all.collect(), &mut problems);
            assert_eq!(found, expected, "{annotations:?}");
            let errors: String = problems.iter().map(ToString::to_string).collect();
            assert_eq!(errors.is_empty(), said.is_empty(), "{errors}");
            assert!(errors.contains(said), "{errors}");
        }
    }
}
