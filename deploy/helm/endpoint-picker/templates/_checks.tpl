{{/* Fails, with what to do, for values that contradict each other or that nothing here can meet. */}}
{{- define "endpoint-picker.checks" -}}
{{- $router := .Values.router -}}
{{- $epp := $router.epp -}}
{{- $flags := $epp.flags | default dict -}}
{{- if $router.latencyPredictor.enabled -}}
{{- fail "router.latencyPredictor.enabled: this endpoint picker has no predicted-latency plugins; set it to false, and for latency objectives use latency-slo-admitter" -}}
{{- end -}}
{{- if eq (lower $router.proxy.proxyType) "agentgateway" -}}
{{- fail "router.proxy.proxyType: agentgateway is not supported in standalone mode; set it to envoy, or use mode gateway behind an agentgateway of your own" -}}
{{- end -}}
{{- if eq $router.proxy.mode "service" -}}
{{- fail "router.proxy.mode: service is not supported; set it to sidecar and raise router.epp.replicas, or use mode gateway" -}}
{{- end -}}
{{- if dig "priorityRouting" "enabled" false $epp -}}
{{- fail "router.epp.priorityRouting: not supported; leave it out, and for several replicas set router.epp.replicas" -}}
{{- end -}}
{{- if dig "gke" "preferredBackends" "enabled" false .Values.provider -}}
{{- fail "provider.gke.preferredBackends: not supported; set enabled to false, and for several replicas set router.epp.replicas" -}}
{{- end -}}
{{- if and (eq .Values.mode "gateway") $router.proxy.enabled -}}
{{- fail "router.proxy.enabled: mode gateway has no Envoy of its own; set mode to standalone, or router.proxy.enabled to false" -}}
{{- end -}}
{{- if $router.inferencePool.create -}}
  {{- if not $router.modelServers.matchLabels -}}
  {{- fail "router.modelServers.matchLabels: required, the labels of the model servers' pods, for example --set router.modelServers.matchLabels.app=vllm" -}}
  {{- end -}}
{{- else -}}
  {{- if not (or $router.modelServers.matchLabels $router.modelServers.selector) -}}
  {{- fail "router.modelServers.matchLabels: required, as without an InferencePool (router.inferencePool.create: false) it selects the model servers' pods" -}}
  {{- end -}}
  {{- if $router.inferenceObjectives -}}
  {{- fail "router.inferenceObjectives: needs an InferencePool; set router.inferencePool.create to true" -}}
  {{- end -}}
  {{- if .Values.httpRoute.create -}}
  {{- fail "httpRoute.create: needs an InferencePool; set router.inferencePool.create to true" -}}
  {{- end -}}
{{- end -}}
{{- if and $epp.pluginsConfig (hasKey ($epp.pluginsCustomConfig | default dict) $epp.pluginsConfigFile) -}}
{{- fail (printf "router.epp.pluginsConfig and router.epp.pluginsCustomConfig both define %s: leave one of them out" $epp.pluginsConfigFile) -}}
{{- end -}}
{{- if not (hasKey (include "endpoint-picker.plugin-files" . | fromYaml) $epp.pluginsConfigFile) -}}
{{- $mounted := false -}}
{{- range $epp.volumeMounts }}{{- if hasPrefix "/config" .mountPath }}{{- $mounted = true }}{{- end }}{{- end -}}
{{- if not $mounted -}}
{{- fail (printf "router.epp.pluginsConfigFile: there is no %s; define it in router.epp.pluginsCustomConfig, or name one of %s" $epp.pluginsConfigFile (include "endpoint-picker.plugin-files" . | fromYaml | keys | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- $elects := eq (include "endpoint-picker.elects-leader" .) "true" -}}
{{- if and $epp.autoscaling.enabled $elects -}}
{{- fail "router.epp.autoscaling.enabled: with leader election one replica serves, however many there are; set router.epp.flags.ha-enable-leader-election to false" -}}
{{- end -}}
{{- if and .Values.podDisruptionBudget.enabled $elects -}}
{{- fail "podDisruptionBudget.enabled: with leader election one replica is ready, and the budget would hold up every node drain; set it to false, or router.epp.flags.ha-enable-leader-election to false" -}}
{{- end -}}
{{- if gt (int (dig "workers" 1 $flags)) 1 -}}
  {{- if $elects -}}
  {{- fail "router.epp.flags.workers: workers all serve, and leader election has one process serve; set router.epp.flags.ha-enable-leader-election to false" -}}
  {{- end -}}
  {{- if include "endpoint-picker.on-socket" . -}}
  {{- fail "router.epp.flags.workers: each worker has a socket of its own, and this chart's Envoy connects to one; leave it out in standalone mode, or give Envoy a bootstrap of your own (router.proxy.configMap)" -}}
  {{- end -}}
{{- end -}}
{{- if and (ne .Values.modelServerAutoscaling.kind "none") (not .Values.modelServerAutoscaling.scaleTargetRef.name) -}}
{{- fail "modelServerAutoscaling.scaleTargetRef.name: required, the Deployment of the model servers" -}}
{{- end -}}
{{- if and (eq .Values.modelServerAutoscaling.kind "hpa") (lt (int .Values.modelServerAutoscaling.minReplicas) 1) -}}
{{- fail "modelServerAutoscaling.minReplicas: a HorizontalPodAutoscaler cannot scale to 0; set it to 1, or kind to keda" -}}
{{- end -}}
{{- if and $router.tokenizer.enabled (not $router.tokenizer.modelName) -}}
{{- fail "router.tokenizer.modelName: required with router.tokenizer.enabled, the model whose tokenizer the renderer loads" -}}
{{- end -}}
{{- if and $router.tokenizer.enabled (eq $router.tokenizer.flavor "rust") (eq $router.tokenizer.image.repository "vllm/vllm-openai-cpu") -}}
{{- fail "router.tokenizer.image: flavor rust needs an image with vllm-rs" -}}
{{- end -}}
{{- $_ := include "endpoint-picker.drain-timeout" . -}}
{{- end -}}
