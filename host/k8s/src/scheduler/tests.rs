//! Tests of Bindings and pods against answers of an API server.
