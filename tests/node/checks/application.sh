# What a sidecar takes from the application, and what the application must not lose by it.

# An agent reads a log that the application writes to a volume of its own, and cannot write there. The application keeps its own
# options beside those of the policy.
agent_reads_log() {
    policy "$here/policies/agent.yaml"
    quietly kubectl create -f - << 'Y'
apiVersion: v1
kind: Pod
metadata: {name: writer}
spec:
  volumes: [{name: logs, emptyDir: {}}]
  containers:
  - name: writer
    image: busybox:1.36
    command: [sh, -c, 'while :; do echo "options $JAVA_TOOL_OPTIONS" >> /var/log/app/app.log; sleep 1; done']
    env: [{name: JAVA_TOOL_OPTIONS, value: -Xmx64m}]
    volumeMounts: [{name: logs, mountPath: /var/log/app}]
Y
    quietly kubectl wait --for=condition=Ready pod/writer --timeout=60s
    becomes 30 'options -Xmx64m -javaagent:/agent/a.jar' first_line writer log-agent
    is -Xmx64m "$(kubectl exec writer -c log-agent -- sh -c 'echo $JAVA_TOOL_OPTIONS')"
    ! kubectl exec writer -c log-agent -- touch /var/log/app/x 2> /dev/null || fail 'the agent can write into the volume of the application'
    quietly kubectl delete pod writer --now
    without_policies
}
first_line() { kubectl logs "$1" -c "$2" | head -n 1; } # pod container

# What the kubelet would refuse is not added, so that the application runs without it: an init container of root in a pod that forbids
# root, and a sidecar that forbids root in a pod of root.
kubelet_would_refuse() {
    policy "$here/policies/root.yaml"
    policy "$here/policies/no-root.yaml"
    quietly kubectl run forbids --image=busybox:1.36 --labels=root=forbidden --overrides='{"spec": {"securityContext": {"runAsNonRoot": true, "runAsUser": 1000}}}' -- sleep 1d
    quietly kubectl run is-root --image=busybox:1.36 --labels=root=used --overrides='{"spec": {"securityContext": {"runAsUser": 0}}}' -- sleep 1d
    quietly kubectl wait --for=condition=Ready pod/forbids pod/is-root --timeout=60s
    is '/forbids /is-root' "$(kubectl get pod forbids is-root -o 'jsonpath={.items[0].spec.initContainers[*].name}/{.items[0].spec.containers[*].name} {.items[1].spec.initContainers[*].name}/{.items[1].spec.containers[*].name}')"
    becomes 20 SCP0228 told_of forbids
    becomes 20 SCP0228 told_of is-root
    quietly kubectl delete pod forbids is-root --now
    without_policies
}
# The codes of the failures that events tell of a pod, each once.
told_of() { kubectl get events --field-selector "involvedObject.name=$1,reason=SidecarInjectionFailed" -o 'jsonpath={range .items[*]}{.message}{"\n"}{end}' | cut -d: -f1 | sort -u; }
