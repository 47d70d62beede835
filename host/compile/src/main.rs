//! The compiler child: reads a component from standard input, writes native code to standard output.
//!
//! Its input is untrusted, so it gives up everything it does not need before it reads the first byte: memory, time, files, sockets, other
//! programs. It keeps only its three standard streams. Exit status: 0 done, 3 the component does not compile, 4 the child could not limit
//! itself, 5 the compiler panicked, 1 anything else; the reason is on standard error.

use std::io::{self, Read as _, Write as _};
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use anyhow::{Context as _, Result, anyhow};
use leafhost_core::text::chain;
use leafhost_wasm::{EXIT_INVALID, EXIT_LIMITS, EXIT_PANIC, MORE_THREADS, engine_config};
use wasmtime::{Engine, OptLevel};

mod sandbox;

/// Number of Cranelift threads; each takes a part of the bounded address space.
const THREADS: usize = 4;

fn main() -> ExitCode {
    if let Err(error) = sandbox::enter() {
        eprintln!("{}", chain(error.as_ref()));
        return ExitCode::from(EXIT_LIMITS);
    }
    // The panic hook of the standard library prints the message.
    match catch_unwind(AssertUnwindSafe(compile)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => {
            eprintln!("{}", chain(error.as_ref()));
            ExitCode::from(if error.is::<Invalid>() {
                EXIT_INVALID
            } else {
                1
            })
        }
        Err(_) => ExitCode::from(EXIT_PANIC),
    }
}

/// Reason why the component does not compile.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Invalid(String);

fn compile() -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    rayon::ThreadPoolBuilder::new()
        .num_threads(cores.min(THREADS))
        .build_global()
        .map_err(|error| {
            anyhow!("cannot start the compiler's threads ({error}); {MORE_THREADS}")
        })?;
    let set_up = |error: wasmtime::Error| anyhow!("cannot set up the compiler: {error:#}");
    let mut config = engine_config().map_err(set_up)?;
    // Native code stays in the agent's memory, so size matters.
    config.cranelift_opt_level(OptLevel::SpeedAndSize);
    let engine = Engine::new(&config).map_err(set_up)?;
    // The agent has checked the size, and memory is limited.
    let mut wasm = Vec::new();
    io::stdin()
        .read_to_end(&mut wasm)
        .context("cannot read the component from standard input")?;
    let native = engine
        .precompile_component(&wasm)
        .map_err(|error| Invalid(format!("{error:#}")))?;
    let mut output = io::stdout().lock();
    output
        .write_all(&native)
        .and_then(|()| output.flush())
        .context("cannot write the native code to standard output")
}
