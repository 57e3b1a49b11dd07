# What pages of docs/how-to say of pods that run.

# docs/how-to/share-a-volume.md: the sidecar prints the access log of the application, which it may not change. A pod with
# a mount of its own there runs without the sidecar. A log that is too large ends the pod.
share_a_volume() {
    local page=docs/how-to/share-a-volume.md logs=(kubectl logs web --namespace shop -c ship-logs) line
    quietly kubectl create namespace shop
    policy docs/examples/how-to/log-shipping.yaml
    quietly kubectl create -f docs/examples/how-to/web.yaml
    quietly kubectl wait --for=condition=Ready pod/web --namespace shop --timeout=60s
    is 'it works' "$(in_shop web -c web -- wget -qO- http://127.0.0.1/)"
    becomes 10 "$(in_shop web -c web -- grep 'response:200' /var/log/nginx/access.log)" "${logs[@]}"
    [[ $(in_shop web -c ship-logs -- touch /logs/x 2>&1) == *'Read-only file system'* ]] || fail 'the sidecar can write'

    sed '0,/name: web$/s//name: own/; $a\    volumeMounts: [{name: own, mountPath: /var/log/nginx}]\n  volumes: [{name: own, emptyDir: {}}]' \
        docs/examples/how-to/web.yaml | quietly kubectl create -f - 2> /dev/null # a warning
    quietly kubectl wait --for=condition=Ready pod/own --namespace shop --timeout=60s
    line=$(grep '^ship-logs  CONFLICT' "$page")
    [[ $("$SCPOL" explain pod/own --namespace shop) == *"$line"* ]] || fail "scpol explain does not print: $line"

    in_shop web -c web -- dd if=/dev/zero of=/var/log/nginx/large bs=1M count=110 2> /dev/null
    becomes 90 'Failed Evicted' kubectl get pod web --namespace shop -o 'jsonpath={.status.phase} {.status.reason}'
    [[ $(kubectl get pod web --namespace shop -o 'jsonpath={.status.message}') == *'"logs" exceeds the limit "100Mi"'* ]] || fail 'for another reason'
    without_policies
    quietly kubectl delete namespace shop
}
in_shop() { kubectl exec --namespace shop "$@"; }

# docs/how-to/config-map.md: a configuration in the policy is a file of the sidecar. Without its ConfigMap a pod does not
# start, unless the volume is optional. The commands of the page create it, and the pod starts.
config_map() {
    local page=docs/how-to/config-map.md folder=$NODE_DIR/config-map
    quietly kubectl create namespace team-a
    policy docs/examples/how-to/config-in-the-policy.yaml
    quietly kubectl run web --image=nginx:1.27 --namespace team-a
    quietly kubectl wait --for=condition=Ready pod/web --namespace team-a --timeout=60s
    is "$(sed -n '/^ *admin:/,/^ *address:/ s/^ \{10\}//p' "$page")" "$(kubectl exec web --namespace team-a -c envoy -- cat /etc/envoy/envoy.yaml)"
    without_policies
    quietly kubectl delete namespace team-a

    quietly kubectl create namespace shop
    quietly kubectl label namespace shop team=shop
    policy docs/examples/how-to/needs-a-config-map.yaml
    quietly kubectl run waits --image=nginx:1.27 --namespace shop
    becomes 30 'ContainerCreating ContainerCreating' kubectl get pod waits --namespace shop \
        -o 'jsonpath={.status.containerStatuses[*].state.waiting.reason}'
    becomes 30 'MountVolume.SetUp failed for volume "envoy-conf" : configmap "envoy-conf" not found' kubectl get events --namespace shop \
        --field-selector involvedObject.name=waits,reason=FailedMount -o 'jsonpath={.items[*].message}'
    is True "$(kubectl get scpol envoy -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')"
    policy docs/examples/how-to/needs-a-config-map.yaml 's/configMap: {name: envoy-conf}/configMap: {name: envoy-conf, optional: true}/'
    becomes 30 true kubectl run optional --image=nginx:1.27 --namespace shop --dry-run=server -o 'jsonpath={.spec.volumes[?(@.name=="envoy-conf")].configMap.optional}'
    quietly kubectl run optional --image=nginx:1.27 --namespace shop
    quietly kubectl wait --for=condition=Ready pod/optional --namespace shop --timeout=60s
    mkdir -p "$folder" && echo 'admin: {}' > "$folder/envoy.yaml"
    (cd "$folder" && eval "$(sed -n '/^for ns in/,/^done/p' "$OLDPWD/$page")") > /dev/null
    quietly kubectl wait --for=condition=Ready pod/waits --namespace shop --timeout=90s
    is 'admin: {}' "$(kubectl exec waits --namespace shop -c envoy -- cat /etc/envoy/envoy.yaml)"
    without_policies
    quietly kubectl delete namespace shop
}
