//! Compiles the kubelet's protocols without `protoc`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

/// Services with an earlier version that has the same messages: file, packages of both versions, and module with the messages.
const EARLIER: [(&str, &str, &str, &str); 2] = [
    (
        "dra",
        "k8s.io.kubelet.pkg.apis.dra.v1",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1",
        "crate::proto::dra",
    ),
    ("dra_health", "v1", "v1alpha1", "crate::proto::dra_health"),
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (name, codec) in [
        ("deviceplugin", "leafhost_uds::Codec"),
        ("podresources", PROST),
        ("pluginregistration", PROST),
        ("dra", PROST),
        ("dra_health", PROST),
    ] {
        compile(name, Path::new("proto"), codec, &out.join(name), None)?;
    }
    for (name, package, earlier, messages) in EARLIER {
        let text = fs::read_to_string(format!("proto/{name}.proto"))?;
        let text = text.replacen(
            &format!("package {package};"),
            &format!("package {earlier};"),
            1,
        );
        let folder = out.join(format!("{name}-{earlier}"));
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(format!("{name}.proto")), text)?;
        let messages = (&*format!(".{earlier}"), messages);
        compile(name, &folder, PROST, &folder, Some(messages))?;
    }
    Ok(())
}

const PROST: &str = "tonic_prost::ProstCodec";

/// Compiles a file of a folder. If `messages` is given, the messages of that package are those of that module.
fn compile(
    name: &str,
    folder: &Path,
    codec: &str,
    out: &Path,
    messages: Option<(&str, &str)>,
) -> Result<(), Box<dyn Error>> {
    fs::create_dir_all(out)?;
    let descriptors = protox::compile([folder.join(format!("{name}.proto"))], [folder])?;
    // Both sides: the fake kubelet of the tests is the other end of the protocol.
    let mut config = tonic_prost_build::configure()
        .btree_map(".")
        .codec_path(codec)
        .out_dir(out);
    if let Some((package, module)) = messages {
        config = config.extern_path(package, module);
    }
    Ok(config.compile_fds(descriptors)?)
}
