# What the demos share: each command is printed with what came back. SCPOL_PROGRAMS: the folder of scpol.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
PATH="${SCPOL_PROGRAMS:-${CARGO_TARGET_DIR:-$PWD/target}/debug}:$PATH"
log="$SCPOL_TEST_DIR/demo-operator.log"

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
# A command as one types it.
typed() {
  local word
  printf '$'
  for word; do
    case $word in *[!a-zA-Z0-9_./:=,@%+-]*) printf " '%s'" "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  echo
}
run() { typed "$@"; "$@" 2>&1 | grep -v '^Warning: \(version difference\|short name\)' || test "${PIPESTATUS[0]}" -eq 0; }

# until_is EXPECTED COMMAND..: waits until the command prints that, 30 s at most, or $patience.
until_is() {
  local expected=$1 printed='' end=$((SECONDS + ${patience:-30}))
  shift
  while ((SECONDS < end)); do
    printed=$("$@" 2> /dev/null) || true
    [ "$printed" = "$expected" ] && return
    sleep 0.1
  done
  echo "error: not \"$expected\" but \"$printed\": $*" >&2
  return 1
}

# An address that nothing listens on.
free_address() {
  local port
  until port=$((20000 + RANDOM % 12000)) && ! (: < "/dev/tcp/127.0.0.1/$port") 2> /dev/null; do :; done
  echo "127.0.0.1:$port"
}

# start_operator [ADDRESS]: the API server reaches its webhook at the address, else nowhere.
start_operator() {
  echo '$ scpol run &'
  scpol run --kubeconfig "$SCPOL_TEST_KUBECONFIG_OPERATOR" --listen 127.0.0.1:0 --webhook-listen "${1:-127.0.0.1:0}" \
    ${1:+--webhook-url "https://$1"} --log-format text 2> "$log" &
  operator=$!
  trap 'kill $operator 2> /dev/null && wait $operator || true' EXIT
}

keep_if_asked() {
  [ "${KEEP:-}" = 1 ] || return 0
  say 'Kept (KEEP=1). In another terminal:'
  echo "export KUBECONFIG=$KUBECONFIG"
  echo "export PATH=$PATH"
  echo 'kubectl get scpol'
  echo "The operator's log: $log"
  echo 'Ctrl-C here ends everything.'
  wait $operator
  exit
}

stop_operator() {
  printf '$ kill -TERM <operator>\n'
  kill $operator
  wait $operator
  trap - EXIT
}

server_version() { kubectl version -o json 2> /dev/null | sed -n '/serverVersion/,$ s/.*"gitVersion": "\(.*\)".*/\1/p'; }
