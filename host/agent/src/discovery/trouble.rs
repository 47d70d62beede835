//! How often trouble is told in the log: bounded for each handler, whatever it does in however many sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::registry::HandlerKey;

const WINDOW: Duration = Duration::from_secs(10);
const LINES: u32 = 5;

/// Lines told, by handler.
#[derive(Debug, Default)]
pub(super) struct Trouble(BTreeMap<HandlerKey, (Instant, u32)>);

impl Trouble {
    /// Whether one more line about that handler is told now.
    pub fn is_told(&mut self, key: &HandlerKey) -> bool {
        let now = Instant::now();
        let (start, lines) = self.0.entry(key.clone()).or_insert((now, 0));
        if now.duration_since(*start) >= WINDOW {
            (*start, *lines) = (now, 0);
        }
        *lines += 1;
        *lines <= LINES
    }

    /// Forgets handlers that are not there any more.
    pub fn keep(&mut self, is_there: impl Fn(&HandlerKey) -> bool) {
        self.0.retain(|key, _| is_there(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_handler_gets_five_lines_in_ten_seconds() {
        let key = |name: &str| HandlerKey {
            name: name.into(),
            source: String::new(),
        };
        let mut trouble = Trouble::default();
        let told = |trouble: &mut Trouble| (0..100).filter(|_| trouble.is_told(&key("a"))).count();
        assert_eq!(told(&mut trouble), 5);
        assert!(trouble.is_told(&key("b")));
        tokio::time::advance(WINDOW).await;
        assert_eq!(told(&mut trouble), 5);
    }
}
