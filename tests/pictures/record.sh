#!/usr/bin/env bash
# Records what the panels of the dashboard show while a cluster is used for four minutes. `make dashboard-picture` calls it.
#
# A real API server with controllers and simulated nodes, the operator, and a real Prometheus, which answers the panels' own queries.
# One file a query in the folder $1, in the order of config/grafana/dashboard.json.
folder=$(realpath "$1")
source "$(dirname "$0")/../demo/common.sh"
assets=$(tests/controlplane/build.sh 1.37)
prometheus=$SCPOL_TEST_DIR/prometheus seconds=240 step=4 interval=20s
mkdir -p "$prometheus"

serve() {
  scpol run --kubeconfig "$SCPOL_TEST_KUBECONFIG_OPERATOR" --listen 127.0.0.1:19191 --webhook-listen 127.0.0.1:19192 \
    --webhook-url https://127.0.0.1:19192 --log-format text 2> "$log" &
  operator=$!
  trap 'kill "$operator" "$server" 2> /dev/null || true' EXIT
}
workload() { # name namespace [image of a container called metrics]
  kubectl create -f - > /dev/null << MANIFEST
{apiVersion: apps/v1, kind: Deployment, metadata: {name: $1, namespace: $2}, spec: {replicas: 2, selector: {matchLabels: {app: $1}},
  template: {metadata: {labels: {app: $1}}, spec: {containers: [{name: web, image: "nginx:1.27"}${3:+, {name: metrics, image: "$3"\}}]}}}}
MANIFEST
}

cat > "$prometheus/prometheus.yaml" << CONFIGURATION
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
- {job_name: scpol, static_configs: [{targets: ["127.0.0.1:19191"]}]}
- job_name: apiserver
  scheme: https
  static_configs: [{targets: ["${SCPOL_TEST_URL#https://}"]}]
  authorization: {credentials: "$(cut -d, -f1 "$SCPOL_TEST_DIR/tokens.csv" | head -n 1)"}
  tls_config: {insecure_skip_verify: true}
CONFIGURATION
"$assets/prometheus" --config.file="$prometheus/prometheus.yaml" --storage.tsdb.path="$prometheus/data" \
  --web.listen-address=127.0.0.1:19190 2> "$prometheus/log" &
server=$!

say 'A cluster with the operator and three policies'
kubectl apply -f config/install.yaml > /dev/null
kubectl apply -k config/rbac/rollout > /dev/null
kubectl wait --for=condition=Established crd/sidecarpolicies.scpol.dev --timeout=90s > /dev/null
for namespace in canary shop blog; do kubectl create namespace "$namespace" > /dev/null; done
workload early blog
serve
begin=$(date +%s)
kubectl apply -f - > /dev/null << POLICIES
{apiVersion: scpol.dev/v1alpha1, kind: SidecarPolicy, metadata: {name: log-agent}, spec: {
  targets: [{group: "", resource: pods}], namespaces: [canary, shop, blog],
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 10%, steps: [{namespaces: [canary]}, {pause: {duration: 20s}}]}},
  template: {containers: [{name: log-agent, image: "fluent/fluent-bit:3.1"}]}}}
---
{apiVersion: scpol.dev/v1alpha1, kind: SidecarPolicy, metadata: {name: envoy}, spec: {engine: Webhook, namespaces: [shop, blog],
  template: {containers: [{name: envoy, image: "envoyproxy/envoy:v1.31.0"}]}}}
---
{apiVersion: scpol.dev/v1alpha1, kind: SidecarPolicy, metadata: {name: metrics}, spec: {engine: Webhook, namespaces: [shop],
  template: {containers: [{name: metrics, image: "example.com/exporter:2.0"}]}}}
POLICIES
kubectl wait --for=condition=Ready scpol --all --timeout=90s > /dev/null || { kubectl get scpol -o wide; tail "$log"; exit 1; }

say 'Workloads come, one of them with a container of its own called metrics'
for number in 1 2 3 4 5 6; do
  workload "web-$number" shop
  workload "cart-$number" blog
  workload "try-$number" canary
  workload "own-$number" shop example.com/exporter:1.4
  sleep 4
done

say 'A new template of log-agent: the canary, a pause, then all others'
kubectl patch scpol log-agent --type=json \
  -p '[{"op": "add", "path": "/spec/template/containers/0/env", "value": [{"name": "LEVEL", "value": "warn"}]}]' > /dev/null
until (($(date +%s) - begin > seconds - 70)); do
  workload "more-$SECONDS" shop
  sleep 6
done

say 'The operator is away: the webhook is passed over'
kill -9 "$operator"
wait "$operator" 2> /dev/null || true
for number in 1 2 3; do workload "late-$number" shop; sleep 4; done
serve
until (($(date +%s) - begin >= seconds)); do
  workload "last-$SECONDS" blog
  sleep 6
done

rm -f "$folder"/*.json
number=100 end=$(date +%s)
sed -n 's/^ *"expr": "\(.*\)",$/\1/p' config/grafana/dashboard.json | while IFS= read -r query; do
  # What Grafana would put in.
  query=$(sed "s/\\\\\"/\"/g; s/\$__rate_interval/$interval/g; s/\$policy/.*/g; s/\$namespace/.*/g" <<< "$query")
  "$assets/promtool" query range -o json --start=$((end - seconds)) --end="$end" --step=${step}s http://127.0.0.1:19190 "$query" \
    > "$folder/$number.json"
  number=$((number + 1))
done
say 'Done'
