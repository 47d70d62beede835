//! Text at the end of `--help`, mostly examples; each constant is named after its command.

pub const TOP: &str = "\
Every flag is also an environment variable: --node-name is LEAFHOST_NODE_NAME. If a flag belongs to one call, its variable has
the name of the command, too: --watch of leafhost status is LEAFHOST_STATUS_WATCH.

Exit codes: 0 success, 1 failure, 2 wrong command line.

Examples:
  leafhost agent --standalone                     run with the files in /etc/leafhost
  leafhost status --watch                         a live table of the devices
  leafhost handler new thermo                     create your own handler
  leafhost handler run thermo.wasm --explain      call it once
";

pub const AGENT: &str = "\
Folders         as root               otherwise
  DIR           /etc/leafhost         $XDG_CONFIG_HOME/leafhost (~/.config/leafhost)
  --state-dir   /var/lib/leafhost     $XDG_STATE_HOME/leafhost (~/.local/state/leafhost)
  --cdi-dir     /etc/cdi              cdi in the state folder
  --kubelet-dir /var/lib/kubelet      none: only root can use it

Under systemd (Type=notify) the agent reports when it is ready and when it stops.

Examples:
  leafhost agent --standalone
  leafhost agent --standalone ./site --state-dir ./site/state --cdi-dir ./site/cdi
  leafhost agent --standalone --no-cdi --kubelet-dir /srv/kubelet --slot-grace 1m
  LEAFHOST_STANDALONE=/etc/leafhost LEAFHOST_LOG_FORMAT=json leafhost agent
";

pub const STATUS: &str = "\
Tables have colours on a terminal, unless NO_COLOR is set.

Examples:
  leafhost status
  leafhost status --watch
  leafhost status instances -o json | jq -r '.[].spec.cdiName'
  leafhost status configuration cameras     last call, devices, what was skipped and why, the lines for podman and pods
  leafhost status instances cameras --unhealthy
  leafhost status instance cameras-1a2b3c   nodes, pods of the slots, properties and attributes of one device
  leafhost status slots                     which pod has which device
";

pub const CHECK: &str = "\
Examples:
  leafhost check /etc/leafhost
  leafhost check cameras.yaml
";

pub const CRDS: &str = "\
Examples:
  leafhost crds | kubectl apply --server-side -f -
  leafhost crds | kubectl diff -f -
";

pub const CONTROLLER: &str = "\
Examples:
  leafhost controller
  KUBECONFIG=~/.kube/config leafhost controller --lease-namespace leafhost
";

pub const SCHEDULER: &str = "\
Examples:
  leafhost scheduler
  KUBECONFIG=~/.kube/config leafhost scheduler --listen 127.0.0.1:9480
  leafhost scheduler --listen 0.0.0.0:9443 --tls-secret leafhost-scheduler-certificate --tls-service leafhost-scheduler
";

pub const SCHEDULER_CONFIG: &str = "\
Examples:
  leafhost scheduler config --secret leafhost/leafhost-scheduler-certificate > extender.yaml
";

pub const SELECT: &str = "\
Examples:
  leafhost select pod.yaml
  kubectl get pod training --output yaml | leafhost select -
";

pub const WEBHOOK: &str = "\
Examples:
  leafhost webhook --handlers-dir /usr/share/leafhost/handlers
";

pub const FROM_AKRI: &str = "\
Examples:
  leafhost migrate from-akri --dry-run
  KUBECONFIG=~/.kube/plant leafhost migrate from-akri
";

pub const TO_AKRI: &str = "\
Examples:
  helm uninstall leafhost --namespace leafhost
  leafhost migrate to-akri
";

pub const COMPLETIONS: &str = "\
Examples:
  leafhost completions bash > ~/.local/share/bash-completion/completions/leafhost
  leafhost completions zsh > ~/.zfunc/_leafhost
";

pub const NEW: &str = "\
Examples:
  leafhost handler new thermo
  leafhost handler new thermo --path ~/src/thermo --sdk ~/src/leafhost/sdk
";

pub const INSPECT: &str = "\
Examples:
  leafhost handler inspect thermo.wasm
  leafhost handler inspect thermo.wasm --grants > thermo.grants.yaml
";

pub const SERVE: &str = "\
Examples:
  leafhost handler serve thermo.wasm
  leafhost handler serve debug-echo.wasm --availability-file /tmp/debug-echo-availability.txt
";

pub const CONFIGMAP: &str = "\
Examples:
  leafhost handler configmap thermo.wasm | kubectl apply -n leafhost --server-side -f -
  leafhost handler configmap onvif.wasm opcua.wasm --name cameras --namespace leafhost > handlers.yaml
";

pub const RUN: &str = "\
Limits and grants are those of the agent. Without --configuration and --details the handler's own example is used.

Examples:
  leafhost handler run thermo.wasm
  leafhost handler run udev.wasm --configuration cameras.yaml --explain
  echo 'udevRules: [SUBSYSTEM==\"tty\"]' | leafhost handler run udev.wasm --details -
  leafhost handler run plc.wasm --details plc.yaml --property PASSWORD=@secret.txt --watch
";
