//! Rendered chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result};
use leafhost_tests::cluster::{self, Cluster};
use leafhost_tests::program::source_tree;
use serde_json::Value;

mod values;

fn chart() -> String {
    let path = source_tree().join("deploy/chart");
    path.to_string_lossy().into_owned()
}

/// Returns the objects of the chart with these values.
fn render(cluster: &Cluster, values: &[&str]) -> Result<Vec<Value>> {
    let chart = chart();
    let mut arguments = vec!["template", "leafhost", &chart, "--namespace", "agents"];
    arguments.extend(values.iter().flat_map(|value| ["--set", value]));
    let text = cluster.helm(&arguments)?;
    Ok(serde_saphyr::from_multiple(&text)?)
}

/// Values that enable the optional monitoring objects.
const MONITORED: [&str; 4] = [
    "prometheus.enabled=true",
    "prometheus.podMonitor.enabled=true",
    "prometheus.dashboard.enabled=true",
    "prometheus.rules.enabled=true",
];

#[test]
fn helm_3_and_helm_4_make_the_same_objects() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let read = |text: String| -> Result<Vec<Value>> {
        let mut objects: Vec<Value> = serde_saphyr::from_multiple(&text)?;
        objects.sort_by_key(|object| format!("{} {}", object["kind"], object["metadata"]));
        Ok(objects)
    };
    // Built as a module, Helm 3 does not know the version of Kubernetes.
    let (chart, values) = (chart(), MONITORED.join(","));
    let mut template = vec!["template", "leafhost", &chart, "--include-crds"];
    template.extend(["--kube-version=1.37.0", "--set", &values]);
    let (three, four) = (cluster.helm3(&template)?, cluster.helm(&template)?);
    assert_eq!(read(three)?, read(four)?);
    Ok(())
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    let found = objects.iter().filter(|object| object["kind"] == kind);
    found.collect()
}

/// Returns the rights of roles of this kind: "verb resource" by namespace.
fn rights(objects: &[Value], kind: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for role in of_kind(objects, kind) {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        let rights = all.entry(namespace.to_owned()).or_default();
        for rule in role["rules"].as_array().into_iter().flatten() {
            for resource in texts(&rule["resources"]) {
                let verbs = texts(&rule["verbs"]);
                rights.extend(verbs.iter().map(|verb| format!("{verb} {resource}")));
            }
        }
    }
    all
}

fn texts(value: &Value) -> BTreeSet<&str> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(Value::as_str).collect()
}

#[test]
fn the_chart_passes_lint_and_has_the_version_of_the_program() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let lint = ["lint", "--strict", &chart()];
    let values = MONITORED.join(",");
    for lint in [&lint[..], &[&lint[..], &["--set", &values]].concat()] {
        cluster.helm(lint)?;
        cluster.helm3(lint)?;
    }
    let text = fs::read_to_string(source_tree().join("deploy/chart/Chart.yaml"))?;
    let chart: Value = serde_saphyr::from_str(&text)?;
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    Ok(())
}

#[test]
fn the_agents_may_read_secrets_only_in_namespaces_that_are_named() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let is_of_secrets = |right: &String| right.contains("secrets") || right.contains('*');
    // The webhook has a Secret of its own.
    let no_webhook = "webhookConfiguration.enabled=false";
    let usual = render(cluster, &[no_webhook])?;
    for kind in ["Role", "ClusterRole"] {
        for (namespace, rights) in rights(&usual, kind) {
            assert!(!rights.iter().any(is_of_secrets), "{namespace} {rights:?}");
        }
    }
    let values = [
        "agent.propertiesNamespaces={cameras,plants}",
        "agent.handlersNamespace=handlers",
        no_webhook,
    ];
    let named = render(cluster, &values)?;
    let rights_of = rights(&named, "Role");
    let with: Vec<&String> = rights_of
        .iter()
        .filter(|(_, rights)| rights.iter().any(is_of_secrets))
        .map(|(namespace, _)| namespace)
        .collect();
    assert_eq!(with, ["cameras", "plants"]);
    let configmaps = ["get configmaps", "list configmaps", "watch configmaps"];
    assert_eq!(rights_of["handlers"], configmaps.map(String::from).into());
    // No role works without its binding; the fourth binds the controller to its Lease.
    assert_eq!(of_kind(&named, "RoleBinding").len(), 4);
    assert!(render(cluster, &["rbac.enabled=false", no_webhook])?.len() < usual.len());
    Ok(())
}

#[test]
fn the_webhook_may_read_and_write_its_own_secret_and_no_other() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let objects = render(cluster, &["webhookConfiguration.failurePolicy=Ignore"])?;
    let rules = of_kind(&objects, "Role")
        .into_iter()
        .flat_map(|role| role["rules"].as_array().into_iter().flatten());
    let of_secrets: Vec<&Value> = rules
        .filter(|rule| texts(&rule["resources"]).contains("secrets"))
        .collect();
    let [of_secrets] = of_secrets.as_slice() else {
        anyhow::bail!("not one rule: {of_secrets:#?}");
    };
    let named = serde_json::json!(["leafhost-webhook-certificate"]);
    assert_eq!(of_secrets["resourceNames"], named);
    assert_eq!(
        texts(&of_secrets["verbs"]),
        ["list", "update", "watch"].into()
    );
    let [secret] = *of_kind(&objects, "Secret") else {
        anyhow::bail!("not one Secret: {objects:#?}");
    };
    assert_eq!(secret["metadata"]["name"], named[0]);
    // The webhook writes the data of the Secret.
    assert_eq!(
        (&secret["type"], &secret["data"]),
        (&"Opaque".into(), &Value::Null)
    );
    let [webhook] = *of_kind(&objects, "ValidatingWebhookConfiguration") else {
        anyhow::bail!("no webhook: {objects:#?}");
    };
    assert_eq!(webhook["webhooks"][0]["failurePolicy"], "Ignore");
    Ok(())
}

#[test]
fn the_webhook_reviews_what_the_controller_writes_and_nothing_of_others() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let hooks = |values: &[&str]| -> Result<Vec<Value>> {
        let objects = render(cluster, values)?;
        let [webhook] = *of_kind(&objects, "ValidatingWebhookConfiguration") else {
            anyhow::bail!("no webhook: {objects:#?}");
        };
        let hooks = webhook["webhooks"].as_array();
        Ok(hooks.cloned().unwrap_or_default())
    };
    let usual = hooks(&[])?;
    let [users, parameters, brokers, names] = usual.as_slice() else {
        anyhow::bail!("not four: {usual:#?}");
    };
    let account = "request.userInfo.username == 'system:serviceaccount:agents:leafhost-controller'";
    for hook in [brokers, names] {
        let conditions = hook["matchConditions"].as_array().map_or(0, Vec::len);
        let expression = &hook["matchConditions"][0]["expression"];
        assert_eq!((conditions, expression), (1, &account.into()));
        assert_eq!(hook["failurePolicy"], "Fail");
    }
    for (without, left) in [
        ("controller.enabled", vec![users, parameters]),
        ("controller.brokers.enabled", vec![users, parameters, names]),
        (
            "webhookConfiguration.brokers.enabled",
            vec![users, parameters, names],
        ),
    ] {
        let objects = hooks(&[&format!("{without}=false")])?;
        assert_eq!(objects.iter().collect::<Vec<_>>(), left, "{without}");
    }
    Ok(())
}

#[test]
fn clients_connect_to_the_webhook_and_to_metrics_and_to_nothing_else() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let ingress = |values: &[&str]| -> Result<BTreeMap<String, Value>> {
        let objects = render(cluster, values)?;
        let policies = of_kind(&objects, "NetworkPolicy")
            .into_iter()
            .map(|policy| {
                assert_eq!(
                    policy["spec"]["policyTypes"],
                    serde_json::json!(["Ingress"])
                );
                let name = policy["metadata"]["name"].as_str().unwrap_or_default();
                (name.to_owned(), policy["spec"]["ingress"].clone())
            });
        Ok(policies.collect())
    };
    let https = serde_json::json!([{"ports": [{"port": "https", "protocol": "TCP"}]}]);
    let usual = ingress(&[])?;
    assert_eq!(usual["leafhost-webhook"], https);
    assert_eq!(usual["leafhost-controller"], Value::Null);
    let from = "webhookConfiguration.networkPolicy.from[0].ipBlock.cidr=10.0.0.0/24";
    let more = ingress(&[from, "prometheus.enabled=true"])?;
    let block = serde_json::json!([{"ipBlock": {"cidr": "10.0.0.0/24"}}]);
    assert_eq!(more["leafhost-webhook"][0]["from"], block);
    let metrics = serde_json::json!([{"ports": [{"port": "metrics", "protocol": "TCP"}]}]);
    assert_eq!(more["leafhost-controller"], metrics);
    let none = [
        "webhookConfiguration.networkPolicy.enabled=false",
        "controller.networkPolicy.enabled=false",
    ];
    assert_eq!(ingress(&none)?, BTreeMap::new());
    Ok(())
}

#[test]
fn the_controller_may_make_pods_only_if_it_makes_brokers() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let usual = render(cluster, &[])?;
    let without = render(cluster, &["controller.brokers.enabled=false"])?;
    let makes = |objects: &[Value]| {
        let mut all = rights(objects, "ClusterRole")
            .remove("")
            .unwrap_or_default();
        all.retain(|right| right.starts_with("create "));
        all
    };
    let made =
        ["jobs", "pods", "services", "resourceclaimtemplates"].map(|kind| format!("create {kind}"));
    assert_eq!(&makes(&usual) - &makes(&without), made.into());
    assert!(format!("{without:?}").contains("--no-brokers"));
    Ok(())
}

#[test]
fn the_controller_may_evict_pods_only_if_a_value_says_so() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let without = "controller.brokers.enabled=false";
    let usual = render(cluster, &[without])?;
    let restarting = render(cluster, &[without, "controller.restartPods=true"])?;
    let of = |objects: &[Value]| {
        rights(objects, "ClusterRole")
            .remove("")
            .unwrap_or_default()
    };
    let added = ["create pods/eviction", "get pods"].map(String::from);
    assert_eq!(&of(&restarting) - &of(&usual), added.into());
    let (usual, restarting) = (format!("{usual:?}"), format!("{restarting:?}"));
    assert!(!usual.contains("--restart-pods") && restarting.contains("--restart-pods"));
    Ok(())
}

#[test]
fn the_controller_may_patch_nodes_only_if_a_value_says_so_and_a_policy_restricts_it() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let usual = render(cluster, &[])?;
    let labelling = render(cluster, &["controller.nodeLabels=true"])?;
    let of = |objects: &[Value]| {
        rights(objects, "ClusterRole")
            .remove("")
            .unwrap_or_default()
    };
    let added = ["patch nodes"].map(String::from);
    assert_eq!(&of(&labelling) - &of(&usual), added.into());
    for (objects, is_there) in [(usual, false), (labelling, true)] {
        assert_eq!(format!("{objects:?}").contains("--node-labels"), is_there);
        for kind in [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ] {
            let all = of_kind(&objects, kind);
            let is_it = |one: &&Value| one["metadata"]["name"] == "leafhost-agent-node-labels";
            assert_eq!(all.into_iter().any(|one| is_it(&one)), is_there, "{kind}");
        }
    }
    Ok(())
}

#[test]
fn the_agents_container_has_no_privilege_and_only_the_folders_it_needs() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let objects = render(cluster, &[])?;
    let [daemonset] = *of_kind(&objects, "DaemonSet") else {
        anyhow::bail!("no DaemonSet: {objects:#?}");
    };
    let pod = &daemonset["spec"]["template"]["spec"];
    let [container] = pod["containers"]
        .as_array()
        .context("no containers")?
        .as_slice()
    else {
        anyhow::bail!("not one container: {pod:#}");
    };
    assert_eq!(
        container["securityContext"],
        serde_json::json!({
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
        })
    );
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    let mounts = container["volumeMounts"].as_array().context("no mounts")?;
    let is_read_only = |mount: &&Value| mount["readOnly"] == true;
    let paths = |mounts: Vec<&Value>| {
        let paths = mounts
            .iter()
            .filter_map(|mount| mount["mountPath"].as_str());
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    let (read, written): (Vec<_>, Vec<_>) = mounts.iter().partition(is_read_only);
    let kubelet = |folder: &str| format!("/var/lib/kubelet/{folder}");
    assert_eq!(
        paths(written),
        [
            "/var/lib/leafhost".to_owned(),
            "/etc/cdi".to_owned(),
            kubelet("device-plugins"),
            kubelet("plugins_registry"),
            kubelet("plugins/leafhost.dev"),
            "/var/lib/akri".to_owned()
        ]
    );
    assert_eq!(
        paths(read),
        [
            kubelet("pod-resources"),
            kubelet("pods"),
            "/dev".to_owned(),
            "/run/udev".to_owned()
        ]
    );
    Ok(())
}

#[test]
fn handlers_built_for_akri_register_where_the_values_say_with_the_grants_they_have() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let folder = "agent.host.discoveryHandlers";
    let grants = "agent.externalHandlers.grants.debugEcho=devices: {}";
    let flag = "--external-handlers-dir=/var/lib/akri";
    for (values, flag, of_host, granted) in [
        (vec![], flag, Some("/var/lib/akri"), None),
        // Handlers still see the folder under the same name.
        (vec![format!("{folder}=/akri")], flag, Some("/akri"), None),
        (
            vec![format!("{folder}="), grants.to_owned()],
            "--no-external-handlers",
            None,
            Some("devices: {}"),
        ),
    ] {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let objects = render(cluster, &values)?;
        let [daemonset] = *of_kind(&objects, "DaemonSet") else {
            anyhow::bail!("no DaemonSet: {objects:#?}");
        };
        let pod = &daemonset["spec"]["template"]["spec"];
        assert!(
            texts(&pod["containers"][0]["args"]).contains(flag),
            "{flag}"
        );
        let mut volumes = pod["volumes"].as_array().into_iter().flatten();
        let volume = volumes.find(|volume| volume["name"] == "discovery-handlers");
        let path = volume.and_then(|volume| volume["hostPath"]["path"].as_str());
        assert_eq!(path, of_host, "{flag}");
        let maps = of_kind(&objects, "ConfigMap");
        let found = maps
            .iter()
            .find(|map| map["metadata"]["labels"]["leafhost.dev/handlers"] == "true");
        let text = found.and_then(|map| map["data"]["debugEcho.grants.yaml"].as_str());
        assert_eq!(text, granted);
    }
    Ok(())
}

#[test]
fn monitors_of_the_prometheus_operator_find_the_ports_and_are_made_only_if_asked_for() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let usual = render(cluster, &MONITORED[..1])?;
    assert!(of_kind(&usual, "PodMonitor").is_empty());
    assert!(of_kind(&usual, "ConfigMap").is_empty());
    let mut values = MONITORED.to_vec();
    values.extend(["prometheus.portName=numbers", "prometheus.port=9000"]);
    values.extend([
        "scheduler.enabled=true",
        "scheduler.kubeScheduler.enabled=false",
        "scheduler.healthPort=9000",
    ]);
    let objects = render(cluster, &values)?;
    let monitors = of_kind(&objects, "PodMonitor");
    for (kind, name) in [
        ("DaemonSet", "agent"),
        ("Deployment", "controller"),
        ("Deployment", "scheduler"),
    ] {
        let name = format!("leafhost-{name}");
        let is_named = |object: &&&Value| object["metadata"]["name"] == name;
        let monitor = monitors.iter().find(is_named).context("no PodMonitor")?;
        assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
        let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
        assert_eq!(endpoint["path"], "/metrics");
        let of_kind = of_kind(&objects, kind);
        let workload = of_kind.iter().find(is_named).context("no workload")?;
        let template = &workload["spec"]["template"];
        let selected = monitor["spec"]["selector"]["matchLabels"].as_object();
        for (label, value) in selected.context("no selector")? {
            assert_eq!(template["metadata"]["labels"][label], *value, "{name}");
        }
        let container = &template["spec"]["containers"][0];
        assert_eq!(container["ports"][0]["name"], endpoint["port"], "{name}");
        assert_eq!(container["ports"][0]["containerPort"], 9000, "{name}");
        let flag = "--metrics-listen=$(LEAFHOST_POD_ADDRESS):9000";
        assert!(texts(&container["args"]).contains(flag), "{name}");
    }
    assert_eq!(monitors.len(), 3);
    let [dashboard] = *of_kind(&objects, "ConfigMap") else {
        anyhow::bail!("not one ConfigMap: {objects:#?}");
    };
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = fs::read_to_string(source_tree().join("deploy/chart/dashboard.json"))?;
    assert_eq!(dashboard["data"]["leafhost.json"], text);
    Ok(())
}

#[test]
fn a_handler_in_pods_of_its_own_is_left_out_by_the_agents_and_has_grants() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let left_out = |objects: &[Value], kind: &str, name: &str| -> Option<String> {
        let is_named = |one: &&&Value| one["metadata"]["name"] == name;
        let all = of_kind(objects, kind);
        let found = all.iter().find(is_named)?;
        let all = texts(&found["spec"]["template"]["spec"]["containers"][0]["args"]);
        let mut found = all
            .iter()
            .filter_map(|argument| argument.strip_prefix("--without-handlers="));
        found.next().map(str::to_owned)
    };
    let of_agents = |objects: &[Value]| left_out(objects, "DaemonSet", "leafhost-agent");
    let usual = render(cluster, &[])?;
    assert_eq!(of_agents(&usual), None);
    let values = [
        "agent.allowDebugEcho=false",
        "agent.withoutHandlers={opcua,debug-echo}",
        "udev.discovery.enabled=true",
        "udev.discovery.image.tag=other",
    ];
    let objects = render(cluster, &values)?;
    let expected = "opcua.wasm,debug-echo.wasm,udev.wasm";
    assert_eq!(of_agents(&objects).as_deref(), Some(expected));
    // The handler that has pods of its own stays in the image, because the webhook needs its schema of details.
    let of_webhook = left_out(&objects, "Deployment", "leafhost-webhook");
    assert_eq!(of_webhook.as_deref(), Some("opcua.wasm,debug-echo.wasm"));
    let daemonsets = of_kind(&objects, "DaemonSet");
    let names: BTreeSet<&str> = daemonsets
        .iter()
        .filter_map(|one| one["metadata"]["name"].as_str())
        .collect();
    assert_eq!(names, ["leafhost-agent", "leafhost-udev-discovery"].into());
    let images = daemonsets
        .iter()
        .map(|one| &one["spec"]["template"]["spec"]["containers"][0]["image"]);
    let images: BTreeSet<&str> = images.filter_map(Value::as_str).collect();
    let of_agent = format!("leafhost:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(images, ["leafhost:other", &of_agent].into());
    let maps = of_kind(&objects, "ConfigMap");
    let granted = |map: &&Value| map["data"]["udev.grants.yaml"].is_string();
    assert_eq!(maps.into_iter().filter(granted).count(), 1);

    let values = [
        "udev.discovery.enabled=true",
        "agent.host.discoveryHandlers=",
    ];
    let error = format!("{:#}", render(cluster, &values).unwrap_err());
    assert!(
        error.contains("needs agent.host.discoveryHandlers"),
        "{error}"
    );
    Ok(())
}

#[test]
fn each_part_has_a_limit_of_memory_with_room_for_the_compiler() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let objects = render(cluster, &[])?;
    let workloads = of_kind(&objects, "DaemonSet").into_iter();
    let limits: BTreeMap<&str, &Value> = workloads
        .chain(of_kind(&objects, "Deployment"))
        .map(|one| {
            let container = &one["spec"]["template"]["spec"]["containers"][0];
            let name = one["metadata"]["name"].as_str().unwrap_or_default();
            (name, &container["resources"]["limits"]["memory"])
        })
        .collect();
    let (compiling, other) = (Value::from("2Gi"), Value::from("512Mi"));
    let expected = [
        ("leafhost-agent", &compiling),
        ("leafhost-controller", &other),
        ("leafhost-webhook", &compiling),
    ];
    assert_eq!(limits, expected.into());
    Ok(())
}

#[test]
fn whether_authors_of_brokers_are_asked_for_their_rights_is_a_value() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    for (values, is_there) in [
        (vec![], true),
        (vec!["policies.brokerAuthors=false"], false),
    ] {
        let objects = render(cluster, &values)?;
        let policies = of_kind(&objects, "ValidatingAdmissionPolicy");
        let is_it = |one: &&Value| one["metadata"]["name"] == "leafhost-agent-authors";
        assert_eq!(policies.iter().any(is_it), is_there);
    }
    Ok(())
}
