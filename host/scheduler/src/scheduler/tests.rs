//! The extender against a cluster that is played.
