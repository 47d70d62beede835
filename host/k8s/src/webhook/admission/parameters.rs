//! Reviews the parameters for Leafhost's devices in claims, claim templates and device classes. The agent would refuse them only when a pod
//! starts.

use leafhost_core::claim::Parameters;
use serde_json::Value;

/// Returns the problems of an object's parameters for Leafhost's driver, each with its field.
pub fn problems(kind: &str, object: &Value) -> Vec<String> {
    let path = match kind {
        "ResourceClaim" => "spec.devices.config",
        "ResourceClaimTemplate" => "spec.spec.devices.config",
        "DeviceClass" => "spec.config",
        _ => return Vec::new(),
    };
    let configs = object.pointer(&format!("/{}", path.replace('.', "/")));
    let configs = configs.and_then(Value::as_array).into_iter().flatten();
    let wrong = configs.enumerate().filter_map(|(number, config)| {
        let opaque = config.get("opaque")?;
        let driver = opaque.get("driver").and_then(Value::as_str)?;
        let why = Parameters::read(driver, &[], opaque.get("parameters")?).err()?;
        Some(format!("{path}[{number}].opaque.parameters: {why}"))
    });
    wrong.collect()
}

#[cfg(test)]
mod tests {
    use leafhost_core::slices::DRIVER;
    use serde_json::json;

    use super::*;

    #[test]
    fn parameters_of_our_driver_are_read_wherever_they_are() {
        let config = |driver: &str, parameters: &Value| json!([{"opaque": {"driver": "gpu.example.com", "parameters": {}}}, {"opaque": {"driver": driver, "parameters": parameters}}]);
        let good = json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"MODE": "fast"}});
        let mut dangerous = good.clone();
        dangerous["properties"]["LD_PRELOAD"] = json!("/x");
        let other = json!({"apiVersion": "gpu.example.com/v1", "kind": "GpuConfig"});
        for (parameters, said) in [
            (&good, None),
            (&dangerous, Some("properties.LD_PRELOAD may not be set")),
            (&other, Some("GpuConfig are not known")),
        ] {
            let config = config(DRIVER, parameters);
            for (kind, path, object) in [
                (
                    "ResourceClaim",
                    "spec.devices.config[1]",
                    json!({"spec": {"devices": {"config": config}}}),
                ),
                (
                    "ResourceClaimTemplate",
                    "spec.spec.devices.config[1]",
                    json!({"spec": {"spec": {"devices": {"config": config}}}}),
                ),
                (
                    "DeviceClass",
                    "spec.config[1]",
                    json!({"spec": {"config": config}}),
                ),
            ] {
                let found = problems(kind, &object).concat();
                assert_eq!(found.is_empty(), said.is_none(), "{found}");
                assert!(
                    said.is_none_or(|said| found.starts_with(path) && found.contains(said)),
                    "{found}"
                );
            }
        }
        let others = json!({"spec": {"config": config("gpu.example.com", &other)}});
        assert!(problems("DeviceClass", &others).is_empty());
        assert!(problems("DeviceClass", &json!({"spec": {}})).is_empty());
        assert!(problems("Pod", &others).is_empty());
    }
}
