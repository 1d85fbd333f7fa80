package lab

// stopgapManifest serves until manifests/crds.yaml and manifests/rbac.yaml
// exist, and goes away then.
const stopgapManifest = `
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kilo}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [events.k8s.io], resources: [events], verbs: [create, patch]}
- {apiGroups: [kilo.squat.ai], resources: [peers], verbs: [get, list, watch]}
- {apiGroups: [kilo.squat.ai], resources: [peers/status], verbs: [patch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kilo}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kilo}
subjects:
- {kind: ServiceAccount, name: kilo, namespace: kube-system}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: peers.kilo.squat.ai}
spec:
  group: kilo.squat.ai
  scope: Cluster
  names: {kind: Peer, listKind: PeerList, plural: peers, singular: peer}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`
