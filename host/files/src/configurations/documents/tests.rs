use super::*;

const GOOD: &str = "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata:\n  name: NAME\nspec:\n  discoveryHandler:\n    name: udev\n";

fn good(name: &str) -> String {
    GOOD.replace("NAME", name)
}

#[test]
fn several_documents_are_read_and_each_has_a_uid_of_its_name() {
    let text = format!(
        "# head\n{}---\n# nothing\n--- # next\n{}...\n%YAML 1.2\n---\n{}",
        good("a"),
        good("b"),
        good("c")
    );
    let reading = read("f.yaml", &text);
    assert_eq!(reading.problems, []);
    let names: Vec<_> = reading
        .documents
        .iter()
        .map(|d| d.configuration.key.name())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
    let again = read("g.yaml", &good("b"));
    assert_eq!(
        again.documents[0].configuration.uid,
        reading.documents[1].configuration.uid
    );
    assert_ne!(
        again.documents[0].configuration.uid,
        reading.documents[0].configuration.uid
    );
}

#[test]
fn a_kept_text_reads_as_the_same_document() {
    let reading = read(
        "f.yaml",
        &format!(
            "--- {{apiVersion: akri.sh/v0, kind: Configuration, metadata: {{name: a}}, spec: {{discoveryHandler: {{name: x}}}}}}\n---\n{}",
            good("b")
        ),
    );
    let texts: Vec<_> = reading.documents.iter().map(|d| d.text.as_str()).collect();
    let again = read("f.yaml", &texts.join("\n---\n"));
    let configurations = |reading: Reading| {
        reading
            .documents
            .into_iter()
            .map(|d| d.configuration)
            .collect::<Vec<_>>()
    };
    assert_eq!(configurations(again), configurations(reading));
}

#[test]
fn every_problem_has_its_line_path_and_remedy_and_spoils_no_other_document() {
    // The line counts from the start of the document, which is the tenth of the file.
    for (from, to, line, path, words) in [
        (
            "  name: NAME\n",
            "  name: [\n",
            6,
            "",
            "did not find expected",
        ),
        (
            "name: NAME",
            "name: NAME\n  name: b",
            4,
            "metadata",
            "duplicate field",
        ),
        (
            "kind: Configuration",
            "kind: Instance",
            2,
            "kind",
            "must be \"Configuration\"",
        ),
        (
            "kind: Configuration",
            "kind: List",
            2,
            "kind",
            "documents of their own",
        ),
        (
            "kind: Configuration",
            "kind: Secret",
            2,
            "kind",
            "secrets/NAME/KEY",
        ),
        (
            "kind: Configuration",
            "kind: ConfigMap",
            2,
            "kind",
            "configmaps/NAME/KEY",
        ),
        ("kind: Configuration\n", "", 1, "", "missing field `kind`"),
        (
            "akri.sh/v0",
            "v1",
            1,
            "apiVersion",
            "must be \"akri.sh/v0\"",
        ),
        ("NAME", "Wrong_Name", 4, "metadata.name", "Wrong_Name"),
        (
            "spec:\n",
            "spec:\n  capacity: 0\n",
            6,
            "spec.capacity",
            "must be 1 to",
        ),
        (
            "spec:\n",
            "spec:\n  capacity: -1\n",
            6,
            "spec.capacity",
            "must be 1 to",
        ),
        (
            "spec:\n",
            "spec:\n  capacity: many\n",
            6,
            "spec.capacity",
            "expected i64",
        ),
        (
            "name: udev\n",
            "name: udev\n    discoveryProperties:\n    - name: a\n    - {name: b, valueFrom: {}}\n",
            10,
            "spec.discoveryHandler.discoveryProperties[1].valueFrom",
            "exactly one of",
        ),
        (
            "name: udev\n",
            "name: udev\n    discoveryProperties:\n    - name: a\n    - name: a\n",
            10,
            "spec.discoveryHandler.discoveryProperties[1].name",
            "there twice",
        ),
        (
            "  name: NAME\n",
            "  name: NAME\n  annotations:\n    leafhost.dev/grace: soon\n",
            6,
            "metadata.annotations.leafhost.dev/grace",
            "soon",
        ),
        (
            "  discoveryHandler:\n    name: udev\n",
            "  {}\n",
            6,
            "spec",
            "missing field",
        ),
    ] {
        let broken = GOOD.replace(from, to).replace("NAME", "broken");
        let text = format!(
            "# one\n{}---\n{broken}---\n{}",
            good("before"),
            good("after")
        );
        let reading = read("f.yaml", &text);
        let [problem] = reading.problems.as_slice() else {
            panic!("{to}: {:?}", reading.problems);
        };
        let shown = problem.to_string();
        assert_eq!(
            (problem.line, problem.path.as_str()),
            (Some(line + 9), path),
            "{shown}"
        );
        assert!(
            problem.message.contains(words) && !problem.message.contains(" at line "),
            "{shown}"
        );
        let names: Vec<_> = reading
            .documents
            .iter()
            .map(|d| d.configuration.key.name())
            .collect();
        assert_eq!(names, ["before", "after"], "{to}");
    }
}

#[test]
fn a_problem_names_its_configuration_where_that_can_be_read() {
    let reading = read(
        "f.yaml",
        &good("a").replace("spec:\n", "spec:\n  capacity: 0\n"),
    );
    assert_eq!(
        reading.problems[0]
            .configuration
            .as_ref()
            .unwrap()
            .to_string(),
        "default/a"
    );
    assert_eq!(read("f.yaml", "a: [").problems[0].configuration, None);
    assert!(
        read("f.yaml", "just words").problems[0]
            .message
            .contains("a Configuration with")
    );
}

#[test]
fn the_same_name_twice_in_a_file_counts_once() {
    let reading = read("f.yaml", &format!("{}---\n{}", good("a"), good("a")));
    assert_eq!(reading.documents.len(), 1);
    assert_eq!(reading.problems[0].line, Some(12));
}
