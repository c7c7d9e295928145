{{/* What is set and has no effect, or another one than in the Go EPP's charts; a line for each. */}}
{{- define "endpoint-picker.notes" -}}
{{- $router := .Values.router -}}
{{- if omit $router.epp.image "pullPolicy" }}
* router.epp.image (inferenceExtension.image) names an image of the Go EPP and has no effect: image names this one.
{{- end }}
{{- if $router.proxy.presets }}
* router.proxy.presets has no effect: set router.proxy.image, args, env and so on.
{{- end }}
{{- if not (kindIs "invalid" $router.proxy.failOpen) }}
* router.proxy.failOpen has no effect: Envoy has no model servers of its own to fall back to.
{{- end }}
{{- if and $router.proxy.enabled (include "endpoint-picker.own-bootstrap" .) }}
* router.proxy has a bootstrap, command or arguments of yours: ext_proc is on 127.0.0.1:{{ $router.epp.extProcPort }} with TLS, as in the Go EPP's chart, and Envoy is not drained before it stops. Without them, Envoy uses the chart's own.
{{- else if and $router.proxy.enabled (contains "distroless" $router.proxy.image) }}
* router.proxy.image has no shell, so requests in flight are cut when the Pod stops: use an image without `distroless`.
{{- end }}
{{- if and (eq (lower .Values.provider.name) "envoy-gateway") (eq $router.inferencePool.failureMode "FailOpen") (ne .Values.provider.envoyGateway.mode "adaptive") }}
* router.inferencePool.failureMode: FailOpen applies with provider.envoyGateway.mode adaptive only; requests fail while no endpoint picker is ready.
{{- end }}
{{- if .Values.gke }}
* gke has no effect: set router.monitoring.provider.
{{- end }}
{{- if and $router.monitoring.prometheus.rules.enabled (eq (lower $router.monitoring.provider.name) "gmp") }}
* router.monitoring.prometheus.rules has no effect with Google Managed Prometheus: load deploy/prometheus/rules.yaml as Rules.
{{- end }}
{{- if eq .Values.modelServerAutoscaling.kind "hpa" }}
* modelServerAutoscaling: hpa needs a rule of prometheus-adapter, as in deploy/autoscaling/hpa.yaml.
{{- end }}
{{- if and (eq .Values.provider.name "envoy-gateway") (eq .Values.provider.envoyGateway.mode "lean") }}
* provider.envoyGateway.mode: lean needs extensionApis.enableEnvoyPatchPolicy: true in the EnvoyGateway configuration.
{{- end }}
{{- if .Values.inferenceExtension }}
* inferenceExtension is the older layout of the Go EPP's charts; router.epp is the present one. Both work.
{{- end }}
{{- end -}}
