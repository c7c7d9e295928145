{{/*
Brings .Values into one layout, in place; every template begins with it. Twice is as good as once.

The Go EPP's charts have two layouts: `router.*`, which is also this chart's, and the older
`inferenceExtension.*` with `inferencePool`, `inferenceObjectives` and `experimentalHttpRoute`.
What is set in the older layout wins.
*/}}
{{- define "endpoint-picker.init" -}}
{{- $values := .Values -}}
{{- if not (and (hasKey $values "drain") (hasKey $values "image")) -}}
{{- fail "the defaults of this chart are missing, as with --reuse-values after another chart: use helm upgrade --reset-then-reuse-values, or name your values file" -}}
{{- end -}}
{{- include "endpoint-picker.legacy" . -}}
{{- $router := $values.router -}}
{{- if kindIs "slice" $router.epp.flags -}}
  {{- $flags := dict -}}
  {{- range $router.epp.flags }}{{- $_ := set $flags .name .value }}{{- end -}}
  {{- $_ := set $router.epp "flags" $flags -}}
{{- end -}}
{{- /* Probes, ports and Services follow these flags. */ -}}
{{- with get $router.epp.flags "grpc-port" }}{{- $_ := set $router.epp "extProcPort" (int .) }}{{- end -}}
{{- with get $router.epp.flags "grpc-health-port" }}{{- $_ := set $router.epp "grpcHealthPort" (int .) }}{{- end -}}
{{- with get $router.epp.flags "metrics-port" }}{{- $_ := set $router "metricsPort" (int .) }}{{- end -}}
{{- if and (dig "enableLeaderElection" false ($values.inferenceExtension | default dict)) (not (hasKey $router.epp.flags "ha-enable-leader-election")) -}}
  {{- $_ := set $router.epp.flags "ha-enable-leader-election" true -}}
{{- end -}}
{{- if kindIs "map" $router.epp.env -}}
  {{- $env := list -}}
  {{- range $name, $value := $router.epp.env }}{{- $env = append $env (dict "name" $name "value" (toString $value)) }}{{- end -}}
  {{- $_ := set $router.epp "env" $env -}}
{{- end -}}
{{- if and $router.epp.parser (not $router.epp.parsers) -}}
  {{- $_ := set $router.epp "parsers" (list $router.epp.parser) -}}
{{- end -}}
{{- if not $values.mode -}}
  {{- $_ := set $values "mode" (ternary "standalone" "gateway" (eq true $router.proxy.enabled)) -}}
{{- end -}}
{{- if kindIs "invalid" $router.proxy.enabled -}}
  {{- $_ := set $router.proxy "enabled" (eq $values.mode "standalone") -}}
{{- end -}}
{{- if and $router.proxy.enabled (not $router.extraServicePorts) -}}
  {{- $_ := set $router "extraServicePorts" (list (dict "name" "http" "port" 8081 "protocol" "TCP" "targetPort" 8081)) -}}
{{- end -}}
{{- if not $router.monitoring.provider.name -}}
  {{- $_ := set $router.monitoring.provider "name" (ternary "gmp" "prometheusoperator" (eq (lower $values.provider.name) "gke")) -}}
{{- end -}}
{{- include "endpoint-picker.checks" . -}}
{{- end -}}

{{/* Moves the older layout to where this chart reads it. */}}
{{- define "endpoint-picker.legacy" -}}
{{- $values := .Values -}}
{{- $router := $values.router -}}
{{- with $values.inferenceExtension -}}
  {{- $epp := omit . "monitoring" "tracing" "latencyPredictor" "sidecar" "endpointsServer" "extraServicePorts" "failureMode" "enableLeaderElection" -}}
  {{- include "endpoint-picker.overlay" (dict "onto" $router.epp "values" $epp) -}}
  {{- with .extraServicePorts }}{{- $_ := set $router "extraServicePorts" . }}{{- end -}}
  {{- with .failureMode }}{{- $_ := set $router.inferencePool "failureMode" . }}{{- end -}}
  {{- with .monitoring -}}
    {{- include "endpoint-picker.overlay" (dict "onto" $router.monitoring "values" (pick . "interval" "provider" "prometheus")) -}}
    {{- with .secret }}{{- $_ := set $router.monitoring.prometheus.auth "secretName" .name }}{{- end -}}
    {{- if eq true (dig "gke" "enabled" false .) -}}
      {{- $_ := set $router.monitoring.prometheus "enabled" true -}}
      {{- $_ := set $router.monitoring.provider "name" "gmp" -}}
    {{- end -}}
  {{- end -}}
  {{- with .tracing }}{{- include "endpoint-picker.overlay" (dict "onto" $router.tracing "values" .) }}{{- end -}}
  {{- with .latencyPredictor }}{{- $_ := set $router "latencyPredictor" . }}{{- end -}}
  {{- with .sidecar }}{{- include "endpoint-picker.overlay" (dict "onto" $router.proxy "values" .) }}{{- end -}}
  {{- with .endpointsServer -}}
    {{- if hasKey . "createInferencePool" }}{{- $_ := set $router.inferencePool "create" .createInferencePool }}{{- end -}}
    {{- with .endpointSelector }}{{- $_ := set $router.modelServers "selector" . }}{{- end -}}
    {{- if eq false .createInferencePool -}}
      {{- with .modelServerType }}{{- $_ := set $router.modelServers "type" . }}{{- end -}}
      {{- with .targetPorts -}}
        {{- $ports := list -}}
        {{- range splitList "," (toString .) }}{{- $ports = append $ports (dict "number" (int (trim .))) }}{{- end -}}
        {{- $_ := set $router.modelServers "targetPorts" $ports -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- with $values.inferencePool -}}
  {{- with .modelServers }}{{- with .matchLabels }}{{- $_ := set $router.modelServers "matchLabels" . }}{{- end }}{{- end -}}
  {{- with .modelServerType }}{{- $_ := set $router.modelServers "type" . }}{{- end -}}
  {{- with .modelServerProtocol }}{{- $_ := set $router.modelServers "protocol" . }}{{- end -}}
  {{- if .targetPorts -}}
    {{- $_ := set $router.modelServers "targetPorts" .targetPorts -}}
  {{- else if .targetPortNumber -}}
    {{- $_ := set $router.modelServers "targetPorts" (list (dict "number" .targetPortNumber)) -}}
  {{- end -}}
  {{- with .parser }}{{- $_ := set $router.epp "parsers" (list .) }}{{- end -}}
  {{- with .apiVersion }}{{- $_ := set $router.inferencePool "apiVersion" . }}{{- end -}}
  {{- with .failureMode }}{{- $_ := set $router.inferencePool "failureMode" . }}{{- end -}}
{{- end -}}
{{- with $values.inferenceObjectives }}{{- $_ := set $router "inferenceObjectives" . }}{{- end -}}
{{- with $values.experimentalHttpRoute -}}
  {{- if hasKey . "enabled" }}{{- $_ := set $values.httpRoute "create" .enabled }}{{- end -}}
  {{- include "endpoint-picker.overlay" (dict "onto" $values.httpRoute "values" (omit . "enabled")) -}}
{{- end -}}
{{- with $values.istio }}{{- include "endpoint-picker.overlay" (dict "onto" $values.provider.istio "values" .) }}{{- end -}}
{{- with (dig "gke" "autopilot" nil $values.provider) }}{{- $_ := set $router.monitoring.provider.gmp "autopilot" . }}{{- end -}}
{{- end -}}

{{/* Sets `values` in the map `onto`, and what is in maps in those maps. */}}
{{- define "endpoint-picker.overlay" -}}
{{- $onto := .onto -}}
{{- range $name, $value := .values -}}
  {{- if and (kindIs "map" $value) (kindIs "map" (get $onto $name)) -}}
    {{- include "endpoint-picker.overlay" (dict "onto" (get $onto $name) "values" $value) -}}
  {{- else -}}
    {{- $_ := set $onto $name $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}
