{{/* The name of every object of the operator. It is fixed: a cluster has one operator. */}}
{{- define "scpol.name" -}}scpol{{- end }}

{{- define "scpol.selector" -}}
app.kubernetes.io/name: scpol
{{- end }}

{{- define "scpol.labels" -}}
app.kubernetes.io/name: scpol
app.kubernetes.io/part-of: sidecar-policy
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The image by tag and digest: `scpol check` reads the release from the tag. A release has its digest in an annotation of the chart; it is
that of appVersion, so another tag has none. A digest that is given alone may be of any release, so no tag claims one. */}}
{{- define "scpol.image" -}}
{{- with .Values.image.registry }}{{ . }}/{{ end }}{{ .Values.image.repository }}
{{- $digest := ternary "" .Values.image.digest (eq .Values.image.digest "none") }}
{{- if or .Values.image.tag (not $digest) }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- if not (or .Values.image.digest .Values.image.tag) }}{{ $digest = index .Chart.Annotations "scpol.dev/image-digest" }}{{ end }}
{{- with $digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The security context that every container of this chart has: what the Pod Security level "restricted" asks for, and more. */}}
{{- define "scpol.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop:
  - ALL
{{- end }}

{{- define "scpol.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
{{- if include "scpol.from" (list . "1.19") }}
seccompProfile:
  type: RuntimeDefault
{{- end }}
{{- end }}

{{/* Where pods run, and as whom: for every pod of this chart. */}}
{{- define "scpol.placement" -}}
securityContext:
  {{- include "scpol.podSecurity" . | nindent 2 }}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* "true" from the given version of Kubernetes on, else nothing: (list . "1.19"). */}}
{{- define "scpol.from" -}}
{{- if semverCompare (printf ">=%s.0-0" (index . 1)) (index . 0).Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{/* The port at the end of an address, or the default: (list address default). */}}
{{- define "scpol.port" -}}
{{- if index . 0 }}{{ splitList ":" (index . 0) | last }}{{ else }}{{ index . 1 }}{{ end }}
{{- end }}

{{/* The flags of `scpol run`, from .Values.operator: its keys are the flags in camel case. */}}
{{- define "scpol.arguments" -}}
{{- $flags := deepCopy .Values.operator }}
{{- if .Values.certManager.enabled }}{{ $_ := set $flags "webhookCertDir" "/etc/scpol/webhook" }}{{ end }}
{{- range $key, $value := $flags }}
{{- $flag := printf "--%s" (kebabcase $key) }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "%s=%s" $flag . | quote }}
{{- end }}
{{- else if kindIs "bool" $value }}
{{- if $value }}
- {{ $flag }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "%s=%v" $flag $value | quote }}
{{- end }}
{{- end }}
{{- range .Values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end }}

{{/* The folders of files/rbac that this cluster and these values need, separated by commas. */}}
{{- define "scpol.rights" -}}
{{- $current := include "scpol.from" (list . "1.16") | eq "true" }}
{{- $automatic := dict "webhook" true "admissionPolicy" $current "nodes" $current "initializer" (not $current)
    "authorWebhook" .Values.operator.authorCheck "metricsAuthorization" .Values.operator.metricsAuthorization
    "priorityLane" .Values.operator.priorityLane "secrets" false
    "reports" (has .Values.operator.reports (list "policyreports" "openreports"))
    "rollout" (gt (int .Values.operator.rollouts) 0) }}
{{- $parts := list "base" }}
{{- range $part, $needed := $automatic }}
{{- $given := get $.Values.rbac $part }}
{{- if kindIs "bool" $given | ternary $given $needed }}{{ $parts = append $parts (kebabcase $part) }}{{ end }}
{{- end }}
{{- join "," $parts }}
{{- end }}

{{/* The kinds of what engines register, but for Initializers. */}}
{{- define "scpol.registered" -}}
- mutatingwebhookconfigurations
- validatingwebhookconfigurations
- mutatingadmissionpolicies
- mutatingadmissionpolicybindings
- validatingadmissionpolicies
- validatingadmissionpolicybindings
{{- end }}

{{/* The names of the registrations that the operator may make: those in the files of config/, and those for custom resources. */}}
{{- define "scpol.registrations" -}}
{{- $names := list }}
{{- range $path, $_ := .Files.Glob "files/rbac/*/cluster_role.yaml" }}
{{- range $document := splitList "\n---\n" ($.Files.Get $path) }}
{{- range $rule := (fromYaml $document).rules }}
{{- if has "admissionregistration.k8s.io" $rule.apiGroups }}{{ $names = concat $names ($rule.resourceNames | default list) }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.rbac.customResources }}
{{- $name := printf "scpol-%s.%s" .resource .group }}
{{- $names = concat $names (list $name (printf "%s-ignore" $name)) }}
{{- end }}
{{- $names | uniq | sortAlpha | toYaml }}
{{- end }}

{{/* An object of config/ for this release: in its namespace, with the common labels. (list . object) */}}
{{- define "scpol.object" -}}
{{- $root := index . 0 }}{{ $object := index . 1 }}
{{- with $root.Values.commonLabels }}
{{- $_ := set $object.metadata "labels" (merge (dict) . ($object.metadata.labels | default dict)) }}
{{- end }}
{{- toYaml $object }}
{{- end }}

{{/* Every document of a file of config/: (list . path). */}}
{{- define "scpol.file" -}}
{{- $root := index . 0 }}
{{- $text := $root.Files.Get (index . 1) | required (printf "the chart lacks %s: run `make install-files`" (index . 1)) }}
{{- range $document := splitList "\n---\n" ($text | replace "namespace: scpol-system" (printf "namespace: %s" $root.Release.Namespace)) }}
---
{{ include "scpol.object" (list $root (fromYaml $document)) }}
{{- end }}
{{- end }}
