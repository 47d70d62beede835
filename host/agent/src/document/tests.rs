//! The status document.
