use std::time::Duration;

use super::*;

fn digest() -> Digest {
    Digest("d".repeat(64))
}

fn open(folder: &Path) -> Cache {
    Cache::open(folder, "f".repeat(64)).unwrap()
}

/// Writes an entry as `keep` does, without an engine.
fn put(cache: &Cache, name: &str, code: &[u8]) {
    let head = cache.seal.head(name, code);
    std::fs::write(cache.folder.join(name), [&head, code].concat()).unwrap();
}

#[test]
fn only_what_this_agent_wrote_under_that_name_is_verified() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    put(&cache, "a", b"code");
    let bytes = std::fs::read(folder.path().join("a")).unwrap();
    assert_eq!(cache.seal.verify("a", &bytes), Some(&b"code"[..]));
    assert_eq!(cache.seal.verify("b", &bytes), None, "under another name");
    assert_eq!(cache.seal.verify("a", &bytes[..10]), None, "cut off");
    let mut changed = bytes.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert_eq!(cache.seal.verify("a", &changed), None, "changed");
    let again = open(folder.path());
    assert_eq!(
        again.seal.verify("a", &bytes),
        Some(&b"code"[..]),
        "restarted"
    );
    let other = tempfile::tempdir().unwrap();
    assert_eq!(
        open(other.path()).seal.verify("a", &bytes),
        None,
        "brought along"
    );
}

#[test]
fn the_folder_and_the_key_are_this_users_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    let first = open(&path);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&path.join(KEY_FILE)), 0o600);
    assert!(open(&path).seal == first.seal);
    // Others could have read the key, so it is replaced.
    std::fs::set_permissions(path.join(KEY_FILE), std::fs::Permissions::from_mode(0o644)).unwrap();
    let second = open(&path);
    assert!(second.seal != first.seal);
    assert_eq!(mode(&path.join(KEY_FILE)), 0o600);
    std::fs::write(path.join(KEY_FILE), b"short").unwrap();
    assert!(open(&path).seal != second.seal);
}

#[test]
fn entries_of_other_engines_and_what_a_killed_agent_left_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let ours = cache.name(&digest());
    let foreign = format!("{}-{}{SUFFIX}", "d".repeat(64), "0".repeat(16));
    for name in [ours.as_str(), foreign.as_str(), ".new-1.tmp", "note"] {
        std::fs::write(folder.path().join(name), b"x").unwrap();
    }
    open(folder.path());
    let mut left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, [ours.as_str(), KEY_FILE, "note"]);
}

#[test]
fn a_forged_file_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let path = folder.path().join(cache.name(&digest()));
    std::fs::write(&path, [0; 100]).unwrap();
    let engine = crate::engine::engine().unwrap();
    assert!(cache.load(&engine, &digest()).is_none());
}

#[test]
fn verified_bytes_that_are_no_native_code_are_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let name = cache.name(&digest());
    put(&cache, &name, b"made by an older engine");
    let engine = crate::engine::engine().unwrap();
    assert!(cache.load(&engine, &digest()).is_none());
}

#[test]
fn what_was_not_asked_for_the_longest_goes_where_the_cache_is_too_large() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(folder.path());
    let path = |number: u64| {
        let digest = Digest(format!("{number:064}"));
        folder.path().join(cache.name(&digest))
    };
    let now = SystemTime::now();
    // The higher the number, the longer the entry was not used. The files are sparse.
    for (number, mib) in [(0, 200), (1, 100), (2, 212), (3, 1), (4, 100)] {
        let file = File::create(path(number)).unwrap();
        file.set_len(mib << 20).unwrap();
        file.set_modified(now - Duration::from_secs(number))
            .unwrap();
    }
    cache.prune();
    let kept: Vec<u64> = (0..5).filter(|number| path(*number).exists()).collect();
    assert_eq!(kept, [0, 1, 2]);
}
