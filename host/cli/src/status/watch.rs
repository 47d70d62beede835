//! `--watch`: prints a text again whenever it changes. A terminal is redrawn in place and restored at the end; in a pipe the
//! versions follow one another.

use std::borrow::Cow;
use std::io::Read as _;
use std::time::Duration;

use anyhow::Result;
use leafhost_agent::status::Status;
use nix::sys::termios::{self, LocalFlags, SetArg, Termios};
use tokio::sync::watch;

use super::client::Search;
use crate::signals::Signals;
use crate::terminal::{self, Paint, Size, Tone};

/// Interval at which ages are refreshed on a terminal, and at which an agent that does not answer is asked again.
const INTERVAL: Duration = Duration::from_secs(1);
/// Hint in the last line of the screen, if keys are read.
const HINT: &str = "q: quit";
/// Minimum time between two requests.
const MIN_INTERVAL: Duration = Duration::from_millis(200);

/// Text to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub text: String,
    /// Key that differs between versions; the text also differs when only an age has grown.
    pub key: String,
}

/// Latest status, or the error of the last request.
type Newest = Option<Result<Status, String>>;

/// Renders and shows the newest status on every change, until a signal comes or the user presses `q`.
pub async fn run(search: &Search, render: impl Fn(&Result<Status, String>) -> Frame) -> Result<()> {
    let mut signals = Signals::new()?;
    let (sender, receiver) = watch::channel(None);
    tokio::select! {
        () = ask(search, sender) => Ok(()),
        result = show(receiver, render) => result,
        () = quit() => Ok(()),
        _ = signals.next() => Ok(()),
    }
}

/// Waits until the user presses `q`.
async fn quit() {
    let pressed = || {
        let mut keys = std::io::stdin().lock().bytes().map_while(Result::ok);
        keys.any(|key| key == b'q')
    };
    let quits = terminal::is_interactive()
        && tokio::task::spawn_blocking(pressed)
            .await
            .is_ok_and(|quits| quits);
    if !quits {
        std::future::pending::<()>().await;
    }
}

/// Asks the agent repeatedly; it answers when something has changed.
async fn ask(search: &Search, newest: watch::Sender<Newest>) {
    let mut version: Option<String> = None;
    loop {
        let pause = match search.status(version.as_deref()).await {
            Ok(Some(answer)) => {
                version = answer.version;
                newest.send_replace(Some(Ok(answer.status)));
                MIN_INTERVAL
            }
            Ok(None) => MIN_INTERVAL,
            Err(error) => {
                version = None;
                newest.send_replace(Some(Err(format!("{error:#}"))));
                INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

async fn show(
    mut newest: watch::Receiver<Newest>,
    render: impl Fn(&Result<Status, String>) -> Frame,
) -> Result<()> {
    let screen = terminal::is_terminal().then(Screen::enter).transpose()?;
    let mut last = None;
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            changed = newest.changed() => changed?,
            _ = tick.tick(), if screen.is_some() => {}
        }
        let Some(Frame { text, key }) = newest.borrow_and_update().as_ref().map(&render) else {
            continue;
        };
        // A terminal is also redrawn when only ages have grown.
        let key = if screen.is_some() { &text } else { &key };
        if last.as_ref() == Some(key) {
            continue;
        }
        match &screen {
            Some(screen) => screen.draw(&text)?,
            None => terminal::print(&text)?,
        }
        last = Some(key.clone());
    }
}

/// Terminal's alternate screen, without cursor and line wrap, with keys read at once. Dropping it restores the terminal.
struct Screen {
    /// Terminal settings to restore; `None` if they were not changed.
    keys: Option<Termios>,
}

impl Screen {
    fn enter() -> std::io::Result<Self> {
        terminal::print("\x1b[?1049h\x1b[?25l\x1b[?7l")?;
        let keys = terminal::is_interactive().then(read_keys_at_once).flatten();
        Ok(Self { keys })
    }

    fn draw(&self, text: &str) -> std::io::Result<()> {
        let hint = self.keys.as_ref();
        let hint = hint.map(|_| Paint::stdout().apply(Tone::Faint, HINT));
        terminal::print(&drawing(text, terminal::size(), hint.as_deref()))
    }
}

/// Turns off echo and line buffering; returns the previous settings.
fn read_keys_at_once() -> Option<Termios> {
    let before = termios::tcgetattr(std::io::stdin()).ok()?;
    let mut now = before.clone();
    now.local_flags
        .remove(LocalFlags::ICANON | LocalFlags::ECHO);
    termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, &now).ok()?;
    Some(before)
}

/// Returns the text that overwrites the screen line by line, which avoids flicker. If the terminal is too small, the last
/// line has the number of missing lines; if a line is left, it has the hint.
fn drawing(text: &str, size: Size, hint: Option<&str>) -> String {
    let all = text.lines().count();
    let fits = all <= size.height;
    let room = if fits {
        all
    } else {
        size.height.saturating_sub(1)
    };
    let mut lines: Vec<Cow<'_, str>> = text
        .lines()
        .take(room)
        .map(|line| terminal::cut(line, size.width))
        .collect();
    if !fits {
        let more = format!("… {} more lines; enlarge the terminal", all - room);
        lines.push(terminal::cut(&more, size.width).into_owned().into());
    }
    let hint = hint.filter(|_| all < size.height);
    lines.extend(hint.map(|hint| terminal::cut(hint, size.width)));
    // Each line is cleared before it is written: clearing in the last column would remove the last character.
    let lines: Vec<String> = lines.iter().map(|line| format!("\x1b[K{line}")).collect();
    format!("\x1b[H{}\x1b[J", lines.join("\r\n"))
}

impl Drop for Screen {
    fn drop(&mut self) {
        // If the terminal has gone, there is nothing to restore.
        drop(terminal::print("\x1b[?7h\x1b[?25h\x1b[?1049l"));
        if let Some(keys) = &self.keys {
            let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_cut_to_the_terminal_with_a_note() {
        let size = Size {
            width: 5,
            height: 2,
        };
        assert_eq!(
            drawing("12345\n1\n", size, Some("q: quit")),
            "\x1b[H\x1b[K12345\r\n\x1b[K1\x1b[J"
        );
        assert_eq!(
            drawing("123456\n1\n2\n", size, Some("q: quit")),
            "\x1b[H\x1b[K1234…\r\n\x1b[K… 2 …\x1b[J"
        );
    }

    #[test]
    fn a_frame_that_leaves_a_line_says_how_to_end_it() {
        let size = Size {
            width: 20,
            height: 2,
        };
        assert_eq!(
            drawing("1\n", size, Some("q: quit")),
            "\x1b[H\x1b[K1\r\n\x1b[Kq: quit\x1b[J"
        );
        assert_eq!(drawing("1\n", size, None), "\x1b[H\x1b[K1\x1b[J");
    }
}
