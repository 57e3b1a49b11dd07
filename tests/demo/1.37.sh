#!/usr/bin/env bash
# The demo on a current cluster, run by `make demo`: a real API server, controllers and scheduler, and simulated nodes on which pods seem
# to run. If servers were given without controllers, it shows what needs none.
source "$(dirname "$0")/common.sh"

names() { kubectl get pods -n shop -l "$1" -o 'jsonpath={.items[*].spec.containers[*].name}'; }
native() { kubectl get pods -n shop -l "$1" -o 'jsonpath={range .items[*].spec.initContainers[*]}{.name} {.restartPolicy}{end}'; }
columns='custom-columns=NAME:.metadata.name,NAMESPACE:.metadata.namespace,PHASE:.status.phase,CONTAINERS:.spec.containers[*].name'
has_nodes=$(kubectl get nodes -o name)

if [ -n "$has_nodes" ]; then
  say "A real cluster, $(server_version): API server, controllers, scheduler. Only the nodes are simulated"
  run kubectl get nodes
else
  say "A real API server, $(server_version). There are no controllers here, so pods stay Pending"
fi
say 'Install: CRD, RBAC, Deployment. (No node runs its pods here, so the operator runs as a process below)'
run kubectl apply -f config/install.yaml
kubectl wait --for=condition=Established crd/sidecarpolicies.scpol.dev --timeout=90s > /dev/null

say 'The operator, with the rights of its ServiceAccount and nothing more'
start_operator "$(free_address)"

say 'A policy: every new pod in the namespace shop gets a log agent'
run cat docs/examples/start/policy.yaml
run kubectl apply -f docs/examples/start/policy.yaml
run kubectl wait --for=condition=Ready scpol/log-agent --timeout=90s
run kubectl get scpol

say 'The API server itself adds the sidecar: the operator has registered this'
run kubectl get mutatingadmissionpolicies

say 'A user creates the same pod in shop and in another namespace. It has one container, nginx'
for namespace in shop office; do
  kubectl create namespace "$namespace" > /dev/null
  run kubectl run web --image=nginx:1.27 -n "$namespace"
done

say 'In shop it has the sidecar, and in office it has none'
run kubectl get pods -A -l run=web -o "$columns"
[ "$(names run=web)" = 'web log-agent' ]
until_is 1 kubectl get scpol log-agent -o 'jsonpath={.status.injected}'
run kubectl get scpol

say 'Why? Ask scpol'
run scpol explain pod/web -n shop
run scpol explain pod/web -n office

if [ -n "$has_nodes" ]; then
  say 'A Deployment and a Job that know nothing of it'
  run kubectl create -n shop -f samples/workloads/nginx.yaml
  run kubectl create job once -n shop --image=busybox:1.36 -- true
  run kubectl rollout status -n shop deployment/nginx --timeout=60s
  run kubectl wait -n shop --for=condition=Complete job/once --timeout=60s

  say 'Their pods have the sidecar. In the Job it is a native sidecar, an init container, so that the Job can end'
  run kubectl get pods -n shop -l '!run' -o "$columns,INIT CONTAINERS:.spec.initContainers[*].name"
  # Simulated nodes complete any Job: what counts is the shape.
  [ "$(names app=nginx)" = 'nginx log-agent' ]
  [ "$(names job-name=once)" = once ]
  [ "$(native job-name=once)" = 'log-agent Always' ]

  say 'A new image reaches the pods that run already. Its container is changed in place: no pod is deleted'
  run kubectl apply -k config/rbac/rollout
  images=(kubectl get pods -n shop -l app=nginx -o 'jsonpath={range .items[*]}{.metadata.uid} {.spec.containers[1].image}{end}')
  before=$("${images[@]}")
  run kubectl patch scpol log-agent --type=merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'
  patience=90 until_is Complete kubectl get scpol log-agent -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}'
  run kubectl patch scpol log-agent --type=json -p '[{"op":"replace","path":"/spec/template/containers/0/image","value":"fluent/fluent-bit:3.2"}]'
  patience=90 until_is "${before/:3.1/:3.2}" "${images[@]}"
  # A kubelet reports the image that runs; a simulated one does not notice it.
  pod=$(kubectl get pods -n shop -l app=nginx -o name)
  kubectl patch -n shop "$pod" --subresource=status --type=json \
    -p '[{"op":"replace","path":"/status/containerStatuses/1/image","value":"fluent/fluent-bit:3.2"}]' > /dev/null
  patience=90 until_is Complete kubectl get scpol log-agent -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}'
  run kubectl get pods -n shop -l app=nginx -o 'custom-columns=NAME:.metadata.name,IMAGES:.spec.containers[*].image'
  run scpol rollout status log-agent
fi

say 'One policy, three Deployments of different sizes: a parameter is a value that a workload sets, within bounds'
run cat docs/examples/write/parameters.yaml
run kubectl apply -f docs/examples/write/parameters.yaml
run kubectl wait --for=condition=Programmed scpol/proxy --timeout=90s
run kubectl apply -f docs/examples/write/sizes.yaml
sizes='custom-columns=NAME:.metadata.name,PROXY:.spec.template.spec.containers[?(@.name=="proxy")].resources.limits.memory'
run kubectl get deployments small medium large -n shop -o "$sizes"
[ "$(kubectl get deployments small medium large -n shop --no-headers -o "$sizes" | awk '{print $2}' | xargs)" = '128Mi 256Mi 512Mi' ]

keep_if_asked
say 'The operator stops. The API server goes on without it: new pods still get the sidecar'
stop_operator
run kubectl run later --image=nginx:1.27 -n shop
run kubectl get pods -n shop -l run=later -o "$columns"
[ "$(names run=later)" = 'later log-agent' ]
say 'Done. Next: docs/start.md installs it on a cluster of yours'
