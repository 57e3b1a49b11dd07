#!/usr/bin/env bash
# The demo, run by `make demo` beside a real API server: prints each command and what came back.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/target/debug:$PATH"
# A current `kubectl wait` relies on bookmarks in watches, which a server below 1.15 never sends.
export KUBE_FEATURE_WatchListClient=false

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@" 2>&1 | grep -v '^Warning: \(version difference\|short name\)' || test "${PIPESTATUS[0]}" -eq 0; }

say "A real API server, $(kubectl version -o json 2> /dev/null | sed -n '/serverVersion/,$ s/.*"gitVersion": "\(.*\)".*/\1/p')"
say 'Install: CRD, RBAC, namespace. (No kubelet here, so the Deployment of the operator stays a Deployment; it runs as a process below.)'
run kubectl apply --validate=false -f config/install-legacy.yaml
kubectl wait --for=condition=Established crd/sidecarpolicies.scpol.dev --timeout=30s > /dev/null

say 'The operator, with the rights of its ServiceAccount and nothing more'
echo '$ scpol run &'
scpol run --kubeconfig "$SCPOL_TEST_KUBECONFIG_OPERATOR" --listen 127.0.0.1:0 --log-format text 2> "$SCPOL_TEST_DIR/demo-operator.log" &
operator=$!
trap 'kill $operator 2> /dev/null && wait $operator || true' EXIT

say 'A policy: every Deployment gets a sidecar'
run kubectl apply --validate=false -f samples/01-sidecar.yaml
run kubectl wait --for=condition=Ready scpol/sidecar --timeout=30s
run kubectl get sidecarpolicies

say 'A user creates a Deployment that knows nothing of it'
run kubectl create --validate=false -f samples/workloads/nginx.yaml

say 'It is stored with the sidecar in it'
run kubectl get deployments.v1.apps nginx -o 'custom-columns=NAME:.metadata.name,CONTAINERS:.spec.template.spec.containers[*].name,IMAGES:.spec.template.spec.containers[*].image'
for _ in $(seq 150); do
  [ "$(kubectl get scpol sidecar -o 'jsonpath={.status.injected}')" = 1 ] && break
  sleep 0.1
done
run kubectl get sidecarpolicies
run kubectl get initializerconfigurations
run scpol drain --list
kubectl get deployments.v1.apps nginx -o 'jsonpath={.spec.template.spec.containers[*].name}' | grep -qw sidecar-nginx
kubectl get scpol sidecar -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}' | grep -qx True

if [ "${KEEP:-}" = 1 ]; then
  say 'Kept (KEEP=1). In another terminal:'
  echo "export KUBECONFIG=$KUBECONFIG"
  echo "export PATH=$PATH"
  echo 'kubectl get scpol'
  echo "The operator's log: $SCPOL_TEST_DIR/demo-operator.log"
  echo 'Ctrl-C here ends everything.'
  wait $operator
  exit
fi

say 'The operator stops in good order: it takes the registration with it, so that creates go on'
printf '$ kill -TERM <operator>\n'
kill $operator
wait $operator
trap - EXIT
run kubectl get initializerconfigurations
say 'What the operator logged'
cat "$SCPOL_TEST_DIR/demo-operator.log"
say 'Done: nothing is left behind.'
