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
  add: {{ if eq . "agent" }}[NET_ADMIN, NET_RAW]{{ else }}[NET_ADMIN]{{ end }}
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
