use super::*;

fn mk_camera(is_here: bool, asked: u64, text: usize) -> Camera {
    Camera {
        misses: u64::from(!is_here),
        asked,
        scopes: vec!["s".repeat(text)],
        ..Camera::default()
    }
}

fn mk_cursor() -> Cursor {
    let mut cursor = Cursor {
        probed: 7,
        swept: 300,
        sent_digest: Some(u64::MAX),
        ..Cursor::default()
    };
    let mut camera = mk_camera(true, 3, 5);
    camera.uuid = "u".to_owned();
    camera.claim = Claim::Contested;
    camera.refused = 4;
    camera.info.mac = "00:11".to_owned();
    camera.info.macs = vec!["00:11".to_owned(), "00:22".to_owned()];
    camera.info.trouble = "\u{e4}".to_owned();
    camera.info.media = Media {
        profiles: vec![media::Profile {
            token: "t".to_owned(),
            source: "s".to_owned(),
            has_ptz: true,
            stream: "rtsp://c".to_owned(),
            ..media::Profile::default()
        }],
        notes: vec!["n".to_owned()],
        is_incomplete: true,
        known: media::Sources::Several,
    };
    cursor.cameras.insert("http://b".to_owned(), camera);
    cursor
        .cameras
        .insert("http://a".to_owned(), mk_camera(false, 300, 0));
    let failed = Failed {
        times: 2,
        asked: 9,
        refused: 5,
        reason: "timed out".to_owned(),
    };
    cursor.failed.insert("http://c".to_owned(), failed);
    cursor
}

#[test]
fn a_written_cursor_is_read_back() {
    let cursor = mk_cursor();
    let bytes = cursor.clone().write();
    assert_eq!(Cursor::read(Some(&bytes)), cursor);
}

#[test]
fn an_unreadable_cursor_counts_as_empty() {
    assert_eq!(Cursor::read(None), Cursor::default());
    let bytes = mk_cursor().write();
    for end in 0..bytes.len() {
        let cut = bytes.get(..end).unwrap();
        assert_eq!(Cursor::read(Some(cut)), Cursor::default(), "{end}");
    }
    let mut later = bytes;
    later[0] = 12;
    assert_eq!(Cursor::read(Some(&later)), Cursor::default());
}

#[test]
fn a_cursor_stays_within_its_limit_and_keeps_present_cameras() {
    let mut cursor = Cursor::default();
    for n in 0..5_000_u64 {
        let url = format!("http://{n}");
        cursor
            .cameras
            .insert(url.clone(), mk_camera(n % 100 == 0, n, 5_000));
        let failed = Failed {
            asked: n,
            ..Failed::default()
        };
        cursor.failed.insert(url, failed);
    }
    let bytes = cursor.write();
    assert!(bytes.len() <= MAX_BYTES, "{}", bytes.len());
    let read = Cursor::read(Some(&bytes));
    assert_eq!(
        read.cameras
            .iter()
            .filter(|(_, camera)| camera.is_here())
            .count(),
        50
    );
    assert_eq!(read.failed.0.len(), MAX_FAILED);
    assert!(read.failed.get("http://4999").is_some());
}

#[test]
fn a_camera_too_large_for_a_cursor_is_forgotten() {
    let mut cursor = Cursor::default();
    for n in 0..10 {
        let failed = Failed {
            asked: n,
            reason: "r".repeat(MAX_BYTES / 4),
            ..Failed::default()
        };
        cursor.failed.insert(format!("http://{n}"), failed);
        let text = if n == 0 { 9 } else { MAX_BYTES + 1 };
        let camera = mk_camera(true, n, text);
        cursor.cameras.insert(format!("http://{n}"), camera);
    }
    let mut only_cameras = cursor.clone();
    only_cameras.failed = Entries::default();
    let read = Cursor::read(Some(&only_cameras.write()));
    assert_eq!(read.cameras.0.len(), 1);
    assert!(read.cameras.get("http://0").is_some());
    let bytes = cursor.write();
    assert!(bytes.len() <= MAX_BYTES, "{}", bytes.len());
    assert!(Cursor::read(Some(&bytes)).failed.get("http://9").is_some());
}

#[test]
fn a_digest_depends_on_where_texts_end() {
    assert_ne!(digest(["a", "b"]), digest(["ab"]));
    assert_eq!(digest(["a", "b"]), digest(["a", "b"]));
}
