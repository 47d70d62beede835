//! Model of slots: who holds which slot, which devices are offered, and which slots an Allocate call gets. Pure: reads no clock, does no I/O, and
//! does not depend on the task that uses it.

pub mod claim;
pub mod context;
pub mod name_index;
pub mod offers;
pub mod slot_state;
pub mod slot_table;
pub mod snapshot;
pub mod warmup;
