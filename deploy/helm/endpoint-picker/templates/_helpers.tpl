{{/* Name of the Deployment, its Service and its account, as in the Go EPP's charts. */}}
{{- define "endpoint-picker.name" -}}
{{ .Release.Name | lower | trim | trunc 40 }}-epp
{{- end -}}

{{/* Name of objects without a namespace. */}}
{{- define "endpoint-picker.cluster-name" -}}
{{ printf "%s-%s-epp" (.Release.Name | lower | trim | trunc 40) (.Release.Namespace | trunc 40) }}
{{- end -}}

{{- define "endpoint-picker.labels" -}}
app.kubernetes.io/name: {{ include "endpoint-picker.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{/*
A Deployment's selector cannot be changed. So the labels are those of the Deployment that is there,
whichever chart it is from, or else those of the Go EPP's chart whose values these are.
*/}}
{{- define "endpoint-picker.selector-labels" -}}
{{- $name := include "endpoint-picker.name" . -}}
{{- $present := lookup "apps/v1" "Deployment" .Release.Namespace $name -}}
{{- $isLegacy := or .Values.inferenceExtension .Values.inferencePool -}}
{{- $hasPool := .Values.router.inferencePool.create -}}
{{- if .Values.selectorLabels -}}
{{ toYaml .Values.selectorLabels }}
{{- else if $present -}}
{{ toYaml $present.spec.selector.matchLabels }}
{{- else if $isLegacy -}}
{{ ternary "inferencepool" "epp" $hasPool }}: {{ $name }}
{{- else -}}
{{ ternary "llm-d-router-gateway" "llm-d-router-standalone" $hasPool }}: {{ $name }}
{{- end -}}
{{- end -}}

{{- define "endpoint-picker.service-account" -}}
{{ .Values.serviceAccount.name | default (include "endpoint-picker.name" .) }}
{{- end -}}

{{- define "endpoint-picker.image" -}}
{{- $image := .Values.image -}}
{{- with $image.registry }}{{ . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end -}}

{{/* Whether one of the replicas leads: with several, as in the Go EPP's charts, unless a flag says otherwise. */}}
{{- define "endpoint-picker.elects-leader" -}}
{{- $epp := .Values.router.epp -}}
{{- $flags := $epp.flags | default dict -}}
{{- if hasKey $flags "ha-enable-leader-election" -}}
{{ has (get $flags "ha-enable-leader-election" | toString | lower) (list "true" "t" "1") }}
{{- else -}}
{{ and (gt (int $epp.replicas) 1) (not $epp.autoscaling.enabled) }}
{{- end -}}
{{- end -}}

{{/* Whether Envoy has a bootstrap of the user's, which finds the endpoint picker at port 9002. */}}
{{- define "endpoint-picker.own-bootstrap" -}}
{{- $proxy := .Values.router.proxy -}}
{{- if or (dig "configMap" "data" dict $proxy) $proxy.configMapData $proxy.args $proxy.command }}true{{ end -}}
{{- end -}}

{{/* Whether ext_proc is on a Unix socket in the Pod. */}}
{{- define "endpoint-picker.on-socket" -}}
{{- if and .Values.router.proxy.enabled (not (include "endpoint-picker.own-bootstrap" .)) }}true{{ end -}}
{{- end -}}

{{/* Whether the conditions of objectives and rewrites are written. */}}
{{- define "endpoint-picker.writes-status" -}}
{{- $flags := .Values.router.epp.flags | default dict -}}
{{- if not (has (get $flags "write-object-status" | toString | lower) (list "false" "f" "0")) }}true{{ end -}}
{{- end -}}

{{/*
Whether the endpoint picker is a sidecar container, which stops after Envoy. Not if it may lead: it
would keep the Lease until Envoy's last request has ended, and no other Pod would be ready.
*/}}
{{- define "endpoint-picker.is-sidecar" -}}
{{- if and .Values.router.proxy.enabled (ne (include "endpoint-picker.elects-leader" .) "true") }}true{{ end -}}
{{- end -}}

{{/* Whether the metrics port asks for tokens. */}}
{{- define "endpoint-picker.metrics-auth" -}}
{{- $flags := .Values.router.epp.flags | default dict -}}
{{- if hasKey $flags "metrics-endpoint-auth" -}}
{{- if has (get $flags "metrics-endpoint-auth" | toString | lower) (list "true" "t" "1") }}true{{ end -}}
{{- else if .Values.router.monitoring.prometheus.auth.enabled }}true{{ end -}}
{{- end -}}

{{- define "endpoint-picker.metrics-secret" -}}
{{ .Values.router.monitoring.prometheus.auth.secretName | default (printf "%s-metrics-reader" (include "endpoint-picker.name" .)) }}
{{- end -}}

{{/* Group of the pool, for --pool-group and poolRefs. */}}
{{- define "endpoint-picker.pool-group" -}}
{{ .Values.router.inferencePool.apiVersion | splitList "/" | first }}
{{- end -}}

{{/* Group of objectives: the older one where the cluster has no other. */}}
{{- define "endpoint-picker.objective-version" -}}
{{- $old := "inference.networking.x-k8s.io/v1alpha2" -}}
{{- if and (.Capabilities.APIVersions.Has (printf "%s/InferenceObjective" $old)) (not (.Capabilities.APIVersions.Has "llm-d.ai/v1alpha2/InferenceObjective")) -}}
{{ $old }}
{{- else -}}
llm-d.ai/v1alpha2
{{- end -}}
{{- end -}}

{{/* Labels of the model servers; a value such as true or 1 becomes the text that a label has. */}}
{{- define "endpoint-picker.match-labels" -}}
{{- range $name, $value := .Values.router.modelServers.matchLabels }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{/* Labels of the model servers as a label selector. */}}
{{- define "endpoint-picker.endpoint-selector" -}}
{{- if .Values.router.modelServers.selector -}}
{{ .Values.router.modelServers.selector }}
{{- else -}}
{{- $pairs := list -}}
{{- range $name, $value := .Values.router.modelServers.matchLabels }}{{- $pairs = append $pairs (printf "%s=%v" $name $value) }}{{- end -}}
{{ join "," $pairs }}
{{- end -}}
{{- end -}}

{{- define "endpoint-picker.target-ports" -}}
{{- $ports := list -}}
{{- range .Values.router.modelServers.targetPorts }}{{- $ports = append $ports (int .number | toString) }}{{- end -}}
{{ join "," $ports }}
{{- end -}}

{{/* Seconds of a duration such as 30s or 1m30s, rounded up. */}}
{{- define "endpoint-picker.seconds" -}}
{{- $seconds := 0.0 -}}
{{- $units := dict "ms" 0.001 "s" 1.0 "m" 60.0 "h" 3600.0 -}}
{{- if not (regexMatch "^(0|([0-9]*\\.?[0-9]+(ms|s|m|h))+)$" .) -}}
{{- fail (printf "%q is no duration such as 30s or 1m30s" .) -}}
{{- end -}}
{{- range regexFindAll "[0-9]*\\.?[0-9]+(ms|s|m|h)" . -1 -}}
  {{- $unit := regexFind "[a-z]+" . -}}
  {{- $seconds = addf $seconds (mulf (float64 (trimSuffix $unit .)) (get $units $unit)) -}}
{{- end -}}
{{ ceil $seconds | int }}
{{- end -}}

{{/*
Time after SIGTERM in which new requests are served. The flag --drain-timeout alone means that, too,
as in the Go EPP. With an Envoy in the Pod none, if Envoy is stopped first and has no requests left;
else as long as Envoy may take.
*/}}
{{- define "endpoint-picker.drain-delay" -}}
{{- $flags := .Values.router.epp.flags | default dict -}}
{{- if include "endpoint-picker.is-sidecar" . -}}
0
{{- else if .Values.router.proxy.enabled -}}
{{ include "endpoint-picker.envoy-drain" . }}
{{- else if hasKey $flags "drain-delay-seconds" -}}
{{ get $flags "drain-delay-seconds" | float64 | ceil | int }}
{{- else if hasKey $flags "drain-timeout" -}}
{{ include "endpoint-picker.seconds" (get $flags "drain-timeout" | toString) }}
{{- else -}}
{{ .Values.drain.delaySeconds }}
{{- end -}}
{{- end -}}

{{/* Time that Envoy has for its requests, of the grace period; 30 s are for the exits. */}}
{{- define "endpoint-picker.envoy-drain" -}}
{{ sub (int .Values.router.epp.terminationGracePeriodSeconds) 30 }}
{{- end -}}

{{/* Time for open requests after that: what is left of the grace period, less 10 s for the exit. */}}
{{- define "endpoint-picker.drain-timeout" -}}
{{- $grace := int .Values.router.epp.terminationGracePeriodSeconds -}}
{{- $delay := include "endpoint-picker.drain-delay" . | int -}}
{{- if .Values.router.proxy.enabled -}}
  {{- if lt $grace 40 -}}
  {{- fail (printf "router.epp.terminationGracePeriodSeconds: %d is too short; 30 s are for the exits, the rest for open requests: set 40 or more" $grace) -}}
  {{- end -}}
10
{{- else -}}
  {{- $left := sub (sub $grace $delay) 10 -}}
  {{- if lt $left 1 -}}
  {{- fail (printf "router.epp.terminationGracePeriodSeconds: %d is too short; new requests are served for %d s (drain.delaySeconds, or the flag drain-timeout), and 10 s are for the exit: set more than %d" $grace $delay (add $delay 10)) -}}
  {{- end -}}
{{ $left }}
{{- end -}}
{{- end -}}
