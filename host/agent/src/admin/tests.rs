//! The endpoint as a client sees it.
