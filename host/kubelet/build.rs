//! Compiles the kubelet's protocols without `protoc`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    for (name, codec) in [
        ("deviceplugin", "leafhost_uds::Codec"),
        ("podresources", "tonic_prost::ProstCodec"),
    ] {
        let descriptors = protox::compile([format!("proto/{name}.proto")], ["proto"])?;
        // Both sides: a kubelet stand-in is the other end of what a plugin speaks.
        tonic_prost_build::configure()
            .btree_map(".")
            .codec_path(codec)
            .out_dir(out.clone())
            .compile_fds(descriptors)?;
    }
    Ok(())
}
