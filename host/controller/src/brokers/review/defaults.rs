//! Values that the API server adds to a written pod, job or service: defaults of omitted fields, and what its own admission plugins set.

use serde_json::{Value, json};

/// Fields in which false or zero differs from an omitted field.
const MEANT: [&str; 18] = [
    "activeDeadlineSeconds",
    "allowPrivilegeEscalation",
    "allocateLoadBalancerNodePorts",
    "automountServiceAccountToken",
    "backoffLimit",
    "completions",
    "enableServiceLinks",
    "fsGroup",
    "hostUsers",
    "parallelism",
    "privileged",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsNonRoot",
    "runAsUser",
    "setHostnameAsFQDN",
    "shareProcessNamespace",
    "terminationGracePeriodSeconds",
];

/// Returns true if a field with this value is stored as if it had been omitted.
pub fn is_nothing(field: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_true) => !is_true && !MEANT.contains(&field),
        Value::Number(number) => number.as_i64() == Some(0) && !MEANT.contains(&field),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

/// Returns true if the API server adds this object where there was none; its fields are then defaults, too.
pub fn is_added_object(within: &str, field: &str) -> bool {
    matches!(
        (within, field),
        ("pod" | "containers", "securityContext")
            | ("volumes", "emptyDir")
            | ("service", "sessionAffinityConfig")
            | ("sessionAffinityConfig", "clientIP")
            | ("template" | "volumeClaimTemplate", "metadata")
    )
}

/// Returns true if the API server gives this value to an omitted field. `within` is the name of the object that has the field.
#[expect(clippy::match_same_arms, reason = "a row for each field")]
pub fn is_added(within: &str, field: &str, value: &Value) -> bool {
    let values = match (within, field) {
        ("pod", "restartPolicy") => json!(["Always"]),
        ("pod", "dnsPolicy") => json!(["ClusterFirst"]),
        ("pod", "schedulerName") => json!(["default-scheduler"]),
        ("pod", "terminationGracePeriodSeconds") => json!([30]),
        ("pod", "enableServiceLinks") => json!([true]),
        ("pod", "preemptionPolicy") => json!(["PreemptLowerPriority", "Never"]),
        // The API server derives both: from the priority class, and from the runtime class.
        ("pod", "priority" | "overhead") => return true,
        // Name of the cluster's default class, which is never a system class.
        ("pod", "priorityClassName") => {
            return value
                .as_str()
                .is_some_and(|name| !name.starts_with("system-"));
        }
        // Taken from the service account.
        ("pod", "imagePullSecrets") => return true,
        ("containers", "terminationMessagePath") => json!(["/dev/termination-log"]),
        ("containers", "terminationMessagePolicy") => json!(["File"]),
        ("containers", "imagePullPolicy") | ("image", "pullPolicy") => {
            json!(["Always", "IfNotPresent"])
        }
        ("securityContext", "procMount") => json!(["Default"]),
        ("probe", "timeoutSeconds" | "successThreshold") => json!([1]),
        ("probe", "periodSeconds") => json!([10]),
        ("probe", "failureThreshold") => json!([3]),
        ("httpGet", "path") => json!(["/"]),
        ("httpGet", "scheme") => json!(["HTTP"]),
        ("ports", "protocol") => json!(["TCP"]),
        ("fieldRef", "apiVersion") => json!(["v1"]),
        ("resourceFieldRef", "divisor") => json!(["0"]),
        ("secret" | "configMap" | "downwardAPI" | "projected", "defaultMode") => json!([0o644]),
        ("serviceAccountToken", "expirationSeconds") => json!([3600]),
        ("podCertificate", "maxExpirationSeconds") => json!([86400]),
        ("claim", "volumeMode") => json!(["Filesystem"]),
        ("iscsi", "iscsiInterface") => json!(["default"]),
        ("rbd", "pool") => json!(["rbd"]),
        ("rbd", "user") => json!(["admin"]),
        ("rbd", "keyring") => json!(["/etc/ceph/keyring"]),
        ("azureDisk", "cachingMode") => json!(["ReadWrite"]),
        ("azureDisk", "kind") => json!(["Shared"]),
        ("azureDisk", "fsType") => json!(["ext4"]),
        ("scaleIO", "storageMode") => json!(["ThinProvisioned"]),
        ("scaleIO", "fsType") => json!(["xfs"]),
        ("job", "completions" | "parallelism") => json!([1]),
        ("job", "backoffLimit") => json!([6, i32::MAX]),
        ("job", "completionMode") => json!(["NonIndexed"]),
        ("job", "podReplacementPolicy") => json!(["TerminatingOrFailed", "Failed"]),
        ("job", "suspend") => json!([false]),
        // The API server generates the selector unless manualSelector is set.
        ("job", "selector") => return true,
        ("onPodConditions", "status") => json!(["True"]),
        ("service", "type") => json!(["ClusterIP"]),
        ("service", "sessionAffinity") => json!(["None"]),
        ("clientIP", "timeoutSeconds") => json!([10800]),
        ("service", "internalTrafficPolicy" | "externalTrafficPolicy") => json!(["Cluster"]),
        ("service", "allocateLoadBalancerNodePorts") => json!([true]),
        // The API server chooses these values.
        (
            "service",
            "clusterIP" | "clusterIPs" | "ipFamilies" | "ipFamilyPolicy" | "healthCheckNodePort",
        )
        | ("ports", "nodePort") => return true,
        _ => return is_nothing(field, value),
    };
    let values = values
        .as_array()
        .is_some_and(|values| values.contains(value));
    values || is_nothing(field, value)
}
