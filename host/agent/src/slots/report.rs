//! What the slot task shows.

use super::unit::Unit;

/// The slots of this node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SlotReport {
    /// Those this node has.
    pub slots: Vec<SlotView>,
    /// Whether a kubelet runs of which no registration socket is there.
    pub socket_missing: bool,
    /// What keeps devices from being offered or slots from coming back, with the remedy.
    pub problems: Vec<String>,
}

/// A slot of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// The slot's id.
    pub slot: String,
    /// What the kubelet calls it.
    pub unit: Unit,
    /// Who was seen to have it.
    pub holder: Option<String>,
}
