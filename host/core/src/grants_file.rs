//! Name of the grants file of a component.

/// Suffix of every grants file.
pub const SUFFIX: &str = ".grants.yaml";

/// Returns `<stem>.grants.yaml` for `<stem>.wasm` and `<stem>.wasm.gz`, whether or not that file exists.
pub fn own(component: &str) -> String {
    format!("{}{SUFFIX}", stem(component))
}

/// Returns the grants file of a component among the files of its folder. Cargo names the component of the crate
/// `serial-by-id` `serial_by_id.wasm`, so `serial-by-id.grants.yaml` applies to it too, unless the component has [its
/// own](own) file or `serial-by-id.wasm` exists, which then owns that file.
pub fn among(component: &str, exists: impl Fn(&str) -> bool) -> String {
    let own = own(component);
    let of_crate = stem(component).replace('_', "-");
    let other = format!("{of_crate}{SUFFIX}");
    let is_of_other =
        || exists(&format!("{of_crate}.wasm")) || exists(&format!("{of_crate}.wasm.gz"));
    if other != own && !exists(&own) && exists(&other) && !is_of_other() {
        other
    } else {
        own
    }
}

/// Returns the possible names of the file, for messages written without knowledge of the folder.
pub fn names(component: &str) -> String {
    let own = own(component);
    match own.replace('_', "-") {
        same if same == own => own,
        other => format!("{own} or {other}"),
    }
}

/// Returns the name of a component without `.wasm` and `.wasm.gz`.
pub fn stem(component: &str) -> &str {
    let stem = component.strip_suffix(".gz").unwrap_or(component);
    stem.strip_suffix(".wasm").unwrap_or(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_told() {
        assert_eq!(names("udev.wasm"), "udev.grants.yaml");
        assert_eq!(names("a_b.wasm.gz"), "a_b.grants.yaml or a-b.grants.yaml");
    }

    #[test]
    fn a_component_has_the_grants_of_its_name_or_its_crates() {
        let both = ["a_b.grants.yaml", "a-b.grants.yaml"];
        for (component, files, expected) in [
            ("udev.wasm", &[][..], "udev.grants.yaml"),
            ("udev.wasm.gz", &[], "udev.grants.yaml"),
            ("a_b.wasm", &[], "a_b.grants.yaml"),
            ("a_b.wasm", &both, "a_b.grants.yaml"),
            ("a_b.wasm", &["a-b.grants.yaml"], "a-b.grants.yaml"),
            ("a_b.wasm.gz", &["a-b.grants.yaml"], "a-b.grants.yaml"),
            ("a-b.wasm", &["a_b.grants.yaml"], "a-b.grants.yaml"),
            (
                "a_b.wasm",
                &["a-b.wasm.gz", "a-b.grants.yaml"],
                "a_b.grants.yaml",
            ),
        ] {
            assert_eq!(
                among(component, |file| files.contains(&file)),
                expected,
                "{component} among {files:?}"
            );
        }
    }
}
