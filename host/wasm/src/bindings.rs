//! Rust types of the contract, generated from `wit/`.

#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "generated; the documentation is in wit/"
)]

wasmtime::component::bindgen!({
    path: "../../wit",
    world: "leafhost:discovery/discovery-handler",
    imports: { default: async | trappable },
    exports: { default: async },
});
