//! `leafhost select`: shows the devices that a scheduler would choose for a pod now, and the unmet condition of each other
//! device.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use leafhost_core::scheduling::{DEVICES, Pod, PodKey, PodSpec, PodStatus};
use leafhost_core::yaml;
use leafhost_scheduler::{Explanation, explain};
use serde::Deserialize as _;
use serde_json::Value;

use crate::args::SelectArgs;
use crate::runtime::block_on;
use crate::table::{Cell, Table};
use crate::terminal::{self, Output, Paint, Tone};

pub fn run(args: &SelectArgs) -> Result<()> {
    let pods = read(&args.file)?;
    let found = block_on(async {
        let client = leafhost_k8s::connect_as_user().await?;
        let read = leafhost_k8s::read_once(&client).await;
        read.map_err(anyhow::Error::msg)
    });
    let (instances, names) = found?;
    let names = Arc::new(names);
    for pod in pods {
        let explained = explain(instances.clone(), Arc::clone(&names), &pod);
        let explained = explained.map_err(anyhow::Error::msg);
        let explained = explained.with_context(|| format!("pod {}", pod.key.name))?;
        let text = match args.output {
            Output::Table => table(&explained),
            output => terminal::document(output, false, &document(&explained))?,
        };
        terminal::print(&text)?;
    }
    Ok(())
}

/// Returns the pods of a file that request devices, including those of templates.
fn read(file: &Path) -> Result<Vec<Pod>> {
    let shown = file.display();
    let text = if file == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(file)
    };
    let text = text.with_context(|| format!("cannot read {shown}"))?;
    let mut pods = Vec::new();
    let objects = yaml::read_all(&text);
    let objects =
        objects.map_err(|mistake| anyhow!("cannot read {shown}: {}", mistake.with_line()))?;
    for object in objects {
        let places = ["", "/spec/template", "/spec/jobTemplate/spec/template"];
        let name = object.pointer("/metadata/name").and_then(Value::as_str);
        let found = places.iter().filter_map(|place| object.pointer(place));
        for template in found {
            pods.extend(pod(name.unwrap_or_default(), template));
        }
    }
    if pods.is_empty() {
        bail!("no pod in {shown} has a container with the limit {DEVICES}: 1");
    }
    Ok(pods)
}

fn pod(name: &str, template: &Value) -> Option<Pod> {
    let spec = PodSpec::deserialize(template.get("spec")?).ok()?;
    let annotations = template.pointer("/metadata/annotations");
    let annotations = annotations.and_then(Value::as_object).into_iter().flatten();
    let annotations = annotations
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect();
    let key = PodKey {
        namespace: String::new(),
        name: name.to_owned(),
    };
    let id = (key, String::new());
    let pod = Pod::read(id, &annotations, spec, PodStatus::default());
    Some(pod).filter(Pod::asks)
}

fn document(explained: &Explanation) -> Value {
    let nodes = explained.nodes.iter().map(|(node, found)| {
        let found = match found {
            Ok(given) => serde_json::json!({"devices": given}),
            Err(why) => serde_json::json!({"reason": why}),
        };
        (node.clone(), found)
    });
    let nodes: serde_json::Map<String, Value> = nodes.collect();
    serde_json::json!({"nodes": nodes, "others": explained.others})
}

fn table(explained: &Explanation) -> String {
    let mut nodes = Table::new(&["NODE", "DEVICES"]);
    for (node, found) in &explained.nodes {
        let cell = match found {
            Ok(given) => {
                let each = given.iter();
                let each =
                    each.map(|(container, names)| format!("{container}: {}", names.join(" ")));
                Cell::new(Tone::Good, each.collect::<Vec<_>>().join(", "))
            }
            Err(why) => Cell::new(Tone::Bad, why.clone()),
        };
        nodes.row([node.as_str().into(), cell]);
    }
    let mut others = Table::new(&["INSTANCE", "NOT CHOSEN BECAUSE"]);
    for (name, why) in &explained.others {
        others.row([name.as_str().into(), why.as_str().into()]);
    }
    let tables = [nodes, others].into_iter();
    let blocks = tables.filter(|table| !table.is_empty()).map(|table| {
        let table = if terminal::is_terminal() {
            table.fitted(terminal::size().width, &[])
        } else {
            table
        };
        table.lines(Paint::stdout()).join("\n") + "\n"
    });
    let blocks: Vec<String> = blocks.collect();
    if blocks.is_empty() {
        return "the cluster has no devices\n".to_owned();
    }
    blocks.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_and_templates_that_ask_for_devices_are_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let template = "metadata: {annotations: {leafhost.dev/devices: 'main: {}'}}\n    spec: {containers: [{name: main, resources: {limits: {leafhost.dev/devices: 1}}}]}";
        let text = format!(
            "kind: ConfigMap\nmetadata: {{name: c}}\n---\nkind: Deployment\nmetadata: {{name: d}}\nspec:\n  template:\n    {template}\n"
        );
        std::fs::write(file.path(), &text).unwrap();
        let pods = read(file.path()).unwrap();
        let [pod] = &pods[..] else {
            panic!("{pods:?}");
        };
        assert_eq!((&*pod.key.name, &*pod.devices), ("d", "main: {}"));
        std::fs::write(file.path(), "kind: Pod\nspec: {containers: []}\n").unwrap();
        let none = read(file.path()).unwrap_err().to_string();
        assert!(none.contains("leafhost.dev/devices: 1"), "{none}");
    }
}
