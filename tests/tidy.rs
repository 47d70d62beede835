//! Rules of the source tree that no linter checks.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test file")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const FOLDERS: [&str; 4] = ["host", "sdk", "handlers", "tests"];

fn sources() -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = FOLDERS.iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(
        found.len() > 30,
        "the search itself is broken: {} files",
        found.len()
    );
    found
}

fn offenders(breaks: impl Fn(&Path, &str) -> bool) -> Vec<PathBuf> {
    let breaks = &breaks;
    sources()
        .into_iter()
        .filter(|path| breaks(path, &fs::read_to_string(path).unwrap()))
        .collect()
}

#[test]
fn every_source_file_begins_with_a_module_comment() {
    assert_eq!(
        // A `tests.rs` has the purpose of its parent.
        offenders(|path, text| !path.ends_with("tests.rs")
            && !text.starts_with("//!")
            && !text.starts_with("#![doc = include_str!")),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn no_source_file_has_more_than_600_lines() {
    assert_eq!(
        offenders(|_, text| text.lines().count() > 600),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn no_file_has_a_meaningless_name() {
    let bad = [
        "mod", "util", "utils", "common", "helpers", "manager", "misc",
    ];
    assert_eq!(
        offenders(|path, _| path
            .file_stem()
            .is_some_and(|stem| bad.iter().any(|bad| stem == *bad))),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn files_and_modules_have_no_metaphors_for_names() {
    let bad = [
        "aside",
        "beside",
        "brisk",
        "comings",
        "door",
        "ears",
        "gathering",
        "ground",
        "patience",
        "scene",
        "scenes",
        "sieve",
        "unrest",
        "yard",
    ];
    let is_bad = |name: &str| bad.contains(&name);
    let declares = |line: &str| {
        let mut words = line.split([' ', ';']).skip_while(|word| *word != "mod");
        words.nth(1).is_some_and(is_bad)
    };
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    assert_eq!(
        offenders(|path, text| {
            let path = path.strip_prefix(root).unwrap().with_extension("");
            path.iter().any(|part| part.to_str().is_some_and(is_bad)) || text.lines().any(declares)
        }),
        Vec::<PathBuf>::new()
    );
}

/// Returns the first line of each doc comment of an item.
fn doc_comments(text: &str) -> Vec<&str> {
    let mut is_inside = false;
    let lines = text.lines().filter_map(|line| {
        let comment = line.trim_start().strip_prefix("/// ");
        let begins = comment.filter(|_| !is_inside);
        is_inside = line.trim_start().starts_with("///");
        begins
    });
    lines.collect()
}

#[test]
fn doc_comments_begin_with_a_verb_or_a_noun_and_no_clause() {
    let clauses = [
        "What", "Whether", "How", "When", "Of", "Which", "Who", "Whose", "Where", "Why", "So",
        "Those", "It",
    ];
    let (mut all, mut bad) = (0, Vec::new());
    for path in sources() {
        let text = fs::read_to_string(&path).unwrap();
        for comment in doc_comments(&text) {
            all += 1;
            let first = comment.split([' ', ',']).next().unwrap_or_default();
            if clauses.contains(&first) {
                bad.push(format!("{}: {comment}", path.display()));
            }
        }
    }
    // kube has 0.3 to 1.2 %, wasmtime 1.2 to 2.6 %.
    assert!(
        all > 5_000 && bad.len() * 50 < all,
        "{} of {all}: {bad:#?}",
        bad.len()
    );
}

#[test]
fn no_source_file_has_a_todo() {
    let words = ["TODO", "FIXME", "XXX", "HACK"].map(|word| format!("{word}:"));
    assert_eq!(
        offenders(|_, text| words.iter().any(|word| text.contains(word))),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn no_struct_keeps_tasks_that_nobody_joins() {
    // Nothing joins the tasks of such a field, so nobody sees a panic; dropping a `JoinSet` aborts them.
    let is_bare = |line: &str| {
        let field = line.trim_start().trim_start_matches("pub ");
        let (name, kind) = field.split_once(": ").unwrap_or_default();
        name.starts_with('_')
            && ["JoinSet<", "JoinHandle<"]
                .iter()
                .any(|bare| kind.contains(bare))
    };
    let is_program = |path: &Path| {
        let path = path
            .strip_prefix(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .unwrap();
        path.starts_with("host")
            && !path
                .components()
                .any(|part| part.as_os_str().to_string_lossy().starts_with("tests"))
    };
    assert_eq!(
        offenders(|path, text| is_program(path) && text.lines().any(is_bare)),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn the_service_may_confine_the_compiler() {
    let unit = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/systemd/leafhost.service"
    );
    let unit = fs::read_to_string(unit).unwrap();
    // No group of system calls in systemd has seccomp(2), without which the agent compiles no handler.
    let calls = unit
        .lines()
        .find_map(|line| line.strip_prefix("SystemCallFilter="))
        .unwrap();
    assert!(calls.split(' ').any(|call| call == "seccomp"), "{calls}");
}

#[test]
fn every_image_sets_what_the_unit_for_systemd_sets() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let unit = read("deploy/systemd/leafhost.service");
    let set: Vec<&str> = unit
        .lines()
        .filter_map(|line| line.strip_prefix("Environment="))
        .flat_map(str::split_whitespace)
        .collect();
    assert!(!set.is_empty(), "the unit sets nothing");
    for file in ["deploy/image.sh", "Containerfile"] {
        let text = read(file);
        let missing: Vec<_> = set.iter().filter(|one| !text.contains(**one)).collect();
        assert_eq!(missing, Vec::<&&str>::new(), "{file}");
    }
}

#[test]
fn crates_depend_only_on_those_below() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let allowed: [(&str, &[&str]); 24] = [
        ("host/core", &[]),
        ("host/udev", &[]),
        ("host/net", &[]),
        ("host/cdi", &[]),
        ("host/metrics", &[]),
        ("host/disk", &[]),
        ("host/endpoint", &[]),
        ("host/fakes", &["leafhost-core"]),
        ("host/uds", &[]),
        ("host/kubelet", &["leafhost-uds"]),
        ("host/files", &["leafhost-core", "leafhost-disk"]),
        ("host/k8s", &["leafhost-core", "leafhost-disk"]),
        ("host/grants", &["leafhost-core", "leafhost-net"]),
        (
            "host/wasm",
            &[
                "leafhost-core",
                "leafhost-disk",
                "leafhost-grants",
                "leafhost-net",
                "leafhost-udev",
            ],
        ),
        (
            "host/external",
            &[
                "leafhost-core",
                "leafhost-disk",
                "leafhost-grants",
                "leafhost-net",
                "leafhost-uds",
            ],
        ),
        ("host/compile", &["leafhost-core", "leafhost-wasm"]),
        ("host/discovery", &["leafhost-core", "leafhost-metrics"]),
        (
            "host/slots",
            &["leafhost-core", "leafhost-kubelet", "leafhost-metrics"],
        ),
        (
            "host/claims",
            &["leafhost-core", "leafhost-kubelet", "leafhost-metrics"],
        ),
        (
            "host/agent",
            &[
                "leafhost-core",
                "leafhost-cdi",
                "leafhost-claims",
                "leafhost-discovery",
                "leafhost-endpoint",
                "leafhost-kubelet",
                "leafhost-metrics",
                "leafhost-slots",
            ],
        ),
        ("host/controller", &["leafhost-core", "leafhost-metrics"]),
        ("host/select", &["leafhost-core"]),
        (
            "host/scheduler",
            &["leafhost-core", "leafhost-metrics", "leafhost-select"],
        ),
        ("sdk", &["leafhost-sdk-macros"]),
    ];
    for (folder, below) in allowed {
        let manifest = fs::read_to_string(root.join(folder).join("Cargo.toml")).unwrap();
        let (_, dependencies) = manifest.split_once("[dependencies]").unwrap();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for line in dependencies
            .lines()
            .filter(|line| line.starts_with("leafhost-"))
        {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            assert!(below.contains(&name), "{folder} must not depend on {name}");
        }
    }
}

#[test]
fn no_program_of_a_cluster_knows_another_and_what_they_share_knows_none() {
    let programs = ["agent", "controller", "scheduler", "webhook", "migrate"];
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let root = root.join("host/k8s/src");
    let place = |path: &Path| {
        let inside = path.strip_prefix(&root).ok()?.with_extension("");
        Some(inside.iter().next()?.to_str()?.to_owned())
    };
    assert!(programs.iter().all(|program| root.join(program).is_dir()));
    assert_eq!(
        offenders(|path, text| {
            let Some(own) = place(path).filter(|own| own != "lib") else {
                return false;
            };
            let used = text.split("crate::").skip(1).flat_map(|rest| {
                let end = if rest.starts_with('{') { '}' } else { ':' };
                rest.split([end, ';'])
                    .next()
                    .unwrap_or_default()
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
            });
            used.into_iter()
                .any(|name| name != own && programs.contains(&name))
        }),
        Vec::<PathBuf>::new()
    );
}

#[test]
fn the_sdks_limits_of_a_call_are_those_of_the_host() {
    let counts = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../host/wasm/src/capabilities/reach.rs"
    );
    let counts = fs::read_to_string(counts).unwrap();
    for (name, told) in [
        ("LOOK_UPS", leafhost_sdk::net::LOOK_UPS),
        ("CONNECTS", leafhost_sdk::net::CONNECTIONS),
    ] {
        let line = format!("\nconst {name}: u32 = {told};\n");
        assert!(counts.contains(&line), "{line}");
    }
}

#[test]
fn metrics_md_lists_all_metrics_and_alerts_rules_and_the_dashboard_name_no_others() {
    let read = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        fs::read_to_string(path).unwrap()
    };
    let is_name = |text: &&str| text.starts_with("akri_") || text.starts_with("leafhost_");
    let mut registered = BTreeSet::new();
    for part in [
        "agent",
        "claims",
        "discovery",
        "slots",
        "controller",
        "scheduler",
    ] {
        let source = read(&format!("host/{part}/src/metrics.rs"));
        let before = registered.len();
        registered.extend(source.split('"').filter(is_name).map(str::to_owned));
        assert!(registered.len() > before, "{part}");
    }
    let document = read("docs/metrics.md");
    // One per line: "| `NAME` |" in the table.
    let rows = document.lines();
    let listed = rows.filter_map(|row| row.trim().strip_prefix("| `")?.split('`').next());
    let listed: BTreeSet<String> = listed.filter(is_name).map(str::to_owned).collect();
    assert_eq!(listed, registered);
    // The metrics in the text of a query.
    let metrics_of = |query: &str| -> BTreeSet<String> {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let own = words.filter(|word| word.starts_with("akri_") || word.starts_with("leafhost_"));
        let metric = |word: &str| {
            let series = ["_bucket", "_sum", "_count"];
            let histogram = series.iter().find_map(|end| word.strip_suffix(end));
            let histogram = histogram.filter(|name| registered.contains(*name));
            histogram.unwrap_or(word).to_owned()
        };
        own.map(metric).collect()
    };
    let (_, alerts) = document.split_once("## Alerts").unwrap();
    let rules = read("deploy/chart/rules.yaml");
    for (text, place) in [(alerts, "alerts"), (&*rules, "rules")] {
        let metrics = metrics_of(text);
        let unknown = &metrics - &registered;
        assert!(
            !metrics.is_empty() && unknown.is_empty(),
            "{place}: {unknown:?}"
        );
    }
    let dashboard = read("deploy/chart/dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    for target in panels.flat_map(|panel| panel["targets"].as_array().unwrap()) {
        let query = target["expr"].as_str().unwrap();
        let metrics = metrics_of(query);
        assert!(
            !metrics.is_empty() && metrics.is_subset(&registered),
            "{query}"
        );
    }
}

/// Crates whose files import each other in circles, with the reason; no other crate may have circles.
const CIRCLES: [(&str, &str); 0] = [];

#[test]
fn no_files_of_a_crate_import_each_other_in_a_circle() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut circles = Vec::new();
    for entry in fs::read_dir(root.join("host")).unwrap() {
        let folder = entry.unwrap().path().join("src");
        let name = folder.strip_prefix(root).unwrap().display().to_string();
        if CIRCLES
            .iter()
            .all(|(crate_folder, _)| *crate_folder != name)
        {
            let modules = modules(&folder);
            let circle = circle(&modules);
            circles.extend(circle.into_iter().map(|module| format!("{name}: {module}")));
        }
    }
    assert_eq!(circles, Vec::<String>::new());
}

/// Maps each module of a crate with its own file, such as `a::b`, to its text without tests. The crate root has the empty name.
fn modules(folder: &Path) -> BTreeMap<String, String> {
    let files = sources().into_iter().filter_map(|path| {
        let inside = path.strip_prefix(folder).ok()?.with_extension("");
        let parts: Option<Vec<&str>> = inside.iter().map(|part| part.to_str()).collect();
        let module = parts?.join("::");
        if module.split("::").any(|part| part.starts_with("tests")) {
            return None;
        }
        let text = fs::read_to_string(&path).unwrap();
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let text = text.lines().map(|line| line.split("//").next().unwrap());
        let module = if matches!(&*module, "lib" | "main") {
            String::new()
        } else {
            module
        };
        Some((module, text.collect::<Vec<_>>().join("\n")))
    });
    files.collect()
}

/// Returns the modules that remain after repeatedly removing those without imports and those that no other one imports. A module inside another one
/// may import from it.
fn circle(modules: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let arrows: BTreeSet<(&str, &str)> = modules
        .iter()
        .flat_map(|(own, text)| {
            let mut paths = Vec::new();
            for word in ["crate", "super", "self"] {
                paths.extend(paths_of(text, word));
            }
            let inside = modules
                .keys()
                .filter_map(|module| module.strip_prefix(own)?.strip_prefix("::"));
            for child in inside.filter(|child| !child.contains("::")) {
                let found = paths_of(text, child);
                let found = found.into_iter().filter(|path| path.contains("::"));
                paths.extend(found.map(|path| format!("self::{path}")));
            }
            let reached = paths
                .into_iter()
                .filter_map(move |path| reached(modules, own, &path));
            let others = reached.filter(move |module| !is_inside(own, module));
            others
                .map(move |module| (own.as_str(), module))
                .collect::<Vec<_>>()
        })
        .collect();
    let mut left: BTreeSet<&str> = modules.keys().map(String::as_str).collect();
    loop {
        let inside = |(from, to): &&(&str, &str)| left.contains(from) && left.contains(to);
        let from: BTreeSet<&str> = arrows.iter().filter(inside).map(|arrow| arrow.0).collect();
        let to: BTreeSet<&str> = arrows.iter().filter(inside).map(|arrow| arrow.1).collect();
        let next: BTreeSet<&str> = from.intersection(&to).copied().collect();
        if next == left {
            return left;
        }
        left = next;
    }
}

fn is_inside(module: &str, other: &str) -> bool {
    let rest = module.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || other.is_empty() || rest.starts_with("::"))
}

/// Resolves a path seen from module `own` to the module with a file.
fn reached<'a>(modules: &'a BTreeMap<String, String>, own: &str, path: &str) -> Option<&'a str> {
    let mut parts: Vec<&str> = own.split("::").collect();
    let mut names = path.split("::").peekable();
    while let Some(word) = names.next_if(|name| matches!(*name, "crate" | "super" | "self")) {
        match word {
            "crate" => parts.clear(),
            "super" => drop(parts.pop()),
            _ => {}
        }
    }
    parts.extend(names);
    loop {
        if let Some((module, _)) = modules.get_key_value(&parts.join("::")) {
            return Some(module);
        }
        parts.pop()?;
    }
}

/// Returns all paths in a text that begin with `word`; each branch of `a::{b, c::d}` is a path of its own.
fn paths_of(text: &str, word: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let begun = text.match_indices(word).filter(|(at, _)| {
        let before = &text[..*at];
        !before.ends_with(is_name) && !before.ends_with("::")
    });
    let mut paths = Vec::new();
    for (at, _) in begun {
        let mut rest = &text[at + word.len()..];
        branches(&mut rest, word.to_owned(), &mut paths);
    }
    paths
}

/// Continues `path` if `::` follows, else adds it to `paths`.
fn branches(rest: &mut &str, path: String, paths: &mut Vec<String>) {
    match rest.strip_prefix("::") {
        Some(after) => {
            *rest = after;
            part(rest, &path, paths);
        }
        None => paths.push(path),
    }
}

/// Reads the next part of a path, or several in braces.
fn part(rest: &mut &str, path: &str, paths: &mut Vec<String>) {
    if let Some(after) = rest.strip_prefix('{') {
        *rest = after.trim_start();
        while !rest.is_empty() && !rest.starts_with('}') {
            part(rest, path, paths);
            // Skip a rename by `as`, and the separator of branches.
            *rest = rest.trim_start_matches(|c| c != ',' && c != '}');
            *rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
        }
        *rest = rest.strip_prefix('}').unwrap_or_default();
        return;
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
    let (name, after) = rest.split_at(end);
    *rest = after;
    branches(rest, format!("{path}::{name}"), paths);
}
