use std::time::Duration;

use super::*;
use crate::args::{self, Command};

const GOOD: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: cams
spec:
  discoveryHandler:
    name: cam
    discoveryDetails: ''
";

fn compiler() -> CompilerArgs {
    CompilerArgs {
        compiler: Some("/nowhere/leafhost-compile".into()),
        compile_timeout: Duration::from_secs(1),
    }
}

async fn check_with(path: &Path, flags: &str) -> Result<Findings> {
    let line = format!(
        "leafhost check {} --compiler /nowhere/leafhost-compile {flags}",
        path.display()
    );
    let Ok(Command::Check(args)) = args::parse(line.split_whitespace()) else {
        panic!("{line}");
    };
    check(&args).await
}

async fn checked(path: &Path) -> Findings {
    check_with(path, "").await.unwrap()
}

fn write(dir: &Path, file: &str, text: &str) -> PathBuf {
    let path = dir.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn a_valid_file_has_no_problem_and_reports_what_was_not_checked() {
    let dir = tempfile::tempdir().unwrap();
    let findings = checked(&write(dir.path(), "a.yaml", GOOD)).await;
    assert_eq!(findings.problems, Vec::<String>::new());
    assert_eq!(findings.configurations, 1);
    assert_eq!(findings.notes, Vec::<String>::new());
    assert!(findings.skipped[0].contains("no handler \"cam\" found; name its folder"));
}

#[tokio::test]
async fn a_misspelt_field_is_a_note_and_no_problem() {
    let dir = tempfile::tempdir().unwrap();
    let text = GOOD.replace("spec:\n", "spec:\n  capcity: 2\n");
    for path in [
        write(dir.path(), "configurations/a.yaml", &text),
        dir.path().to_owned(),
    ] {
        let findings = checked(&path).await;
        assert_eq!(findings.problems, Vec::<String>::new());
        let words = "a.yaml:6: spec.capcity: unknown field capcity; did you mean capacity?";
        let mut notes = findings.notes.iter();
        assert!(notes.any(|note| note.ends_with(words)), "{findings:?}");
    }
}

#[tokio::test]
async fn an_invalid_field_is_reported_with_file_line_and_path() {
    let dir = tempfile::tempdir().unwrap();
    let text = GOOD.replace("spec:\n", "spec:\n  capacity: 0\n");
    let path = write(dir.path(), "a.yaml", &text);
    let findings = checked(&path).await;
    let expected = format!("{}:6: spec.capacity: is 0", path.display());
    assert!(
        findings.problems[0].starts_with(&expected),
        "{:?}",
        findings.problems
    );
}

#[tokio::test]
async fn a_reference_that_no_agent_can_use_is_a_problem() {
    let dir = tempfile::tempdir().unwrap();
    let with = |reference: &str| {
        let property = format!(
            "    discoveryProperties:\n    - name: a\n      valueFrom:\n        secretKeyRef: {{{reference}}}\n"
        );
        write(dir.path(), "a.yaml", &format!("{GOOD}{property}"))
    };
    for (reference, words) in [
        ("name: s, key: a/b", "secretKeyRef.key: \"a/b\" is not"),
        ("name: s, key: ''", "secretKeyRef.key: \"\" is not"),
        ("name: S_1, key: k", "secretKeyRef.name: \"S_1\" is not"),
        (
            "name: s, key: k, namespace: other",
            "secretKeyRef.namespace: is \"other\", must be that of the Configuration, \"default\", or one that the agents are started with",
        ),
    ] {
        let findings = checked(&with(reference)).await;
        let [problem] = &findings.problems[..] else {
            panic!("{reference}: {findings:?}");
        };
        assert!(
            problem.contains("a.yaml:12: ") && problem.contains(words),
            "{problem}"
        );
    }
    let path = with("name: s, key: k, namespace: other");
    let findings = check_with(&path, "--properties-namespaces other").await;
    let findings = findings.unwrap();
    assert_eq!(findings.problems, Vec::<String>::new());
    let findings = checked(&with("name: s, key: k, namespace: default")).await;
    assert_eq!(findings.problems, Vec::<String>::new());
}

#[test]
fn the_handlers_built_in_a_source_tree_are_found_from_a_file_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "tree/deploy/samples/a.yaml", GOOD);
    assert_eq!(built_handlers(&file), None);
    write(dir.path(), "tree/Cargo.lock", "");
    assert_eq!(built_handlers(&file), None);
    write(dir.path(), "tree/target/handlers/cam.wasm", "");
    let folder = dir.path().join("tree/target/handlers");
    assert_eq!(built_handlers(&file), Some(folder));
}

#[tokio::test]
async fn what_is_in_a_wrong_folder_or_has_a_wrong_name_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "configurations/a.yaml", GOOD);
    write(dir.path(), "configurations/b.json", "{}");
    write(dir.path(), "configurations/cam.wasm", "not wasm");
    write(dir.path(), "configurations/old/c.yaml", GOOD);
    write(dir.path(), "handlers/d.yaml", GOOD);
    let findings = checked(dir.path()).await;
    let notes = findings.notes.join("\n");
    for words in [
        "configurations/b.json: is not read; let its name end in .yaml",
        "configurations/cam.wasm: is a handler",
        "configurations/old: is a folder",
        "handlers/d.yaml: is not read; a Configuration belongs in the folder configurations",
    ] {
        assert!(notes.contains(words), "{words} not in\n{notes}");
    }
    assert_eq!(findings.configurations, 1);
    assert_eq!(findings.problems.len(), 1, "only the handler is missing");
}

#[tokio::test]
async fn a_file_in_another_encoding_has_a_problem_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = write(dir.path(), "configurations/a.yaml", "");
    let latin = [GOOD.as_bytes(), b"# \xe4\n"].concat();
    let wide: Vec<u8> = GOOD.encode_utf16().flat_map(u16::to_le_bytes).collect();
    for (bytes, words) in [
        (latin, "a.yaml:9: is not UTF-8 text: it has the byte 0xE4"),
        (wide, "a.yaml: is not UTF-8 text, but UTF-16; save"),
        (b"a: \0".to_vec(), "a.yaml:1: has a NUL character"),
    ] {
        std::fs::write(&file, &bytes).unwrap();
        for path in [&*file, dir.path()] {
            let findings = checked(path).await;
            let [problem] = &findings.problems[..] else {
                panic!("{words}: {findings:?}");
            };
            assert!(problem.contains(words), "{problem}");
        }
    }
}

#[tokio::test]
async fn a_folder_is_checked_with_its_handlers() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "configurations/a.yaml", GOOD);
    write(dir.path(), "handlers/cam.wasm", "not wasm");
    write(dir.path(), "handlers/lone.grants.yaml", "udef: {}");
    let findings = checked(dir.path()).await;
    let problems = findings.problems.join("\n");
    for words in [
        "handlers/cam.wasm: this is not WebAssembly",
        "lone.grants.yaml: ",
        "unknown field `udef`",
        "configurations/a.yaml:7: spec.discoveryHandler.name: no handler is named \"cam\"; there is none that can be loaded",
    ] {
        assert!(problems.contains(words), "{words} not in\n{problems}");
    }
    assert_eq!(findings.problems.len(), 3, "{problems}");
}

#[tokio::test]
async fn a_folder_within_a_standalone_folder_has_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "configurations/a.yaml", GOOD);
    write(dir.path(), "handlers/lone.grants.yaml", "udev: {}");
    for folder in ["configurations", "handlers"] {
        let findings = checked(&dir.path().join(folder)).await;
        let [problem] = findings.problems.as_slice() else {
            panic!("{findings:?}");
        };
        assert!(problem.contains("check the folder above it"), "{problem}");
    }
}

#[tokio::test]
async fn a_name_that_is_no_cdi_class_is_a_note() {
    let dir = tempfile::tempdir().unwrap();
    for (name, is_told) in [("3d-printer", true), ("a", true), ("printer-3d", false)] {
        let text = GOOD.replace("name: cams", &format!("name: {name}"));
        let findings = checked(&write(dir.path(), "a.yaml", &text)).await;
        assert_eq!(findings.problems, Vec::<String>::new());
        let note = findings
            .notes
            .iter()
            .find(|note| note.contains("a.yaml:4: ") && note.contains("cannot be a CDI class"));
        assert_eq!(note.is_some(), is_told, "{findings:?}");
    }
}

#[tokio::test]
async fn a_grants_file_is_checked_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(dir.path(), "a.grants.yaml", "devices: {nodes: [dev]}");
    let findings = checked(&path).await;
    assert!(
        findings.problems[0].contains("devices.nodes[0]"),
        "{:?}",
        findings.problems
    );
}

#[tokio::test]
async fn a_missing_file_is_an_error() {
    let error = check_with(Path::new("/nowhere.yaml"), "").await;
    let error = error.unwrap_err();
    assert!(format!("{error:#}").contains("/nowhere.yaml"));
}

#[tokio::test]
async fn configurations_of_a_cluster_that_cannot_be_read_are_named() {
    let wrong = GOOD.replace("spec:\n", "spec:\n  capacity: many\n");
    let configurations = [("ns/good", GOOD), ("ns/wrong", &wrong)]
        .map(|(name, text)| (name.to_owned(), text.to_owned()));
    let found = details(configurations.into(), &[], &compiler()).await;
    let found = found.unwrap();
    assert!(
        found.len() == 1 && found[0].starts_with("ns/wrong:6: spec.capacity"),
        "{found:?}"
    );
}
