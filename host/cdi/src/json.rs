//! JSON encoding of specs.

use std::io;

use serde::Serialize;

use crate::spec::Spec;
use crate::version::minimum_version;

impl Spec {
    /// Writes the content of the spec's file: JSON in the lowest version that expresses the spec.
    pub fn write_json(&self, mut file: impl io::Write) -> Result<(), serde_json::Error> {
        let content = Content {
            cdi_version: minimum_version(self),
            spec: self,
        };
        serde_json::to_writer_pretty(&mut file, &content)?;
        file.write_all(b"\n").map_err(serde_json::Error::io)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Content<'a> {
    cdi_version: &'static str,
    #[serde(flatten)]
    spec: &'a Spec,
}
