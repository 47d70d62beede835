//! Release, installed from its archive, and image, unpacked: the results of `make dist` and `make image` for each architecture.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use leafhost_tests::program::{self, build_folder, source_tree};
use leafhost_tests::requirement;
use serde_json::Value;

/// Emulator that runs programs for arm64 on this machine.
const EMULATOR: &str = "/usr/bin/qemu-aarch64";
/// C compiler for arm64.
const COMPILER: &str = "/usr/bin/aarch64-linux-gnu-gcc";

/// Installed files, below `PREFIX`.
const FILES: [&str; 10] = [
    "bin/leafhost",
    "libexec/leafhost/leafhost-compile",
    "lib/systemd/system/leafhost.service",
    "share/bash-completion/completions/leafhost",
    "share/doc/leafhost/THIRD-PARTY-LICENSES",
    "share/fish/vendor_completions.d/leafhost.fish",
    "share/leafhost/handlers/debug-echo.wasm",
    "share/leafhost/sdk/Cargo.toml",
    "share/man/man1/leafhost.1",
    "share/zsh/site-functions/_leafhost",
];

/// Maximum size of an image, in bytes.
const IMAGE_BYTES: u64 = 60_000_000;

/// Returns the path of the archive for an architecture.
fn archive(architecture: &str) -> Result<PathBuf> {
    made("archives", architecture, "tar.gz")
}

/// Returns the path of a build result for an architecture.
fn made(folder: &str, architecture: &str, kind: &str) -> Result<PathBuf> {
    let build = build_folder()?;
    let target = build.parent().context("the build folder has no parent")?;
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("leafhost-{version}-linux-{architecture}.{kind}");
    Ok(target.join(folder).join(name))
}

/// Unpacks the archive in `folder` and installs it there with the prefix `/usr`. Returns the folder that stands for `/usr`.
fn install(archive: &Path, folder: &Path) -> Result<PathBuf> {
    let folder = folder.to_string_lossy();
    let unpacked = format!("{folder}/unpacked");
    fs::create_dir(&unpacked)?;
    let archive = archive.to_string_lossy();
    program::run(
        "tar",
        ["-xzf", &*archive, "--strip-components=1", "-C", &unpacked],
    )?
    .good()?;
    let destination = format!("DESTDIR={folder}/root");
    // No network: a release needs nothing but its own files.
    let make = [
        "-n",
        "make",
        "-C",
        &unpacked,
        "install",
        "PREFIX=/usr",
        &destination,
    ];
    program::run("unshare", make)?.good()?;
    Ok(PathBuf::from(format!("{folder}/root/usr")))
}

/// Replaces each program by a script that runs it in the emulator. The emulator takes memory for the address space that a program reserves, so that
/// is limited. With `root`, the files there come before the libraries of this machine.
fn emulate(usr: &Path, folder: &Path, root: Option<&Path>) -> Result<()> {
    let root = root.map_or(String::new(), |root| format!("-L {}", root.display()));
    let source = source_tree().join("tests/system/no_seccomp.c");
    let library = folder.join("no_seccomp.so");
    let (source, library) = (source.to_string_lossy(), library.to_string_lossy());
    program::run(COMPILER, ["-shared", "-fPIC", "-o", &*library, &*source])?.good()?;
    for program in ["bin/leafhost", "libexec/leafhost/leafhost-compile"] {
        let program = usr.join(program);
        let real = program.with_extension("arm64");
        fs::rename(&program, &real)?;
        let real = real.display();
        let script = format!(
            "ulimit -Sv 16000000\nexec {EMULATOR} {root} -E LD_PRELOAD={library} {real} \"$@\""
        );
        program::script(&program, &script)?;
    }
    Ok(())
}

fn a_release_works(architecture: &str) -> Result<()> {
    let archive = archive(architecture)?;
    let is_foreign = architecture == "arm64";
    let needed = [&*archive.to_string_lossy(), EMULATOR, COMPILER];
    let needed = needed
        .get(..if is_foreign { 3 } else { 1 })
        .unwrap_or_default();
    let missing =
        requirement::files(needed, "make dist").or_else(|| requirement::root("sudo make test-all"));
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let usr = install(&archive, folder.path())?;
    for file in FILES {
        ensure!(usr.join(file).is_file(), "{file} is not installed");
    }
    let unit = fs::read_to_string(usr.join("lib/systemd/system/leafhost.service"))?;
    ensure!(
        unit.contains("ExecStart=/usr/bin/leafhost agent --standalone\n"),
        "{unit}"
    );

    let leafhost = usr.join("bin/leafhost");
    if is_foreign {
        emulate(&usr, folder.path(), None)?;
    }
    let version = program::run(&leafhost, ["--version"])?.good()?;
    ensure!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    // The compiler child, native code of this architecture, and a call.
    let handler = usr.join("share/leafhost/handlers/debug-echo.wasm");
    let details = folder.path().join("details.yaml");
    fs::write(&details, "descriptions: [one, two]\n")?;
    let arguments = [
        "handler",
        "run",
        &*handler.to_string_lossy(),
        "--details",
        &*details.to_string_lossy(),
    ]
    .map(str::to_owned);
    let found = program::run(&leafhost, arguments)?.good()?;
    ensure!(found.contains("one") && found.contains("two"), "{found}");
    Ok(())
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn a_release_for_amd64_is_installed_without_a_network_and_calls_a_handler() -> Result<()> {
    a_release_works("amd64")
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn a_release_for_arm64_is_installed_without_a_network_and_calls_a_handler() -> Result<()> {
    a_release_works("arm64")
}

#[test]
#[ignore = "needs `make dist`, which builds every release: `make test-release`"]
fn an_archive_that_was_changed_is_not_installed() -> Result<()> {
    let archive = archive("amd64")?;
    let missing = requirement::files(&[&archive.to_string_lossy()], "make dist")
        .or_else(|| requirement::root("sudo make test-all"));
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    install(&archive, folder.path())?;
    let unpacked = folder.path().join("unpacked");
    fs::write(unpacked.join("bin/leafhost"), "changed")?;
    let destination = format!("DESTDIR={}/other", folder.path().display());
    let unpacked = unpacked.to_string_lossy();
    let ended = program::run("make", ["-C", &*unpacked, "install", &destination])?;
    ensure!(ended.code != Some(0), "{ended:?}");
    ensure!(!folder.path().join("other").exists(), "{ended:?}");
    Ok(())
}

/// Unpacks an image in `folder` and checks its metadata. Returns its root.
fn unpack(image: &Path, architecture: &str, folder: &Path) -> Result<PathBuf> {
    let layout = folder.join("layout");
    let root = folder.join("root");
    let extract = |archive: &Path, to: &Path| -> Result<()> {
        fs::create_dir(to)?;
        let (archive, to) = (archive.as_os_str(), to.as_os_str());
        let arguments = ["-xf".as_ref(), archive, "-C".as_ref(), to];
        program::run("tar", arguments)?.good().map(drop)
    };
    let blob = |descriptor: Option<&Value>| -> Result<PathBuf> {
        let digest = descriptor.and_then(|descriptor| descriptor.get("digest")?.as_str());
        let digest = digest.and_then(|digest| digest.strip_prefix("sha256:"));
        Ok(layout
            .join("blobs/sha256")
            .join(digest.context("no digest")?))
    };
    let read = |path: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(path)?)?) };
    extract(image, &layout)?;
    let index = read(&layout.join("index.json"))?;
    let platform = index.pointer("/manifests/0/platform/architecture");
    let is = Some(&Value::from(architecture));
    ensure!(platform == is, "{index:#}");
    let manifest = read(&blob(index.pointer("/manifests/0"))?)?;
    let config = read(&blob(manifest.get("config"))?)?;
    ensure!(config.get("architecture") == is, "{config:#}");
    let user = config.pointer("/config/User");
    ensure!(user == Some(&"65532:65532".into()), "{config:#}");
    extract(&blob(manifest.pointer("/layers/0"))?, &root)?;
    Ok(root)
}

fn an_image_works(architecture: &str) -> Result<()> {
    let image = made("image", architecture, "tar")?;
    let is_foreign = architecture == "arm64";
    let needed = [&*image.to_string_lossy(), EMULATOR, COMPILER];
    let needed = needed
        .get(..if is_foreign { 3 } else { 1 })
        .unwrap_or_default();
    let missing = requirement::files(needed, "make image ARCH=arm64")
        .or_else(|| requirement::root("sudo make test-release"));
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let size = fs::metadata(&image)?.len();
    ensure!(size <= IMAGE_BYTES, "{}: {size} bytes", image.display());
    let folder = tempfile::tempdir()?;
    let root = unpack(&image, architecture, folder.path())?;
    let licences = root.join("usr/share/doc/leafhost/THIRD-PARTY-LICENSES");
    ensure!(licences.is_file(), "{} is missing", licences.display());
    fs::write(root.join("tmp/details.yaml"), "descriptions: [one, two]\n")?;
    let configurations = source_tree().join("deploy/samples/standalone/configurations");
    let (from, to) = (configurations.as_os_str(), root.join("tmp"));
    program::run("cp", ["-R".as_ref(), from, to.as_os_str()])?.good()?;
    let base = root.to_string_lossy();
    // Natively, nothing but the image is visible. The emulator has no root of its own.
    let (command, inside) = if is_foreign {
        emulate(&root.join("usr"), folder.path(), Some(&root))?;
        (vec![format!("{base}/usr/bin/leafhost")], &*base)
    } else {
        let apart = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
        let apart = apart.map(str::to_owned).into_iter();
        let rest = [format!("--root={base}"), "/usr/bin/leafhost".to_owned()];
        (apart.chain(rest).collect(), "")
    };
    let handler = format!("{inside}/usr/share/leafhost/handlers/debug-echo.wasm");
    let details = format!("{inside}/tmp/details.yaml");
    let folder = format!("{inside}/tmp");
    for (arguments, expected) in [
        (&["--version"][..], env!("CARGO_PKG_VERSION")),
        (&["check", &folder], "no problem"),
        // The compiler child, native code of this architecture, and a call.
        (&["handler", "run", &handler, "--details", &details], "two"),
    ] {
        let (program, first) = command.split_first().context("no program")?;
        let arguments = first
            .iter()
            .map(String::as_str)
            .chain(arguments.iter().copied());
        let said = program::run(program, arguments)?.good()?;
        ensure!(said.contains(expected), "{said}");
    }
    println!("{}: {size} bytes", image.display());
    Ok(())
}

#[test]
#[ignore = "needs both images: `make test-release`"]
fn the_released_image_for_amd64_is_small_and_its_handlers_run() -> Result<()> {
    an_image_works("amd64")
}

#[test]
#[ignore = "needs both images: `make test-release`"]
fn the_released_image_for_arm64_is_small_and_its_handlers_run() -> Result<()> {
    an_image_works("arm64")
}
