#!/usr/bin/env bash
# The demo on Kubernetes 1.13, run by `make demo` beside a real API server.
source "$(dirname "$0")/common.sh"
# A current `kubectl wait` relies on bookmarks in watches, which a server below 1.15 never sends.
export KUBE_FEATURE_WatchListClient=false

say "A real API server, $(server_version)"
say 'Install: CRD, RBAC, namespace. (No kubelet here, so the Deployment of the operator stays a Deployment; it runs as a process below.)'
run kubectl apply --validate=false -f config/install-legacy.yaml
kubectl wait --for=condition=Established crd/sidecarpolicies.scpol.dev --timeout=30s > /dev/null

say 'The operator, with the rights of its ServiceAccount and nothing more'
start_operator

say 'A policy: every Deployment gets a sidecar'
run kubectl apply --validate=false -f samples/01-sidecar.yaml
run kubectl wait --for=condition=Ready scpol/sidecar --timeout=30s
run kubectl get sidecarpolicies

say 'A user creates a Deployment that knows nothing of it'
run kubectl create --validate=false -f samples/workloads/nginx.yaml

say 'It is stored with the sidecar in it'
run kubectl get deployments.v1.apps nginx -o 'custom-columns=NAME:.metadata.name,CONTAINERS:.spec.template.spec.containers[*].name,IMAGES:.spec.template.spec.containers[*].image'
until_is 1 kubectl get scpol sidecar -o 'jsonpath={.status.injected}'
run kubectl get sidecarpolicies
run kubectl get initializerconfigurations
run scpol drain --list
kubectl get deployments.v1.apps nginx -o 'jsonpath={.spec.template.spec.containers[*].name}' | grep -qw sidecar-nginx
kubectl get scpol sidecar -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' | grep -qx True

keep_if_asked
say 'The operator stops in good order: it takes the registration with it, so that creates go on'
stop_operator
run kubectl get initializerconfigurations
say 'What the operator logged'
cat "$log"
say 'Done: nothing is left behind.'
