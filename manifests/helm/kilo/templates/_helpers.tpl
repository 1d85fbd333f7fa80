{{/* There is one mesh on a node, so names are fixed. */}}
{{- define "kilo.name" -}}kilo{{- end }}

{{- define "kilo.selector" -}}
app.kubernetes.io/name: {{ . }}
app.kubernetes.io/part-of: kilo
{{- end }}

{{/* Manifests are applied by hand too, and are nobody's release. */}}
{{- define "kilo.labels" -}}
app.kubernetes.io/part-of: kilo
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- if ne .Release.Service "manifests" }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}
{{- end }}

{{- define "kilo.image" -}}
{{- with .Values.image -}}
{{- .repository -}}
{{- if .digest -}}@{{ .digest }}{{- else -}}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end }}

{{- define "kilo.stateDir" -}}{{ .Values.stateDir | default "/var/lib/kilo" }}{{- end }}

{{/* What is asked on loopback: 127.0.0.1:1107, or as listen says. */}}
{{- define "kilo.probePort" -}}{{ if .Values.listen }}{{ splitList ":" .Values.listen | last }}{{ else }}1107{{ end }}{{- end }}
{{- define "kilo.probeHost" -}}
{{- $host := "" }}
{{- with .Values.listen }}{{ $host = splitList ":" . | initial | join ":" | trimAll "[]" }}{{ end }}
{{- if has $host (list "" "0.0.0.0" "::") }}{{ $host = "127.0.0.1" }}{{ end }}
{{- $host -}}
{{- end }}
