//! The node agent as a library: registry, sessions, plan, reconcile, offers, admin endpoint. Joins the adapters; no
//! adapter knows it.

pub mod status;
