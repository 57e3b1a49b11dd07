#!/usr/bin/env bash
# Builds real Kubernetes servers from published Go modules, for the tests.
#
#   build.sh                     the versions that `make test` takes
#   build.sh 1.28 1.33           others of versions.txt
#   build.sh --all               all of them
#   build.sh 1.36-node           1.36 with its controllers, kubelet, kube-proxy and containerd: what a real node needs
#   build.sh --seconds 1.13      builds nothing: prints about how many seconds that would take
#
# Prints one folder per requested version on stdout: etcd, kube-apiserver, kubectl, helm; for the newest version also
# kube-controller-manager, kube-scheduler, kwok, stages/, prometheus and promtool. Progress goes to stderr. What is built lives
# outside the checkout, under ${SCPOL_CACHE:-${XDG_CACHE_HOME:-~/.cache}/scpol}/controlplane, and is built again only when its
# recipe changes: its go.mod and go.sum, its function below, and the Go version. A folder named by SCPOL_ASSETS_1_13 (1_28, ..) is used
# as it is, without Go. Servers of KUBEBUILDER_ASSETS (if they are of the newest version), or of a folder where setup-envtest keeps this
# very version, are not built. SCPOL_TOOLS=no, for demos, leaves out what only tests need: helm and prometheus, and kubectl if the
# machine has one. It also takes the newest servers from PATH.
set -euo pipefail
export LC_ALL=C

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
modules=$here/modules

# ---- recipes -------------------------------------------------------------------------------------------------------------------
# Each runs in a scratch folder that holds its module's go.mod and go.sum, and leaves its files in $out.
# The text of each function is part of the hash of what it builds.

recipe_etcd() { # etcd
    go build -ldflags='-s -w' -o "$out/etcd" go.etcd.io/etcd/server/v3
}

# Commands of Kubernetes, of the version in go.mod.
recipe_kubernetes() { # command...
    local version minor stamp='' pkg
    version=$(sed -n 's/^.*k8s\.io\/kubernetes \(v[0-9.]*\).*$/\1/p' go.mod)
    minor=${version#v1.} minor=${minor%%.*}
    # An unstamped server reports a version that no client can parse. Which package holds it depends on the version.
    for pkg in k8s.io/component-base/version k8s.io/kubernetes/pkg/version k8s.io/client-go/pkg/version; do
        stamp+=" -X $pkg.gitVersion=$version -X $pkg.gitMajor=1 -X $pkg.gitMinor=$minor -X $pkg.gitTreeState=clean"
    done
    # Dependencies of old versions reach into the runtime by linkname.
    go build -ldflags="-s -w -checklinkname=0$stamp" -o "$out/" "${@/#/k8s.io/kubernetes/cmd/}"
}

# The same where the OpenAPI definitions are generated, not published: from a vendor folder that they are added to.
recipe_openapi() { # command...
    # -e: packages for other systems need not be complete. What is missing for this one fails the build.
    go mod vendor -e
    GOFLAGS+=' -mod=vendor'
    # It asks whether a value is at the address of Go's zero values. With a Go of today an empty string is, and would be refused as null.
    find vendor -path '*/validate/type.go' -exec sed -i \
        's/ || reflect.DeepEqual(reflect.Zero(reflect.TypeOf(data)), reflect.ValueOf(data))//' {} +
    go build -ldflags=-checklinkname=0 -o openapi-gen k8s.io/kube-openapi/cmd/openapi-gen
    local dirs
    dirs=$(cd vendor && { grep -rls --include='*.go' '+k8s:openapi-gen=true' \
        k8s.io/{api,apimachinery,apiserver,apiextensions-apiserver,kube-aggregator,csi-api} \
        k8s.io/client-go/pkg/version k8s.io/kubernetes/pkg/version || true; } | xargs -n1 dirname | sort -u | paste -sd, -)
    mkdir gopath && ln -s ../vendor gopath/src && : >header.txt
    GOPATH=$PWD/gopath GO111MODULE=off GOFLAGS='' ./openapi-gen -i "$dirs" -h header.txt -r report.txt -o generated \
        -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi
    cp generated/k8s.io/kubernetes/pkg/generated/openapi/*.go vendor/k8s.io/kubernetes/pkg/generated/openapi/
    recipe_kubernetes "$@"
}

recipe_containerd() { # containerd
    local pkg=github.com/containerd/containerd/v2 version
    version=$(sed -n "s#.*$pkg \(v[0-9.]*\)\$#\1#p" go.mod)
    go build -tags='no_btrfs no_devmapper no_zfs' -ldflags="-s -w -X $pkg/version.Version=$version" -o "$out/" \
        "$pkg"/cmd/{containerd,containerd-shim-runc-v2,ctr}
}

recipe_kwok() { # kwok
    go build -ldflags='-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=v0.8.0' -o "$out/kwok" sigs.k8s.io/kwok/cmd/kwok
    local source stage
    source=$(go list -m -f '{{.Dir}}' sigs.k8s.io/kwok)
    mkdir "$out/stages"
    for stage in node/fast node/heartbeat-with-lease pod/fast; do
        cp "$source/kustomize/stage/$stage"/*.yaml "$out/stages/"
    done
    rm -f "$out"/stages/kustomization.yaml && chmod -R u+w "$out/stages"
}

recipe_helm() { # helm
    go build -ldflags="-s -w -X helm.sh/helm/v4/internal/version.version=$(go list -m -f '{{.Version}}' helm.sh/helm/v4)" \
        -o "$out/helm" helm.sh/helm/v4/cmd/helm
}

recipe_prometheus() { # prometheus promtool
    local pkg=github.com/prometheus/prometheus version
    version=$(go list -m -f '{{.Version}}' "$pkg")
    # Without the ways to find targets in clouds, and without the pages for browsers.
    go build -tags=remove_all_sd -ldflags="-s -w -X github.com/prometheus/common/version.Version=${version#v}" -o "$out/" \
        "$pkg"/cmd/{prometheus,promtool}
}

# ---- machinery -----------------------------------------------------------------------------------------------------------------
declare -A quirks=() # version -> words
declare -A patches=()
all='' suite='' newest=''
while read -r version patch in_suite words; do
    [[ $version == [0-9]* ]] || continue
    quirks[$version]=$words patches[$version]=$patch newest=$version all+=" $version"
    [[ $in_suite != yes ]] || suite+=" $version"
done <"$here/versions.txt"
# What is built at once, or taken from `envtest`. `etcd`, `kwok`, `helm` and `prometheus` have modules of their own, the others are `apiserver_1_13` and so on.
declare -A commands=(
    [apiserver]=kube-apiserver [controllers]='kube-controller-manager kube-scheduler' [kubectl]=kubectl [node]='kubelet kube-proxy'
)
declare -A place=() # component -> folder, named after the hash of its recipe
work=''             # scratch folder of the build that is under way
logfile=''          # what Go said during it
child=''            # its process group

say() { printf 'controlplane: %s\n' "$*" >&2; }
die() { local code=$1; shift; say "$*"; exit "$code"; }
digest() { local sum; sum=$(sha256sum); printf '%s' "${sum:0:16}"; }

# Go, set up so that neither the user's settings nor the surrounding workspace changes what is built.
prepare_go() {
    command -v go >/dev/null || die 2 "Go is not installed: install Go 1.26 or later, or point SCPOL_ASSETS_1_13, \
SCPOL_ASSETS_1_30, .. (or KUBEBUILDER_ASSETS for $newest) at a folder with etcd and kube-apiserver"
    export GOFLAGS="-buildvcs=false -trimpath" GOWORK=off GO111MODULE=on CGO_ENABLED=0
    unset GOOS GOARCH GOROOT GOEXPERIMENT
    mkdir -p "$cache"
    local binary stamp
    binary=$(command -v go)
    stamp="$binary $(stat -Lc '%Y %s' -- "$binary") ${GOTOOLCHAIN:-}"
    if [[ -r $cache/go-version && $(head -n1 "$cache/go-version") == "$stamp" ]]; then
        goversion=$(tail -n1 "$cache/go-version")
    else
        goversion=$(cd "$modules/etcd" && go version)
        printf '%s\n%s\n' "$stamp" "$goversion" >"$cache/go-version.$$" && mv "$cache/go-version.$$" "$cache/go-version"
    fi
}

servers='etcd kube-apiserver kubectl kube-controller-manager kube-scheduler'
has_servers() { [[ -f $1/etcd && -x $1/etcd && -f $1/kube-apiserver && -x $1/kube-apiserver ]]; } # folder

# Whether the servers of a folder are of the newest version, whichever the patch.
is_newest() { [[ $("$1/kube-apiserver" --version 2>/dev/null) == "Kubernetes v$newest."* ]]; } # folder

# Sets KUBEBUILDER_ASSETS to a folder with servers of the newest version, or to nothing. It may name those of another project.
find_newest() {
    local folder=${KUBEBUILDER_ASSETS:-}
    if [[ -n $folder ]]; then
        folder=$(given "$newest" "$folder" KUBEBUILDER_ASSETS)
        is_newest "$folder" || { say "KUBEBUILDER_ASSETS=$folder is not used: its kube-apiserver is not $newest" && folder=''; }
    elif [[ ${SCPOL_TOOLS:-} == no ]] && folder=$(command -v kube-apiserver); then
        folder=$(dirname "$folder")
        { has_servers "$folder" && is_newest "$folder"; } || folder=''
    fi
    KUBEBUILDER_ASSETS=$folder
}

# The folder in which setup-envtest keeps a version, if it does. On the newest version KUBEBUILDER_ASSETS comes first.
envtest() { # version
    local folder
    folder=${XDG_DATA_HOME:-$HOME/.local/share}/kubebuilder-envtest/k8s/$1.${patches[$1]}-linux-$(uname -m | sed 's/x86_64/amd64/; s/aarch64/arm64/')
    if [[ $1 == "$newest" && -n ${KUBEBUILDER_ASSETS:-} ]]; then folder=$KUBEBUILDER_ASSETS; fi
    ! has_servers "$folder" || (cd -- "$folder" && pwd)
}

# The components of a version, in `parts`.
choose() { # version
    local version=${1%-node} folder
    parts=''
    if [[ ${SCPOL_TOOLS:-} != no || $1 == *-node ]] || ! kubectl version --client >/dev/null 2>&1; then parts="kubectl_$newest "; fi
    folder=$(envtest "$version")
    if [[ -n $folder ]]; then parts+="envtest_$version"; else parts+="etcd apiserver_$version"; fi
    if [[ $1 == *-node ]]; then parts+=" controllers_$version node_$version containerd"
    elif [[ $1 == "$newest" ]]; then
        [[ -x $folder/kube-controller-manager && -x $folder/kube-scheduler ]] || parts+=" controllers_$newest"
        parts+=' kwok'
    fi
    if [[ ${SCPOL_TOOLS:-} != no ]]; then
        parts+=' helm'
        [[ $1 != "$newest" ]] || parts+=' prometheus'
    fi
    parts=${parts//./_}
}

# Where a component is built and how, in `dir`, `recipe` and `arguments`.
look_up() { # component
    local name=${1%%_*} version=''
    if [[ $1 == *_* ]]; then version=${1#*_} version=${version/_/.}; fi
    dir=$modules/${version:+v}${version:-$name} recipe=recipe_$name arguments=${commands[$name]:-}
    [[ -z $arguments ]] || recipe=recipe_kubernetes
    [[ $name != apiserver || ,${quirks[$version]}, != *,openapi,* ]] || recipe=recipe_openapi
}

locate() { # component
    local dir recipe arguments text version
    if [[ $1 == envtest_* ]]; then
        version=${1#envtest_}
        place[$1]=$(envtest "${version/_/.}")
        return
    fi
    [[ -n $goversion ]] || prepare_go
    look_up "$1"
    text=$(declare -f "$recipe")
    [[ $recipe != recipe_openapi ]] || text+=$(declare -f recipe_kubernetes)
    [[ -z $arguments ]] || text+=$'\n'$arguments
    place[$1]=$cache/$1-$({ cat "$dir/go.mod" "$dir/go.sum"; printf '%s\n' "$text" "$goversion"; } | digest)
}

# The folder of a version: links to its components, named after all of their hashes.
assembled() { # version
    local part names=''
    for part in $parts; do names+="${place[$part]#"$cache"/} "; done
    printf '%s/%s-%s' "$cache" "$1" "$(printf '%s' "$names" | digest)"
}

# What a build takes on two cores, in seconds, as measured. For the bar, and for what is said beforehand.
declare -A usual=([etcd]=40 [apiserver]=110 [kubectl]=50 [controllers]=80 [kwok]=40 [helm]=80 [prometheus]=150 [node]=80 [containerd]=40)
all_seconds=0 # of the builds of this version
done_seconds=0 # of those that have ended

missing() { # component...: those that must be built
    local part
    for part; do [[ -d ${place[$part]} ]] || printf '%s\n' "$part"; done
}

# On a terminal, a bar until the process ends.
watch() { # pid component started
    local part=0 width=30 filled
    while kill -0 "$1" 2>/dev/null; do
        part=$((SECONDS - $3))
        ((part < ${usual[${2%%_*}]})) || part=${usual[${2%%_*}]}
        filled=$(((done_seconds + part) * width / all_seconds))
        printf '\r[%s%s] %d:%02d  building %s ' "$(printf '%*s' "$filled" '' | tr ' ' '#')" \
            "$(printf '%*s' $((width - filled)) '' | tr ' ' '.')" $((SECONDS / 60)) $((SECONDS % 60)) "${2//_/ }" >&2
        sleep 1
    done
    printf '\r\033[K' >&2
}

build() { # component
    [[ -d ${place[$1]} ]] && return
    work=$cache/.tmp.$1.$$ logfile=$cache/$1.log
    local started=$SECONDS out=$work/out dir recipe arguments
    look_up "$1"
    [[ -t 2 ]] || say "building ${1//_/ } (log: $logfile)"
    mkdir -p "$work/src" "$out"
    cp "$dir"/go.{mod,sum} "$work/src/"
    # In a process group of its own, so that an interrupt ends Go at once; not inside an `if` or `||`, where bash forgets `set -e`.
    local code=0
    set -m
    # shellcheck disable=SC2086 # one word for each argument
    (set -e; cd "$work/src"; "$recipe" $arguments) >"$logfile" 2>&1 </dev/null 9>&- &
    child=$!
    set +m
    [[ ! -t 2 ]] || watch "$child" "$1" "$started"
    wait "$child" || code=$?
    child=''
    ((code == 0)) || { tail -n 20 "$logfile" >&2; die 1 "building ${1//_/ } failed after $((SECONDS - started)) s, see $logfile"; }
    mv -T "$out" "${place[$1]}"
    chmod -R u+w "$work" && rm -rf "$work" && work=''
    done_seconds=$((done_seconds + ${usual[${1%%_*}]}))
    say "built ${1//_/ } in $((SECONDS - started)) s"
}

assemble() { # version folder
    local part file tmp=$cache/.tmp.$1.$$
    rm -rf "$tmp" && mkdir "$tmp"
    for part in $parts; do
        for file in "${place[$part]}"/*; do
            # A folder of PATH has other programs, too.
            [[ $part != envtest_* || " $servers " == *" ${file##*/} "* ]] || continue
            [[ $file != "$cache"/* ]] || file=../${file#"$cache"/}
            # envtest comes last: where kubectl is built, it is that one.
            [[ -e $tmp/${file##*/} ]] || ln -s "$file" "$tmp/"
        done
    done
    mv -T "$tmp" "$2"
}

# The seconds that building a version would take.
expected() { # version
    local part parts all=0
    choose "$1"
    for part in $parts; do locate "$part"; done
    # shellcheck disable=SC2086 # one word for each component
    for part in $(missing $parts); do ((all += ${usual[${part%%_*}]})); done
    echo "$all"
}

ensure() { # version
    local part folder parts todo
    choose "$1"
    for part in $parts; do locate "$part"; done
    folder=$(assembled "$1")
    if [[ ! -d $folder ]]; then
        exec 9>"$cache/.lock"
        flock -n 9 || { say "waiting for another build to end"; flock 9; }
        rm -rf "$cache"/.tmp.* # left by an interrupted build: the lock is ours
        # shellcheck disable=SC2086 # one word for each component
        mapfile -t todo < <(missing $parts)
        done_seconds=0 all_seconds=0
        for part in "${todo[@]}"; do all_seconds=$((all_seconds + ${usual[${part%%_*}]})); done
        ((all_seconds == 0)) || say "Kubernetes $1 is built from source, once: about $(((all_seconds + 59) / 60)) min on two cores"
        for part in $parts; do build "$part"; done
        [[ -d $folder ]] || assemble "$1" "$folder"
        exec 9>&-
    fi
    printf '%s\n' "$folder"
}

given() { # version folder variable
    has_servers "$2" || die 2 "$3=$2: no executables etcd and kube-apiserver there (wanted for Kubernetes $1)"
    (cd -- "$2" && pwd)
}

cleanup() {
    [[ -z $child ]] || { kill -- -"$child" && wait "$child"; } 2>/dev/null || true
    [[ -z $work ]] || { chmod -R u+w "$work" && rm -rf "$work"; } 2>/dev/null || true
}

main() {
    local version variable folder act=ensure
    if [[ ${1:-} == --seconds ]]; then act=expected && shift; fi
    # shellcheck disable=SC2086 # one word for each
    (($#)) || set -- $suite
    # shellcheck disable=SC2086
    [[ $1 != --all ]] || set -- $all
    for version; do [[ -n ${quirks[${version%-node}]:-} ]] || die 2 "unknown version '$version': one of$all"; done
    [[ " $*" != *" $newest"* ]] || find_newest
    for version; do
        variable=${version/./_} variable=SCPOL_ASSETS_${variable/-node/_NODE}
        # With Go, what KUBEBUILDER_ASSETS lacks is built: see `choose`.
        [[ $version != "$newest" || -n ${!variable:-} ]] || variable=KUBEBUILDER_ASSETS
        folder=${!variable:-}
        [[ -z $folder ]] || folder=$(given "$version" "$folder" "$variable")
        if [[ -z $folder ]] || { [[ $variable == KUBEBUILDER_ASSETS ]] && command -v go >/dev/null; }; then
            "$act" "$version"
        elif [[ $act == ensure ]]; then
            printf '%s\n' "$folder"
        else
            echo 0
        fi
    done
}

goversion=''
cache=${SCPOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/scpol}/controlplane
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
main "$@"; exit
