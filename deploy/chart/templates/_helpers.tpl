{{- /* The name of the chart's parts in labels. */ -}}
{{- define "leafhost.chart" -}}
{{ .Values.nameOverride | default "leafhost" }}
{{- end }}

{{- define "leafhost.name" -}}
{{- $chart := include "leafhost.chart" . }}
{{- if contains $chart .Release.Name }}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" (.Release.Name | trunc 38 | trimSuffix "-") $chart | trunc 48 | trimSuffix "-" }}{{ end }}-agent
{{- end }}

{{- define "leafhost.selector" -}}
app.kubernetes.io/name: {{ include "leafhost.chart" . }}-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.labels" -}}
{{ include "leafhost.selector" . }}
app.kubernetes.io/component: agent
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- define "leafhost.commonLabels" -}}
app.kubernetes.io/part-of: {{ include "leafhost.chart" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "leafhost.handlersNamespace" -}}
{{ .Values.agent.handlersNamespace | default .Release.Namespace }}
{{- end }}

{{- define "leafhost.controllerName" -}}
{{ include "leafhost.name" . | trimSuffix "-agent" }}-controller
{{- end }}

{{- define "leafhost.controllerSelector" -}}
app.kubernetes.io/name: {{ include "leafhost.chart" . }}-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.controllerLabels" -}}
{{ include "leafhost.controllerSelector" . }}
app.kubernetes.io/component: controller
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- define "leafhost.schedulerName" -}}
{{ include "leafhost.name" . | trimSuffix "-agent" }}-scheduler
{{- end }}

{{- define "leafhost.schedulerSelector" -}}
app.kubernetes.io/name: {{ include "leafhost.chart" . }}-scheduler
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.schedulerLabels" -}}
{{ include "leafhost.schedulerSelector" . }}
app.kubernetes.io/component: scheduler
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- define "leafhost.webhookName" -}}
{{ include "leafhost.name" . | trimSuffix "-agent" }}-webhook
{{- end }}

{{- /* The Secret that the chart creates and the webhook writes. */ -}}
{{- define "leafhost.webhookSecret" -}}
{{ include "leafhost.webhookName" . }}-certificate
{{- end }}

{{- /* "true" if the webhook reviews the brokers that the controller writes. */ -}}
{{- define "leafhost.reviewsBrokers" -}}
{{- if and .Values.webhookConfiguration.enabled .Values.webhookConfiguration.brokers.enabled .Values.controller.enabled .Values.controller.brokers.enabled }}true{{ end }}
{{- end }}

{{- define "leafhost.webhookSelector" -}}
app.kubernetes.io/name: {{ include "leafhost.chart" . }}-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.webhookLabels" -}}
{{ include "leafhost.webhookSelector" . }}
app.kubernetes.io/component: webhook
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- /* The image of a part. Empty values are those of the agent's image. Takes a list of the root and the part's image. */ -}}
{{- define "leafhost.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 | default dict }}{{ $agent := $root.Values.agent.image -}}
image: "{{ $image.repository | default $agent.repository }}:{{ $image.tag | default $agent.tag | default $root.Chart.AppVersion }}"
imagePullPolicy: {{ $image.pullPolicy | default $agent.pullPolicy }}
{{- end }}

{{- /* The handlers that run in separate pods, as a JSON list: values, file, and what their devices may add to a container. */ -}}
{{- define "leafhost.handlerPods" -}}
{{- $pods := list }}
{{- if .Values.debugEcho.discovery.enabled }}
{{- $pods = append $pods (dict "values" .Values.debugEcho.discovery "handler" "debugEcho" "file" "debug-echo"
  "grants" "devices: {env: ['DEBUG_ECHO_*']}") }}
{{- end }}
{{- if .Values.udev.discovery.enabled }}
{{- $pods = append $pods (dict "values" .Values.udev.discovery "handler" "udev" "file" "udev"
  "grants" "devices: {nodes: ['/dev/*', '/dev/*/*', '/dev/*/*/*'], env: ['UDEV_*', 'USB_RESOURCE_*', 'PCI_RESOURCE_*']}") }}
{{- end }}
{{- $pods | toJson }}
{{- end }}

{{- /* The image's handlers that agents do not use. */ -}}
{{- define "leafhost.withoutHandlers" -}}
{{- $names := .Values.agent.withoutHandlers }}
{{- if not .Values.agent.allowDebugEcho }}{{ $names = append $names "debug-echo" }}{{ end }}
{{- range include "leafhost.handlerPods" . | fromJsonArray }}{{ $names = append $names .file }}{{ end }}
{{- include "leafhost.handlerFiles" ($names | uniq) }}
{{- end }}

{{- /* The files of the handlers with these names, separated by commas. */ -}}
{{- define "leafhost.handlerFiles" -}}
{{- $files := list }}
{{- range . }}{{ $files = append $files (printf "%s.wasm" .) }}{{ end }}
{{- join "," $files }}
{{- end }}

{{- /* Spreads the pods of a part over nodes, as far as there are any. Takes the part's selector. */ -}}
{{- define "leafhost.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- . | nindent 8 }}
{{- end }}

{{- /* Lets a drain of nodes end one pod of a part at a time. Takes a list of the root, and the part's name, labels and selector. */ -}}
{{- define "leafhost.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 }}
  namespace: {{ (index . 0).Release.Namespace }}
  labels: {{- index . 2 | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- index . 3 | nindent 6 }}
{{- end }}

{{- /* The address of the pod, at which it serves metrics. */ -}}
{{- define "leafhost.podAddress" -}}
- name: LEAFHOST_POD_ADDRESS
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- end }}

{{- /* "true" if the policies are enabled; checks.yaml refuses an API server that is too old for their expressions. */ -}}
{{- define "leafhost.hasPolicies" -}}
{{- if .Values.policies.enabled }}true{{ end }}
{{- end }}

{{- /* Parts of the policies of agents, as JSON: the condition that an agent writes, the node of its token, and the check that the token has a node. */ -}}
{{- define "leafhost.anAgent" -}}
{{- dict "name" "an-agent" "expression" (printf "request.userInfo.username == 'system:serviceaccount:%s:%s'" .Release.Namespace (include "leafhost.name" .)) | toJson }}
{{- end }}

{{- define "leafhost.nodeOfToken" -}}
{{- dict "name" "node" "expression" "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')" | toJson }}
{{- end }}

{{- define "leafhost.boundToNode" -}}
{{- dict "expression" "variables.node != ''" "reason" "Forbidden" "message" "the token of an agent must be bound to a node; an agent runs as a pod of its DaemonSet" | toJson }}
{{- end }}

{{- /* Binds a policy, which puts it into effect. Takes a list of the root and the policy's name. */ -}}
{{- define "leafhost.policyBinding" -}}
{{- $root := index . 0 }}{{ $policy := printf "%s-%s" (include "leafhost.name" $root) (index . 1) -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ $policy }}
  labels: {{- include "leafhost.labels" $root | nindent 4 }}
spec:
  policyName: {{ $policy }}
  {{- if has (index . 1) (list "configurations" "generations") }}
  # The API server looks for parameters before it evaluates matchConditions: if there is no Configuration, Deny would refuse the Instances of all users.
  paramRef: {selector: {}, parameterNotFoundAction: Allow}
  {{- end }}
  {{- if eq (index . 1) "generations" }}
  matchResources:
    objectSelector:
      matchExpressions: [{key: leafhost.dev/odd-edit, operator: DoesNotExist}]
  {{- end }}
  validationActions: [Deny]
{{- end }}
