use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::timeout;

use super::*;

const RULES: Rules = Rules {
    kinds: &[
        Kind {
            suffix: ".grants.yaml",
            max: 100,
            links: false,
            held: true,
        },
        Kind {
            suffix: ".yaml",
            max: 100_000,
            links: true,
            held: true,
        },
    ],
    nested: false,
    max_files: 5,
    stray: None,
    secret: false,
};

struct Watched {
    folder: TempDir,
    receiver: watch::Receiver<Arc<Snapshot>>,
    _tasks: Tasks,
}

fn mk_watched(rules: Rules, prepare: impl FnOnce(&Path)) -> Watched {
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let mut tasks = Tasks::default();
    let receiver = super::watch(folder.path().join("f"), rules, "f", &mut tasks);
    Watched {
        folder,
        receiver,
        _tasks: tasks,
    }
}

fn mk_folder(path: &Path) {
    fs::create_dir(path.join("f")).unwrap();
}

impl Watched {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("f").join(name)
    }

    /// Waits for a snapshot as wanted; returns every snapshot on the way, with that one last.
    async fn until(&mut self, wanted: impl Fn(&Snapshot) -> bool) -> Vec<Arc<Snapshot>> {
        let mut seen = Vec::new();
        let wait = async {
            loop {
                let snapshot = self.receiver.borrow_and_update().clone();
                seen.push(snapshot.clone());
                if wanted(&snapshot) {
                    return;
                }
                self.receiver.changed().await.unwrap();
            }
        };
        let in_time = timeout(Duration::from_secs(100), wait).await;
        assert!(in_time.is_ok(), "last seen: {:?}", seen.last());
        seen
    }

    async fn until_holds(&mut self, name: &str, text: &str) -> Vec<Arc<Snapshot>> {
        let content = bytes(text);
        self.until(|snapshot| snapshot.files.get(name) == Some(&content))
            .await
    }
}

fn bytes(text: &str) -> Content {
    Content::Bytes(text.as_bytes().into())
}

fn shell(script: &str, path: &Path) {
    let status = Command::new("sh")
        .arg("-ec")
        .arg(script)
        .arg("sh")
        .arg(path)
        .status()
        .unwrap();
    assert!(status.success());
}

#[tokio::test]
async fn the_ways_editors_save_never_show_a_file_missing_or_half() {
    let old = "old content\n";
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::write(path.join("f/a.yaml"), old).unwrap();
    });
    watched.until_holds("a.yaml", old).await;
    let mut held = old.to_owned();
    for script in [
        r#"printf 'vim\n' > "$1.new"; mv "$1.new" "$1""#,
        r#"mv "$1" "$1~"; printf 'backup\n' > "$1"; rm "$1~""#,
        r#"sed -i 's/.*/sed/' "$1""#,
        r#"rm "$1"; printf 'cp\n' > "$1.src"; cp "$1.src" "$1""#,
        r#"printf 'in place\n' > "$1""#,
    ] {
        let path = watched.path("a.yaml");
        shell(script, &path);
        let new = fs::read_to_string(&path).unwrap();
        assert_ne!(new, held);
        for snapshot in watched.until_holds("a.yaml", &new).await {
            let content = snapshot.files.get("a.yaml");
            assert!(
                [Some(&bytes(&held)), Some(&bytes(&new))].contains(&content),
                "{script}: {content:?}"
            );
            assert_eq!(snapshot.files.len(), 1, "{script}");
        }
        held = new;
    }
}

#[tokio::test]
async fn a_slow_writer_that_pauses_is_waited_for() {
    let mut watched = mk_watched(RULES, mk_folder);
    watched.until(|snapshot| snapshot.complete).await;
    let mut file = fs::File::create(watched.path("slow.yaml")).unwrap();
    file.write_all(b"first half, ").unwrap();
    // Another file that comes later and settles shows that the time has passed.
    for n in 0..3 {
        let name = format!("mark-{n}.yaml");
        fs::write(watched.path(&name), "mark").unwrap();
        let seen = watched.until_holds(&name, "mark").await;
        assert!(
            seen.iter()
                .all(|snapshot| !snapshot.files.contains_key("slow.yaml"))
        );
    }
    file.write_all(b"second half").unwrap();
    drop(file);
    let seen = watched
        .until_holds("slow.yaml", "first half, second half")
        .await;
    let held = seen
        .iter()
        .filter_map(|snapshot| snapshot.files.get("slow.yaml"));
    assert!(
        held.into_iter()
            .all(|content| *content == bytes("first half, second half"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_when_its_folder_is_replaced_is_read_from_the_new_folder() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::create_dir(path.join("new")).unwrap();
        fs::write(path.join("f/a.yaml"), "old").unwrap();
        fs::write(path.join("new/a.yaml"), "new").unwrap();
    });
    watched.until_holds("a.yaml", "old").await;
    let mut writer = OpenOptions::new()
        .append(true)
        .open(watched.path("a.yaml"))
        .unwrap();
    writer.write_all(b"half").unwrap();
    let top = watched.folder.path();
    fs::rename(top.join("f"), top.join("away")).unwrap();
    fs::rename(top.join("new"), top.join("f")).unwrap();
    watched.until_holds("a.yaml", "new").await;
    drop(writer);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_truncated_by_its_path_is_read() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::write(path.join("f/a.yaml"), "long").unwrap();
    });
    watched.until_holds("a.yaml", "long").await;
    nix::unistd::truncate(&watched.path("a.yaml"), 1).unwrap();
    watched.until_holds("a.yaml", "l").await;
}

#[tokio::test]
async fn a_folder_may_come_late_go_and_come_again() {
    let mut watched = mk_watched(RULES, |_| {});
    let seen = watched.until(|snapshot| snapshot.complete).await;
    assert!(!seen.last().unwrap().exists);
    for text in ["first", "second"] {
        let folder = watched.path("");
        let started = std::time::Instant::now();
        fs::create_dir(&folder).unwrap();
        fs::write(watched.path("a.yaml"), text).unwrap();
        watched.until_holds("a.yaml", text).await;
        assert!(
            started.elapsed() < Duration::from_secs(8),
            "found by an event, not by the regular scan"
        );
        fs::remove_dir_all(&folder).unwrap();
        watched
            .until(|snapshot| !snapshot.exists && snapshot.files.is_empty())
            .await;
    }
}

#[tokio::test]
async fn a_folder_that_is_made_with_its_parents_is_read_without_waiting_for_the_regular_scan() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("etc/leafhost/f");
    let mut tasks = Tasks::default();
    let mut watched = Watched {
        receiver: super::watch(&path, RULES, "f", &mut tasks),
        folder: root,
        _tasks: tasks,
    };
    watched.until(|snapshot| snapshot.complete).await;
    let start = Instant::now();
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("a.yaml"), "a\n").unwrap();
    watched.until_holds("a.yaml", "a\n").await;
    assert!(
        start.elapsed() < FOLDER_BACKSTOP / 4,
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test]
async fn only_wanted_files_count_and_what_cannot_be_used_says_why() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        let at = |name: &str| path.join("f").join(name);
        fs::write(at("plain.yaml"), "plain").unwrap();
        fs::write(at(".hidden.yaml"), "").unwrap();
        fs::write(at("notes.txt"), "").unwrap();
        fs::write(at("big.grants.yaml"), "x".repeat(101)).unwrap();
        fs::create_dir(at("folder.yaml")).unwrap();
        fs::write(path.join("outside.yaml"), "outside").unwrap();
        let link = std::os::unix::fs::symlink::<&str, PathBuf>;
        link("plain.yaml", at("inside.yaml")).unwrap();
        link("../outside.yaml", at("out.yaml")).unwrap();
    });
    let seen = watched.until(|snapshot| snapshot.complete).await;
    let files = &seen.last().unwrap().files;
    assert_eq!(files.get("plain.yaml"), Some(&bytes("plain")));
    assert_eq!(files.get("inside.yaml"), Some(&bytes("plain")));
    for (name, words) in [
        ("big.grants.yaml", "101 bytes"),
        ("folder.yaml", "not a regular file"),
        ("out.yaml", "out of the folder"),
    ] {
        match files.get(name) {
            Some(Content::Refused(why)) => assert!(why.contains(words), "{name}: {why}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(files.len(), 5);
    std::os::unix::fs::symlink("plain.yaml", watched.path("new")).unwrap();
    fs::rename(watched.path("new"), watched.path("a.grants.yaml")).unwrap();
    let too_many = watched
        .until(|snapshot| !snapshot.problems.is_empty())
        .await;
    let problem = &too_many.last().unwrap().problems[0];
    assert!(problem.contains("not read: plain.yaml; what"), "{problem}");
    fs::remove_file(watched.path("big.grants.yaml")).unwrap();
    watched
        .until(|snapshot| {
            matches!(snapshot.files.get("a.grants.yaml"), Some(Content::Refused(why)) if why.contains("is a link"))
        })
        .await;
}

#[tokio::test]
async fn a_touch_is_no_change() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::write(path.join("f/a.yaml"), "a").unwrap();
    });
    watched.until_holds("a.yaml", "a").await;
    fs::write(watched.path("a.yaml"), "a").unwrap();
    OpenOptions::new()
        .append(true)
        .open(watched.path("a.yaml"))
        .unwrap();
    fs::write(watched.path("b.yaml"), "b").unwrap();
    let seen = watched.until_holds("b.yaml", "b").await;
    assert_eq!(seen.len(), 2, "before and after b.yaml, nothing between");
}

#[tokio::test(start_paused = true)]
async fn the_first_files_by_name_are_read_and_the_others_reported() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::write(path.join("f/z.yaml"), "z").unwrap();
    });
    watched.until_holds("z.yaml", "z").await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        fs::write(watched.path(&format!("{name}.yaml")), name).unwrap();
    }
    let seen = watched
        .until(|snapshot| snapshot.files.get("e.yaml") == Some(&bytes("e")))
        .await;
    let snapshot = seen.last().unwrap();
    // The files are there, and nothing is known of their content.
    for name in ["f.yaml", "z.yaml"] {
        assert_eq!(snapshot.files.get(name), Some(&Content::Pending));
    }
    assert!(
        snapshot.problems[0].starts_with(
            "has 2 files beyond the first 5 by name, and these are not read: f.yaml, z.yaml;"
        ),
        "{:?}",
        snapshot.problems
    );
    // A missing file counts as gone only after a while; a file beyond the limit is not missing.
    tokio::time::sleep(Duration::from_secs(30)).await;
    fs::remove_file(watched.path("f.yaml")).unwrap();
    let seen = watched
        .until(|snapshot| !snapshot.files.contains_key("f.yaml"))
        .await;
    assert!(seen.iter().all(|seen| seen.files.contains_key("z.yaml")));
    fs::remove_file(watched.path("a.yaml")).unwrap();
    watched.until_holds("z.yaml", "z").await;
    watched
        .until(|snapshot| snapshot.problems.is_empty() && snapshot.files.len() == 5)
        .await;
}

#[tokio::test(start_paused = true)]
async fn files_below_a_nested_folder_have_two_names() {
    let rules = Rules {
        kinds: &[Kind {
            suffix: "",
            max: 10,
            links: true,
            held: true,
        }],
        nested: true,
        max_files: 10,
        stray: None,
        secret: false,
    };
    let mut watched = mk_watched(rules, mk_folder);
    watched.until(|snapshot| snapshot.complete).await;
    fs::create_dir(watched.path("camera")).unwrap();
    fs::write(watched.path("camera/password"), "one").unwrap();
    watched.until_holds("camera/password", "one").await;
    fs::write(watched.path("camera/password"), "two").unwrap();
    let seen = watched.until_holds("camera/password", "two").await;
    assert_eq!(seen.last().unwrap().files.len(), 1);
    fs::remove_dir_all(watched.path("camera")).unwrap();
    watched.until(|snapshot| snapshot.files.is_empty()).await;
}

#[tokio::test]
async fn what_is_in_a_folder_that_cannot_be_read_stays() {
    let mut watched = mk_watched(RULES, |path| {
        mk_folder(path);
        fs::write(path.join("f/a.yaml"), "a").unwrap();
    });
    watched.until_holds("a.yaml", "a").await;
    let folder = watched.folder.path().join("f");
    // A link to itself: refused to root as well.
    std::os::unix::fs::symlink("f", folder.with_extension("loop")).unwrap();
    fs::rename(&folder, folder.with_extension("away")).unwrap();
    fs::rename(folder.with_extension("loop"), &folder).unwrap();
    let seen = watched
        .until(|snapshot| {
            snapshot
                .problems
                .iter()
                .any(|problem| problem.contains("cannot be read"))
        })
        .await;
    assert_eq!(seen.last().unwrap().files.get("a.yaml"), Some(&bytes("a")));
    fs::remove_file(&folder).unwrap();
    fs::rename(folder.with_extension("away"), &folder).unwrap();
    let seen = watched.until(|snapshot| snapshot.problems.is_empty()).await;
    assert!(seen.iter().all(|snapshot| snapshot.files.len() == 1));
}

#[tokio::test(start_paused = true)]
async fn an_empty_folder_of_another_file_system_is_a_mount_that_is_gone() {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    let Ok(elsewhere) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: there is no other file system at /dev/shm");
        return;
    };
    let mut watched = mk_watched(RULES, |path| {
        fs::create_dir(path.join("real")).unwrap();
        fs::write(path.join("real/a.yaml"), "a").unwrap();
        symlink(path.join("real"), path.join("f")).unwrap();
    });
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    if device(watched.folder.path()) == device(elsewhere.path()) {
        eprintln!("skipped: /dev/shm is the file system of the other folders");
        return;
    }
    watched.until_holds("a.yaml", "a").await;
    symlink(elsewhere.path(), watched.folder.path().join("new")).unwrap();
    let link = watched.folder.path().join("f");
    fs::rename(watched.folder.path().join("new"), link).unwrap();
    let seen = watched
        .until(|snapshot| !snapshot.problems.is_empty())
        .await;
    let last = seen.last().unwrap();
    assert!(last.files.contains_key("a.yaml"), "{last:?}");
    assert!(
        last.problems[0].contains("mount it again"),
        "{:?}",
        last.problems
    );
    fs::write(elsewhere.path().join("b.yaml"), "b").unwrap();
    watched
        .until(|snapshot| snapshot.files.keys().eq(["b.yaml"]))
        .await;
}

#[tokio::test]
async fn a_file_that_changes_while_the_folder_is_first_read_is_not_missing() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), "new").unwrap();
    let watched = Folder {
        path: folder.path().to_owned(),
        rules: RULES,
    };
    let mut scan = Scan::of(folder.path(), &RULES);
    scan.found.get_mut("a.yaml").unwrap().size += 1;
    let (mut settling, mut snapshot) = (Settling::default(), Snapshot::default());
    let now = Instant::now();
    settling.scanned(&scan.found, now);
    let settled = settling.take(now + FILE_SETTLE);
    let mut unreadable = BTreeMap::new();
    watched
        .read(
            settled,
            &scan,
            &mut settling,
            &mut snapshot,
            &mut unreadable,
        )
        .await;
    assert_eq!(snapshot.files["a.yaml"], Content::Pending);
    assert!(settling.next().is_some() && unreadable.is_empty());
}

#[tokio::test]
async fn a_file_whose_name_cannot_be_shown_is_reported_and_not_read() {
    let mut watched = mk_watched(RULES, mk_folder);
    watched.until(|snapshot| snapshot.complete).await;
    let started = std::time::Instant::now();
    let path = watched.path("a\nb.yaml");
    fs::write(&path, "a").unwrap();
    let seen = watched
        .until(|snapshot| !snapshot.problems.is_empty())
        .await;
    let last = seen.last().unwrap();
    assert!(
        last.problems[0].contains(r#"do not show: "a\nb.yaml"; rename"#),
        "{last:?}"
    );
    assert!(last.files.is_empty());
    fs::rename(&path, watched.path("ab.yaml")).unwrap();
    watched.until_holds("ab.yaml", "a").await;
    watched.until(|snapshot| snapshot.problems.is_empty()).await;
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "found by an event, not by the regular scan"
    );
}
