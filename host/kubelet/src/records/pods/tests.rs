use std::os::unix::fs::{PermissionsExt as _, symlink};

use tokio::time::timeout;

use super::*;

#[test]
fn a_pod_exists_while_its_folder_does() {
    let root = tempfile::tempdir().unwrap();
    let pods = root.path().join("pods");
    let exists = |uid: &str| pod_exists(root.path(), uid);
    assert_eq!(exists("4a5d-1"), None, "no folder of pods");
    fs::create_dir_all(pods.join("4a5d-1")).unwrap();
    symlink("/nowhere", pods.join("link")).unwrap();
    fs::create_dir(root.path().join("secret")).unwrap();
    let long = "a".repeat(64);
    let too_long = "a".repeat(65);
    for (uid, expected) in [
        ("4a5d-1", Some(true)),
        ("link", Some(true)),
        ("4a5d-2", Some(false)),
        (&long, Some(false)),
        (&too_long, None),
        ("", None),
        (".", None),
        ("..", None),
        ("../secret", None),
        ("a/b", None),
        ("ä", None),
        ("a\0", None),
    ] {
        assert_eq!(exists(uid), expected, "{uid:?}");
    }
    fs::remove_dir_all(&pods).unwrap();
    fs::write(&pods, "").unwrap();
    assert_eq!(exists("4a5d-1"), None, "a file is not a folder of pods");
}

#[test]
fn absence_is_not_believed_in_a_folder_that_cannot_be_searched() {
    let root = tempfile::tempdir().unwrap();
    let pods = root.path().join("pods");
    fs::create_dir(&pods).unwrap();
    fs::set_permissions(&pods, fs::Permissions::from_mode(0o0)).unwrap();
    // Root may search every folder.
    let expected = fs::read_dir(&pods).ok().map(|_| false);
    assert_eq!(pod_exists(root.path(), "a"), expected);
}

struct Running {
    root: tempfile::TempDir,
    changes: watch::Receiver<u64>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Running {
    fn start(with_pods: bool) -> Self {
        let root = tempfile::tempdir().unwrap();
        if with_pods {
            fs::create_dir(root.path().join("pods")).unwrap();
        }
        let folder = PodsFolder::new(root.path());
        let changes = folder.changes();
        let stop = CancellationToken::new();
        let task = tokio::spawn(folder.run(stop.clone()));
        Self {
            root,
            changes,
            stop,
            task,
        }
    }

    fn pod(&self, name: &str) -> PathBuf {
        self.root.path().join("pods").join(name)
    }

    async fn changed(&mut self) {
        timeout(Duration::from_secs(20), self.changes.changed())
            .await
            .unwrap()
            .unwrap();
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

#[tokio::test]
async fn a_pods_folder_that_comes_or_goes_counts_and_nothing_else_does() {
    let mut it = Running::start(true);
    it.changed().await;
    fs::create_dir(it.pod("4a5d-1")).unwrap();
    it.changed().await;
    fs::remove_dir(it.pod("4a5d-1")).unwrap();
    it.changed().await;
    let before = *it.changes.borrow();
    // The kernel reports events in order: if these counted, the last count would differ by more than one.
    fs::write(it.pod("file"), "").unwrap();
    fs::create_dir(it.pod("no_uid")).unwrap();
    fs::create_dir(it.pod("4a5d-2")).unwrap();
    it.changed().await;
    assert_eq!(*it.changes.borrow(), before + 1);
    fs::create_dir(it.pod("4a5d-2/volumes")).unwrap();
    fs::rename(it.pod("4a5d-2"), it.root.path().join("away")).unwrap();
    it.changed().await;
    assert_eq!(*it.changes.borrow(), before + 2);
    it.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_folder_that_appears_or_is_made_anew_is_watched_within_thirty_seconds() {
    let mut it = Running::start(false);
    let start = Instant::now();
    tokio::task::yield_now().await;
    fs::create_dir(it.root.path().join("pods")).unwrap();
    it.changes.changed().await.unwrap();
    assert!(start.elapsed() <= BACKSTOP + Duration::from_millis(10));

    fs::remove_dir(it.root.path().join("pods")).unwrap();
    it.changes.changed().await.unwrap();
    fs::create_dir(it.root.path().join("pods")).unwrap();
    // The folder is found at once or at the next attempt; then its events are reported.
    fs::create_dir(it.pod("4a5d-1")).unwrap();
    let before = *it.changes.borrow_and_update();
    it.changes.wait_for(|count| *count > before).await.unwrap();
    it.end().await;
}

#[tokio::test]
async fn a_volume_that_a_pod_loses_counts_before_its_folder_goes() {
    let mut it = Running::start(true);
    it.changed().await;
    for uid in ["4a5d-1", "4a5d-2"] {
        let kind = it.pod(uid).join("volumes/kubernetes.io~projected");
        fs::create_dir(it.pod(uid)).unwrap();
        it.changed().await;
        fs::create_dir_all(kind.join("token")).unwrap();
        fs::create_dir_all(it.pod(uid).join("containers/main")).unwrap();
        // Events of another pod come later.
        let other = it.pod(&format!("{uid}-other"));
        fs::create_dir(other).unwrap();
        it.changed().await;
        let before = *it.changes.borrow();
        fs::remove_dir_all(it.pod(uid).join("containers")).unwrap();
        fs::remove_dir(kind.join("token")).unwrap();
        it.changed().await;
        assert_eq!(*it.changes.borrow(), before + 1);
    }
    it.end().await;
}
