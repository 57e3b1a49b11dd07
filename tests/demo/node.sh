#!/usr/bin/env bash
# The demo on a real node, run by `DEMO=node make demo`: kubelet, containerd and runc, where containers run.
SCPOL_TEST_DIR=$NODE_DIR
source "$(dirname "$0")/common.sh"
source tests/node/images.sh

say "A real node, $(server_version)"
run kubectl get nodes -o wide

say 'Install: the shipped file, with two replicas of the operator as Pods'
# The checks on a node bring an image.
images=$(ctr images ls -q)
grep -qx docker.io/library/sidecar-policy:0.1.0 <<< "$images" || image_of_binary sidecar-policy:0.1.0 "$(command -v scpol)"
run kubectl apply -f config/install.yaml
run kubectl -n scpol-system rollout status deployment/scpol --timeout=90s
run kubectl -n scpol-system get pods

say 'A policy: every Deployment gets a second web server, on port 8081'
run kubectl apply -f samples/01-sidecar.yaml
run kubectl wait --for=condition=Ready scpol/sidecar --timeout=30s

say 'A user creates a Deployment that knows nothing of it'
run kubectl create -f samples/workloads/nginx.yaml
run kubectl rollout status deployment/nginx --timeout=60s
run kubectl get pods -o 'custom-columns=NAME:.metadata.name,PHASE:.status.phase,CONTAINERS:.spec.containers[*].name,READY:.status.containerStatuses[*].ready'

say 'The sidecar answers. (Here busybox stands in for nginx: there is no registry.)'
run kubectl exec deployment/nginx -c nginx -- wget -qO- http://127.0.0.1:8081/
[ "$(kubectl exec deployment/nginx -c nginx -- wget -qO- http://127.0.0.1:8081/)" = 'it works' ]
run kubectl delete scpol sidecar

say 'Another policy: every Pod gets a log agent. A user creates a Job'
run kubectl apply -f samples/09-pods.yaml
run kubectl wait --for=condition=Ready scpol/log-agent --timeout=30s
run kubectl create job once --image=busybox:1.36 -- sh -c 'sleep 3; echo the work is done'

say 'The Job ends, and its sidecar, a native one, ends after it'
run kubectl wait --for=condition=Complete job/once --timeout=60s
run kubectl logs job/once --all-containers --prefix
run kubectl get pods -l job-name=once -o 'custom-columns=NAME:.metadata.name,PHASE:.status.phase,CONTAINERS:.spec.containers[*].name,INIT:.spec.initContainers[*].name,EXIT:.status.initContainerStatuses[*].state.terminated.exitCode'
[ "$(kubectl logs job/once -c log-agent | tail -n 1)" = 'log-agent ends' ]
run scpol status

if [ "${KEEP:-}" = 1 ]; then
    say 'Kept (KEEP=1). In another terminal, as root:'
    echo "nsenter --all --target \$(pgrep --full '^bash $PWD/tests/node/inside.sh') env KUBECONFIG=$KUBECONFIG PATH=$PATH bash"
    echo "Logs: $NODE_DIR/log"
    echo 'Ctrl-C here ends everything.'
    trap 'exit 0' INT
    sleep infinity & wait
fi
say 'Uninstall: the Deployment goes on with its sidecar'
run scpol uninstall --yes --crd
run kubectl get pods
say 'Done: nothing is left behind.'
