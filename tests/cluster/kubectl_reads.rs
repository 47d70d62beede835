//! The samples, as kubectl reads them and as the agent does.

use std::fs;

use anyhow::{Context, Result, anyhow, ensure};
use leafhost_core::yaml;
use leafhost_tests::cluster;
use leafhost_tests::program::source_tree;
use serde_json::{Value, json};

#[test]
fn the_samples_are_read_as_kubectl_reads_them() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut count = 0;
    for folder in ["cluster", "standalone/configurations"] {
        for entry in fs::read_dir(source_tree().join("deploy/samples").join(folder))? {
            let path = entry?.path();
            let file = path.to_str().context("a name that is no text")?;
            let annotate = ["annotate", "--local", "--filename", file, "read=yes"];
            let printed = cluster.kubectl(&[&annotate[..], &["--output", "json"]].concat())?;
            let theirs = serde_json::Deserializer::from_str(&printed).into_iter::<Value>();
            let theirs = theirs.collect::<Result<Vec<_>, _>>()?;
            let ours = yaml::read_all(&fs::read_to_string(&path)?);
            let mut ours = ours.map_err(|mistake| anyhow!("{file}: {}", mistake.with_line()))?;
            for object in &mut ours {
                object["metadata"]["annotations"]["read"] = json!("yes");
            }
            assert_eq!(ours, theirs, "{file}");
            count += ours.len();
        }
    }
    ensure!(count > 0, "there are no samples");
    Ok(())
}
