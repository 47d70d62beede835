//! Compiles the kubelet's protocols without `protoc`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

const PROST: &str = "tonic_prost::ProstCodec";

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
        let out = out.join(name);
        fs::create_dir_all(&out)?;
        let descriptors = protox::compile([format!("proto/{name}.proto")], ["proto"])?;
        // Generates clients and servers: the fake kubelet of the tests is the other end of the protocol.
        tonic_prost_build::configure()
            .btree_map(".")
            .codec_path(codec)
            .out_dir(out)
            .compile_fds(descriptors)?;
    }
    Ok(())
}
