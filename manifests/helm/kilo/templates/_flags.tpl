{{/*
The flags of kg that are values of the chart. A test compares the list with
kg --help. The agent learns its Node's name (--hostname) from its environment.
*/}}
{{- define "kilo.flagNames" -}}
master kubeconfig
adapter mesh-granularity encapsulate topology-label subnet service-cidr gateways resync-period
wireguard interface port failover-port mtu create-interface
internal-cidr exclude-interfaces exclude-cidrs public-cidrs prioritise-private-addresses
location force-endpoint force-internal-ip leader persistent-keepalive allowed-location-ips
flannel-subnet-file flannel-net-conf
state-dir listen log-level clean-up clean-up-interface iptables-forward-rules
{{- end }}

{{/* Those that concern the device as well. */}}
{{- define "kilo.deviceFlagNames" -}}
wireguard interface gateways failover-port mtu state-dir log-level
{{- end }}

{{/* mesh-granularity is meshGranularity. */}}
{{- define "kilo.valueName" -}}
{{- range $i, $word := splitList "-" . }}{{ if $i }}{{ title $word }}{{ else }}{{ $word }}{{ end }}{{ end -}}
{{- end }}

{{/* Arguments as a YAML list, from (dict "names" STRING "values" VALUES). */}}
{{- define "kilo.args" -}}
{{- $args := list }}
{{- range $flag := regexSplit "\\s+" (trim .names) -1 }}
{{- $value := index $.values (include "kilo.valueName" $flag) }}
{{- if kindIs "slice" $value }}
{{- if $value }}{{ $args = append $args (printf "--%s=%s" $flag (join "," $value)) }}{{ end }}
{{- else if not (kindIs "invalid" $value) }}
{{- $args = append $args (printf "--%s=%v" $flag $value) }}
{{- end }}
{{- end }}
{{- toYaml $args }}
{{- end }}

{{/* The values, with what follows from others filled in. */}}
{{- define "kilo.agentArgs" -}}
{{- $values := deepCopy (omit .Values "global") }}
{{- if .Values.kubeconfigConfigMap.name }}
{{- $_ := set $values "kubeconfig" "/etc/kubernetes/kubeconfig" }}
{{- end }}
{{- if and .Values.wireguardDaemonSet.enabled (kindIs "invalid" .Values.createInterface) }}
{{- $_ := set $values "createInterface" false }}
{{- end }}
{{- include "kilo.args" (dict "names" (include "kilo.flagNames" .) "values" $values) }}
{{- end }}
