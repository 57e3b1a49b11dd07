# Replicas that come and go, while clients create Deployments all the time. The API server calls the webhook by its Service.

# Each check has a namespace of its own, because the one of the last check takes its time to go.
under_creates() { # failurePolicy
    namespace=creates-$((namespaces += 1))
    quietly kubectl create namespace "$namespace"
    policy "$here/policies/creates.yaml" "s/Ignore/$1/"
    creates_begin agent
}
namespaces=0
no_more_creates() {
    without_policies
    quietly kubectl delete namespace "$namespace" --wait=false
}
ends_whole() { # the fewest creates
    creates_end "$1"
    nothing_lost
    no_more_creates
}
nothing_lost() { is '0 refused, 0 without sidecar' "$refused refused, $missed without sidecar"; }
restarted() { # replica
    kubectl -n scpol-system get pod "$1" -o 'jsonpath={.status.containerStatuses[0].restartCount} {.status.containerStatuses[0].ready}'
}

# Both replicas are replaced until there were 500 creates: none is lost.
rolling_restart() {
    under_creates Fail
    while
        quietly kubectl -n scpol-system rollout restart deployment/scpol
        quietly kubectl -n scpol-system rollout status deployment/scpol --timeout=90s
        (($(created) < 500))
    do :; done
    ends_whole 500
}

# The leader is deleted until there were 500 creates: none is lost, and another one leads.
leader_deleted() {
    local old
    becomes 60 'true true' replicas_ready
    under_creates Fail
    while
        old=$(leader)
        quietly kubectl -n scpol-system delete pod "$old"
        becomes 60 'true true' replicas_ready
        [ "$(leader)" != "$old" ] || fail "$old is deleted and still leads"
        (($(created) < 500))
    do :; done
    ends_whole 500
}

# `kubectl drain` evicts one replica, and the other one later, because the PodDisruptionBudget keeps one. This cluster has one node: it
# takes pods again as soon as the first replica is evicted. Nothing is lost.
drained() {
    local drain log=$NODE_DIR/log/drain.log
    under_creates Fail
    kubectl drain node-1 --force --pod-selector=app.kubernetes.io/name=scpol --timeout=120s > "$log" 2>&1 &
    drain=$!
    becomes 30 true kubectl get node node-1 -o 'jsonpath={.spec.unschedulable}'
    sleep 3
    quietly kubectl uncordon node-1
    wait "$drain" || fail "$(tail -n 3 "$log")"
    grep -q "violate the pod's disruption budget" "$log" || fail 'both replicas were evicted at once'
    becomes 60 'true true' replicas_ready
    ends_whole 500
}

# The replica that answers the API server now. A server keeps its connection, so it is one of them.
answering() {
    local replica
    for replica in $(operator '{.items[*].metadata.name}'); do
        echo "$(kubectl -n scpol-system logs "$replica" --since=2s | grep -c '"Decided"') $replica"
    done | sort -n | sed -n '$s/.* //p'
}
# Sends a signal to a replica, `old`, while clients create. `restarts` is the number of its restarts before.
strike() { # signal leader|answering
    under_creates Ignore
    sleep 2
    old=$("$2") restarts=$(restarted "$old")
    restarts=${restarts% *}
    kill "-$1" "$(process_of "$old")"
    echo "    SIG$1 for $old; $(leader) leads"
}

# `kill -9`, under Ignore: no create is refused, the kubelet restarts the replica, and then no create is without sidecar.
killed() { # leader|answering
    local old restarts
    strike KILL "$1"
    becomes 60 "$((restarts + 1)) true" restarted "$old"
    creates_end 500
    is 0 "$refused"
    ((missed < made / 10)) || fail 'too many without sidecar: the other replica was there'
    creates_begin agent
    ends_whole 100
}
leader_killed() { killed leader; }
answering_killed() { killed answering; }

# A frozen process, under Ignore: no create is refused, or takes longer than the time limit of the webhook, 3 s. Once the replica is not
# ready, no create is without sidecar. The kubelet restarts it.
frozen() { # leader|answering
    local old restarts
    strike STOP "$1"
    becomes 60 "$restarts false" restarted "$old"
    creates_end 100
    is 0 "$refused"
    awk -v slowest="$slowest" 'BEGIN { exit !(slowest < 4) }' || fail 'slower than the time limit'
    creates_begin agent
    becomes 120 "$((restarts + 1)) true" restarted "$old"
    ends_whole 500
}
leader_frozen() { frozen leader; }
answering_frozen() { frozen answering; }
