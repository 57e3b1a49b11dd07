# Every file of samples/ is in effect, and the workload that its head names runs with it, on images that stand in for the real ones.

samples() {
    local sample
    for sample in samples/*.yaml; do
        sample=${sample##*/} sample=sample_${sample%.yaml}
        declare -F "${sample//-/_}" > /dev/null || fail "there is no ${sample//-/_}"
        "${sample//-/_}"
        echo "    ${sample#sample_} runs"
        without_policies
    done
}

# runs WORKLOAD [NAMESPACE]: creates the file and prints the containers of its pods when these are ready.
runs() {
    local at=(--namespace "${2:-default}" -f "samples/workloads/$1.yaml") condition=Available
    [ "$1" != myapp-pod ] || condition=Ready
    quietly kubectl create "${at[@]}"
    quietly kubectl wait "${at[@]}" --for="condition=$condition" --timeout=60s
    kubectl get pods --namespace "${2:-default}" -o 'jsonpath={.items[*].spec.containers[*].name}'
}
gone() { quietly kubectl delete --namespace "${2:-default}" -f "samples/workloads/$1.yaml" --now --cascade=foreground; }
from() { kubectl exec "$1" -c "$2" --namespace "${4:-default}" -- wget -qO- "http://127.0.0.1:$3/"; } # workload container port [namespace]

sample_01_sidecar() {
    policy samples/01-sidecar.yaml
    is 'nginx sidecar-nginx' "$(runs nginx)"
    is 'it works' "$(from deployment/nginx nginx 8081)"
    gone nginx
}
sample_02_annotation() {
    policy samples/02-annotation.yaml
    is nginx "$(runs nginx)"
    gone nginx
    is 'nginx sidecar-nginx' "$(runs nginx-with-annotation)"
    gone nginx-with-annotation
}
sample_03_envoy() {
    policy samples/03-envoy.yaml
    is 'myapp-container envoy' "$(runs myapp-pod envoy-demo)"
    is 'hello from the sidecar' "$(from pod/myapp-pod myapp-container 80 envoy-demo)"
    gone myapp-pod envoy-demo
    quietly kubectl delete namespace envoy-demo
}
sample_04_envoy_annotation() {
    policy samples/04-envoy-annotation.yaml
    is 'nginx envoy' "$(runs nginx-with-annotation)"
    is 'it works' "$(from deployment/nginx-with-annotation nginx 10000)"
    gone nginx-with-annotation
}
sample_05_port_or_annotation() {
    policy samples/05-port-or-annotation.yaml
    is 'nginx proxy' "$(runs nginx)"
    gone nginx
}
sample_06_test_certificate() {
    quietly kubectl create namespace staging
    policy samples/06-test-certificate.yaml
    is nginx "$(runs nginx staging)"
    is '(a certificate in PEM)' "$(kubectl exec --namespace staging deployment/nginx -- cat /etc/ssl/test/ca.crt)"
    gone nginx staging
    quietly kubectl delete namespace staging
}
sample_07_password_length() {
    quietly kubectl apply -k config/rbac/secrets
    policy samples/07-password-length.yaml
    is 'the password must have 20 characters or more' \
        "$(kubectl create secret generic short --from-literal=password=0123456789012345678 2>&1 | grep -o 'the password must have 20 characters or more')"
    quietly kubectl create secret generic long --from-literal=password=01234567890123456789
    quietly kubectl delete secret long
    without_policies
    quietly kubectl delete -k config/rbac/secrets
}
# Nothing here runs Rollouts: what is stored is looked at.
sample_08_custom_resource() {
    quietly kubectl apply -f "$here/policies/rollouts.yaml"
    quietly kubectl wait --for=condition=Established crd/rollouts.example.org --timeout=30s
    quietly kubectl apply -k config/rbac/custom-resources
    policy samples/08-custom-resource.yaml
    is 'web sidecar-nginx' "$(kubectl create -o 'jsonpath={.spec.template.spec.containers[*].name}' -f - << 'Y'
{apiVersion: example.org/v1, kind: Rollout, metadata: {name: web}, spec: {template: {spec: {containers: [{name: web, image: "nginx:1.8.1"}]}}}}
Y
    )"
    without_policies
    quietly kubectl delete -k config/rbac/custom-resources
    quietly kubectl delete crd rollouts.example.org
}
sample_09_pods() {
    policy samples/09-pods.yaml
    is 'nginx log-agent' "$(runs nginx)"
    quietly kubectl create job once --image=busybox:1.36 -- true
    quietly kubectl wait --for=condition=Complete job/once --timeout=60s
    quietly kubectl delete job once
    gone nginx
}
