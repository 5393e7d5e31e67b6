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

{{- /* Not empty where pods of this chart are planes of their own, and not reporters beside engines. */ -}}
{{- define "kvplane.serves" -}}
{{- if or (eq .Values.mode "plane") (eq .Values.sidecar.role "serve") -}}true{{- end -}}
{{- end -}}

{{- /* Not empty where kvplane asks the API server. */ -}}
{{- define "kvplane.watches" -}}
{{- if and (eq .Values.mode "plane") (or .Values.discovery .Values.picker.enabled) -}}true{{- end -}}
{{- end -}}

{{- define "kvplane.checks" -}}
{{- if eq .Values.mode "sidecar" -}}
{{- if not .Values.sidecar.engine -}}
{{- fail "mode sidecar needs sidecar.engine, the engine's container" -}}
{{- end -}}
{{- if or .Values.engines .Values.discovery .Values.picker.enabled .Values.journal.enabled -}}
{{- fail "mode sidecar follows the engine of its pod alone: leave out engines, discovery, picker and journal" -}}
{{- end -}}
{{- if not .Values.sidecar.model -}}
{{- fail "mode sidecar needs sidecar.model, the name of the engine's model" -}}
{{- end -}}
{{- if and (eq .Values.sidecar.role "report") (not .Values.sidecar.report.server) -}}
{{- fail "sidecar.role report needs sidecar.report.server, the inference-cache server" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.picker.enabled (not .Values.picker.pool) -}}
{{- fail "picker.enabled needs picker.pool, the name of the InferencePool" -}}
{{- end -}}
{{- if and (include "kvplane.serves" .) (not (or .Values.auth.tokens .Values.auth.insecure)) -}}
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
{{- if eq .Values.mode "sidecar" }}

[[engine]]
# The pod's name takes its place, from the environment.
id = "engine"
kind = {{ .Values.sidecar.kind | quote }}
model = {{ .Values.sidecar.model | quote }}
events = {{ .Values.sidecar.events | quote }}
{{- with .Values.sidecar.replay }}
replay = {{ . | quote }}
{{- end }}
{{- with .Values.sidecar.http }}
http = {{ . | quote }}
{{- end }}
{{- with .Values.sidecar.topic }}
topic = {{ . | quote }}
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

{{- define "kvplane.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "kvplane.containerSecurity" -}}
{{- if eq .Values.mode "sidecar" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{ end -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* The container that serves, without its probes. */ -}}
{{- define "kvplane.container" -}}
name: kvplane
image: {{ include "kvplane.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  - --config=/etc/kvplane/kvplane.toml
  - --log={{ .Values.logLevel }}
  - --log-format=json
  {{- if and .Values.auth.insecure (not .Values.auth.tokens) }}
  - --insecure
  {{- end }}
{{- if or .Values.journal.enabled (eq .Values.mode "sidecar") .Values.extraEnv }}
env:
  {{- if .Values.journal.enabled }}
  - name: KVPLANE__JOURNAL__DIR
    value: /var/lib/kvplane
  {{- with .Values.journal.maxDisk }}
  - name: KVPLANE__JOURNAL__MAX_DISK
    value: {{ . | quote }}
  {{- end }}
  {{- end }}
  {{- if eq .Values.mode "sidecar" }}
  - name: KVPLANE__ENGINE__0__ID
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  {{- end }}
  {{- with .Values.extraEnv }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
ports:
  - name: {{ include "kvplane.httpPort" . }}
    containerPort: {{ .Values.service.http }}
  - name: {{ include "kvplane.grpcPort" . }}
    containerPort: {{ .Values.service.grpc }}
  {{- if .Values.picker.enabled }}
  - name: picker
    containerPort: {{ .Values.picker.port }}
  - name: picker-health
    containerPort: {{ .Values.picker.health }}
  {{- end }}
  {{- range .Values.extraPorts }}
  - name: {{ .name }}
    containerPort: {{ .port }}
  {{- end }}
livenessProbe:
  httpGet:
    path: /healthz
    port: {{ include "kvplane.httpPort" . }}
    scheme: {{ include "kvplane.scheme" . | upper }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
resources: {{- toYaml .Values.resources | nindent 2 }}
securityContext: {{- include "kvplane.containerSecurity" . | nindent 2 }}
volumeMounts:
  - name: config
    mountPath: /etc/kvplane/kvplane.toml
    subPath: kvplane.toml
    readOnly: true
  {{- if .Values.journal.enabled }}
  - name: journal
    mountPath: /var/lib/kvplane
  {{- end }}
  {{- if include "kvplane.tlsSecret" . }}
  - name: tls
    mountPath: /etc/kvplane/tls
    readOnly: true
  {{- end }}
  {{- range $index, $token := .Values.auth.tokens }}
  - name: token-{{ $index }}
    mountPath: /etc/kvplane/tokens/{{ $token.name }}
    readOnly: true
  {{- end }}
  {{- with .Values.extraVolumeMounts }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end -}}

{{- /* An engine beside it has ports of these names. */ -}}
{{- define "kvplane.httpPort" -}}
{{- if eq .Values.mode "sidecar" }}kvplane-http{{ else }}http{{ end -}}
{{- end -}}
{{- define "kvplane.grpcPort" -}}
{{- if eq .Values.mode "sidecar" }}kvplane-grpc{{ else }}grpc{{ end -}}
{{- end -}}

{{- /* Volumes of that container, but for the journal's. Beside an engine the pod has no group of ours: files are for all to read there. */ -}}
{{- define "kvplane.volumes" -}}
- name: config
  configMap:
    name: {{ include "kvplane.fullname" . }}
{{- if include "kvplane.tlsSecret" . }}
- name: tls
  secret:
    secretName: {{ include "kvplane.tlsSecret" . }}
    defaultMode: {{ if eq $.Values.mode "sidecar" }}292{{ else }}288{{ end }}
{{- end }}
{{- range $index, $token := .Values.auth.tokens }}
- name: token-{{ $index }}
  secret:
    secretName: {{ $token.secret }}
    defaultMode: {{ if eq $.Values.mode "sidecar" }}292{{ else }}288{{ end }}
    items:
      - key: {{ $token.key }}
        path: token
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Where pods may run. */ -}}
{{- define "kvplane.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* What makes a container one that runs beside the others. The engine does not wait for more than its start. */ -}}
{{- define "kvplane.beside" -}}
restartPolicy: Always
startupProbe:
  httpGet:
    path: /healthz
    port: kvplane-http
    {{- if include "kvplane.serves" . }}
    scheme: {{ include "kvplane.scheme" . | upper }}
    {{- end }}
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 60
{{- end -}}
