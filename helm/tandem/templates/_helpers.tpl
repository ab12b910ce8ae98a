{{- define "tandem.name" -}}
{{ printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "tandem.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "tandem.name" .) }}
{{- end }}

{{- /* What selectors use: it never changes within a release. */ -}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- /* Image reference of a dict with image and appVersion. */ -}}
{{- define "tandem.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .appVersion }}
{{- end }}
{{- end }}

{{- define "tandem.workerNamespaces" -}}
{{ toJson (.Values.networkPolicy.workerNamespaces | default .Values.rbac.namespaces) }}
{{- end }}

{{- /* Egress to whoever resolves names. */ -}}
{{- define "tandem.names" -}}
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- end }}
