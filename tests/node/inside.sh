#!/usr/bin/env bash
# The inside of node.sh: process 1 of its namespaces. It writes into $NODE_DIR only. README.md has the reasons.
set -euo pipefail
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
source "$here/cgroups.sh"
source "$here/images.sh"
dir=$NODE_DIR
export PATH=$ASSETS:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin
node_ip=172.31.255.1 service_ip=10.0.0.1 pods=10.244.0.0/24
proxy=${PROXY:-0}
# With kube-proxy 10.0.0.1 is a Service like others. Without, it is an address of the node, and the API server listens on its port.
if [ "$proxy" = 1 ]; then server=https://$node_ip:6443; else server=https://$service_ip:443; fi
say() { printf 'node: %s (%s s)\n' "$*" "$SECONDS" >&2; }

# ---- mounts: /sys of this network, the node's cgroups, a /run and a /var that forget -------------------------------------------
make_mounts() {
    mount --make-rshared /
    mount -t sysfs sysfs /sys
    cgroups_mount
    mount -t tmpfs -o mode=755 run /run
    mkdir -p "$dir"/{var,var.work,log,etcd,containerd,kubelet,cni,tls,sysctl,images,static}
    mount -t overlay -o "lowerdir=/var,upperdir=$dir/var,workdir=$dir/var.work" var /var
}

# The kubelet would set these for the whole machine. It sees the values that it wants, and writes nothing.
make_sysctls() {
    local pair file
    for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000 \
        kernel/keys/root_maxbytes=25000000; do
        file=$dir/sysctl/${pair%=*} && mkdir -p "${file%/*}" && echo "${pair#*=}" > "$file"
        mount --bind "$file" "/proc/sys/${pair%=*}"
    done
}

# ---- network: no way out -------------------------------------------------------------------------------------------------------
make_network() {
    hostname node-1
    ip link set lo up
    ip link add node0 type bridge
    ip address add "$node_ip/32" dev node0
    [ "$proxy" = 1 ] || ip address add "$service_ip/32" dev node0
    ip link set node0 up
    ip route add default dev node0 # the address of a Service is looked up before it is translated
    sysctl -qw net.ipv4.ip_forward=1
}

# ---- certificates, tokens ------------------------------------------------------------------------------------------------------
make_certificates() {
    openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -days 2 -subj /CN=node-test-ca \
        -addext keyUsage=critical,keyCertSign,digitalSignature
    certificate apiserver /CN=kube-apiserver extendedKeyUsage=serverAuth \
        "subjectAltName=IP:127.0.0.1,IP:$service_ip,IP:$node_ip,DNS:localhost,DNS:kubernetes.default.svc"
    certificate kubelet /CN=system:node:node-1/O=system:nodes extendedKeyUsage=serverAuth "subjectAltName=IP:$node_ip,DNS:node-1"
    certificate kubelet-client /CN=kube-apiserver/O=system:masters extendedKeyUsage=clientAuth
    openssl genrsa -out sa.key 2048
    openssl rsa -in sa.key -pubout -out sa.pub
}
certificate() { # name subject extensions..
    openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2"
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -out "$1.crt" -extfile <(printf '%s\n' "${@:3}")
}
user() { # file name groups
    local token
    token=$(head -c16 /dev/urandom | od -An -tx1 | tr -d ' \n')
    echo "$token,$2,$2,\"$3\"" >> tls/tokens.csv
    cat > "$1.kubeconfig" << Y
apiVersion: v1
kind: Config
clusters: [{name: node, cluster: {server: "$server", certificate-authority: $dir/tls/ca.crt}}]
users: [{name: "$2", user: {token: $token}}]
contexts: [{name: node, context: {cluster: node, user: "$2"}}]
current-context: node
Y
}

# ---- processes -----------------------------------------------------------------------------------------------------------------
declare -A running=()
start() { # name arguments..: in the background, with its log in $dir/log
    local name=$1
    shift
    "$name" "$@" > "$dir/log/$name.log" 2>&1 &
    running[$name]=$!
}
wait_for() { # seconds what command..
    local until=$((SECONDS + $1)) what=$2 name
    shift 2
    until "$@" > /dev/null 2>&1; do
        for name in "${!running[@]}"; do
            kill -0 "${running[$name]}" 2> /dev/null || { echo "node: $name has ended" && tail -n 5 "log/$name.log"; return 1; } >&2
        done
        ((SECONDS < until)) || { echo "node: gave up waiting until $what" && tail -n 5 log/*.log; return 1; } >&2
        sleep 0.2
    done
    say "$what"
}

start_apiserver() {
    local without_proxy=(--endpoint-reconciler-type=none --enable-aggregator-routing=true)
    [ "$proxy" != 1 ] || without_proxy=()
    start etcd --data-dir=etcd --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379 \
        --listen-peer-urls=http://127.0.0.1:0 --unsafe-no-fsync --log-level=warn
    start kube-apiserver --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 --advertise-address="$node_ip" \
        --secure-port="${server##*:}" --service-cluster-ip-range=10.0.0.0/24 --cert-dir=tls \
        --tls-cert-file=tls/apiserver.crt --tls-private-key-file=tls/apiserver.key --token-auth-file=tls/tokens.csv \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --service-account-key-file=tls/sa.pub --service-account-signing-key-file=tls/sa.key \
        --service-account-issuer=https://kubernetes.default.svc --client-ca-file=tls/ca.crt \
        --kubelet-client-certificate=tls/kubelet-client.crt --kubelet-client-key=tls/kubelet-client.key \
        --kubelet-certificate-authority=tls/ca.crt --kubelet-preferred-address-types=InternalIP "${without_proxy[@]}"
}

# With the default of 20 requests a second a rollout takes 40 s after a test has made hundreds of Deployments.
start_controllers() {
    local common=(--kubeconfig="$KUBECONFIG" --leader-elect=false --secure-port=0 --kube-api-qps=500 --kube-api-burst=1000)
    start kube-controller-manager "${common[@]}" --service-account-private-key-file=tls/sa.key --root-ca-file=tls/ca.crt \
        --use-service-account-credentials=true
    start kube-scheduler "${common[@]}"
}

start_containerd() {
    local plugins=/usr/lib/cni
    [ -d "$plugins" ] || plugins=/opt/cni/bin
    cat > cni/10-pods.conflist << Y
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true, "ipam": {
    "type": "host-local", "dataDir": "/run/cni-ipam", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
Y
    cat > containerd.toml << Y
version = 3
root = "$dir/containerd"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/library/pause:local"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["$plugins"]
  conf_dir = "$dir/cni"
Y
    start containerd --config "$dir/containerd.toml"
}

start_kubelet() {
    cat > kubelet.yaml << Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
oomScoreAdj: 0
protectKernelDefaults: true
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
volumePluginDir: $dir/kubelet-plugins
staticPodPath: $dir/static
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $dir/tls/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $dir/tls/kubelet.crt
tlsPrivateKeyFile: $dir/tls/kubelet.key
clusterDNS: [10.0.0.10]
resolvConf: ""
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
logging: {verbosity: ${KUBELET_V:-1}}
Y
    start kubelet --config=kubelet.yaml --kubeconfig=kubelet.kubeconfig --root-dir="$dir/kubelet" --cert-dir=tls \
        --hostname-override=node-1 --node-ip="$node_ip"
}

start_proxy() {
    cat > proxy.yaml << Y
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: $dir/proxy.kubeconfig}
hostnameOverride: node-1
clusterCIDR: $pods
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
Y
    start kube-proxy --config=proxy.yaml
}

make_mounts
make_sysctls
make_network
cd "$dir"
(cd tls && make_certificates) > log/openssl.log 2>&1
user admin admin system:masters
user kubelet system:node:node-1 system:nodes
user proxy system:kube-proxy ''
export KUBECONFIG=$dir/admin.kubeconfig CONTAINERD_ADDRESS=/run/containerd/containerd.sock CONTAINERD_NAMESPACE=k8s.io
start_containerd
start_apiserver
wait_for 120 'containerd is ready' ctr version
stand_ins
wait_for 300 'the API server is ready' kubectl get --raw /readyz
start_controllers
start_kubelet
[ "$proxy" != 1 ] || start_proxy
node_ready() { [ "$(kubectl get node node-1 -o 'jsonpath={.status.conditions[?(@.type=="Ready")].status}')" = True ]; }
wait_for 300 'the node is ready' node_ready
wait_for 60 'ServiceAccounts are made' kubectl get serviceaccount default
cd "$FROM"
"$@"
