//! Objects that a holder of the controller's token might write in place of a broker.

use serde_json::json;

use super::*;

/// Changes one place of the object per row and expects a refusal that names the row's field.
fn attack(kind: Kind, object: &Value, manifest: &Manifest, rows: &Value) {
    for row in rows.as_array().unwrap() {
        let [what, place, value, by] = row.as_array().unwrap().as_slice() else {
            panic!("{row}");
        };
        let mut object = object.clone();
        set(&mut object, place.as_str().unwrap(), value.clone());
        let done = review(kind, &object, Some(manifest));
        refused(what.as_str().unwrap(), done, by.as_str().unwrap());
    }
}

#[test]
fn a_container_with_anything_else_is_refused_by_its_field() {
    let rows = json!([
        ["privileged", "securityContext/privileged", true, "securityContext.privileged:"],
        ["escalation", "securityContext/allowPrivilegeEscalation", true, "securityContext.allowPrivilegeEscalation:"],
        ["escalation by default", "securityContext/allowPrivilegeEscalation", null, "securityContext.allowPrivilegeEscalation:"],
        ["capabilities", "securityContext/capabilities", {"add": ["SYS_ADMIN"]}, "securityContext.capabilities:"],
        ["root", "securityContext/runAsUser", 0, "securityContext.runAsUser:"],
        ["another image", "image", "evil", "image:"],
        ["a command", "command", ["sh"], "command:"],
        ["a variable", "env/1", {"name": "LD_PRELOAD", "value": "x"}, "env:"],
        ["a variable's value", "env/0/value", "x", "env[0].value:"],
        ["variables", "envFrom", [{"secretRef": {"name": "s"}}], "envFrom:"],
        ["another device", "resources/limits/akri.sh~1others-1", "1", "resources:"],
        ["more slots", "resources/limits/akri.sh~1cams-8120fe", "2", "resources:"],
        ["a claim", "resources/claims", [{"name": "gpu"}], "resources:"],
        ["a mount", "volumeMounts/2", {"name": "secret", "mountPath": "/s"}, "volumeMounts:"],
        ["a mount that spreads", "volumeMounts/0/mountPropagation", "Bidirectional", "volumeMounts[0].mountPropagation:"],
        ["a token elsewhere", "volumeMounts/1/mountPath", "/etc", "volumeMounts:"],
        ["a disk", "volumeDevices", [{"name": "data", "devicePath": "/dev/x"}], "volumeDevices:"],
        ["a hook", "lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}, "lifecycle:"],
        ["a command as a probe", "livenessProbe", {"exec": {"command": ["sh"]}}, "livenessProbe:"],
        ["a probe elsewhere", "readinessProbe/httpGet/host", "10.0.0.1", "readinessProbe.httpGet.host:"],
        ["a port of the node", "ports/0/hostPort", 80, "ports[0].hostPort:"],
    ]);
    let mut rows = rows;
    for row in rows.as_array_mut().unwrap() {
        let [place, by] = [1, 3].map(|cell| row[cell].as_str().unwrap().to_owned());
        row[1] = json!(format!("/spec/containers/0/{place}"));
        row[3] = json!(format!("spec.containers[0].{by}"));
    }
    attack(Kind::Pod, &pod(), &configuration(), &rows);
}

#[test]
fn a_pod_with_anything_else_is_refused_by_its_field() {
    let rows = json!([
        ["root", "/spec/securityContext/runAsUser", 0, "spec.securityContext.runAsUser:"],
        ["settings of the kernel", "/spec/securityContext/sysctls", [{"name": "a", "value": "b"}], "spec.securityContext.sysctls:"],
        ["a second container", "/spec/containers/1", {"name": "d", "image": "evil"}, "spec.containers:"],
        ["no container", "/spec/containers", null, "spec.containers:"],
        ["an init container", "/spec/initContainers", [{"name": "d", "image": "evil"}], "spec.initContainers:"],
        ["an ephemeral container", "/spec/ephemeralContainers", [{"name": "d", "image": "evil"}], "spec.ephemeralContainers:"],
        ["a volume of the node", "/spec/volumes/3", {"name": "root", "hostPath": {"path": "/"}}, "spec."],
        ["a volume of the node as a token", "/spec/volumes/2", {"name": "kube-api-access-x", "hostPath": {"path": "/"}}, "spec."],
        ["a volume of the node for one that has none", "/spec/volumes/0", {"name": "data", "hostPath": {"path": "/", "type": ""}},
            "spec.volumes[0].hostPath:"],
        ["a secret for one that has none", "/spec/volumes/0", {"name": "data", "secret": {"secretName": "s"}}, "spec.volumes[0].secret:"],
        ["another secret", "/spec/volumes/1/secret/secretName", "other", "spec.volumes[1].secret.secretName:"],
        ["a secret as a token", "/spec/volumes/2/projected/sources/0", {"secret": {"name": "s"}}, "spec."],
        ["a map as a token", "/spec/volumes/2/projected/sources/1/configMap/name", "s", "spec."],
        ["a token for others", "/spec/volumes/2/projected/sources/0/serviceAccountToken/audience", "vault", "spec."],
        ["a second token", "/spec/volumes/3", {"name": "kube-api-access-y", "projected": {"sources": []}}, "spec."],
        ["another account", "/spec/serviceAccountName", "admin", "spec.serviceAccount"],
        ["another account by its early name", "/spec/serviceAccount", "admin", "spec.serviceAccount"],
        ["a token", "/spec/automountServiceAccountToken", true, "spec.automountServiceAccountToken:"],
        ["the node's network", "/spec/hostNetwork", true, "spec.hostNetwork:"],
        ["the node's processes", "/spec/hostPID", true, "spec.hostPID:"],
        ["the node's messages", "/spec/hostIPC", true, "spec.hostIPC:"],
        ["the node's users", "/spec/hostUsers", null, "spec.hostUsers:"],
        ["processes of all containers", "/spec/shareProcessNamespace", true, "spec.shareProcessNamespace:"],
        ["another runtime", "/spec/runtimeClassName", "weak", "spec.runtimeClassName:"],
        ["a node", "/spec/nodeName", "a", "spec.nodeName:"],
        ["another node", "/spec/affinity", null, "spec.affinity:"],
        ["another scheduler", "/spec/schedulerName", "mine", "spec.schedulerName:"],
        ["before all others", "/spec/priorityClassName", "system-node-critical", "spec.priorityClassName:"],
        ["a toleration left out", "/spec/tolerations/0", {"operator": "Exists"}, "spec.tolerations:"],
        ["names of hosts", "/spec/hostAliases", [{"ip": "1.2.3.4", "hostnames": ["a"]}], "spec.hostAliases:"],
        ["servers of names", "/spec/dnsConfig", {"nameservers": ["1.2.3.4"]}, "spec.dnsConfig:"],
        ["claims", "/spec/resourceClaims", [{"name": "gpu"}], "spec.resourceClaims:"],
        ["never restarted", "/spec/restartPolicy", "Never", "spec.restartPolicy:"],
        ["a field that is not known", "/spec/newField", "x", "spec.newField:"],
        ["another name", "/metadata/name", "x", "metadata.name:"],
        ["another node's name", "/metadata/name", "a-cams-8120fe-pod", "metadata.labels:"],
        ["a name that is made", "/metadata/generateName", "x", "metadata.finalizers:"],
        ["another label", "/metadata/labels/app", "shop", "metadata.labels:"],
        ["one more label", "/metadata/labels/x", "y", "metadata.labels:"],
        ["an annotation", "/metadata/annotations/kubernetes.io~1config.mirror", "x", "metadata.annotations:"],
        ["made of something else", "/metadata/annotations/leafhost.dev~1made-of", "x", "metadata.annotations:"],
        ["a finalizer", "/metadata/finalizers", ["a/b"], "metadata.finalizers:"],
        ["one more owner", "/metadata/ownerReferences/1", {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u"},
            "metadata.ownerReferences:"],
        ["no owner", "/metadata/ownerReferences", [], "metadata.ownerReferences:"],
        ["another Instance's uid", "/metadata/ownerReferences/0/uid", "other", "metadata.ownerReferences:"],
        ["the Configuration as owner", "/metadata/ownerReferences/0/kind", "Configuration", "metadata.ownerReferences:"],
    ]);
    attack(Kind::Pod, &pod(), &configuration(), &rows);
}

#[test]
fn a_token_that_the_configuration_does_not_want_is_refused() {
    let mut spec = pod_spec();
    spec["automountServiceAccountToken"] = json!(false);
    let manifest = manifest(&json!({"brokerSpec": {"brokerPodSpec": spec}}));
    let mut with_token = pod_of(&manifest);
    with_token["spec"]["automountServiceAccountToken"] = json!(false);
    refused(
        "a token",
        review(Kind::Pod, &with_token, Some(&manifest)),
        "spec.",
    );
}

#[test]
fn a_job_with_anything_else_is_refused_by_its_field() {
    let rows = json!([
        ["privileged", "/spec/template/spec/containers/0/securityContext/privileged", true,
            "spec.template.spec.containers[0].securityContext.privileged:"],
        ["an account", "/spec/template/spec/serviceAccountName", "admin", "spec.template.spec.serviceAccountName:"],
        ["a volume", "/spec/template/spec/volumes/2", {"name": "r", "hostPath": {"path": "/"}}, "spec.template.spec.volumes:"],
        ["a label of its pods", "/spec/template/metadata/labels/app", "shop", "spec.template.metadata.labels:"],
        ["an annotation of its pods", "/spec/template/metadata/annotations", {"a": ""}, "spec.template.metadata.annotations:"],
        ["many pods", "/spec/parallelism", 100, "spec.parallelism:"],
        ["tries", "/spec/backoffLimit", 6, "spec.backoffLimit:"],
        ["others' pods", "/spec/manualSelector", true, "spec.manualSelector:"],
        ["gone soon", "/spec/ttlSecondsAfterFinished", 1, "spec.ttlSecondsAfterFinished:"],
        ["another controller", "/spec/managedBy", "mine", "spec.managedBy:"],
        ["another generation", "/metadata/name", "cams-8120fe-6-job", "metadata.name:"],
    ]);
    attack(Kind::Job, &job(), &with_job(), &rows);
}

#[test]
fn a_service_with_anything_else_is_refused_by_its_field() {
    let rows = json!([
        ["addresses", "/spec/externalIPs", ["1.2.3.4"], "spec.externalIPs:"],
        ["a name elsewhere", "/spec/type", "ExternalName", "spec.type:"],
        ["the name", "/spec/externalName", "example.com", "spec.externalName:"],
        ["a port of all nodes", "/spec/type", "NodePort", "spec.type:"],
        ["a balancer", "/spec/type", "LoadBalancer", "spec.type:"],
        ["its address", "/spec/loadBalancerIP", "1.2.3.4", "spec.loadBalancerIP:"],
        ["another port", "/spec/ports/0/port", 443, "spec.ports[0].port:"],
        ["one more port", "/spec/ports/1", {"port": 443}, "spec.ports:"],
        ["a port behind it", "/spec/ports/0/targetPort", 443, "spec.ports[0].targetPort:"],
        ["other pods", "/spec/selector", {"app": "shop"}, "spec.selector"],
        ["pods that are not ready", "/spec/publishNotReadyAddresses", true, "spec.publishNotReadyAddresses:"],
        ["another name", "/metadata/name", "shop", "metadata.name:"],
    ]);
    for of_instance in [true, false] {
        attack(
            Kind::Service,
            &service(of_instance),
            &configuration(),
            &rows,
        );
    }
}
