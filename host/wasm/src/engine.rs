//! The engine's settings, shared by the agent (which only runs native code) and the compiler child (which only makes it).
//!
//! Native code is accepted only by an engine with equal settings, so there is exactly one function that makes them.

use std::fmt::Write as _;
use std::hash::{Hash as _, Hasher};

use sha2::{Digest as _, Sha256};
use wasmtime::{Config, Engine, ModuleVersionStrategy};

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up the WebAssembly engine")]
pub struct EngineError(#[source] pub(crate) wasmtime::Error);

/// The settings. Memory is not pooled: a guest instance takes 16 µs without, and small machines lack the address space.
/// Native code stays in memory as long as its handler does, so it has no tables that only debuggers and profilers read; the
/// names of functions in a trap's backtrace come without them.
///
/// # Errors
/// wasmtime refuses them.
pub fn engine_config() -> Result<Config, EngineError> {
    let mut config = Config::new();
    // A compiler that was installed with another version of the agent is found out when its output is read.
    let version = concat!("leafhost ", env!("CARGO_PKG_VERSION"));
    config
        .module_version(ModuleVersionStrategy::Custom(version.to_owned()))
        .map_err(EngineError)?;
    config
        .epoch_interruption(true)
        .generate_address_map(false)
        .native_unwind_info(false)
        .max_wasm_stack(512 << 10)
        .async_stack_size(1 << 20)
        .shared_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_wide_arithmetic(false);
    Ok(config)
}

/// An engine for running, without a compiler.
pub(crate) fn engine() -> Result<Engine, EngineError> {
    Engine::new(&engine_config()?).map_err(EngineError)
}

/// What native code must have been made for to run here, in hex: wasmtime's version to the patch (a patch may mend the
/// compiler), the settings, the target. Part of the name under which native code is cached.
pub(crate) fn fingerprint() -> Result<String, EngineError> {
    struct Sink(Sha256);
    impl Hasher for Sink {
        fn finish(&self) -> u64 {
            0
        }
        fn write(&mut self, bytes: &[u8]) {
            self.0.update(bytes);
        }
    }
    let mut sink = Sink(Sha256::new());
    ModuleVersionStrategy::WasmtimeVersion.hash(&mut sink);
    for part in [
        format!("{:?}", engine_config()?).as_str(),
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    ] {
        part.hash(&mut sink);
    }
    Ok(hex(&sink.0.finalize()))
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
