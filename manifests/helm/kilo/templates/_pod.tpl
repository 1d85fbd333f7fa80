{{/* What the pods of both DaemonSets have in common. */}}
{{- define "kilo.podSpec" -}}
hostNetwork: true
# Before the mesh there may be no cluster DNS.
dnsPolicy: Default
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
{{- toYaml . | nindent 0 }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
{{- toYaml . | nindent 0 }}
{{- end }}
securityContext:
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/*
NET_ADMIN: links, routes, rules, nftables, WireGuard. NET_RAW: echo requests, by
which ways are measured, and tables of iptables-legacy. To own kilo0 on /dev/net/tun
the first one is enough.
*/}}
{{- define "kilo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
  {{- if ne . "none" }}
  add: {{ if eq . "agent" }}[NET_ADMIN, NET_RAW]{{ else }}[NET_ADMIN]{{ end }}
  {{- end }}
{{- end }}

{{- define "kilo.deviceMounts" -}}
- name: state
  mountPath: {{ include "kilo.stateDir" . }}
- name: wireguard
  mountPath: /var/run/wireguard
- name: tun
  mountPath: /dev/net
{{- end }}

{{- define "kilo.deviceVolumes" -}}
- name: state
  hostPath:
    path: {{ include "kilo.stateDir" . }}
    type: DirectoryOrCreate
# The control sockets of userspace devices.
- name: wireguard
  hostPath:
    path: /var/run/wireguard
    type: DirectoryOrCreate
# The directory: not every node has the device in it.
- name: tun
  hostPath:
    path: /dev/net
    type: DirectoryOrCreate
{{- end }}

{{/* What the agent's container has, and kg uninstall's as well. */}}
{{- define "kilo.agentEnv" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.apiServer }}
{{- if .host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ .host | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ .port | quote }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{- define "kilo.agentMounts" -}}
{{ include "kilo.deviceMounts" . }}
- name: xtables-lock
  mountPath: /run/xtables.lock
{{- if ne .Values.adapter "cilium" }}
- name: flannel
  mountPath: {{ dir (.Values.flannelSubnetFile | default "/run/flannel/subnet.env") }}
  readOnly: true
{{- if .Values.flannelNetConf }}
- name: flannel-net-conf
  mountPath: {{ dir .Values.flannelNetConf }}
  readOnly: true
{{- end }}
{{- end }}
{{- if ne .Values.adapter "flannel" }}
- name: cilium
  mountPath: /var/run/cilium
  readOnly: true
{{- end }}
{{- if .Values.kubeconfigConfigMap.name }}
- name: kubeconfig
  mountPath: /etc/kubernetes
  readOnly: true
{{- else if .Values.kubeconfig }}
- name: kubeconfig
  mountPath: {{ .Values.kubeconfig }}
  readOnly: true
{{- end }}
{{- end }}

{{- define "kilo.agentVolumes" -}}
{{ include "kilo.deviceVolumes" . }}
- name: xtables-lock
  hostPath:
    path: /run/xtables.lock
    type: FileOrCreate
{{- if ne .Values.adapter "cilium" }}
# Directories, since the agent may be there first.
- name: flannel
  hostPath:
    path: {{ dir (.Values.flannelSubnetFile | default "/run/flannel/subnet.env") }}
    type: DirectoryOrCreate
{{- if .Values.flannelNetConf }}
- name: flannel-net-conf
  hostPath:
    path: {{ dir .Values.flannelNetConf }}
    type: DirectoryOrCreate
{{- end }}
{{- end }}
{{- if ne .Values.adapter "flannel" }}
- name: cilium
  hostPath:
    path: /var/run/cilium
    type: DirectoryOrCreate
{{- end }}
{{- if .Values.kubeconfigConfigMap.name }}
- name: kubeconfig
  configMap:
    name: {{ .Values.kubeconfigConfigMap.name }}
    optional: true
    items:
    - key: {{ .Values.kubeconfigConfigMap.key }}
      path: kubeconfig
{{- else if .Values.kubeconfig }}
- name: kubeconfig
  hostPath:
    path: {{ .Values.kubeconfig }}
    type: File
{{- end }}
{{- end }}
