{{/* The files in /config: name to text, as YAML. */}}
{{- define "endpoint-picker.plugin-files" -}}
{{- $epp := .Values.router.epp -}}
{{- $files := dict "default-plugins.yaml" (include "endpoint-picker.default-plugins" .) "payload-agnostic.yaml" (include "endpoint-picker.payload-agnostic" .) -}}
{{- with $epp.pluginsConfig }}{{- $_ := set $files $epp.pluginsConfigFile (toYaml .) }}{{- end -}}
{{- range $name, $text := $epp.pluginsCustomConfig -}}
  {{- $_ := set $files $name (ternary $text (toYaml $text) (kindIs "string" $text)) -}}
{{- end -}}
{{ toYaml $files }}
{{- end -}}

{{/* The scorers and weights of the Go EPP's chart, for the engine of router.modelServers. */}}
{{- define "endpoint-picker.default-plugins" -}}
{{- $router := .Values.router -}}
{{- $engine := lower $router.modelServers.type -}}
{{- $source := $router.epp.metricsDataSource -}}
{{- $parsers := $router.epp.parsers -}}
{{- if and (not $parsers) (eq $engine "vllm") (eq (lower $router.modelServers.protocol) "grpc") -}}
  {{- $parsers = list "vllmgrpc-parser" -}}
{{- else if and (not $parsers) (eq $engine "triton") -}}
  {{- $parsers = list "passthrough-parser" -}}
{{- end -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters:
    scheme: {{ $source.scheme | quote }}
    path: {{ $source.path | quote }}
    insecureSkipVerify: {{ $source.insecureSkipVerify }}
- type: core-metrics-extractor
  parameters:
    defaultEngine: {{ $engine | quote }}
{{- range $parsers }}
- type: {{ . }}
{{- end }}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
{{- with $parsers }}
requestHandler:
  parsers:
  {{- range . }}
  - pluginRef: {{ . }}
  {{- end }}
{{- end }}
{{ end -}}

{{/* For requests whose bodies no parser reads: by load, and by session where a client has one. */}}
{{- define "endpoint-picker.payload-agnostic" -}}
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
requestHandler:
  parsers:
  - pluginRef: passthrough-parser
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: active-request-scorer
    weight: 1
  - pluginRef: session-affinity-scorer
    weight: 1
{{ end -}}
