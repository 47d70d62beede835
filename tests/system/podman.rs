//! Real podman: a container sees the environment, the device node and the mounts of a CDI device.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::mounts::Mounts;
use leafhost_tests::program::{self, source_tree};
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;

/// Default folder of CDI specs, because Debian's podman has no `--cdi-spec-dir`. Only one agent at a time may write there.
const SPECS: &str = "/var/run/cdi";
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn missing() -> Result<bool> {
    let programs = ["/usr/bin/podman", "/usr/bin/busybox", "/usr/sbin/runc"];
    requirement::lacks(
        requirement::files(&programs, "make setup-test")
            .or_else(|| requirement::root("sudo make test-all")),
    )
}

/// Imports an image with busybox and returns its name.
fn image(home: &Home) -> Result<String> {
    let root = home.path().join("rootfs/bin");
    fs::create_dir_all(&root)?;
    fs::copy("/usr/bin/busybox", root.join("busybox"))?;
    let tar = home.path().join("image.tar");
    let (tar, rootfs) = (
        tar.to_string_lossy().into_owned(),
        home.path().join("rootfs"),
    );
    program::run("tar", ["-C", &rootfs.to_string_lossy(), "-cf", &tar, "."])?.good()?;
    let name = format!("localhost/leafhost-test-{}", std::process::id());
    podman(home, &["import", "-q", &tar, &name])?;
    Ok(name)
}

fn podman(home: &Home, arguments: &[&str]) -> Result<String> {
    program::run("podman", all_arguments(home, arguments)?)?.good()
}

fn all_arguments(home: &Home, arguments: &[&str]) -> Result<Vec<String>> {
    let storage = home.path().join("podman");
    let (root, runroot, tmp) = (
        storage.join("root"),
        storage.join("runroot"),
        storage.join("tmp"),
    );
    fs::create_dir_all(&tmp)?;
    let (root, runroot, tmp) = (
        root.to_string_lossy(),
        runroot.to_string_lossy(),
        tmp.to_string_lossy(),
    );
    let global = [
        "--root",
        &root,
        "--runroot",
        &runroot,
        "--tmpdir",
        &tmp,
        "--storage-driver",
        "vfs",
        "--runtime",
        "runc",
        "--cgroup-manager",
        "cgroupfs",
    ];
    let cdi = home.cdi();
    let cdi = cdi.to_string_lossy();
    let spec_dir = ["--cdi-spec-dir", &*cdi];
    let help = program::run("podman", ["--help"])?.good()?;
    let spec_dir: &[&str] = if help.contains("--cdi-spec-dir") {
        &spec_dir
    } else {
        &[]
    };
    let all = global.iter().chain(spec_dir).chain(arguments);
    Ok(all.map(|argument| (*argument).to_owned()).collect())
}

fn run(home: &Home, image: &str, device: &str, script: &str) -> Result<String> {
    podman(home, &run_arguments(image, device, script))
}

fn run_arguments<'a>(image: &'a str, device: &'a str, script: &'a str) -> Vec<&'a str> {
    // Without CAP_SYS_RESOURCE a container must keep the current limits.
    let limits = [
        "--ulimit",
        "nofile=1024:1024",
        "--ulimit",
        "nproc=1024:1024",
    ];
    let command = ["run", "--rm", "--network=none", "--device", device];
    let rest = [image, "/bin/busybox", "sh", "-c", script];
    [&command[..], &limits, &rest].concat()
}

#[test]
fn mounts_below_a_read_only_mount_are_read_only() -> Result<()> {
    if missing()? {
        return Ok(());
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mounts = Arc::new(Mounts::new()?);
    let mut home = Home::new()?;
    // Devices may not mount the agent's own folder.
    let outside = tempfile::tempdir()?;
    let shared = outside.path();
    fs::create_dir(shared.join("below"))?;
    mounts.small_disk(&shared.join("below"), 64)?;
    home.live_in(&mounts);
    home.write(
        "handlers/hostile.wasm",
        fs::read(program::guest("sandbox")?)?,
    )?;
    let grants = format!(
        "udev: {{subsystems: ['*']}}\nnetwork: {{interfaces: [lo]}}\n\
         devices: {{mounts: ['{}:ro'], env: ['HOSTILE_*']}}\n",
        shared.display()
    );
    home.write("handlers/hostile.grants.yaml", grants)?;
    let configuration = format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: below}}\nspec:\n  \
         discoveryHandler: {{name: hostile, discoveryDetails: 'mount {} /data'}}\n",
        shared.display()
    );
    home.write("configurations/below.yaml", configuration)?;
    let (system, image) = (Path::new(SPECS), image(&home)?);
    fs::create_dir_all(system)?;
    home.publish_in(system);
    home.start(&[])?;
    let spec = system.join("akri.sh-below_leafhost.json");
    eventually("a spec with the mount", || {
        let text = fs::read_to_string(&spec).context("no spec")?;
        ensure!(text.contains("/data"), "{text}");
        Ok(())
    })
    .with_context(|| home.log())?;
    let script =
        "for at in /data /data/below; do echo x > $at/file && echo wrote in $at; done; echo done";
    let mut command = mounts.command(Path::new("podman"));
    command.args(all_arguments(
        &home,
        &run_arguments(&image, "akri.sh/below=all", script),
    )?);
    let out = program::finish(command)?.good()?;
    fs::remove_file(&spec)?;
    assert!(out.contains("done") && !out.contains("wrote"), "{out}");
    Ok(())
}

#[test]
fn a_container_has_the_variables_and_nodes_of_its_devices() -> Result<()> {
    if missing()? {
        return Ok(());
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut home = Home::new()?;
    for name in ["debug-echo", "mock-gpu", "udev"] {
        home.add_handler(name)?;
        let sample = format!("{name}.yaml");
        let text = fs::read(
            source_tree()
                .join("deploy/samples/standalone/configurations")
                .join(&sample),
        )?;
        home.write(&format!("configurations/{sample}"), text)?;
    }
    let system = Path::new(SPECS);
    fs::create_dir_all(system)?;
    let image = image(&home)?;
    home.publish_in(system);
    home.start(&[])?;
    let status = home.until("five Instances or more", |status| {
        status
            .get("instances")
            .and_then(serde_json::Value::as_array)
            .is_some_and(|all| all.len() >= 5)
    })?;
    eventually("the specs", || {
        fs::read(system.join("akri.sh-udev_leafhost.json")).context("no spec")
    })?;

    let out = run(
        &home,
        &image,
        "akri.sh/debug-echo=8120fe",
        "/bin/busybox env",
    )?;
    assert!(
        out.contains("DEBUG_ECHO_DESCRIPTION=foo0")
            && out.contains("DEBUG_ECHO_DESCRIPTION_8120FE=foo0"),
        "{out}"
    );
    let out = run(&home, &image, "akri.sh/mock-gpu=all", "/bin/busybox env")?;
    assert_eq!(
        out.lines()
            .filter(|line| line.starts_with("MOCK_GPU_UUID_"))
            .count(),
        2,
        "{out}"
    );

    let full = status
        .get("instances")
        .and_then(serde_json::Value::as_array)
        .into_iter()
        .flatten()
        .find(|instance| {
            instance.pointer("/spec/brokerProperties/UDEV_DEVNODE") == Some(&"/dev/full".into())
        })
        .and_then(|instance| instance.pointer("/spec/cdiName")?.as_str())
        .context("this machine's /dev/full is no Instance")?;
    let out = run(
        &home,
        &image,
        full,
        "/bin/busybox stat -c %t:%T /dev/full; echo x > /dev/full || echo no space",
    )?;
    assert!(out.contains("1:7") && out.contains("no space"), "{out}");
    for name in ["debug-echo", "mock-gpu", "udev"] {
        fs::remove_file(system.join(format!("akri.sh-{name}_leafhost.json")))?;
    }
    Ok(())
}
