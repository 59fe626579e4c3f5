{{- define "reveille.labels" -}}
app.kubernetes.io/name: reveille
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "reveille.redis" -}}
{{ .Values.redis.url | default (printf "redis://%s-redis:6379/0" .Release.Name) }}
{{- end }}

{{- define "reveille.models" -}}
{{- $hosts := dict }}
{{- range $name, $host := .Values.hosts }}
{{- $_ := set $hosts $name (dict "driver" "kubernetes" "workload" (printf "statefulset/%s-%s" $.Release.Name $name) "namespace" $.Release.Namespace "devices" $host.devices) }}
{{- end }}
{{- toYaml (dict "models" .Values.models "hosts" $hosts) }}
{{- end }}

{{- define "reveille.runnerSecret" -}}
- name: REVEILLE_RUNNER_SECRET
  valueFrom: {secretKeyRef: {name: {{ .Values.secret }}, key: runner-secret}}
{{- end }}

{{- define "reveille.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "reveille.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
