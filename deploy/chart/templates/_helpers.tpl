{{- define "leafhost.name" -}}
{{- if contains "leafhost" .Release.Name }}{{ .Release.Name | trunc 48 | trimSuffix "-" }}{{ else }}{{ printf "%s-leafhost" (.Release.Name | trunc 38 | trimSuffix "-") }}{{ end }}-agent
{{- end }}

{{- define "leafhost.selector" -}}
app.kubernetes.io/name: leafhost-agent
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.labels" -}}
{{ include "leafhost.selector" . }}
app.kubernetes.io/component: agent
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- define "leafhost.commonLabels" -}}
app.kubernetes.io/part-of: leafhost
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
app.kubernetes.io/name: leafhost-controller
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.controllerLabels" -}}
{{ include "leafhost.controllerSelector" . }}
app.kubernetes.io/component: controller
{{ include "leafhost.commonLabels" . }}
{{- end }}

{{- define "leafhost.webhookName" -}}
{{ include "leafhost.name" . | trimSuffix "-agent" }}-webhook
{{- end }}

{{- define "leafhost.webhookSelector" -}}
app.kubernetes.io/name: leafhost-webhook
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "leafhost.webhookLabels" -}}
{{ include "leafhost.webhookSelector" . }}
app.kubernetes.io/component: webhook
{{ include "leafhost.commonLabels" . }}
{{- end }}
