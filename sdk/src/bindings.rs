//! Rust bindings generated from the contract's WIT files.
//!
//! Handler authors see these types under the names that the crate root and [`crate::udev`] give them.

wit_bindgen::generate!({
    world: "discovery-handler",
    path: "wit",
    generate_all,
    additional_derives: [PartialEq, Eq],
    pub_export_macro: true,
    default_bindings_module: "leafhost_sdk::bindings",
});
