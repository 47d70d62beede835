//! Flags that select the files of handlers, shared by all commands that load handlers.

use std::path::PathBuf;

use clap::Args;

/// Folders with handlers.
#[derive(Debug, Clone, Args)]
pub struct HandlersDirArgs {
    /// Another folder with handlers, searched after DIR/handlers or the ConfigMaps; may be repeated
    #[arg(long, value_name = "DIR", value_delimiter = ':')]
    pub handlers_dir: Vec<PathBuf>,
}

/// Handlers that are left out.
#[derive(Debug, Clone, Args)]
pub struct WithoutHandlersArgs {
    /// Files of handlers that are not loaded from any folder or ConfigMap, such as debug-echo.wasm; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub without_handlers: Vec<String>,
}
