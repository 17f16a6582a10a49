{{- define "kant.labels" -}}
{app.kubernetes.io/name: kant, app.kubernetes.io/component: {{ . }}}
{{- end }}

{{/* What the spec of every pod says, up to the mounts of its first container. */}}
{{- define "kant.pod" -}}
{{- $values := .chart.Values -}}
priorityClassName: {{ $values.priorityClass.name }}
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
{{- with $values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if has .component (list "web" "scheduler") }}
# Spread the pods over nodes and zones as evenly as possible.
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ . }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "kant.labels" $.component }}
  {{- end }}
{{- end }}
initContainers:
  - name: migrate
    image: {{ $values.image }}
    command: [python, manage.py, migrate]
    envFrom: &environment
      - configMapRef: {name: kant}
      {{- if or $values.trial.postgresql.enabled $values.trial.redis.enabled }}
      - secretRef: {name: kant-trial}
      - secretRef: {name: {{ $values.secret }}, optional: true}
      {{- else }}
      - secretRef: {name: {{ $values.secret }}}
      {{- end }}
    securityContext: &restricted
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    resources: &resources
      {{- toYaml (index $values .component).resources | nindent 6 }}
{{- end }}
