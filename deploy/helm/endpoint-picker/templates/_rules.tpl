{{/*
Rights of the endpoint picker in its namespace, one rule for each subject. tests/kube/test_chart_rights.py
compares them with the API server's audit log of a run: a rule that nothing needs fails it, and so
does a right that is missing.
*/}}
{{- define "endpoint-picker.rules" -}}
# The model servers.
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch]
{{- if .Values.router.inferencePool.create }}
# Their pool. Where the older group has none of its name, the newer one is read.
- apiGroups: {{ list (include "endpoint-picker.pool-group" .) "inference.networking.k8s.io" | uniq | toJson }}
  resources: [inferencepools]
  verbs: [list, watch]
# Priorities and model names, of the newer group or, where a cluster lacks it, the older one.
- apiGroups: [llm-d.ai, inference.networking.x-k8s.io]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [list, watch]
{{- if include "endpoint-picker.writes-status" . }}
# Whether they are in use.
- apiGroups: [llm-d.ai, inference.networking.x-k8s.io]
  resources: [inferenceobjectives/status, inferencemodelrewrites/status]
  verbs: [patch]
{{- end }}
{{- end }}
{{- if eq (include "endpoint-picker.elects-leader" .) "true" }}
# Leader election, and an Event for each new leader.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [get, create, update]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end }}
{{- with .Values.rbac.extraRules }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Rights in the whole cluster: to ask who reads the metrics, and whether he may. */}}
{{- define "endpoint-picker.cluster-rules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end -}}
