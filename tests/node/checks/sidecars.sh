# Sidecars in pods that run.

# A sidecar runs, its log can be read, it shares a volume with the pod's own container, and it reaches that over loopback.
sidecar_runs() {
    policy "$here/policies/shared.yaml"
    quietly kubectl create -f samples/workloads/nginx.yaml
    quietly kubectl rollout status deployment/nginx --timeout=60s
    is 'nginx log-agent' "$(pods app=nginx '{.items[*].spec.containers[*].name}')"
    is 'true true' "$(pods app=nginx '{.items[*].status.containerStatuses[*].ready}')"
    is 'log-agent 1' "$(kubectl logs deployment/nginx -c log-agent | head -n 1)"
    is 'it works' "$(kubectl exec deployment/nginx -c log-agent -- sh -c 'echo kept > /buffer/x; wget -qO- http://127.0.0.1/')"
    is kept "$(kubectl exec deployment/nginx -c nginx -- cat /shared/x)"
    quietly kubectl delete deployment nginx
    without_policies
}

# A Job ends with its native sidecar, which ends in good order and last.
job_ends() { # [sed script for the policy [patience]]
    policy samples/09-pods.yaml "${1:-}"
    quietly kubectl create job once --image=busybox:1.36 -- sh -c 'sleep 2; echo done'
    quietly kubectl wait --for=condition=Complete job/once --timeout="${2:-60s}"
    is '0 Completed' "$(pods job-name=once '{.items[*].status.initContainerStatuses[*].state.terminated.exitCode} {.items[*].status.initContainerStatuses[*].state.terminated.reason}')"
    is 'log-agent ends' "$(kubectl logs job/once -c log-agent | tail -n 1)"
    quietly kubectl delete job once
    without_policies
}

# A Job with a plain sidecar goes on after its own container has ended.
plain_sidecar='s/^spec:/spec:\n  nativeSidecars: Never\n  jobs: Inject/'
job_with_plain_sidecar() { # [sed script for the policy]
    local statuses='{.items[*].status.containerStatuses'
    policy samples/09-pods.yaml "${1-$plain_sidecar}"
    quietly kubectl create job plain --image=busybox:1.36 -- sh -c 'sleep 1'
    becomes 30 Completed pods job-name=plain "$statuses[?(@.name==\"plain\")].state.terminated.reason}"
    sleep 5
    is '1 Running true' "$(kubectl get job plain -o 'jsonpath={.status.active}') $(pods job-name=plain "{.items[*].status.phase} $statuses[?(@.name==\"log-agent\")].ready}")"
    quietly kubectl delete job plain
    without_policies
}

# A pod's own containers start after the startup probe of a native sidecar has passed, and never if it never passes.
startup_order() { # [sed script for the policy]
    policy "$here/policies/gate.yaml" "${1:-}"
    quietly kubectl run behind --image=busybox:1.36 -- sh -c 'ls /gate; exec sleep 1d'
    quietly kubectl wait --for=condition=Ready pod/behind --timeout=60s
    is open "$(kubectl logs behind -c behind)"
    without_policies
    policy "$here/policies/gate.yaml" 's:touch /gate/open:true:'
    quietly kubectl run never --image=busybox:1.36 -- sleep 1d
    quietly kubectl wait --for='jsonpath={.status.initContainerStatuses[0].state.running}' pod/never --timeout=30s
    sleep 5 # two more than the sidecar would take
    is 'false PodInitializing' "$(kubectl get pod never -o 'jsonpath={.status.initContainerStatuses[0].started} {.status.containerStatuses[0].state.waiting.reason}')"
    quietly kubectl delete pod behind never --now --wait=false
    without_policies
}

# A static pod and one on the network of the host run as they are.
not_injected() {
    policy samples/09-pods.yaml
    cat > "$NODE_DIR/static/static.yaml" << 'Y'
apiVersion: v1
kind: Pod
metadata: {name: static, namespace: default}
spec: {containers: [{name: c, image: "nginx:1.8.1"}]}
Y
    quietly kubectl run host --image=busybox:1.36 --overrides='{"spec": {"hostNetwork": true}}' -- sleep 1d
    becomes 60 'c Running' kubectl get pod static-node-1 -o 'jsonpath={.spec.containers[*].name} {.status.phase}'
    becomes 60 'host Running' kubectl get pod host -o 'jsonpath={.spec.containers[*].name} {.status.phase}'
    rm "$NODE_DIR/static/static.yaml"
    quietly kubectl delete pod host --now
    without_policies
}

# The id, the start and the restarts of a pod's own container, and the ids of its sidecars.
own_container() { pods app=web '{range .items[*].status.containerStatuses[?(@.name=="nginx")]}{.containerID} {.state.running.startedAt} {.restartCount}{end}'; }
sidecars_that_run() { pods app=web '{.items[*].status.initContainerStatuses[?(@.name=="native")].containerID} {.items[*].status.containerStatuses[?(@.name=="plain")].containerID}'; }
progressing() { kubectl get scpol web -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}'; }

# Other images and resources of a plain and a native sidecar reach a running pod, whose own container goes on.
rolled_out_in_place() {
    local own before path=/spec/template
    quietly kubectl apply -k config/rbac/rollout
    policy "$here/policies/in-place.yaml"
    quietly kubectl create deployment web --image=nginx:1.27
    quietly kubectl rollout status deployment/web --timeout=60s
    becomes 120 Complete progressing
    own=$(own_container) before=$(sidecars_that_run)
    quietly kubectl patch scpol web --type=json -p "[
        {\"op\": \"replace\", \"path\": \"$path/initContainers/0/image\", \"value\": \"nginx:1.12.2\"},
        {\"op\": \"replace\", \"path\": \"$path/containers/0/image\", \"value\": \"nginx:1.12.2\"},
        {\"op\": \"replace\", \"path\": \"$path/containers/0/resources/requests/cpu\", \"value\": \"20m\"}]"
    becomes 60 'nginx:1.12.2 nginx:1.12.2 20m' pods app=web \
        '{.items[*].spec.initContainers[0].image} {.items[*].spec.containers[1].image} {.items[*].spec.containers[1].resources.requests.cpu}'
    becomes 60 'true true true' pods app=web '{.items[*].status.initContainerStatuses[*].ready} {.items[*].status.containerStatuses[*].ready}'
    becomes 120 Complete progressing
    is "$own" "$(own_container)"
    [ "$before" != "$(sidecars_that_run)" ] || fail 'the sidecars run the image before'
    quietly kubectl delete deployment web
    without_policies
}
