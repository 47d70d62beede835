//! Bindings and pods as an API server answers.
