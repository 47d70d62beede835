//! Things no handler should do.

use crate::{computing, devices, floods, hoarding, reaching};

/// Does it; returns if it was allowed to.
pub fn commit(deed: &str, argument: &str) {
    let known = computing::commit(deed)
        || floods::commit(deed)
        || hoarding::commit(deed)
        || devices::commit(deed)
        || reaching::commit(deed, argument);
    assert!(known, "no such deed: {deed}");
}
