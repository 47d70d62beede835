//! etcd, API server, controller manager and scheduler, as processes of the machine.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use uuid::Uuid;

use super::Setup;
use super::api::Api;
use super::audit::{self, Audit};
use super::programs::{Program, Running};
use super::reservation::ClusterId;
use crate::program;

const SERVICES: &str = "10.96.0.0/16";

/// Processes of the control plane, and their addresses and credentials.
pub(super) struct ControlPlane {
    pub api: Api,
    pub audit: Audit,
    /// Path of the administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    pub etcd: Program,
    pub server: Program,
    pub scheduler: Program,
    _running: Vec<Running>,
}

/// Returns the path of the kubeconfig of `user`.
pub(super) fn kubeconfig(id: ClusterId, user: &str) -> PathBuf {
    id.folder().join(user).with_extension("conf")
}

/// Starts the control plane and waits until the API server is ready.
pub(super) fn start(
    id: ClusterId,
    programs: &Path,
    setup: &Setup,
    nodes: &[String],
) -> Result<ControlPlane> {
    let folder = id.folder();
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (loopback, gateway) = (id.loopback(), id.gateway());
    bridge(id)?;
    let key = path("service-accounts.key");
    let generate = [
        "ecparam",
        "-name",
        "prime256v1",
        "-genkey",
        "-noout",
        "-out",
    ];
    program::run("openssl", generate.iter().copied().chain([&*key]))?.good()?;
    identities(id, nodes)?;
    fs::write(folder.join("audit-policy.json"), audit::policy())
        .context("cannot write the audit policy")?;
    let audit = folder.join("audit.log");

    let group = id.group("control")?;
    let command = |program: &Path, arguments: Vec<String>| {
        let mut command = group.command(program);
        command.args(arguments).current_dir(&folder);
        command
    };
    let emulated = setup.emulated;
    let emulated = emulated.map(|version| format!("--emulated-version={version}"));
    let launch = |name: &str, program: &Path, arguments: Vec<String>| {
        Running::start(name, &folder, &mut command(program, arguments))
    };
    let etcd = command(
        Path::new("/usr/bin/etcd"),
        vec![
            format!("--data-dir={}", path("etcd")),
            format!("--listen-client-urls=http://{loopback}:2379"),
            format!("--advertise-client-urls=http://{loopback}:2379"),
            format!("--listen-peer-urls=http://{loopback}:2380"),
            format!("--initial-advertise-peer-urls=http://{loopback}:2380"),
            format!("--initial-cluster=default=http://{loopback}:2380"),
            "--log-level=warn".to_owned(),
            "--logger=zap".to_owned(),
            // A write that waits 7 s for a busy disk is answered with an error.
            "--unsafe-no-fsync".to_owned(),
        ],
    );
    let etcd = Program::start("etcd", &folder, etcd)?;
    let server = command(
        &programs.join("kube-apiserver"),
        vec![
            format!("--etcd-servers=http://{loopback}:2379"),
            format!("--bind-address={gateway}"),
            format!("--advertise-address={gateway}"),
            "--secure-port=6443".to_owned(),
            format!("--cert-dir={folder}", folder = folder.display()),
            format!("--service-account-key-file={key}"),
            format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            // The control plane has no kube-proxy, so the API server must call webhooks at the addresses of their pods.
            "--enable-aggregator-routing=true".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--token-auth-file={}", path("tokens.csv")),
            format!("--feature-gates={}", setup.gates.join(",")),
            format!("--audit-policy-file={}", path("audit-policy.json")),
            format!("--audit-log-path={}", audit.display()),
            // In megabytes. The log must stay one file, because tests read it from an offset.
            "--audit-log-maxsize=10000".to_owned(),
        ]
        .into_iter()
        .chain(emulated.clone())
        .collect(),
    );
    let server = Program::start("kube-apiserver", &folder, server)?;
    // The proxy reads the certificate once; it may not exist before the server listens.
    server.until("the API server listens", || {
        Ok(TcpStream::connect((&*gateway, 6443))?)
    })?;
    let proxy = launch(
        "kubectl-proxy",
        &programs.join("kubectl"),
        vec![
            format!("--kubeconfig={}", kubeconfig(id, "admin").display()),
            "proxy".to_owned(),
            format!("--address={loopback}"),
            "--port=8001".to_owned(),
            "--accept-hosts=.*".to_owned(),
        ],
    )?;
    let api = Api::new(&format!("{loopback}:8001"));
    server.until("the API server is ready", || api.text("/readyz"))?;

    let authority = path("apiserver.crt");
    let manager = launch(
        "kube-controller-manager",
        &programs.join("kube-controller-manager"),
        vec![
            format!(
                "--kubeconfig={}",
                kubeconfig(id, "kube-controller-manager").display()
            ),
            "--use-service-account-credentials".to_owned(),
            format!("--service-account-private-key-file={key}"),
            format!("--root-ca-file={authority}"),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ]
        .into_iter()
        .chain(emulated.clone())
        .collect(),
    )?;
    let scheduler = command(
        &programs.join("kube-scheduler"),
        vec![
            format!(
                "--kubeconfig={}",
                kubeconfig(id, "kube-scheduler").display()
            ),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ]
        .into_iter()
        .chain(emulated)
        .collect(),
    );
    let scheduler = Program::start("kube-scheduler", &folder, scheduler)?;
    Ok(ControlPlane {
        api,
        audit: Audit::of(audit),
        kubeconfig: kubeconfig(id, "admin"),
        etcd,
        server,
        scheduler,
        _running: vec![proxy, manager],
    })
}

/// Creates the bridge that joins the nodes and the machine.
fn bridge(id: ClusterId) -> Result<()> {
    let (name, address) = (id.name(), format!("{}/24", id.gateway()));
    for arguments in [
        &["link", "add", &name, "type", "bridge"][..],
        &["address", "add", &address, "dev", &name],
        &["link", "set", &name, "up"],
    ] {
        program::run("ip", arguments)?
            .good()
            .with_context(|| format!("cannot set up the bridge {name}"))?;
    }
    Ok(())
}

/// Writes one token and one kubeconfig for each client of the API server.
fn identities(id: ClusterId, nodes: &[String]) -> Result<()> {
    let fixed = [
        ("admin", "admin", "system:masters"),
        (
            "kube-controller-manager",
            "system:kube-controller-manager",
            "",
        ),
        ("kube-scheduler", "system:kube-scheduler", ""),
        ("kube-proxy", "system:kube-proxy", ""),
    ]
    .map(|(file, user, groups)| (file.to_owned(), user.to_owned(), groups));
    let nodes = nodes
        .iter()
        .map(|node| (node.clone(), format!("system:node:{node}"), "system:nodes"));
    let mut tokens = String::new();
    for (file, user, groups) in fixed.into_iter().chain(nodes) {
        let token = Uuid::new_v4().simple();
        writeln!(tokens, "{token},{user},{user},\"{groups}\"")?;
        let config = format!(
            "apiVersion: v1
kind: Config
clusters:
- name: leafhost
  cluster:
    server: https://{gateway}:6443
    certificate-authority: apiserver.crt
users:
- name: {user}
  user:
    token: {token}
contexts:
- name: leafhost
  context:
    cluster: leafhost
    user: {user}
current-context: leafhost
",
            gateway = id.gateway()
        );
        let path = kubeconfig(id, &file);
        fs::write(&path, config).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let path = id.folder().join("tokens.csv");
    fs::write(&path, tokens).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}
