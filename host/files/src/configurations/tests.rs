use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

fn mk_text(name: &str, capacity: &str) -> String {
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  capacity: {capacity}\n  discoveryHandler:\n    name: udev\n"
    )
}

fn mk_snapshot(files: &[(&str, &str)]) -> Snapshot {
    Snapshot {
        complete: true,
        exists: true,
        files: files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), Content::Bytes(text.as_bytes().into())))
            .collect(),
        ..Snapshot::default()
    }
}

fn mk_values() -> Values {
    Values {
        folder: "DIR".into(),
        secrets: Arc::default(),
        configmaps: Arc::default(),
    }
}

/// Returns the names with capacities.
fn shown(set: &ConfigurationSet) -> Vec<(String, u32)> {
    set.accepted
        .iter()
        .map(|(key, found)| (key.name().to_owned(), found.configuration.capacity))
        .collect()
}

fn run(files: &[(&str, &str)], memory: &mut Memory) -> ConfigurationSet {
    assemble(Path::new("DIR"), &mk_snapshot(files), &mk_values(), memory)
}

fn pairs(expected: &[(&str, u32)]) -> Vec<(String, u32)> {
    expected
        .iter()
        .map(|(name, capacity)| ((*name).to_owned(), *capacity))
        .collect()
}

#[test]
fn what_a_broken_file_said_last_keeps_serving_and_its_good_documents_are_new() {
    let mut memory = Memory::default();
    let good = format!("{}---\n{}", mk_text("a", "1"), mk_text("b", "1"));
    run(&[("f.yaml", &good)], &mut memory);
    let broken = format!("{}---\n{}", mk_text("a", "2"), mk_text("b", "0"));
    let set = run(&[("f.yaml", &broken)], &mut memory);
    assert_eq!(shown(&set), pairs(&[("a", 2), ("b", 1)]));
    let text = set.problems[0].to_string();
    for words in [
        "DIR/f.yaml:13",
        "spec.capacity",
        "must be 1 to",
        "default/b stays in use",
    ] {
        assert!(text.contains(words), "{text}");
    }
    // The whole file unreadable after a restart: only the stored text is there.
    let set = run(&[("f.yaml", "a: [")], &mut Memory::new(memory.kept.clone()));
    assert_eq!(shown(&set), pairs(&[("a", 2), ("b", 1)]));
    assert!(
        set.problems[0]
            .message
            .contains("default/a, default/b stays in use")
    );
    // A good file counts as it is: b was removed on purpose.
    let set = run(&[("f.yaml", &mk_text("a", "3"))], &mut memory);
    assert_eq!((shown(&set), set.problems), (pairs(&[("a", 3)]), vec![]));
}

#[test]
fn unreadable_text_is_a_problem_of_its_configuration() {
    let mut memory = Memory::default();
    let good = mk_text("a", "1");
    let owners = |set: &ConfigurationSet| -> Vec<Option<String>> {
        let owner =
            |problem: &SourceProblem| problem.configuration.as_ref().map(ToString::to_string);
        set.problems.iter().map(owner).collect()
    };
    // Identified by the name before the mistake, or else by the last served Configuration, if there is only one.
    let nameless = run(&[("f.yaml", "a: [")], &mut memory);
    assert_eq!(owners(&nameless), [None]);
    let unclosed = good.clone() + "  x: [\n";
    let set = run(&[("f.yaml", &unclosed)], &mut memory);
    assert_eq!(owners(&set), [Some("default/a".to_owned())]);
    run(&[("f.yaml", &good)], &mut memory);
    let set = run(&[("f.yaml", "a: [")], &mut memory);
    assert_eq!(owners(&set), [Some("default/a".to_owned())]);
    assert!(
        set.problems[0].to_string().starts_with("DIR/f.yaml:"),
        "{set:?}"
    );
    let two = format!("{good}---\n{}", mk_text("b", "1"));
    run(&[("f.yaml", &two)], &mut memory);
    let set = run(&[("f.yaml", "a: [")], &mut memory);
    assert_eq!(owners(&set), [None]);
    // The separator between two is lost: the second is in no other document, and stays in use.
    let merged = two.replace("---\n", "");
    let set = run(&[("f.yaml", &merged)], &mut memory);
    assert_eq!(shown(&set), pairs(&[("a", 1), ("b", 1)]));
}

#[test]
fn a_file_that_is_gone_serves_no_more_and_one_that_has_not_settled_still_does() {
    let mut memory = Memory::default();
    run(
        &[
            ("f.yaml", &mk_text("a", "1")),
            ("g.yaml", &mk_text("b", "1")),
        ],
        &mut memory,
    );
    let mut snapshot = mk_snapshot(&[]);
    snapshot.files.insert("g.yaml".into(), Content::Pending);
    let set = assemble(Path::new("DIR"), &snapshot, &mk_values(), &mut memory);
    assert_eq!((shown(&set), set.problems), (pairs(&[("b", 1)]), vec![]));
    assert_eq!(memory.kept.len(), 1);
}

#[test]
fn a_folder_that_is_missing_says_nothing_of_its_files() {
    let mut memory = Memory::default();
    run(&[("f.yaml", &mk_text("a", "1"))], &mut memory);
    let nothing = Snapshot {
        exists: false,
        ..mk_snapshot(&[])
    };
    for _ in 0..2 {
        let set = assemble(Path::new("DIR"), &nothing, &mk_values(), &mut memory);
        assert_eq!(shown(&set), pairs(&[("a", 1)]));
        let text = set.problems[0].to_string();
        assert!(text.contains("DIR: is missing") && text.contains("stay in use"));
    }
    assert_eq!(shown(&run(&[], &mut memory)), []);
}

#[test]
fn a_copy_takes_nothing_from_the_file_that_serves_and_is_told() {
    let mut memory = Memory::default();
    let original = mk_text("a", "1");
    run(&[("a.yaml", &original)], &mut memory);
    let copy = format!("{}---\n{}", mk_text("a", "2"), mk_text("b", "2"));
    let a_copy = ("a-copy.yaml", copy.as_str());
    let mut restarted = Memory::new(memory.kept.clone());
    for memory in [&mut memory, &mut restarted] {
        for text in [original.as_str(), "a: [", &original] {
            let set = run(&[a_copy, ("a.yaml", text)], memory);
            assert_eq!(shown(&set), pairs(&[("a", 1), ("b", 2)]));
            let reported = set.problems[0].to_string();
            for words in [
                "DIR/a-copy.yaml: metadata.name: default/a is already defined in DIR/a.yaml",
                "rename this one, or remove one",
            ] {
                assert!(reported.contains(words), "{reported}");
            }
            assert_eq!(set.problems[0].configuration, None, "it serves");
        }
    }
    let mut restarted = Memory::new(memory.kept.clone());
    for memory in [&mut memory, &mut restarted] {
        let set = run(&[a_copy], memory);
        let expected = (pairs(&[("a", 2), ("b", 2)]), vec![]);
        assert_eq!((shown(&set), set.problems), expected);
    }
}

#[test]
fn configurations_beyond_their_number_are_reported_in_a_line_for_each_file() {
    let many = |letter: char, number: usize| {
        let texts: Vec<_> = (0..number)
            .map(|n| mk_text(&format!("{letter}{n}"), "1"))
            .collect();
        texts.join("---\n")
    };
    let mut memory = Memory::default();
    let (serving, new) = (many('m', 1_990), many('a', 30));
    run(&[("m.yaml", &serving)], &mut memory);
    let all = [
        ("a.yaml", new.as_str()),
        ("m.yaml", &serving),
        ("z.yaml", &new),
    ];
    let set = run(&all, &mut memory);
    assert_eq!(set.accepted.len(), MAX_CONFIGURATIONS);
    let served = shown(&set);
    assert_eq!(
        served
            .iter()
            .filter(|(name, _)| name.starts_with('m'))
            .count(),
        1_990
    );
    let reported: Vec<_> = set.problems.iter().map(ToString::to_string).collect();
    assert_eq!(reported.len(), 1 + 10 + 1, "{reported:?}");
    assert!(
        reported[0].starts_with("DIR/a.yaml: has 20 Configurations beyond the 2000 that")
            && reported[0].contains("default/a10, default/a11, default/a12, default/a13, default/a14 and 15 more; remove"),
        "{reported:?}"
    );
}

#[test]
fn a_broken_file_of_many_configurations_names_the_first_that_serve_on() {
    let texts: Vec<_> = (0..50).map(|n| mk_text(&format!("c{n:02}"), "1")).collect();
    let mut memory = Memory::default();
    run(&[("f.yaml", &texts.join("---\n"))], &mut memory);
    let set = run(&[("f.yaml", "a: [")], &mut memory);
    assert_eq!(set.accepted.len(), 50);
    let message = &set.problems[0].message;
    assert!(
        message.ends_with("default/c04 and 45 more stays in use"),
        "{message}"
    );
}

#[test]
fn a_folder_checked_once_says_what_the_agent_would() {
    let folder = tempfile::tempdir().unwrap();
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("configurations")).unwrap();
    let text = mk_text("a", "1")
        + "    discoveryProperties:\n    - {name: p, valueFrom: {secretKeyRef: {name: cam, key: pw}}}\n";
    fs::write(at("configurations/a.yaml"), text).unwrap();
    let problems = check_folder(folder.path()).problems;
    let missing = &problems[0].message;
    assert!(missing.contains("secrets/cam/pw is missing"), "{missing}");
    fs::create_dir_all(at("secrets/cam")).unwrap();
    fs::write(at("secrets/cam/pw"), "x").unwrap();
    // A second file with the name is not used.
    fs::copy(at("configurations/a.yaml"), at("configurations/b.yaml")).unwrap();
    let Reading {
        documents: located,
        problems,
        ..
    } = check_folder(folder.path());
    assert_eq!(problems.len(), 1, "{problems:?}");
    let [found] = located.as_slice() else {
        panic!("{located:?}");
    };
    assert!(found.file.ends_with("configurations/a.yaml"));
}

#[test]
fn each_configuration_has_its_lines() {
    let one = |name: &str| {
        format!(
            "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}}}\nspec:\n  discoveryHandler:\n    name: x\n    discoveryDetails: a\n"
        )
    };
    let text = format!("# two\n---\n{}--- # next\n{}", one("a"), one("b"));
    let located = check_file("f", &text).documents;
    let lines = |found: &Document| {
        (
            found.line_of("spec.discoveryHandler.name"),
            found.line_in_details("a"),
        )
    };
    let lines: Vec<_> = located.iter().map(lines).collect();
    assert_eq!(lines, [(Some(8), Some(9)), (Some(16), Some(17))]);
}

#[test]
fn a_field_of_details_has_its_line_where_the_file_has_the_lines_of_the_details() {
    let fields = "# filters\n\nfilter:\n  action: exclude\nrules:\n- a\n- b\n";
    let indented = fields.replace('\n', "\n      ");
    for (details, expected) in [
        (format!("|\n      {indented}"), [7, 11, 10, 14]),
        (format!("|- # text\n\n      {indented}"), [7, 12, 11, 15]),
        (format!(">\n      {indented}"), [7, 7, 7, 7]),
        (format!("{fields:?}"), [7, 7, 7, 7]),
    ] {
        let text = format!(
            "---\napiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: a}}\nspec:\n  discoveryHandler: # x\n    discoveryDetails: {details}\n    name: x\n"
        );
        let located = check_file("f", &text).documents;
        let lines = ["", "filter.action", "filter.items", "rules[1]"]
            .map(|field| located[0].line_in_details(field).unwrap());
        assert_eq!(lines, expected, "{text}");
    }
}

#[test]
fn details_that_cannot_be_read_have_the_line_of_the_mistake() {
    for (details, expected) in [
        ("|\n      rules:\n      \t- a", 9),
        ("|\n      rules:\n       - a\n      - b", 10),
        ("\"rules:\\n\\t- a\"", 7),
    ] {
        let text = format!(
            "---\napiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: a}}\nspec:\n  discoveryHandler:\n    discoveryDetails: {details}\n    name: x\n"
        );
        let located = check_file("f", &text).documents;
        let line = located[0].line_in_details("rules");
        assert_eq!(line, Some(expected), "{text}");
    }
}

struct Home {
    folder: TempDir,
    sets: Configurations,
    tasks: Tasks,
}

impl Home {
    async fn open(folder: TempDir) -> Self {
        let path = folder.path();
        let mut tasks = Tasks::default();
        let opened = watch(path.join("etc"), path.join("kept"), &mut tasks).await;
        let (sets, _) = opened.unwrap();
        Self {
            folder,
            sets,
            tasks,
        }
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.folder.path().join("etc").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    async fn until(&self, wanted: impl Fn(&ConfigurationSet) -> bool) -> Arc<ConfigurationSet> {
        let mut sets = self.sets.clone();
        let wait = sets.wait_for(|set| wanted(set));
        let set = tokio::time::timeout(Duration::from_secs(20), wait)
            .await
            .map(|set| Arc::clone(&set.unwrap()));
        set.unwrap_or_else(|_| {
            panic!(
                "{:?} {:?}",
                shown(&sets.borrow()),
                sets.borrow().problems.first()
            )
        })
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_good_state_serves_over_a_restart_and_properties_follow_their_files() {
    let home = Home::open(tempfile::tempdir().unwrap()).await;
    let text = mk_text("a", "1")
        + "    discoveryProperties:\n    - {name: p, valueFrom: {secretKeyRef: {name: cam, key: pw}}}\n";
    home.write("configurations/a.yaml", &text);
    let set = home.until(|set| !set.accepted.is_empty()).await;
    assert!(set.accepted.values().next().unwrap().properties.is_err());
    let value = |set: &ConfigurationSet| {
        let found = set.accepted.values().next()?;
        found
            .properties
            .as_ref()
            .ok()?
            .first()?
            .value
            .as_deref()
            .map(<[u8]>::to_vec)
    };
    for password in ["one", "two"] {
        home.write("secrets/cam/pw", password);
        home.until(|set| value(set) == Some(password.into())).await;
    }
    home.write("configurations/a.yaml", "half: [");
    let set = home.until(|set| !set.problems.is_empty()).await;
    assert_eq!(shown(&set), pairs(&[("a", 1)]));
    let Home { folder, tasks, .. } = home;
    drop(tasks);
    let home = Home::open(folder).await;
    let set = home.until(|set| set.complete).await;
    assert_eq!(shown(&set), pairs(&[("a", 1)]));
    assert!(set.problems[0].message.contains("stays in use"));
    fs::remove_file(home.folder.path().join("etc/configurations/a.yaml")).unwrap();
    home.until(|set| set.accepted.is_empty()).await;
    assert_eq!(
        fs::read_dir(home.folder.path().join("kept"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_kept_is_named_and_kept_as_soon_as_it_can_be() {
    let home = Home::open(tempfile::tempdir().unwrap()).await;
    let kept = home.folder.path().join("kept");
    fs::remove_dir(&kept).unwrap();
    fs::write(&kept, "no folder").unwrap();
    home.write("configurations/a.yaml", &mk_text("a", "1"));
    let set = home
        .until(|set| set.problems.iter().any(|p| p.message.contains("a.yaml")))
        .await;
    assert_eq!(shown(&set), pairs(&[("a", 1)]));
    fs::remove_file(&kept).unwrap();
    fs::create_dir(&kept).unwrap();
    home.until(|set| set.problems.is_empty()).await;
    assert_eq!(
        fs::read_to_string(kept.join("a.yaml")).unwrap(),
        mk_text("a", "1")
    );
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_goes_and_comes_back_file_by_file_deletes_nothing() {
    let home = Home::open(tempfile::tempdir().unwrap()).await;
    home.write("configurations/a.yaml", &mk_text("a", "1"));
    home.until(|set| !set.accepted.is_empty()).await;
    let folder = home.folder.path().join("etc/configurations");
    let mut sets = home.sets.clone();
    let mut fewest = async |wanted: &dyn Fn(&ConfigurationSet) -> bool| {
        let watch = async {
            let mut fewest = usize::MAX;
            loop {
                let set = sets.borrow_and_update().clone();
                fewest = fewest.min(set.accepted.len());
                if wanted(&set) {
                    return fewest;
                }
                sets.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), watch).await
    };
    fs::remove_dir_all(&folder).unwrap();
    let gone = fewest(&|set| !set.problems.is_empty()).await;
    assert_eq!(gone, Ok(1));
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    fs::create_dir(&folder).unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    home.write("configurations/a.yaml", &mk_text("a", "1"));
    let back = fewest(&|set| set.problems.is_empty()).await;
    assert_eq!(back, Ok(1));
}

#[test]
fn what_a_file_with_another_problem_has_no_more_it_does_not_keep_from_the_file_it_moved_to() {
    let mut memory = Memory::default();
    let both = format!("{}---\n{}", mk_text("x", "1"), mk_text("z", "1"));
    run(&[("a.yaml", &both)], &mut memory);
    let moved = [("a.yaml", mk_text("z", "0")), ("b.yaml", mk_text("x", "2"))];
    let moved = moved.each_ref().map(|(file, text)| (*file, text.as_str()));
    let set = run(&moved, &mut memory);
    assert_eq!(shown(&set), pairs(&[("x", 2), ("z", 1)]));
    let reported: Vec<_> = set.problems.iter().map(|problem| &problem.path).collect();
    assert_eq!(reported, ["spec.capacity"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_beyond_those_that_are_read_keeps_serving_also_after_a_restart() {
    let home = Home::open(tempfile::tempdir().unwrap()).await;
    home.write("configurations/z.yaml", &mk_text("z", "1"));
    home.until(|set| shown(set) == pairs(&[("z", 1)])).await;
    // Copies of it, too, which come first by name.
    for n in 0..RULES.max_files {
        home.write(&format!("configurations/a{n:04}.yaml"), &mk_text("z", "2"));
    }
    let full = |set: &ConfigurationSet| {
        let mut problems = set.problems.iter();
        problems.any(|problem| problem.message.contains("beyond the first 1000"))
    };
    let set = home.until(full).await;
    assert_eq!(shown(&set), pairs(&[("z", 1)]));
    let Home { folder, tasks, .. } = home;
    drop(tasks);
    let home = Home::open(folder).await;
    let set = home.until(|set| set.complete && full(set)).await;
    assert_eq!(shown(&set), pairs(&[("z", 1)]));
    // With one file less it is read again.
    fs::remove_file(home.folder.path().join("etc/configurations/a0000.yaml")).unwrap();
    home.write("configurations/z.yaml", &mk_text("z", "3"));
    home.until(|set| shown(set) == pairs(&[("z", 3)])).await;
}

#[test]
fn what_was_kept_and_is_damaged_is_moved_aside() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.yaml"), mk_text("a", "1")).unwrap();
    fs::write(at("c.yaml"), b"\xff").unwrap();
    fs::write(at("c.yaml.broken"), mk_text("c", "1")).unwrap();
    let (kept, problems) = read_kept(folder.path()).unwrap();
    assert_eq!(*kept["a.yaml"], mk_text("a", "1"));
    let reported: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(reported.len(), 1, "{reported:?}");
    let words = "c.yaml.broken: cannot be read as kept Configurations and was moved aside; c.yaml is used as soon as it is valid";
    assert!(reported[0].contains(words), "{reported:?}");
    assert!(read_kept(folder.path()).unwrap().1.is_empty());
}
