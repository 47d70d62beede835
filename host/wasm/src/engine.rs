//! Engine settings, shared by the agent (which only runs native code) and the compiler child (which only produces it).
//!
//! An engine accepts only native code that was compiled with equal settings, so exactly one function creates the settings. The optimization level
//! is not among those settings.

use sha2::{Digest as _, Sha256};
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, ModuleVersionStrategy,
    PoolingAllocationConfig,
};

use crate::limits::{GUEST_INSTANCES, MEMORIES, TABLE_ELEMENTS, TABLES};

/// Name and version of the engine that runs handlers.
pub const ENGINE: &str = "wasmtime 48.0.8";

/// Number of guests in the pool: exceeds the usual number of handlers plus the concurrent calls that all handlers may make besides one each
/// (see `admission`).
pub(crate) const GUESTS: u16 = 128;
/// Bytes of a linear memory that stay mapped, zeroed, for the next guest in the slot. Most calls touch fewer.
const KEPT: usize = 128 << 10;
/// Bytes of a stack that stay mapped.
const KEPT_STACK: usize = 16 << 10;
/// Bytes of a table that stay mapped.
const KEPT_TABLE: usize = 4 << 10;
/// Number of unused slots that stay with the component that used them last.
const WARM: u32 = 8;

/// Returns the settings. Native code carries no tables for debuggers and profilers, because it is written, checked and read as a whole.
/// Without them, the backtrace of a trap still has function names.
///
/// # Errors
/// Returns an error if wasmtime refuses the settings.
pub fn engine_config() -> wasmtime::Result<Config> {
    let mut config = Config::new();
    // The output of a compiler from another version of the agent is refused when it is read.
    let version = concat!("leafhost ", env!("CARGO_PKG_VERSION"));
    config.module_version(ModuleVersionStrategy::Custom(version.to_owned()))?;
    config
        .epoch_interruption(true)
        .generate_address_map(false)
        .native_unwind_info(false)
        .max_wasm_stack(512 << 10)
        .async_stack_size(1 << 20)
        .shared_memory(false)
        .wasm_memory64(false)
        .wasm_relaxed_simd(false)
        .wasm_wide_arithmetic(false)
        // No capability is called concurrently, and with this feature a guest could hold a stack per instance.
        .concurrency_support(false);
    Ok(config)
}

/// Creates an engine that runs native code and has no compiler. Guests get their memory from a pool, which reserves some TiB of address
/// space and saves most of the setup time of a guest. With less address space, the memory of each guest is mapped separately.
pub(crate) fn engine() -> wasmtime::Result<Engine> {
    let mut config = engine_config()?;
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool()))
        .async_stack_zeroing(true);
    Engine::new(&config).or_else(|error| {
        let why = format!("{error:#}");
        tracing::info!(
            why,
            "pooling allocator unavailable; falling back to on-demand"
        );
        Engine::new(&engine_config()?)
    })
}

/// Returns a pool that has room for the maximum use of [`GUESTS`] guests.
fn pool() -> PoolingAllocationConfig {
    let guests = u32::from(GUESTS);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(guests)
        .total_stacks(guests)
        .total_core_instances(guests * u32::from(GUEST_INSTANCES))
        .max_core_instances_per_component(GUEST_INSTANCES.into())
        .total_memories(guests * u32::from(MEMORIES))
        .max_memories_per_component(MEMORIES.into())
        .max_memories_per_module(MEMORIES.into())
        .total_tables(guests * u32::from(TABLES))
        .max_tables_per_component(TABLES.into())
        .max_tables_per_module(TABLES.into())
        .table_elements(TABLE_ELEMENTS)
        .max_component_instance_size(8 << 20)
        .max_core_instance_size(8 << 20)
        .max_unused_warm_slots(WARM)
        .linear_memory_keep_resident(KEPT)
        .async_stack_keep_resident(KEPT_STACK)
        .table_keep_resident(KEPT_TABLE)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Returns a hex digest of everything that native code must match to run here: the version of wasmtime including the patch number (a patch
/// may fix the compiler), the settings, the version of Leafhost, and the target. The digest is part of the name under which native code is
/// cached.
pub(crate) fn fingerprint() -> wasmtime::Result<String> {
    let settings = format!("{:?}", engine_config()?);
    let parts = [
        ENGINE,
        settings.as_str(),
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    ];
    Ok(hex(&Sha256::digest(parts.join("\n"))))
}

/// Formats bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_engine_is_that_of_the_build() {
        let lock = include_str!("../../../Cargo.lock");
        let (_, entry) = lock.split_once("\nname = \"wasmtime\"\n").unwrap();
        let version = entry.lines().next().unwrap();
        let version = version.strip_prefix("version = \"").unwrap();
        let version = version.strip_suffix('"').unwrap();
        assert_eq!(ENGINE, format!("wasmtime {version}"));
    }
}
