#!/usr/bin/env bash
# The demo on a current cluster, run by `DEMO=1.37 make demo`: a real API server, controllers and scheduler, and simulated nodes on
# which pods seem to run.
source "$(dirname "$0")/common.sh"

names() { kubectl get pods -l "$1" -o 'jsonpath={.items[*].spec.containers[*].name}'; }
native() { kubectl get pods -l "$1" -o 'jsonpath={range .items[*].spec.initContainers[*]}{.name} {.restartPolicy}{end}'; }
columns='custom-columns=NAME:.metadata.name,PHASE:.status.phase,CONTAINERS:.spec.containers[*].name,INIT:.spec.initContainers[*].name,RESTARTS:.spec.initContainers[*].restartPolicy'

say "A real cluster, $(server_version): API server, controllers, scheduler, and simulated nodes"
run kubectl get nodes
say 'Install: CRD, RBAC, namespace. (The simulated nodes run nothing, so the operator runs as a process below.)'
run kubectl apply -f config/install.yaml
kubectl wait --for=condition=Established crd/sidecarpolicies.scpol.dev --timeout=30s > /dev/null

say 'The operator, with the rights of its ServiceAccount and nothing more'
start_operator

say 'A policy: every pod gets a log agent'
run kubectl apply -f samples/09-pods.yaml
run kubectl wait --for=condition=Ready scpol/log-agent --timeout=30s
run kubectl get sidecarpolicies
run kubectl get mutatingadmissionpolicies,mutatingadmissionpolicybindings

say 'A user creates a Deployment and a Job that know nothing of it'
run kubectl create -f samples/workloads/nginx.yaml
run kubectl create job once --image=busybox:1.36 -- true
run kubectl rollout status deployment/nginx --timeout=60s
run kubectl wait --for=condition=Complete job/once --timeout=60s

say 'Their pods have the sidecar; in the Job it is a native one, which does not keep it from ending'
run kubectl get pods -o "$columns"
# Simulated nodes complete any Job: what counts is the shape.
[ "$(names app=nginx)" = 'nginx log-agent' ]
[ "$(names job-name=once)" = once ]
[ "$(native job-name=once)" = 'log-agent Always' ]
until_is 2 kubectl get scpol log-agent -o 'jsonpath={.status.injected}'
run kubectl get sidecarpolicies

say 'As a plain container it would keep the Job from ending: for comparison, a policy that says so'
kubectl patch scpol log-agent --type=merge -p '{"spec":{"nativeSidecars":"Never"}}' > /dev/null
plain=(kubectl run plain --image=busybox:1.36 --restart=Never --dry-run=server)
until_is 'plain log-agent' "${plain[@]}" -o 'jsonpath={.spec.containers[*].name}'
[ -z "$("${plain[@]}" -o 'jsonpath={.spec.initContainers[*].name}')" ]
echo 'a pod of a Job would have the containers: plain log-agent'
kubectl patch scpol log-agent --type=merge -p '{"spec":{"nativeSidecars":"ForJobs"}}' > /dev/null
until_is log-agent "${plain[@]}" -o 'jsonpath={.spec.initContainers[*].name}'

say 'A new image reaches the pods that run already, one after the other: in place, so that no pod is made anew'
run kubectl apply -k config/rbac/rollout
pods_now=(kubectl get pods -l app=nginx -o 'jsonpath={range .items[*]}{.metadata.uid} {.spec.containers[1].image}{end}')
before=$("${pods_now[@]}")
kubectl patch scpol log-agent --type=merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}' > /dev/null
patience=900 until_is Complete kubectl get scpol log-agent -o 'jsonpath={.status.conditions[?(@.type=="Progressing")].reason}'
run kubectl patch scpol log-agent --type=json -p '[{"op":"replace","path":"/spec/template/containers/0/image","value":"fluent/fluent-bit:3.2"}]'
patience=900 until_is "${before/:3.1/:3.2}" "${pods_now[@]}"
patience=900 until_is 1 kubectl get scpol log-agent -o 'jsonpath={.status.updated}'
run scpol rollout status log-agent || true

keep_if_asked
say 'The operator stops. The API server goes on without it: new pods still get the sidecar'
stop_operator
run kubectl scale deployment/nginx --replicas=3
run kubectl rollout status deployment/nginx --timeout=60s
run kubectl get pods -l app=nginx -o "$columns"
[ "$(names app=nginx)" = 'nginx log-agent nginx log-agent nginx log-agent' ]
say 'What the operator logged'
cat "$log"
say 'Done.'
