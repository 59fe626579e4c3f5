{{- define "reveille.labels" -}}
app.kubernetes.io/name: reveille
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* All hosts by name: an entry with a count is several. */ -}}
{{- define "reveille.hosts" -}}
{{- $all := dict }}
{{- range $name, $host := .Values.hosts }}
{{- if hasKey $host "count" }}
{{- range $i := until (int $host.count) }}
{{- $_ := set $all (printf "%s-%d" $name (add1 $i)) $host }}
{{- end }}
{{- else }}
{{- $_ := set $all $name $host }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}

{{- define "reveille.models" -}}
{{- $hosts := dict }}
{{- range $name, $host := include "reveille.hosts" . | fromYaml }}
{{- $_ := set $hosts $name (dict "driver" "kubernetes" "workload" (printf "statefulset/%s-%s" $.Release.Name $name) "namespace" $.Release.Namespace "devices" $host.devices) }}
{{- with $host.max }}
{{- $_ := set (get $hosts $name) "max" . }}
{{- end }}
{{- end }}
{{- toYaml (merge (dict "models" .Values.models "hosts" $hosts) .Values.catalog) }}
{{- end }}

{{- /* The environment that all programs have, and then what the values set for one. */ -}}
{{- define "reveille.env" -}}
{{- $root := index . 0 }}
- name: REDIS_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ $root.Values.secret }}, key: redis-password, optional: {{ not (empty $root.Values.redis.url) }}}}
- name: REVEILLE_REDIS_URL
  value: {{ $root.Values.redis.url | default (printf "redis://:$(REDIS_PASSWORD)@%s-redis:6379/0" $root.Release.Name) | quote }}
- name: REVEILLE_RUNNER_SECRET
  valueFrom: {secretKeyRef: {name: {{ $root.Values.secret }}, key: runner-secret}}
{{- range $name, $value := (index . 1).env }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
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
