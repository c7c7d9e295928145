{{/*
Arguments of `epp serve`, as a YAML list. A flag of router.epp.flags replaces the chart's own.
*/}}
{{- define "endpoint-picker.args" -}}
{{- $router := .Values.router -}}
{{- $epp := $router.epp -}}
{{- $own := dict "config-file" (printf "/config/%s" $epp.pluginsConfigFile) -}}
{{- $_ := set $own "grpc-health-port" $epp.grpcHealthPort -}}
{{- $_ := set $own "metrics-port" $router.metricsPort -}}
{{- if $router.inferencePool.create -}}
  {{- $_ := set $own "pool-name" .Release.Name -}}
  {{- $_ := set $own "pool-group" (include "endpoint-picker.pool-group" .) -}}
{{- else -}}
  {{- $_ := set $own "endpoint-selector" (include "endpoint-picker.endpoint-selector" .) -}}
  {{- $_ := set $own "endpoint-target-ports" (include "endpoint-picker.target-ports" .) -}}
{{- end -}}
{{- if include "endpoint-picker.on-socket" . -}}
  {{- $_ := set $own "listen" "unix:/run/epp/ext-proc.sock" -}}
  {{- $_ := set $own "secure-serving" false -}}
{{- else -}}
  {{- $_ := set $own "grpc-port" $epp.extProcPort -}}
  {{- if eq (lower .Values.provider.name) "envoy-gateway" }}{{- $_ := set $own "secure-serving" false }}{{- end -}}
{{- end -}}
{{- if $router.proxy.enabled }}{{- $_ := set $own "destination-list" false }}{{- end -}}
{{- if eq (include "endpoint-picker.elects-leader" .) "true" -}}
  {{- $_ := set $own "ha-enable-leader-election" true -}}
{{- end -}}
{{- if not (include "endpoint-picker.metrics-auth" .) }}{{- $_ := set $own "metrics-endpoint-auth" false }}{{- end -}}
{{- $_ := set $own "tracing" $router.tracing.enabled -}}
{{- $given := omit ($epp.flags | default dict) "drain-timeout" "drain-delay-seconds" -}}
{{- $_ := set $own "drain-delay-seconds" (include "endpoint-picker.drain-delay" . | int) -}}
{{- $_ := set $own "drain-timeout" (printf "%ss" (include "endpoint-picker.drain-timeout" .)) -}}
{{- $args := list -}}
{{- include "endpoint-picker.overlay" (dict "onto" $own "values" $given) -}}
{{- range $name, $value := $own -}}
  {{- if kindIs "slice" $value -}}
    {{- range $value }}{{- $args = append $args (printf "--%s=%s" $name (include "endpoint-picker.scalar" .)) }}{{- end -}}
  {{- else -}}
    {{- $args = append $args (printf "--%s=%s" $name (include "endpoint-picker.scalar" $value)) -}}
  {{- end -}}
{{- end -}}
{{ toYaml $args }}
{{- end -}}

{{/* A value of a flag: numbers as they are written, where Go would print 1e+06. */}}
{{- define "endpoint-picker.scalar" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}
