//! Compares the spec that was built from a Configuration with the spec that is to be stored.
//!
//! Each field of the built spec must be present, and nothing else except what the API server adds by itself.

use leafhost_core::attribute::nanos;
use leafhost_core::brokers::Kind;
use serde_json::{Map, Value, json};

use super::defaults::{is_added, is_added_object, is_nothing};
use super::text;

/// Mount path of the service account token in a container.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Prefix of the name of the volume that holds the token.
const TOKEN_VOLUME: &str = "kube-api-access-";
/// Resources that the limit range of a namespace may set on a container.
const LIMITED: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
/// Labels that the API server sets on the pods of a job.
const JOB_LABELS: [&str; 4] = [
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "controller-uid",
    "job-name",
];

type Fields = Map<String, Value>;

/// Compares two specs; the error is the path of the first field that differs.
pub fn difference(kind: Kind, made: &Value, written: &Value) -> Result<(), String> {
    let root = match kind {
        Kind::Pod => "pod",
        Kind::Job => "job",
        Kind::Service => "service",
        Kind::ClaimTemplate => "claimTemplate",
    };
    Comparison::default().value("spec", "", root, made, written)
}

/// Facts about the pod that the comparison of its parts needs.
#[derive(Default)]
struct Comparison {
    /// Name of the service account token's volume, if the API server added one.
    token: Option<String>,
    uses_host_network: bool,
}

impl Comparison {
    /// Compares the field `field` of an object named `within`.
    fn value(
        &self,
        at: &str,
        within: &str,
        field: &str,
        made: &Value,
        written: &Value,
    ) -> Result<(), String> {
        let is_amount = matches!(
            (within, field),
            ("emptyDir", "sizeLimit") | ("resourceFieldRef", "divisor") | ("overhead", _)
        );
        match (made, written) {
            (made, written) if made == written => Ok(()),
            (made, Value::Null) if is_nothing(field, made) => Ok(()),
            (Value::Object(made), Value::Object(written)) => self.object(at, field, made, written),
            (Value::Null, Value::Object(written)) if is_added_object(within, field) => {
                self.object(at, field, &Fields::new(), written)
            }
            (Value::Array(made), Value::Array(written)) if made.len() == written.len() => {
                let mut pairs = made.iter().zip(written).enumerate();
                pairs.try_for_each(|(index, (made, written))| {
                    self.value(&format!("{at}[{index}]"), "", field, made, written)
                })
            }
            (made, written) if is_amount && are_equal(made, written) => Ok(()),
            (made, written) if is_nothing(field, made) && is_added(within, field, written) => {
                Ok(())
            }
            _ => Err(at.to_owned()),
        }
    }

    fn object(&self, at: &str, name: &str, made: &Fields, written: &Fields) -> Result<(), String> {
        if name == "pod" {
            let of_pod = Self {
                token: added_token(made, written),
                uses_host_network: made.get("hostNetwork") == Some(&true.into()),
            };
            return of_pod.fields(at, name, made, written);
        }
        self.fields(at, name, made, written)
    }

    fn fields(&self, at: &str, name: &str, made: &Fields, written: &Fields) -> Result<(), String> {
        let left_out = made.keys().filter(|field| !written.contains_key(*field));
        for field in written.keys().chain(left_out) {
            let at = format!("{at}.{field}");
            let of = |fields: &Fields| fields.get(field).cloned().unwrap_or_default();
            let (made_value, mut value) = (of(made), of(written));
            let is_right = match (name, field.as_str()) {
                ("pod", "serviceAccountName" | "serviceAccount") => is_account(made, written),
                ("pod", "tolerations") => has_all(&made_value, &value),
                ("pod", "nodeSelector") => has_fields(&made_value, &value),
                ("pod", "volumes") | ("containers", "volumeMounts") => {
                    self.remove_token(&mut value, field == "volumeMounts");
                    self.value(&at, name, field, &made_value, &value)?;
                    true
                }
                // An admission plugin of the API server may set this policy.
                ("containers", "imagePullPolicy") if value == "Always" => true,
                ("ports", "hostPort") if is_nothing(field, &made_value) => {
                    is_nothing(field, &value)
                        || self.uses_host_network && Some(&value) == written.get("containerPort")
                }
                ("ports", "targetPort") if is_nothing(field, &made_value) => {
                    Some(&value) == written.get("port")
                }
                ("pod" | "containers" | "claim", "resources") => has_resources(&made_value, &value),
                ("metadata", "labels" | "annotations") => {
                    for label in JOB_LABELS {
                        let is_own = made_value.get(label).is_some();
                        if let Some(labels) = value.as_object_mut().filter(|_| !is_own) {
                            labels.remove(label);
                        }
                    }
                    made_value == value
                        || is_nothing(field, &made_value) && is_nothing(field, &value)
                }
                (_, other) => {
                    let child = match (name, other) {
                        ("template", "spec") => "pod",
                        ("volumeClaimTemplate", "spec") => "claim",
                        (_, "initContainers" | "ephemeralContainers") => "containers",
                        (_, "livenessProbe" | "readinessProbe" | "startupProbe") => "probe",
                        (_, other) => other,
                    };
                    self.value(&at, name, child, &made_value, &value)?;
                    true
                }
            };
            if !is_right {
                return Err(at);
            }
        }
        Ok(())
    }

    /// Removes the entries that were added for the token from a list of volumes or mounts.
    fn remove_token(&self, list: &mut Value, are_mounts: bool) {
        if let (Some(token), Some(list)) = (&self.token, list.as_array_mut()) {
            list.retain(|entry| {
                let is_there = !are_mounts || text(entry, "mountPath") == TOKEN_PATH;
                text(entry, "name") != token || !is_there
            });
        }
    }
}

/// Returns the name of the volume that the API server added for the service account token.
fn added_token(made: &Fields, written: &Fields) -> Option<String> {
    let of = |fields: &Fields| {
        let volumes = fields.get("volumes").and_then(Value::as_array);
        volumes.cloned().unwrap_or_default()
    };
    let is_refused = made.get("automountServiceAccountToken") == Some(&false.into());
    let made: Vec<Value> = of(made);
    let has = |name: &str| made.iter().any(|volume| text(volume, "name") == name);
    let written = of(written);
    let mut added = written.iter().filter(|volume| {
        let name = text(volume, "name");
        name.starts_with(TOKEN_VOLUME) && !has(name)
    });
    let token = added.next().filter(|volume| is_token(volume))?;
    (!is_refused && added.next().is_none()).then(|| text(token, "name").to_owned())
}

/// Returns true if a volume holds only what the API server gives each container: a token, the cluster's certificate, and the namespace.
fn is_token(volume: &Value) -> bool {
    let mut fields: Vec<&str> = volume
        .as_object()
        .into_iter()
        .flat_map(Fields::keys)
        .map(String::as_str)
        .collect();
    fields.sort_unstable();
    let sources = volume
        .pointer("/projected/sources")
        .and_then(Value::as_array);
    let is_known = |source: &Value| {
        let mut fields = source.as_object().into_iter().flatten();
        match (fields.next(), fields.next()) {
            (Some((kind, token)), None) if kind == "serviceAccountToken" => token
                .get("audience")
                .is_none_or(|audience| is_nothing("", audience)),
            (Some((kind, map)), None) if kind == "configMap" => {
                // OpenShift adds the second.
                ["kube-root-ca.crt", "openshift-service-ca.crt"].contains(&text(map, "name"))
            }
            (Some((kind, _)), None) => kind == "downwardAPI",
            _ => false,
        }
    };
    fields == ["name", "projected"] && sources.is_some_and(|sources| sources.iter().all(is_known))
}

/// Returns true if the pod has the service account of the built spec. A job's template need not name the default one.
fn is_account(made: &Fields, written: &Fields) -> bool {
    let of = |fields: &Fields, field: &str| {
        let name = fields.get(field).and_then(Value::as_str);
        name.filter(|name| !name.is_empty()).map(str::to_owned)
    };
    // `serviceAccount` is the deprecated alias of the field.
    let wanted = of(made, "serviceAccountName").or_else(|| of(made, "serviceAccount"));
    let is_wanted = |name: Option<String>| match (&wanted, name) {
        (None, name) => name.is_none_or(|name| name == "default"),
        (Some(wanted), name) => Some(wanted) == name.as_ref(),
    };
    let (name, alias) = (
        of(written, "serviceAccountName"),
        of(written, "serviceAccount"),
    );
    is_wanted(name) && (alias.is_none() || is_wanted(alias))
}

/// Returns true if the written list contains every entry of the built one.
fn has_all(made: &Value, written: &Value) -> bool {
    let of = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let written = of(written);
    of(made).iter().all(|entry| written.contains(entry))
}

/// Returns true if the written object contains every field of the built one.
fn has_fields(made: &Value, written: &Value) -> bool {
    let mut made = made.as_object().into_iter().flatten();
    made.all(|(field, value)| written.get(field) == Some(value))
}

/// Returns true if the resources are those of the built spec, apart from defaults of the namespace.
fn has_resources(made: &Value, written: &Value) -> bool {
    let of = |value: &Value, kind: &str| value.get(kind).cloned().unwrap_or_default();
    let is_kept = |kind: &str, defaults: &Value| {
        let (made, written) = (of(made, kind), of(written, kind));
        let has = |(name, amount): (&String, &Value)| {
            let written = written.get(name).unwrap_or(&Value::Null);
            amount == written || are_equal(amount, written)
        };
        let is_made_or_added = |(name, amount): (&String, &Value)| {
            let default = defaults.get(name).unwrap_or(&Value::Null);
            made.get(name).is_some()
                || LIMITED.contains(&name.as_str())
                || are_equal(default, amount)
        };
        made.as_object().into_iter().flatten().all(has)
            && written
                .as_object()
                .into_iter()
                .flatten()
                .all(is_made_or_added)
    };
    let nothing = json!({});
    // A missing request defaults to the limit.
    is_kept("limits", &nothing)
        && is_kept("requests", &of(made, "limits"))
        && of(made, "claims") == of(written, "claims")
}

/// Returns true if both values are quantities of the same amount: `0.5` and `500m` are equal.
fn are_equal(one: &Value, other: &Value) -> bool {
    let amount = |value: &Value| match value {
        Value::String(text) => nanos(text),
        Value::Number(number) => nanos(&number.to_string()),
        _ => None,
    };
    amount(one).is_some_and(|one| amount(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_equal_in_whatever_form_they_are_written() {
        for (one, other, expected) in [
            (json!("1"), json!(1), true),
            (json!(0.5), json!("500m"), true),
            (json!("1024Mi"), json!("1Gi"), true),
            (json!("0.0000000001"), json!("1n"), true),
            (json!("1G"), json!("1Gi"), false),
            (json!("1"), json!("2"), false),
            (json!("x"), json!("x"), false),
            (json!("1e99"), json!("1e99"), false),
            (json!(""), json!("0"), false),
            (json!(null), json!("0"), false),
        ] {
            assert_eq!(are_equal(&one, &other), expected, "{one} {other}");
        }
    }
}
