//! Unknown fields of a Configuration, which have no effect. Pure.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::text;
use serde_ignored::Path;

/// Fields of Akri's Configuration by their parent field.
const KNOWN: &[(&str, &[&str])] = &[
    ("", &["apiVersion", "kind", "metadata", "spec"]),
    (
        "spec",
        &[
            "discoveryHandler",
            "capacity",
            "brokerProperties",
            "brokerSpec",
            "instanceServiceSpec",
            "configurationServiceSpec",
        ],
    ),
    (
        "spec.discoveryHandler",
        &["name", "discoveryDetails", "discoveryProperties"],
    ),
    (
        "spec.discoveryHandler.discoveryProperties[]",
        &["name", "value", "valueFrom"],
    ),
    (
        "spec.discoveryHandler.discoveryProperties[].valueFrom",
        &["secretKeyRef", "configMapKeyRef"],
    ),
    (
        "spec.discoveryHandler.discoveryProperties[].valueFrom.secretKeyRef",
        REFERENCE,
    ),
    (
        "spec.discoveryHandler.discoveryProperties[].valueFrom.configMapKeyRef",
        REFERENCE,
    ),
];
/// Fields of earlier versions of Akri, and their current place.
const MOVED: &[(&str, &str)] = &[
    ("brokerPodSpec", "spec.brokerSpec.brokerPodSpec"),
    ("brokerJobSpec", "spec.brokerSpec.brokerJobSpec"),
    ("protocol", "spec.discoveryHandler"),
    ("properties", "spec.brokerProperties"),
];
const REFERENCE: &[&str] = &["name", "namespace", "key", "optional"];

/// Returns the warning about a field that is not read; `None` in `metadata`, which has fields that only Kubernetes reads.
pub fn warning(path: &Path<'_>) -> Option<FieldProblem> {
    let Path::Map { parent, key: name } = path else {
        return None;
    };
    let place = text_of(parent, true);
    if place == "metadata" || place.starts_with("metadata.") {
        return None;
    }
    let siblings = KNOWN.iter().find(|(parent, _)| *parent == place);
    let siblings: &[&str] = siblings.map_or(&[], |(_, names)| names);
    let moved = MOVED.iter().find(|(old, _)| place == "spec" && old == name);
    let near = text::nearest(name, siblings.iter().copied());
    let hint = match (moved, near) {
        (Some((_, now)), _) => format!("it belongs in {now}"),
        (None, Some(suggestion)) => format!("did you mean {suggestion}?"),
        (None, None) => {
            elsewhere(name).unwrap_or_else(|| format!("known: {}", siblings.join(", ")))
        }
    };
    let path = join(&text_of(parent, false), name);
    Some(FieldProblem::new(
        path,
        format!("unknown field {name}; {hint}"),
    ))
}

/// Suggests the place of the field if exactly one other field has a child of that name.
fn elsewhere(name: &str) -> Option<String> {
    let mut places = KNOWN.iter().filter(|(_, names)| names.contains(&name));
    let (place, _) = places.next()?;
    match places.next() {
        None => Some(format!("did you mean {}?", join(place, name))),
        Some(_) => None,
    }
}

/// Formats a path; a `general` one has `[]` for each index, as in [`KNOWN`].
fn text_of(path: &Path<'_>, general: bool) -> String {
    match path {
        Path::Root => String::new(),
        Path::Seq { parent, .. } if general => text_of(parent, general) + "[]",
        Path::Seq { parent, index } => format!("{}[{index}]", text_of(parent, general)),
        Path::Map { parent, key } => join(&text_of(parent, general), key),
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => text_of(parent, general),
    }
}

fn join(parent: &str, name: &str) -> String {
    match parent {
        "" => name.to_owned(),
        _ => format!("{parent}.{name}"),
    }
}
