//! `--watch`: shows a text again whenever it changes. On a terminal it is redrawn in place and the terminal is put back
//! at the end; into a pipe each version follows the one before.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::terminal;

/// How often the agent is asked.
const EVERY: Duration = Duration::from_secs(1);
/// An agent that takes long to answer is asked less often: at most one part in so many of its time goes into this.
const SHARE: u32 = 20;

/// What is to be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The text.
    pub text: String,
    /// What tells a new version from the one before; the text differs more often, as ages grow.
    pub key: String,
}

/// Calls `next` again and again and shows what it returns, until a signal comes. `next` may block.
pub fn run(next: impl Fn() -> Frame + Send + Sync + 'static) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start watching")?;
    let result = runtime.block_on(watch(std::sync::Arc::new(next)));
    // A request under way is not waited for.
    runtime.shutdown_background();
    result
}

async fn watch(next: std::sync::Arc<impl Fn() -> Frame + Send + Sync + 'static>) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut view = View::new()?;
    loop {
        let started = Instant::now();
        let next = std::sync::Arc::clone(&next);
        let shown = async {
            let frame = tokio::task::spawn_blocking(move || next()).await?;
            let pause = EVERY.max(started.elapsed() * SHARE);
            view.show(frame)?;
            tokio::time::sleep(pause).await;
            anyhow::Ok(())
        };
        tokio::select! {
            result = shown => result?,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        }
    }
}

enum View {
    Terminal { screen: Screen, last: String },
    Pipe { last: Option<String> },
}

impl View {
    fn new() -> std::io::Result<Self> {
        Ok(if terminal::is_terminal() {
            Self::Terminal {
                screen: Screen::enter()?,
                last: String::new(),
            }
        } else {
            Self::Pipe { last: None }
        })
    }

    fn show(&mut self, frame: Frame) -> std::io::Result<()> {
        match self {
            Self::Terminal { screen, last } => {
                if *last != frame.text {
                    screen.draw(&frame.text)?;
                    *last = frame.text;
                }
            }
            Self::Pipe { last } => {
                if last.as_ref() != Some(&frame.key) {
                    terminal::print(&frame.text)?;
                    *last = Some(frame.key);
                }
            }
        }
        Ok(())
    }
}

/// The terminal's second screen, without cursor and line wrap; the first comes back when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> std::io::Result<Self> {
        terminal::print("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        Ok(Self)
    }

    /// Overwrites line by line, so that nothing flickers. What does not fit below is not shown.
    #[allow(clippy::unused_self, reason = "only an entered screen may be drawn on")]
    fn draw(&mut self, text: &str) -> std::io::Result<()> {
        let mut drawing = String::from("\x1b[H");
        let lines: Vec<&str> = text.lines().take(terminal::height()).collect();
        drawing.push_str(&lines.join("\x1b[K\r\n"));
        drawing.push_str("\x1b[K\x1b[J");
        terminal::print(&drawing)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that has gone needs no putting back.
        drop(terminal::print("\x1b[?7h\x1b[?25h\x1b[?1049l"));
    }
}
