//! Annotations of a Configuration that Leafhost reads, and those that look like them.

use std::collections::BTreeMap;
use std::time::Duration;

use super::annotation::{path, value};
use super::{
    ALLOCATION_ANNOTATION, Backend, EVICT_ANNOTATION, FieldProblem, GRACE_ANNOTATION,
    RESOURCES_ANNOTATION, RESTART_PODS_ANNOTATION, Resources, backend, parse_duration,
};
use crate::text;

/// Prefix of the names of our annotations.
const OURS: &str = "leafhost.dev/";
/// Annotations that are read.
const KNOWN: [&str; 5] = [
    ALLOCATION_ANNOTATION,
    EVICT_ANNOTATION,
    GRACE_ANNOTATION,
    RESOURCES_ANNOTATION,
    RESTART_PODS_ANNOTATION,
];
/// Maximum number of unknown annotations that are reported.
const MOST: usize = 16;

/// Reads the annotations that agents use: grace period, resources, backend, and true if pods are evicted when their device
/// does not work. Adds the problems of all annotations.
pub fn read(
    annotations: &BTreeMap<String, String>,
    problems: &mut Vec<FieldProblem>,
) -> (Option<Duration>, Resources, Backend, bool) {
    let grace = value(annotations, GRACE_ANNOTATION, parse_grace, problems);
    let resources = value(
        annotations,
        RESOURCES_ANNOTATION,
        Resources::parse,
        problems,
    );
    let (backend, evicts, _) = backend::read(annotations, problems);
    (grace, resources, backend, evicts)
}

/// Parses the value of [`GRACE_ANNOTATION`].
fn parse_grace(text: &str) -> Result<Option<Duration>, String> {
    parse_duration(text).map(Some).ok_or_else(|| {
        format!("is {text:?}, must be a number with s, m or h, such as \"30s\", and at most 24h")
    })
}

/// Returns the problems of annotations with an invalid value.
pub fn invalid_annotations(annotations: &BTreeMap<String, String>) -> Vec<FieldProblem> {
    let mut problems = Vec::new();
    read(annotations, &mut problems);
    problems
}

/// Returns a problem for each annotation that is meant for Leafhost and is not known. It has no effect.
pub fn unknown_annotations(annotations: &BTreeMap<String, String>) -> Vec<FieldProblem> {
    let names = annotations.keys().map(String::as_str);
    let problem = |name: &str| {
        let hint = hint(name)?;
        let message = format!("unknown annotation {name}; {hint}");
        Some(FieldProblem::new(path(name), message))
    };
    let unknown = names.filter(|name| !KNOWN.contains(name));
    unknown.filter_map(problem).take(MOST).collect()
}

/// Returns a hint for an unknown annotation that has our prefix, or a known name after a prefix that looks like ours.
fn hint(name: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('/')?;
    let mut known = KNOWN.iter().filter_map(|known| known.strip_prefix(OURS));
    if name.starts_with(OURS) {
        return Some(match text::nearest(rest, known) {
            Some(near) => format!("did you mean {OURS}{near}?"),
            None => format!("known: {}", KNOWN.join(", ")),
        });
    }
    let is_alike = prefix == "akri.sh" || prefix.contains("leafhost");
    let is_meant = is_alike && known.any(|known| known == rest);
    is_meant.then(|| format!("did you mean {OURS}{rest}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        let all = all.iter();
        all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn shown(problems: &[FieldProblem]) -> Vec<String> {
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_misspelt_annotation_is_named_with_the_nearest_known_one() {
        let all = annotations(&[
            ("example.com/graze", "1"),
            ("leafhost.dev/Evict", "true"),
            ("leafhost.dev/alocation", "dra"),
            ("leafhost.dev/grace", "30s"),
            ("leafhost.dev/owner", "me"),
        ]);
        assert_eq!(
            shown(&unknown_annotations(&all)),
            [
                "metadata.annotations.leafhost.dev/Evict: unknown annotation leafhost.dev/Evict; did you mean leafhost.dev/evict?",
                "metadata.annotations.leafhost.dev/alocation: unknown annotation leafhost.dev/alocation; did you mean leafhost.dev/allocation?",
                "metadata.annotations.leafhost.dev/owner: unknown annotation leafhost.dev/owner; known: leafhost.dev/allocation, leafhost.dev/evict, leafhost.dev/grace, leafhost.dev/resources, leafhost.dev/restart-pods",
            ]
        );
        assert_eq!(invalid_annotations(&all), []);
    }

    #[test]
    fn an_annotation_with_another_prefix_is_named_with_ours() {
        let all = annotations(&[
            ("akri.sh/configuration", "a"),
            ("akri.sh/grace", "30s"),
            ("example.com/grace", "30s"),
            ("grace", "30s"),
            ("leafhost.io/evict", "true"),
            ("leafhost.io/owner", "me"),
            ("leafhost/grace", "30s"),
        ]);
        assert_eq!(
            shown(&unknown_annotations(&all)),
            [
                "metadata.annotations.akri.sh/grace: unknown annotation akri.sh/grace; did you mean leafhost.dev/grace?",
                "metadata.annotations.leafhost.io/evict: unknown annotation leafhost.io/evict; did you mean leafhost.dev/evict?",
                "metadata.annotations.leafhost/grace: unknown annotation leafhost/grace; did you mean leafhost.dev/grace?",
            ]
        );
    }

    #[test]
    fn each_annotation_with_an_invalid_value_is_a_problem() {
        let all = annotations(&[
            (ALLOCATION_ANNOTATION, "both"),
            (EVICT_ANNOTATION, "yes"),
            (GRACE_ANNOTATION, "soon"),
            (RESOURCES_ANNOTATION, "none"),
            (RESTART_PODS_ANNOTATION, "yes"),
        ]);
        let problems = shown(&invalid_annotations(&all));
        for name in KNOWN {
            let begin = format!("metadata.annotations.{name}: is ");
            let mut problems = problems.iter();
            assert!(
                problems.any(|problem| problem.starts_with(&begin)),
                "{name}"
            );
        }
        assert_eq!(problems.len(), KNOWN.len());
        assert_eq!(unknown_annotations(&all), []);
    }
}
