{{/* Pod template of the Deployment. */}}
{{- define "endpoint-picker.pod" -}}
{{- $router := .Values.router -}}
{{- $epp := $router.epp -}}
{{- $proxy := $router.proxy -}}
{{- $onSocket := include "endpoint-picker.on-socket" . -}}
{{- $isSidecar := include "endpoint-picker.is-sidecar" . -}}
metadata:
  labels:
    {{- include "endpoint-picker.selector-labels" . | nindent 4 }}
    {{- include "endpoint-picker.labels" . | nindent 4 }}
    {{- with $epp.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: epp
    {{- if $proxy.enabled }}
    {{- /* Envoy reads its bootstrap once. */}}
    checksum/envoy: {{ printf "%s%s" (.Files.Get "files/envoy.yaml") (toJson (dict "own" (dig "configMap" dict $proxy) "data" $proxy.configMapData)) | sha256sum }}
    {{- end }}
    {{- with $epp.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "endpoint-picker.service-account" . }}
  terminationGracePeriodSeconds: {{ $epp.terminationGracePeriodSeconds }}
  {{- with $router.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $epp.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  # No variables for the Services of the namespace: nothing reads them.
  enableServiceLinks: false
  {{- with $epp.podSecurityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if or $isSidecar (and $router.tokenizer.enabled $router.tokenizer.initContainers) }}
  initContainers:
    {{- if $router.tokenizer.enabled }}
    {{- with $router.tokenizer.initContainers }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if $isSidecar }}
    {{- include "endpoint-picker.container" . | nindent 4 }}
      # A sidecar container starts before Envoy and stops after it.
      restartPolicy: Always
    {{- end }}
  {{- end }}
  containers:
    {{- if not $isSidecar }}
    {{- include "endpoint-picker.container" . | nindent 4 }}
    {{- end }}
    {{- if $proxy.enabled }}
    {{- include "endpoint-picker.envoy" . | nindent 4 }}
    {{- end }}
    {{- if $router.tokenizer.enabled }}
    {{- include "endpoint-picker.tokenizer" . | nindent 4 }}
    {{- end }}
  volumes:
    - name: plugins-config-volume
      configMap:
        name: {{ include "endpoint-picker.name" . }}
    {{- if $onSocket }}
    - name: socket
      emptyDir:
        medium: Memory
        sizeLimit: 1Mi
    {{- end }}
    {{- if $proxy.enabled }}
    - name: envoy-config
      configMap:
        name: {{ include "endpoint-picker.name" . }}-envoy
    {{- with $proxy.volumes }}
    {{- tpl (toYaml .) $ | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- if $router.tokenizer.enabled }}
    - name: model-cache
      emptyDir: {}
    {{- with $router.tokenizer.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- end }}
    {{- with $epp.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $epp.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $epp.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $epp.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $epp.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- toYaml $epp.topologySpreadConstraints | nindent 4 }}
  {{- else if or (gt (int $epp.replicas) 1) $epp.autoscaling.enabled }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "endpoint-picker.selector-labels" $ | nindent 10 }}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* The endpoint picker's container, as an item of a list. */}}
{{- define "endpoint-picker.container" -}}
{{- $router := .Values.router -}}
{{- $epp := $router.epp -}}
- name: epp
  image: {{ include "endpoint-picker.image" . | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    {{- include "endpoint-picker.args" . | nindent 4 }}
  env:
    - name: NAMESPACE
      valueFrom:
        fieldRef:
          fieldPath: metadata.namespace
    - name: POD_NAME
      valueFrom:
        fieldRef:
          fieldPath: metadata.name
    {{- if $router.tracing.enabled }}
    - name: OTEL_SERVICE_NAME
      value: {{ include "endpoint-picker.name" . }}
    - name: OTEL_EXPORTER_OTLP_ENDPOINT
      value: {{ $router.tracing.otelExporterEndpoint | quote }}
    - name: OTEL_TRACES_EXPORTER
      value: otlp
    - name: OTEL_TRACES_SAMPLER
      value: {{ $router.tracing.sampling.sampler | quote }}
    - name: OTEL_TRACES_SAMPLER_ARG
      value: {{ $router.tracing.sampling.samplerArg | quote }}
    {{- end }}
    {{- with $epp.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    {{- if not (include "endpoint-picker.on-socket" .) }}
    - name: grpc
      containerPort: {{ $epp.extProcPort }}
    {{- end }}
    - name: grpc-health
      containerPort: {{ $epp.grpcHealthPort }}
    - name: metrics
      containerPort: {{ $router.metricsPort }}
    {{- with $epp.extraContainerPorts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  startupProbe:
    grpc:
      port: {{ $epp.grpcHealthPort }}
      service: liveness
    periodSeconds: 1
    failureThreshold: 60
  livenessProbe:
    grpc:
      port: {{ $epp.grpcHealthPort }}
      service: liveness
    periodSeconds: 10
  readinessProbe:
    grpc:
      port: {{ $epp.grpcHealthPort }}
      service: readiness
    periodSeconds: 2
  {{- with $epp.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $epp.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    # Whole, not by subPath, so that a change arrives.
    - name: plugins-config-volume
      mountPath: /config
      readOnly: true
    {{- if include "endpoint-picker.on-socket" . }}
    - name: socket
      mountPath: /run/epp
    {{- end }}
    {{- with $epp.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Envoy's container, as an item of a list. */}}
{{- define "endpoint-picker.envoy" -}}
{{- $proxy := .Values.router.proxy -}}
{{- $ownBootstrap := include "endpoint-picker.own-bootstrap" . -}}
- name: {{ $proxy.name }}
  image: {{ $proxy.image | quote }}
  imagePullPolicy: {{ $proxy.imagePullPolicy }}
  command:
    {{- if $proxy.command }}
    {{- ternary $proxy.command (list $proxy.command) (kindIs "slice" $proxy.command) | toYaml | nindent 4 }}
    {{- else }}
    - envoy
    {{- end }}
  args:
    {{- if $proxy.args }}
    {{- toYaml $proxy.args | nindent 4 }}
    {{- else }}
    - --config-path
    - /etc/envoy/envoy.yaml
    - --disable-hot-restart
    # From the first moment of the drain every response closes its connection.
    - --drain-strategy
    - immediate
    - --drain-time-s
    - "5"
    {{- end }}
  {{- with $proxy.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- if $proxy.ports }}
    {{- toYaml $proxy.ports | nindent 4 }}
    {{- else }}
    - name: http
      containerPort: 8081
    {{- end }}
  {{- with $proxy.startupProbe }}
  startupProbe:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- /* An Envoy that is out of order exits, so none by default. */}}
  {{- with $proxy.livenessProbe }}
  livenessProbe:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  readinessProbe:
    {{- if $proxy.readinessProbe }}
    {{- toYaml $proxy.readinessProbe | nindent 4 }}
    {{- else }}
    tcpSocket:
      port: 8081
    periodSeconds: 2
    failureThreshold: 1
    {{- end }}
  {{- if not (or $ownBootstrap (contains "distroless" $proxy.image)) }}
  lifecycle:
    preStop:
      exec:
        # Admin port, seconds in which new connections are let in, seconds for all of it.
        command: [bash, /etc/envoy/drain.sh, "9901", "5", {{ include "endpoint-picker.envoy-drain" . | quote }}]
  {{- end }}
  {{- with $proxy.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $proxy.securityContext }}
  securityContext:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - name: envoy-config
      mountPath: /etc/envoy
      readOnly: true
    {{- if not $ownBootstrap }}
    - name: socket
      mountPath: /run/epp
    {{- end }}
    {{- with $proxy.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* The container of vLLM's renderer, as an item of a list. */}}
{{- define "endpoint-picker.tokenizer" -}}
{{- $tokenizer := .Values.router.tokenizer -}}
- name: vllm-render
  image: {{ printf "%s/%s:%s" $tokenizer.image.registry $tokenizer.image.repository $tokenizer.image.tag | quote }}
  imagePullPolicy: {{ $tokenizer.image.pullPolicy }}
  command:
    {{- if $tokenizer.command }}
    {{- toYaml $tokenizer.command | nindent 4 }}
    {{- else if eq $tokenizer.flavor "rust" }}
    - vllm-rs
    - render
    {{- else }}
    - vllm
    - launch
    - render
    {{- end }}
  args:
    {{- if $tokenizer.args }}
    {{- toYaml $tokenizer.args | nindent 4 }}
    {{- else }}
    - {{ $tokenizer.modelName | quote }}
    - --port={{ $tokenizer.port }}
    {{- end }}
    {{- with $tokenizer.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $tokenizer.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - name: render-http
      containerPort: {{ $tokenizer.port }}
  {{- with $tokenizer.readinessProbe }}
  readinessProbe:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $tokenizer.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # vLLM's images are of root, and write to its home.
  securityContext:
    runAsNonRoot: false
    allowPrivilegeEscalation: false
  volumeMounts:
    - name: model-cache
      mountPath: /root/.cache/huggingface
    {{- with $tokenizer.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
