//! One call of a guest: a fresh store, limits, and the result.
//!
//! Each call has its own thread with a lower priority than the agent's threads. A guest that computes does not delay the agent's timers; the kernel
//! divides the CPU time among guests.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::text::clean;
use leafhost_grants::Limits;
use tokio::sync::Semaphore;
use wasmtime::{Engine, Store, Trap, UpdateDeadline};
use wasmtime_wasi::{I32Exit, ResourceTableError};

use crate::admission::{self, Admitted};
use crate::backtrace::location;
use crate::bindings::{DiscoveryHandler, DiscoveryHandlerPre};
use crate::capabilities::CallState;
use crate::cpu::metered;
use crate::cursor::Cursors;
use crate::limits::{HANDLES, HOSTCALL_FUEL, TABLE_ELEMENTS};
use crate::record::Record;
use crate::threads::Threads;
use crate::ticker::Ticker;

/// Maximum length of a fault's text, in bytes.
const MAX_TEXT: usize = 4096;

/// State that the calls of all guests share.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) engine: Engine,
    ticker: Ticker,
    pub(crate) threads: Arc<Threads>,
    /// Permits of calls that all handlers share.
    pub(crate) admission: Arc<Semaphore>,
    /// Counter of the cursors of all handlers.
    pub(crate) cursors: Arc<Cursors>,
}

impl Host {
    /// Starts the ticker and the runtime of the guests; each call starts a thread if none is free.
    pub(crate) fn start(engine: Engine) -> std::io::Result<Self> {
        let threads = Threads::start()?;
        let weak = engine.weak();
        let tick = move || {
            weak.upgrade().is_some_and(|engine| {
                engine.increment_epoch();
                true
            })
        };
        Ok(Self {
            ticker: Ticker::start(&threads.guests, tick),
            engine,
            threads: Arc::new(threads),
            admission: admission::shared(),
            cursors: Arc::default(),
        })
    }
}

/// Work to do with a guest after its instantiation.
pub(crate) type Work<T> = Box<
    dyn for<'a> FnOnce(
            &'a DiscoveryHandler,
            &'a mut Store<CallState>,
        ) -> Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>
        + Send,
>;

pub(crate) struct Call<T> {
    pub(crate) pre: DiscoveryHandlerPre<CallState>,
    pub(crate) state: CallState,
    pub(crate) limits: Limits,
    /// Name of the called function, if the call is made while the handler is loaded. The grants do not raise the time of such a call.
    pub(crate) loading: Option<&'static str>,
    /// Data that outlives the call.
    pub(crate) record: Arc<Record>,
    /// Permits of the call; held until its guest has ended and its answer has been checked.
    pub(crate) admitted: Admitted,
    /// `Instant` at which the call was requested.
    pub(crate) asked: tokio::time::Instant,
    pub(crate) work: Work<T>,
}

pub(crate) struct Finished<T> {
    pub(crate) answer: Result<T, Fault>,
    /// Time from the request to the start of the guest.
    pub(crate) queued: Duration,
    /// Wall clock time from the start of the guest to its end.
    pub(crate) wall: Duration,
}

impl Host {
    /// Runs an admitted call, and `finish` on its answer on the same thread. Dropping the future ends the call.
    pub(crate) async fn call<T: Send + 'static, U: Send + 'static>(
        self: &Arc<Self>,
        call: Call<T>,
        finish: impl FnOnce(T, &Record) -> Result<U, Fault> + Send + 'static,
    ) -> Finished<U> {
        let record = call.record.clone();
        // Only the engine is passed on: a guest must not keep a dropped host alive, nor drop it.
        let engine = self.engine.clone();
        let ticker = self.ticker.clone();
        let run = async move { metered(&record.cpu, &ticker, run(&engine, call, finish)).await };
        let ended = self.threads.run(run).await;
        ended.unwrap_or_else(|why| Finished {
            answer: Err(Fault::new(FaultReason::Host, clean(&why, MAX_TEXT))),
            queued: Duration::ZERO,
            wall: Duration::ZERO,
        })
    }
}

async fn run<T, U>(
    engine: &Engine,
    call: Call<T>,
    finish: impl FnOnce(T, &Record) -> Result<U, Fault>,
) -> Finished<U> {
    let (limits, loading, record) = (call.limits, call.loading, call.record);
    let begin = tokio::time::Instant::now();
    let mut store = Store::new(engine, call.state);
    store.limiter(CallState::limiter);
    store.set_hostcall_fuel(HOSTCALL_FUEL);
    store.set_max_component_handles(HANDLES);
    let (meter, budget) = (record.cpu.clone(), limits.cpu);
    store.epoch_deadline_callback(move |_| {
        if meter.used_within_poll() > budget {
            return Err(wasmtime::Error::new(CpuExhausted));
        }
        // The guest yields, so that its timeout and its cancellation are checked.
        Ok(UpdateDeadline::Yield(1))
    });
    let answer = tokio::time::timeout(limits.wall, async {
        // Set only here: the time that the call waited does not count against the guest.
        store.set_epoch_deadline(1);
        let handler = call.pre.instantiate_async(&mut store).await?;
        (call.work)(&handler, &mut store).await
    })
    .await;
    let wall = begin.elapsed();
    // Dropping the guest's streams writes its last lines.
    drop(store);
    let answer = match answer {
        Ok(answer) => answer
            .map_err(|error| fault(&error, &limits, loading, &record))
            .and_then(|answer| finish(answer, &record)),
        Err(_) => Err(too_long(limits.wall, loading)),
    };
    // Releases the permit only here, after `finish` has checked the answer: its paths may be on a file system that hangs.
    drop(call.admitted);
    let answer = answer.map_err(|fault| Fault {
        message: record.secrets.clean(&fault.message, MAX_TEXT),
        ..fault
    });
    Finished {
        answer,
        queued: begin.duration_since(call.asked),
        wall,
    }
}

/// Creates the fault of a call that exceeded its time.
fn too_long(wall: Duration, loading: Option<&str>) -> Fault {
    let seconds = wall.as_secs();
    let message = match loading {
        Some(what) => format!(
            "`{what}` took longer than {seconds} s while the handler was loaded, and the grants do not raise this limit; it must not wait"
        ),
        None => format!(
            "the call took longer than {seconds} s; `limits.wallSeconds` in the grants raises that"
        ),
    };
    Fault::new(FaultReason::WallTimeout, message)
}

/// Error of a guest that exceeded its CPU time.
#[derive(Debug, thiserror::Error)]
#[error("the budget for computing is used up")]
struct CpuExhausted;

/// Converts the error that ended the guest into a fault.
fn fault(
    error: &wasmtime::Error,
    limits: &Limits,
    loading: Option<&str>,
    record: &Record,
) -> Fault {
    if error.downcast_ref::<CpuExhausted>().is_some() {
        let seconds = limits.cpu.as_secs();
        let message = match loading {
            Some(what) => format!(
                "`{what}` computed longer than {seconds} s while the handler was loaded, and the grants do not raise this limit"
            ),
            None => format!(
                "the call computed longer than {seconds} s; `limits.cpuSeconds` in the grants raises that"
            ),
        };
        return Fault::new(FaultReason::CpuBudget, message);
    }
    let location = location(error);
    let stderr = match record.kept().stderr_tail.as_str() {
        "" => String::new(),
        tail => format!("; it said: {tail}"),
    };
    if record.memory.refused() {
        let most = limits.memory >> 20;
        let message = format!(
            "the guest needed more than {most} MiB of memory, including what the host keeps for it; `limits.memoryMiB` in the grants raises that{stderr}{location}"
        );
        return Fault::new(FaultReason::Memory, message);
    }
    if record.memory.tables_refused() {
        let message = format!(
            "the guest needed more than {TABLE_ELEMENTS} elements of tables{stderr}{location}"
        );
        return Fault::new(FaultReason::Memory, message);
    }
    if let Some(I32Exit(status)) = error.downcast_ref::<I32Exit>() {
        let message = format!("the guest exited with status {status}; a handler returns{stderr}");
        return Fault::new(FaultReason::Exit, message);
    }
    let cause = error.root_cause().to_string();
    let held_too_much = matches!(
        error.downcast_ref::<ResourceTableError>(),
        Some(ResourceTableError::Full)
    ) || cause.contains("fuel allocated for hostcalls")
        || cause.contains("handle limit exceeded");
    if held_too_much {
        let most = HOSTCALL_FUEL >> 20;
        let message = format!(
            "the guest made the host hold more than {most} MiB or {HANDLES} handles{location}"
        );
        return Fault::new(FaultReason::HostResources, message);
    }
    let what = match error.downcast_ref::<Trap>() {
        Some(Trap::UnreachableCodeReached) => "the guest aborted, as after a panic".to_owned(),
        Some(trap) => format!("the guest trapped: {trap}"),
        None => format!("the guest failed: {cause}"),
    };
    Fault::new(FaultReason::Trap, format!("{what}{stderr}{location}"))
}
