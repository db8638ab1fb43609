{{/* What the pods of writers and CronJobs have in common. */}}
{{- define "frazil.pod" -}}
serviceAccountName: frazil-writers
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
securityContext: {{ toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: streams
    configMap:
      name: frazil-streams
  - name: home
    emptyDir: {}
  {{- with .Values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- define "frazil.container" -}}
name: frazil
image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: FRAZIL_STREAMS
    value: /etc/frazil/streams
  - name: FRAZIL_HOME
    value: /var/lib/frazil
  {{- with .Values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.envFrom }}
envFrom: {{ toYaml . | nindent 2 }}
{{- end }}
resources: {{ toYaml .Values.resources | nindent 2 }}
securityContext: {{ toYaml .Values.securityContext | nindent 2 }}
volumeMounts:
  - name: streams
    mountPath: /etc/frazil/streams
    readOnly: true
  - name: home
    mountPath: /var/lib/frazil
  {{- with .Values.volumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
