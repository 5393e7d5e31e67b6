{{- define "kvplane.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvplane.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvplane.labels" -}}
{{ include "kvplane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvplane.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "kvplane.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "kvplane.image" -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}

{{- define "kvplane.tlsSecret" -}}
{{- if .Values.tls.secret -}}
{{ .Values.tls.secret }}
{{- else if .Values.tls.certManager.enabled -}}
{{ include "kvplane.fullname" . }}-tls
{{- end -}}
{{- end -}}

{{- define "kvplane.scheme" -}}
{{- if include "kvplane.tlsSecret" . }}https{{ else }}http{{ end -}}
{{- end -}}

{{- /* Not empty where kvplane asks the API server. */ -}}
{{- define "kvplane.watches" -}}
{{- if or .Values.discovery .Values.picker.enabled -}}true{{- end -}}
{{- end -}}

{{- define "kvplane.checks" -}}
{{- if and .Values.picker.enabled (not .Values.picker.pool) -}}
{{- fail "picker.enabled needs picker.pool, the name of the InferencePool" -}}
{{- end -}}
{{- if not (or .Values.auth.tokens .Values.auth.insecure) -}}
{{- fail "kvplane would listen beyond loopback without keys: set auth.tokens, or auth.insecure=true on a network that you trust" -}}
{{- end -}}
{{- if and .Values.tls.clientCa (not (include "kvplane.tlsSecret" .)) -}}
{{- fail "tls.clientCa needs tls.secret or tls.certManager.enabled" -}}
{{- end -}}
{{- if and .Values.tls.certManager.enabled (not .Values.tls.certManager.issuerRef.name) -}}
{{- fail "tls.certManager.enabled needs tls.certManager.issuerRef.name" -}}
{{- end -}}
{{- end -}}

{{- /* The configuration file. Numbers are written as integers: YAML hands them over as floats. */ -}}
{{- define "kvplane.config" -}}
[listen]
http = "0.0.0.0:{{ .Values.service.http }}"
grpc = "0.0.0.0:{{ .Values.service.grpc }}"
{{- if include "kvplane.tlsSecret" . }}

[listen.tls]
cert = "/etc/kvplane/tls/tls.crt"
key = "/etc/kvplane/tls/tls.key"
{{- with .Values.tls.clientCa }}
client_ca = "/etc/kvplane/tls/{{ . }}"
{{- end }}
{{- end }}
{{- range .Values.auth.tokens }}

[[auth.token]]
name = {{ .name | quote }}
role = {{ .role | quote }}
file = "/etc/kvplane/tokens/{{ .name }}/token"
{{- end }}
{{- range .Values.engines }}

[[engine]]
{{- range $key, $value := . }}
{{- if kindIs "string" $value }}
{{ $key }} = {{ $value | quote }}
{{- else if kindIs "bool" $value }}
{{ $key }} = {{ $value }}
{{- else }}
{{ $key }} = {{ $value | int64 }}
{{- end }}
{{- end }}
{{- end }}
{{- $release := .Release.Namespace }}
{{- range .Values.discovery }}

[[discover]]
kind = "kubernetes"
namespace = {{ default $release .namespace | quote }}
{{- range $key, $value := omit . "namespace" }}
{{- if kindIs "string" $value }}
{{ $key }} = {{ $value | quote }}
{{- else }}
{{ $key }} = {{ $value | int64 }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.picker.enabled }}

[picker]
listen = "0.0.0.0:{{ .Values.picker.port }}"
health = "0.0.0.0:{{ .Values.picker.health }}"
# Gateways send no token.
open = true
self_signed = {{ .Values.picker.selfSigned }}
pool = { name = {{ .Values.picker.pool | quote }}, namespace = {{ .Release.Namespace | quote }} }
{{- end }}
{{- with .Values.config }}

{{ . | trim }}
{{- end }}
{{- end -}}
