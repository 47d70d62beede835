//! Compiles Akri's discovery protocol without `protoc`.

use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let descriptors = protox::compile(["proto/discovery.proto"], ["proto"])?;
    // Both sides: tests act as handlers, too.
    tonic_prost_build::configure()
        .btree_map(".")
        .codec_path("leafhost_uds::Codec")
        .out_dir(out)
        .compile_fds(descriptors)?;
    Ok(())
}
