use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::*;

mod merged;

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
fn a_misspelt_annotation_is_a_warning_with_its_line() {
    let text = GOOD.replace("NAME", "a\n  annotations: {leafhost.dev/graze: 30s, b: c}");
    let reading = read("f.yaml", &text);
    assert_eq!(reading.problems, []);
    let [warning] = reading.warnings.as_slice() else {
        panic!("{:?}", reading.warnings);
    };
    assert_eq!(
        warning.to_string(),
        "f.yaml:5: metadata.annotations.leafhost.dev/graze: unknown annotation leafhost.dev/graze; did you mean leafhost.dev/grace?"
    );
}

#[test]
fn a_character_that_looks_like_a_space_is_named_with_its_line() {
    for (from, to, line) in [
        ("  name: NAME", "\u{a0} name: NAME", 4),
        ("  name: NAME", "  name:\u{a0}NAME", 4),
        ("  discoveryHandler:", "\u{3000}discoveryHandler:", 6),
    ] {
        let text = GOOD.replacen(from, to, 1);
        assert_ne!(text, GOOD, "{from}");
        let reading = read("f.yaml", &text);
        let problem = &reading.problems[0];
        assert_eq!(problem.line, Some(line), "{problem}");
        assert!(problem.message.contains("no-break space"), "{problem}");
    }
    let text = GOOD.replacen("NAME", "\"a\" # \u{a0}:\u{a0}b", 1);
    assert_eq!(read("f.yaml", &text).problems, []);
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
            5,
            "",
            "has name twice; remove one",
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
        ("kind: Configuration\n", "", 1, "", "has no kind"),
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
            "is \"many\", must be a whole number",
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
            "specified twice",
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
            5,
            "spec",
            "has no discoveryHandler",
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
            .contains("is not a Configuration")
    );
}

#[test]
fn the_same_name_twice_in_a_file_counts_once() {
    let reading = read("f.yaml", &format!("{}---\n{}", good("a"), good("a")));
    assert_eq!(reading.documents.len(), 1);
    assert_eq!(reading.problems[0].line, Some(12));
}

#[test]
fn a_text_made_to_take_long_is_told_in_seconds() {
    const MANY: usize = 1 << 20;
    let spec = |rest: &str| format!("{}{rest}\n", good("a"));
    let numbered = |form: &str, count: usize| -> String {
        (0..count)
            .map(|n| form.replace('N', &n.to_string()))
            .collect()
    };
    let repeated = format!(
        "&a [{}0], {}0",
        "0,".repeat(MANY / 4),
        "*a,".repeat(MANY / 6)
    );
    let table = [
        ("[".repeat(MANY), "nested more than 32 deep"),
        (
            format!("x: {}", "{a: ".repeat(MANY / 4)),
            "nested more than 32 deep",
        ),
        (
            spec(&format!("  brokerSpec: [{repeated}]")),
            "aliases that stand for too much",
        ),
        (
            format!("metadata: [{repeated}]\n"),
            "aliases that stand for too much",
        ),
        (
            spec(&format!(
                "  brokerProperties:\n{}",
                numbered("    a N: x\n", MANY / 14)
            )),
            "bytes of names and values",
        ),
        (
            spec(&format!(
                "  brokerProperties:\n{}",
                numbered("    a N: x\n", 8_000)
            )),
            "name must be letters",
        ),
        (
            format!(
                "{}    discoveryProperties:\n{}",
                good("a"),
                "    - name: a b\n".repeat(MANY / 16)
            ),
            "must be letters, digits and _",
        ),
        ("--- a\n".repeat(MANY / 6), "is not a Configuration"),
        (
            format!("---\n{}", good("a")).repeat(MANY / 120),
            "is in this file already",
        ),
    ];
    // Counts the processor time of this thread, which other programs do not lengthen.
    let worked = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let before = worked().unwrap();
    for (text, words) in &table {
        let reading = read("f.yaml", text);
        let first = &reading.problems[0];
        assert!(
            first.message.contains(words),
            "{first:?} does not say {words:?}"
        );
        assert!(reading.problems.len() <= MAX_PROBLEMS + 1);
    }
    let directives = numbered("%TAG !aN! b\n", MANY / 20);
    assert_eq!(read("f.yaml", &directives), Reading::default());
    let documents = numbered(&format!("---\n{}", good("aN")), MANY / 120);
    assert_eq!(read("f.yaml", &documents).documents.len(), MANY / 120);
    // Each of them once took minutes or hours, or all the memory there is.
    assert!(worked().unwrap().saturating_sub(before) < Duration::from_mins(2));
}

#[test]
fn of_many_problems_the_first_are_told_with_their_lines() {
    let properties: String = (0..MAX_PROBLEMS + 7)
        .map(|n| format!("    a {n}: x\n"))
        .collect();
    let text = format!("{}  brokerProperties:\n{properties}", good("a"));
    let reading = read("f.yaml", &text);
    assert_eq!(reading.problems.len(), MAX_PROBLEMS + 1);
    assert!(
        reading.problems[..MAX_PROBLEMS]
            .iter()
            .all(|problem| problem.line.is_some())
    );
    assert!(
        reading.problems[MAX_PROBLEMS]
            .message
            .contains("7 more problems")
    );
}

#[test]
fn a_problem_with_a_large_value_is_short_and_on_one_line() {
    let long = "x\\u202e\\n".repeat(100_000);
    for (field, words) in [
        (format!("capacity: \"{long}\""), "must be a whole number"),
        (
            format!("brokerProperties:\n    ? \"{long}\"\n    : []"),
            "is a list, must be text",
        ),
        (
            format!("brokerProperties: {{A: \"{long}\"}}"),
            "at most 65536",
        ),
    ] {
        let text = good("a").replace("spec:\n", &format!("spec:\n  {field}\n"));
        let reading = read("f.yaml", &text);
        let [problem] = reading.problems.as_slice() else {
            panic!("{:?}", reading.problems.len());
        };
        let shown = problem.to_string();
        assert!(shown.len() < 1_400, "{}", shown.len());
        assert!(problem.message.contains(words), "{shown}");
        let unprintable = leafhost_core::text::is_unprintable;
        let SourceProblem { path, message, .. } = problem;
        assert!(!path.contains(unprintable) && !message.contains(unprintable));
        assert!(problem.line.is_some());
    }
}

#[test]
fn aliases_for_what_is_short_are_read() {
    let text = format!(
        "{}  brokerSpec: {{a: &a [1, 2], b: *a, c: *a}}\n",
        good("a")
    );
    assert_eq!(read("f.yaml", &text).problems, []);
}

#[test]
fn lines_are_counted_as_editors_count_them() {
    for (end, line) in [
        ("\n", 4),
        ("\r\n", 4),
        ("\r", 2),
        ("\u{85}", 2),
        ("\u{2028}", 2),
    ] {
        let text = format!("# größer\n# b{end}# c{end}x: ]{end}");
        let problems = read("f.yaml", &text).problems;
        let lines: Vec<_> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [Some(line)], "{end:?}: {problems:?}");
    }
}

/// A Configuration with all fields of Akri's CRD, and a field of Kubernetes in `metadata`.
const FULL: &str = "\
apiVersion: akri.sh/v0
kind: Configuration
metadata:
  name: full
  labels: {app: x}
  managedFields: [{manager: helm}]
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: ''
    discoveryProperties:
    - {name: a, value: b}
    - name: c
      valueFrom:
        secretKeyRef: {name: s, namespace: ns, key: k, optional: true}
    - name: d
      valueFrom:
        configMapKeyRef: {name: s, namespace: ns, key: k, optional: true}
  capacity: 2
  brokerProperties: {A: b}
  brokerSpec:
    brokerPodSpec: {containers: []}
  instanceServiceSpec: {type: ClusterIP}
  configurationServiceSpec: {type: ClusterIP}
";

#[test]
fn a_field_without_effect_is_a_warning_with_its_line_and_refuses_nothing() {
    let ignored = [
        "f.yaml:21: spec.brokerSpec: brokers are created in a cluster, by its controller; a standalone agent creates none",
        "f.yaml:23: spec.instanceServiceSpec: services are created in a cluster, by its controller; a standalone agent creates none",
        "f.yaml:24: spec.configurationServiceSpec: services are created in a cluster, by its controller; a standalone agent creates none",
    ];
    for (from, to, expected) in [
        ("", "", None),
        (
            "capacity: 2",
            "capcity: 2",
            Some("f.yaml:19: spec.capcity: unknown field capcity; did you mean capacity?"),
        ),
        (
            "brokerProperties:",
            "brokerProperty:",
            Some(
                "f.yaml:20: spec.brokerProperty: unknown field brokerProperty; did you mean brokerProperties?",
            ),
        ),
        (
            "capacity: 2",
            "discoveryDetails: ''",
            Some(
                "f.yaml:19: spec.discoveryDetails: unknown field discoveryDetails; did you mean spec.discoveryHandler.discoveryDetails?",
            ),
        ),
        (
            "capacity: 2",
            "brokerPodSpec: {}",
            Some(
                "f.yaml:19: spec.brokerPodSpec: unknown field brokerPodSpec; it belongs in spec.brokerSpec.brokerPodSpec",
            ),
        ),
        (
            "capacity: 2",
            "protocol: {}",
            Some(
                "f.yaml:19: spec.protocol: unknown field protocol; it belongs in spec.discoveryHandler",
            ),
        ),
        (
            "{name: a, value: b}",
            "{name: a, Valu: b}",
            Some(
                "f.yaml:12: spec.discoveryHandler.discoveryProperties[0].Valu: unknown field Valu; did you mean value?",
            ),
        ),
        (
            "name: s, namespace: ns, key: k, optional: true}\n    - name: d",
            "name: s, namespace: ns, key: k, sometimes: true}\n    - name: d",
            Some(
                "f.yaml:15: spec.discoveryHandler.discoveryProperties[1].valueFrom.secretKeyRef.sometimes: unknown field sometimes; known: name, namespace, key, optional",
            ),
        ),
        (
            "kind: Configuration",
            "kind: Configuration\n\"\\e[2J\": 1",
            Some(
                "f.yaml: \\u{1b}[2J: unknown field \\u{1b}[2J; known: apiVersion, kind, metadata, spec",
            ),
        ),
    ] {
        let text = FULL.replacen(from, to, 1);
        let reading = read("f.yaml", &text);
        assert_eq!((reading.problems, reading.documents.len()), (vec![], 1));
        let key = reading.documents[0].configuration.key.clone();
        let of_it = |warning: &SourceProblem| warning.configuration.as_ref() == Some(&key);
        assert!(reading.warnings.iter().all(of_it));
        let unknown: Vec<String> = reading.warnings.iter().map(ToString::to_string).collect();
        let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let (unknown, rest) = unknown.split_at(unknown.len() - ignored.len());
        assert_eq!(unknown, expected.as_slice(), "{to}");
        assert_eq!(rest.len(), ignored.len());
        if expected.is_none() {
            assert_eq!(rest, ignored);
        }
    }
}

#[test]
fn a_document_with_problems_also_tells_its_unknown_fields() {
    let text = good("a").replace("discoveryHandler", "discoveryhandler");
    let reading = read("f.yaml", &text);
    assert_eq!(reading.problems.len(), 1);
    let [warning] = reading.warnings.as_slice() else {
        panic!("{:?}", reading.warnings);
    };
    assert!(
        warning
            .message
            .contains("discoveryhandler; did you mean discoveryHandler?"),
        "{warning}"
    );
    assert_eq!(warning.configuration, reading.problems[0].configuration);
}

#[test]
fn of_many_unknown_fields_the_first_are_told() {
    let fields: String = (0..MAX_PROBLEMS + 7)
        .map(|n| format!("  x{n}: 1\n"))
        .collect();
    let reading = read("f.yaml", &format!("{}{fields}", good("a")));
    assert_eq!(reading.documents.len(), 1);
    assert_eq!(reading.warnings.len(), MAX_PROBLEMS + 1);
    let last = &reading.warnings[MAX_PROBLEMS].message;
    assert!(last.contains("7 more fields without effect"), "{last}");
}

#[test]
fn messages_of_the_reader_say_what_to_write_instead() {
    let spec = |line: &str| good("a").replace("spec:\n", &format!("spec:\n{line}\n"));
    for (text, expected) in [
        (
            good("a") + "    discoveryDetails:\n      a: 1\n",
            "f.yaml:8: spec.discoveryHandler.discoveryDetails: must be text; write `discoveryDetails: |` and indent what follows",
        ),
        (
            good("a") + "    discoveryDetails: [1]\n",
            "f.yaml:8: spec.discoveryHandler.discoveryDetails: must be text; write `discoveryDetails: |` and indent what follows",
        ),
        (
            spec("\tcapacity: 1"),
            "f.yaml:6: has a tab; YAML indents with spaces",
        ),
        (
            spec("  capacity: 1\n\tbrokerProperties: {}"),
            "f.yaml:7: has a tab; YAML indents with spaces",
        ),
        (
            spec("  capacity: \"5\""),
            "f.yaml:6: spec.capacity: is \"5\"; write 5 without quotes",
        ),
        (
            format!("{{{{- if .Values.udev }}}}\n{}", good("a")),
            "f.yaml:1: begins with {{; render the Helm template first",
        ),
        (
            format!("{{{{ .Values.udev }}}}\n{}", good("a")),
            "f.yaml:1: begins with {{; render the Helm template first",
        ),
        (
            spec("  capacity: {{ .Values.capacity }}"),
            "f.yaml:6: begins with {{; render the Helm template first",
        ),
        (
            "kind: Configuration\n".to_owned(),
            "f.yaml:1: is not a Configuration (first line: apiVersion: akri.sh/v0)",
        ),
        (
            spec("  brokerProperties: {1A: x}"),
            "f.yaml:6: spec.brokerProperties.1A: name must be letters, digits and _, not beginning with a digit",
        ),
    ] {
        let problems = read("f.yaml", &text).problems;
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, [expected], "{text}");
    }
}
