//! Only image of the tests: busybox under its usual names, written as an OCI layout.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::program;

/// Name of the image in pods; the kubelet never pulls it.
pub const NAME: &str = "leafhost.test/busybox:1";

/// Names of busybox in the image.
pub const APPLETS: [&str; 16] = [
    "sh", "cat", "cut", "echo", "env", "grep", "head", "id", "ls", "mount", "sleep", "sort",
    "stat", "tail", "uniq", "wget",
];

/// Writes the image below `folder` and returns the path of its archive.
pub(super) fn write(folder: &Path) -> Result<PathBuf> {
    let rootfs = folder.join("rootfs");
    for name in ["bin", "dev", "etc", "proc", "sys", "tmp"] {
        fs::create_dir_all(rootfs.join(name))?;
    }
    fs::copy("/usr/bin/busybox", rootfs.join("bin/busybox")).context("cannot copy busybox")?;
    for applet in APPLETS {
        symlink("busybox", rootfs.join("bin").join(applet))?;
    }
    // This busybox has no printenv.
    let printenv = rootfs.join("bin/printenv");
    fs::write(&printenv, "#!/bin/sh\nexec env\n")?;
    fs::set_permissions(printenv, fs::Permissions::from_mode(0o755))?;
    let layout = folder.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;

    let layer_file = folder.join("layer.tar");
    tar(&rootfs, &layer_file)?;
    let layer = blob(&blobs, &fs::read(&layer_file)?, "layer.v1.tar")?;
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        // Command of the pause container.
        "config": {"Cmd": ["/bin/sh", "-c", "trap exit TERM; sleep 2147483647 & wait"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer.get("digest")]},
    });
    let config = blob(&blobs, config.to_string().as_bytes(), "config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media("manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob(&blobs, manifest.to_string().as_bytes(), "manifest.v1+json")?;
    if let Some(fields) = manifest.as_object_mut() {
        fields.insert(
            "annotations".to_owned(),
            json!({"io.containerd.image.name": NAME}),
        );
    }
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(
        layout.join("oci-layout"),
        json!({"imageLayoutVersion": "1.0.0"}).to_string(),
    )?;
    let archive = folder.join("image.tar");
    tar(&layout, &archive)?;
    Ok(archive)
}

/// Writes a blob under its digest and returns its descriptor.
fn blob(blobs: &Path, bytes: &[u8], kind: &str) -> Result<Value> {
    let digest = super::programs::hex(&Sha256::digest(bytes));
    fs::write(blobs.join(&digest), bytes)?;
    Ok(json!({
        "mediaType": media(kind),
        "digest": format!("sha256:{digest}"),
        "size": bytes.len(),
    }))
}

fn media(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn tar(folder: &Path, archive: &Path) -> Result<()> {
    let arguments = [
        "--owner=0".as_ref(),
        "--group=0".as_ref(),
        "-C".as_ref(),
        folder.as_os_str(),
        "-cf".as_ref(),
        archive.as_os_str(),
        ".".as_ref(),
    ];
    program::run("tar", arguments)?.good().map(drop)
}
