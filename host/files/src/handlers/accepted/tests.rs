//! What is kept, in paused time: nothing is heard here, it is only written and read.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use super::*;

/// In paused time: whatever is under way is waited for.
const TICK: Duration = Duration::from_millis(1);

struct Scene {
    folder: TempDir,
    accepted: Arc<Accepted>,
    _tasks: JoinSet<()>,
}

fn mk_file(name: &str, text: &str) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        bytes: text.as_bytes().into(),
        grants: None,
    }
}

fn digest(text: &str) -> Digest {
    regular::digest_of(text.as_bytes())
}

impl Scene {
    async fn open(folder: TempDir) -> Self {
        let mut tasks = JoinSet::new();
        let places = Places(vec![folder.path().join("one"), folder.path().join("two")]);
        let kept = folder.path().join("kept");
        let accepted = Accepted::open(kept, places, &mut tasks).await.unwrap();
        Self {
            folder,
            accepted,
            _tasks: tasks,
        }
    }

    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["one", "two"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self::open(folder).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn blob(&self, text: &str) -> PathBuf {
        self.path("kept/bytes").join(digest(text).0)
    }

    /// Waits until the writer has nothing left to do and what is kept is these bytes.
    async fn keeps(&self, texts: &[&str]) {
        let kept = || {
            let entries = fs::read_dir(self.path("kept/bytes")).into_iter().flatten();
            let mut kept: Vec<_> = entries
                .filter_map(|entry| fs::read_to_string(entry.unwrap().path()).ok())
                .collect();
            kept.sort();
            kept
        };
        let wait = async {
            while kept() != texts || self.held() != 0 {
                sleep(TICK).await;
            }
        };
        assert!(
            timeout(FOLDER_BACKSTOP * 3, wait).await.is_ok(),
            "{:?}, {} in memory",
            kept(),
            self.held()
        );
    }

    /// How many versions' bytes are in memory.
    fn held(&self) -> usize {
        let files = self.accepted.lock();
        files.values().filter(|held| held.bytes.is_some()).count()
    }

    async fn problem(&self) -> String {
        let mut problem = self.accepted.problem();
        let wait = problem.wait_for(Option::is_some);
        let problem = timeout(FOLDER_BACKSTOP * 3, wait).await.unwrap().unwrap();
        problem.as_ref().unwrap().to_string()
    }

    fn read(&self, name: &str, text: &str) -> Result<String, String> {
        let bytes = self.accepted.read(name, &digest(text))?;
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_are_in_memory_until_they_are_on_the_disk() {
    let scene = Scene::new().await;
    let files = ["a", "b"].map(|name| mk_file(name, "same"));
    for file in &files {
        scene.accepted.keep(file, "udev");
    }
    assert_eq!(scene.held(), 2);
    assert_eq!(scene.read("a", "same"), Ok("same".to_owned()));
    scene.keeps(&["same"]).await;
    assert!(files.iter().all(|file| Arc::strong_count(&file.bytes) == 1));
    assert_eq!(scene.read("b", "same"), Ok("same".to_owned()));

    let written = fs::metadata(scene.blob("same"))
        .unwrap()
        .modified()
        .unwrap();
    scene.accepted.keep(&mk_file("c", "same"), "udev");
    scene.keeps(&["same"]).await;
    let then = fs::metadata(scene.blob("same"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(written, then, "what is there is not written again");

    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    assert_eq!(scene.held(), 0);
    assert_eq!(scene.read("a", "same"), Ok("same".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn the_source_that_was_first_to_be_a_handler_stays_so_over_a_restart() {
    let scene = Scene::new().await;
    let numbers = |scene: &Scene| {
        let number = |name| {
            let known = scene.accepted.registration(name)?;
            Some((known.handler, known.number))
        };
        ["a", "b", "c"].map(number)
    };
    let is = |handler: &str, number| Some((handler.to_owned(), number));
    scene.accepted.keep(&mk_file("b", "1"), "onvif");
    scene.accepted.keep(&mk_file("a", "2"), "udev");
    scene.accepted.keep(&mk_file("c", "3"), "onvif");
    scene.keeps(&["1", "2", "3"]).await;
    assert_eq!(
        numbers(&scene),
        [is("udev", 0), is("onvif", 0), is("onvif", 1)]
    );

    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    // A new version keeps the place; one that calls itself otherwise has to queue up.
    scene.accepted.keep(&mk_file("b", "4"), "onvif");
    scene.accepted.keep(&mk_file("a", "5"), "onvif");
    assert_eq!(
        numbers(&scene),
        [is("onvif", 2), is("onvif", 0), is("onvif", 1)]
    );
    scene.keeps(&["3", "4", "5"]).await;

    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    scene
        .accepted
        .forget_all_but(&["a", "c"].map(|name| (name.to_owned(), ())).into());
    assert_eq!(numbers(&scene), [is("onvif", 2), None, is("onvif", 1)]);
}

#[tokio::test(start_paused = true)]
async fn what_an_older_agent_kept_is_registered_when_it_is_loaded_again() {
    let scene = Scene::new().await;
    scene.accepted.keep(&mk_file("a", "1"), "udev");
    scene.keeps(&["1"]).await;
    let file = scene.path("kept/a.yaml");
    let older = format!("digest: {}\n", digest("1").0);
    fs::write(&file, older).unwrap();
    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    assert_eq!(scene.accepted.registration("a"), None);
    scene.accepted.keep(&mk_file("a", "1"), "udev");
    scene.keeps(&["1"]).await;
    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    assert_eq!(scene.accepted.registration("a").unwrap().handler, "udev");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_written_stays_in_memory_and_is_tried_again() {
    let scene = Scene::new().await;
    scene.keeps(&[]).await;
    fs::remove_dir(scene.path("kept/bytes")).unwrap();
    fs::write(scene.path("kept/bytes"), "in the way").unwrap();
    scene.accepted.keep(&mk_file("a", "bytes"), "udev");
    let problem = scene.problem().await;
    assert!(
        problem.contains("cannot keep the accepted handlers") && problem.contains("--state-dir"),
        "{problem}"
    );
    assert_eq!(scene.held(), 1);
    assert_eq!(scene.read("a", "bytes"), Ok("bytes".to_owned()));
    let since = Instant::now();
    fs::remove_file(scene.path("kept/bytes")).unwrap();
    let mut problem = scene.accepted.problem();
    problem.wait_for(Option::is_none).await.unwrap();
    assert!(since.elapsed() <= FOLDER_BACKSTOP);
    scene.keeps(&["bytes"]).await;
}

#[tokio::test(start_paused = true)]
async fn one_version_that_cannot_be_written_keeps_no_other_from_the_disk() {
    let scene = Scene::new().await;
    fs::create_dir_all(scene.blob("first")).unwrap();
    scene.accepted.keep(&mk_file("a", "first"), "udev");
    scene.accepted.keep(&mk_file("b", "second"), "udev");
    scene.problem().await;
    let wait = async {
        while scene.held() != 1 || !scene.path("kept/b.yaml").exists() {
            sleep(TICK).await;
        }
    };
    timeout(FOLDER_BACKSTOP * 3, wait).await.unwrap();
    assert_eq!(fs::read_to_string(scene.blob("second")).unwrap(), "second");

    // Which one was first is known all the same.
    let blob = scene.blob("first");
    let Scene { folder, .. } = scene;
    fs::remove_dir(blob).unwrap();
    let scene = Scene::open(folder).await;
    assert_eq!(scene.accepted.get("a"), None);
    let number = |name| scene.accepted.registration(name).unwrap().number;
    assert_eq!((number("a"), number("b")), (0, 1));
    scene.accepted.keep(&mk_file("c", "third"), "udev");
    assert_eq!(scene.accepted.registration("c").unwrap().number, 2);
    scene.keeps(&["second", "third"]).await;
    let Scene { folder, .. } = scene;
    let scene = Scene::open(folder).await;
    scene.accepted.keep(&mk_file("a", "other"), "udev");
    assert_eq!(scene.accepted.registration("a").unwrap().number, 0);
    scene.keeps(&["other", "second", "third"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_version_that_cannot_be_written_keeps_none_that_is_forgotten() {
    let scene = Scene::new().await;
    scene.accepted.keep(&mk_file("gone", "old"), "udev");
    scene.keeps(&["old"]).await;
    fs::create_dir_all(scene.blob("first")).unwrap();
    scene.accepted.keep(&mk_file("a", "first"), "udev");
    scene.problem().await;
    scene
        .accepted
        .forget_all_but(&[("a".to_owned(), ())].into());
    let wait = async {
        while scene.path("kept/gone.yaml").exists() {
            sleep(TICK).await;
        }
    };
    timeout(FOLDER_BACKSTOP * 3, wait).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_version_is_had_from_what_was_kept_or_from_where_it_lies() {
    let scene = Scene::new().await;
    let write = |file: &str, text: &str| fs::write(scene.path(file), text).unwrap();
    write("one/a.wasm", "new");
    write("two/a.wasm", "other");
    scene.accepted.keep(&mk_file("a.wasm", "kept"), "udev");
    scene.keeps(&["kept"]).await;
    for text in ["kept", "new", "other"] {
        assert_eq!(scene.read("a.wasm", text).as_deref(), Ok(text));
    }
    let one = scene.path("one/a.wasm");
    let gone = scene.read("a.wasm", "gone").unwrap_err();
    let expected = format!("{} is being replaced, ", one.display());
    assert!(gone.starts_with(&expected), "{gone}");
    fs::remove_file(&one).unwrap();
    let gone = scene.read("a.wasm", "new").unwrap_err();
    assert!(
        gone.starts_with(&format!("{} is missing, ", one.display())),
        "{gone}"
    );

    write("one/a.wasm", "kept");
    for damage in [Some("kep"), Some("another"), None] {
        match damage {
            Some(damage) => fs::write(scene.blob("kept"), damage).unwrap(),
            None => fs::remove_file(scene.blob("kept")).unwrap(),
        }
        assert_eq!(scene.read("a.wasm", "kept").as_deref(), Ok("kept"));
        // What is damaged does not stay so.
        scene.keeps(&["kept"]).await;
    }
    fs::write(scene.blob("kept"), "kep").unwrap();
    fs::remove_file(&one).unwrap();
    let lost = scene.read("a.wasm", "kept").unwrap_err();
    let expected = format!(
        "and what was kept of it in {}",
        scene.blob("kept").display()
    );
    assert!(lost.contains(&expected), "{lost}");
}

#[tokio::test(start_paused = true)]
async fn what_was_kept_and_is_lost_is_written_again_from_where_it_lies() {
    let scene = Scene::new().await;
    scene.accepted.keep(&mk_file("a.wasm", "kept"), "udev");
    scene.keeps(&["kept"]).await;
    fs::remove_dir_all(scene.path("kept")).unwrap();
    scene.accepted.keep(&mk_file("b.wasm", "more"), "udev");
    let problem = scene.problem().await;
    assert!(
        problem.contains("what was kept of a.wasm is gone, and "),
        "{problem}"
    );
    fs::write(scene.path("two/a.wasm"), "kept").unwrap();
    scene.keeps(&["kept", "more"]).await;
    let mut problem = scene.accepted.problem();
    problem.wait_for(Option::is_none).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_is_none_and_is_written_again_once_it_is_accepted() {
    let scene = Scene::new().await;
    scene.accepted.keep(&mk_file("a", "good"), "udev");
    scene.keeps(&["good"]).await;
    let blob = scene.blob("good");
    let Scene { folder, .. } = scene;
    fs::write(&blob, "goo").unwrap();
    let scene = Scene::open(folder).await;
    assert_eq!(scene.accepted.get("a"), None);
    let known = scene.accepted.registration("a").unwrap();
    assert_eq!((known.handler.as_str(), known.number), ("udev", 0));
    scene.accepted.keep(&mk_file("a", "good"), "udev");
    scene.keeps(&["good"]).await;
}

#[test]
fn only_a_digest_names_kept_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    let digest = digest("text").0;
    for (text, is_one) in [
        (digest.as_str(), true),
        ("", false),
        ("../../secret", false),
        (&digest[1..], false),
    ] {
        fs::write(&path, format!("digest: {text:?}\n")).unwrap();
        assert_eq!(version(&path).unwrap().is_some(), is_one, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_version_too_large_to_be_one_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept/a.wasm.yaml");
    fs::create_dir(folder.path().join("kept")).unwrap();
    let large = fs::File::create(&path).unwrap();
    large.set_len(6 << 30).unwrap();
    let scene = Scene::open(folder).await;
    assert_eq!(scene.accepted.all(), BTreeMap::new());
    let gone = async {
        while path.exists() {
            sleep(TICK).await;
        }
    };
    assert!(timeout(Duration::from_mins(1), gone).await.is_ok());
}
