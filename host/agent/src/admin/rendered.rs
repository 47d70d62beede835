//! The status document as it is sent: made aside from what has to be in time, once for all who ask for one version, and only so many
//! of them in memory, however slowly they are taken.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;

use crate::document::Board;

/// So many documents are in memory: who asks for another one waits until one has been taken.
const DOCUMENTS: usize = 2;

/// The documents that are being sent.
#[derive(Debug)]
pub(super) struct Rendered {
    places: Arc<Semaphore>,
    newest: Mutex<(u64, Weak<Document>)>,
}

impl Default for Rendered {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(DOCUMENTS)),
            newest: Mutex::default(),
        }
    }
}

/// A document; its place is free again when nobody is sent it any more.
#[derive(Debug)]
struct Document {
    text: Vec<u8>,
    _place: OwnedSemaphorePermit,
}

/// A document that somebody is sent.
#[derive(Debug, Clone)]
pub(super) struct Text(Arc<Document>);

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        &self.0.text
    }
}

impl Rendered {
    /// The status of that version, as JSON; nothing if it cannot be made, which is a bug.
    pub async fn status(&self, board: &Board, version: u64) -> Option<Text> {
        if let Some(text) = self.held(version) {
            return Some(text);
        }
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        if let Some(text) = self.held(version) {
            return Some(text);
        }
        let board = board.clone();
        let made = spawn_blocking(move || {
            serde_json::to_vec(&board.status()).map(|text| Document {
                text,
                _place: place,
            })
        });
        let text = match made.await {
            Ok(Ok(document)) => Text(Arc::new(document)),
            Ok(Err(error)) => {
                tracing::error!(%error, "the status cannot be put into JSON, which is a bug");
                return None;
            }
            Err(_) => {
                tracing::error!("making the status broke down, which is a bug");
                return None;
            }
        };
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        *newest = (version, Arc::downgrade(&text.0));
        Some(text)
    }

    /// How many more documents may be made now.
    #[cfg(test)]
    pub fn free(&self) -> usize {
        self.places.available_permits()
    }

    fn held(&self, version: u64) -> Option<Text> {
        let newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, document) = &*newest;
        let document = document.upgrade().filter(|_| *held == version)?;
        Some(Text(document))
    }
}
