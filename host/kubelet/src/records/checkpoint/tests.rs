use std::os::unix::net::UnixListener;
use std::time::Duration;

use super::*;

const MALFORMED: &str = " is not in the form kubelets from 1.20 to 1.37 write";

fn read(text: &str) -> Result<Option<Checkpoint>, CheckpointError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet_internal_checkpoint");
    fs::write(&path, text).unwrap();
    read_checkpoint(&path)
}

fn entries(text: &str) -> Vec<CheckpointEntry> {
    read(text).unwrap().unwrap().entries
}

fn entry(
    uid: &str,
    container: &str,
    ids: &[&str],
    annotations: &[(&str, &str)],
) -> CheckpointEntry {
    CheckpointEntry {
        pod_uid: uid.to_owned(),
        container: container.to_owned(),
        resource: "akri.sh/cameras".to_owned(),
        ids: ids.iter().map(|&id| id.to_owned()).collect(),
        annotations: annotations
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect(),
    }
}

/// Answer with `A=1`, `/dev/video0` and one annotation.
const RECORDED: &str = "CgYKAUESATEaHgoLL2Rldi92aWRlbzASCy9kZXYvdmlkZW8wGgJydyIsChhha3JpLnNoL2NhbWVyYXMtODEyMGZlLTASEGNhbWVyYXMtODEyMGZlLTA=";

#[test]
fn what_kubelets_write_is_read() {
    let whole = |entries: &str| {
        format!(
            r#"{{"Data":{{"PodDeviceEntries":{entries},"RegisteredDevices":{{"akri.sh/cameras":["cameras-0"]}}}},"Checksum":3160386124}}"#
        )
    };
    let one = |ids: &str, answer: &str| {
        whole(&format!(
            r#"[{{"PodUID":"4a5d","ContainerName":"init","ResourceName":"akri.sh/cameras","DeviceIDs":{ids},"AllocResp":{answer}}}]"#
        ))
    };
    let answer = STANDARD.encode(
        ContainerAllocateResponse {
            annotations: [("k".to_owned(), "v".to_owned())].into(),
            envs: [("A".to_owned(), "1".to_owned())].into(),
            ..ContainerAllocateResponse::default()
        }
        .encode_to_vec(),
    );
    let quoted = format!("{answer:?}");
    let annotated: &[(&str, &str)] = &[("k", "v")];
    for (text, expected) in [
        (whole("null"), vec![]),
        (whole("[]"), vec![]),
        (
            one(r#"{"-1":["c-0"]}"#, &quoted),
            vec![entry("4a5d", "init", &["c-0"], annotated)],
        ),
        (
            one(r#"{"0":["c-0","c-1"],"1":["c-1"],"2":null}"#, &quoted),
            vec![entry("4a5d", "init", &["c-0", "c-1"], annotated)],
        ),
        (
            one("null", "null"),
            vec![entry("4a5d", "init", &[], &[])],
        ),
        // The ids stay even if the answer cannot be decoded.
        (
            one(r#"{"-1":["c-0"]}"#, r#""%%%""#),
            vec![entry("4a5d", "init", &["c-0"], &[])],
        ),
        (
            one(r#"{"-1":["c-0"]}"#, r#""/////w==""#),
            vec![entry("4a5d", "init", &["c-0"], &[])],
        ),
        (
            r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"akri.sh/cameras","DeviceIDs":{},"AllocResp":"","New":1}],"More":{}},"Checksum":0,"Version":2}"#.to_owned(),
            vec![entry("u", "c", &[], &[])],
        ),
    ] {
        assert_eq!(entries(&text), expected, "{text}");
    }
}

#[test]
fn annotations_are_those_of_the_recorded_answer() {
    let text = format!(
        r#"{{"Data":{{"PodDeviceEntries":[{{"PodUID":"u","ContainerName":"c","ResourceName":"akri.sh/cameras","DeviceIDs":{{"-1":["cameras-8120fe-0"]}},"AllocResp":"{RECORDED}"}}],"RegisteredDevices":{{}}}},"Checksum":1}}"#
    );
    assert_eq!(
        entries(&text),
        [entry(
            "u",
            "c",
            &["cameras-8120fe-0"],
            &[("akri.sh/cameras-8120fe-0", "cameras-8120fe-0")]
        )]
    );
}

#[test]
fn what_is_no_checkpoint_is_refused_by_name() {
    for text in [
        "",
        "{}",
        "[]",
        r#"{"Data":null}"#,
        r#"{"Data":{"PodDeviceEntries":{}}}"#,
        r#"{"Data":{"PodDeviceEntries":[{}]}}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":1,"ContainerName":"c","ResourceName":"r","DeviceIDs":{}}]}}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":"d"}]}}"#,
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":[7]}}]}}"#,
        // Torn.
        r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","Contai"#,
    ] {
        let error = read(text).unwrap_err();
        assert!(
            error.to_string().contains(MALFORMED)
                && error.to_string().contains("kubelet_internal_checkpoint"),
            "{text}: {error}"
        );
    }
}

#[test]
fn no_file_is_no_checkpoint_and_a_folder_or_socket_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(read_checkpoint(&folder.path().join("no")).unwrap(), None);
    let socket = folder.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for path in [folder.path(), socket.as_path()] {
        let error = read_checkpoint(path).unwrap_err().to_string();
        let expected = " is not a file; remove it and restart the kubelet";
        assert!(error.ends_with(expected), "{error}");
    }
}

#[test]
fn a_file_larger_than_64_mib_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    let file = File::create(&path).unwrap();
    // Sparse.
    file.set_len(LARGEST_FILE + 1).unwrap();
    let error = read_checkpoint(&path).unwrap_err().to_string();
    assert!(
        error.ends_with(" is larger than 64 MiB: refused"),
        "{error}"
    );
    file.set_len(LARGEST_FILE).unwrap();
    let error = read_checkpoint(&path).unwrap_err().to_string();
    assert!(error.contains(MALFORMED), "{error}");
}

#[test]
fn a_stamp_tells_a_file_from_the_one_before_and_when_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c");
    assert_eq!(Stamp::of(&path).unwrap(), None);
    let text = r#"{"Data":{"PodDeviceEntries":null}}"#;
    fs::write(&path, text).unwrap();
    let written = SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(written)
        .unwrap();
    let first = read_checkpoint(&path).unwrap().unwrap().stamp;
    assert_eq!(Stamp::of(&path).unwrap(), Some(first));
    assert_eq!(first.modified, written);
    let nanosecond = Duration::from_nanos(1);
    for (moment, after) in [
        (written - nanosecond, true),
        (written, false),
        (written + nanosecond, false),
    ] {
        assert_eq!(first.modified > moment, after, "{moment:?}");
    }

    let beside = folder.path().join("beside");
    fs::write(&beside, text).unwrap();
    fs::rename(&beside, &path).unwrap();
    let second = read_checkpoint(&path).unwrap().unwrap().stamp;
    assert_ne!(first, second);
    assert!(second.modified > written);
}
