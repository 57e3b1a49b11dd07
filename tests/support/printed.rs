//! Every command that messages of the product print, and how a test tries it.

/// How a command is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// By this script, which `tests/apiserver/printed.rs` runs on a prepared cluster. Empty: the command itself.
    Here(&'static str),
    /// By that test, as `module::function`.
    By(&'static str),
    /// It is no command to be followed as it stands, for this reason.
    Name(&'static str),
}

use Tried::{By, Here, Name};

const OF_A_POLICY: &str = "the name of a command, in a message about one policy";
const OF_A_POD: &str = "the name of a command, in a message that names the pod";
const OF_A_PAGE: &str = "the name of a command, in the head of a table of a page";
/// It follows the steps of `docs/migrate.md`.
const CONVERT: &str = "migrate::an_old_initializer_hands_over_and_no_create_hangs_or_is_missed";

const EXAMPLE: &str = "an example of a help, whose commands of ours a test parses";

/// The texts as they stand in the sources.
pub(crate) const PRINTED: &[(&str, Tried)] = &[
    ("kubectl api-resources", Here("")),
    ("kubectl apply", Name("it says what kubectl would keep of two manifests")),
    ("kubectl config", Name("it names what reads the file")),
    ("kubectl delete -n {namespace} {}/{name}", By("printed::a_pod_is_created_anew_by_the_command_that_status_prints")),
    (
        "kubectl delete controllerrevision -n scpol-system NAME",
        Here("kubectl delete controllerrevision -n scpol-system foreign"),
    ),
    ("kubectl delete initializerconfigurations {}", By(CONVERT)),
    (
        "kubectl delete pod -n {} {}",
        By("rollout_left::a_stateful_set_that_goes_back_asks_for_the_deletion_of_its_broken_pod"),
    ),
    ("kubectl delete {handle}", By(CONVERT)),
    ("kubectl describe", Name("the name of a command, beside `kubectl logs`")),
    ("kubectl describe pod", Name(OF_A_POD)),
    ("kubectl describe scpol {name}", Here("kubectl describe scpol envoy")),
    ("kubectl edit initializerconfigurations {configuration}", Name("it opens an editor")),
    ("kubectl explain sidecarpolicies.spec", Here("")),
    (
        "kubectl get -n {namespace} {address}/{name} -o yaml{filter} | kubectl replace --force{cascade} -f -",
        By("printed::a_pod_is_created_anew_by_the_command_that_status_prints"),
    ),
    ("kubectl get -n {} {} && ", By("printed::a_pod_is_created_anew_by_the_command_that_status_prints")),
    ("kubectl get pod web -o yaml | scpol uninject -f - --recreate | kubectl replace --force -f -", Name(EXAMPLE)),
    ("kubectl get scpol", Here("")),
    ("kubectl get scpol {policies_of}", Here("kubectl get scpol envoy")),
    ("kubectl get scpol {}", Here("kubectl get scpol envoy")),
    ("kubectl kustomize . | scpol inject -f - -p policies -n shop-eu | kubectl apply -f -", Name(EXAMPLE)),
    ("kubectl kustomize FOLDER", Here("kubectl kustomize config/default")),
    ("kubectl kustomize FOLDER | scpol ... -f -", Here("kubectl kustomize config/default | scpol uninject -f -")),
    ("kubectl label initializerconfigurations {configurations} app.kubernetes.io/managed-by=scpol", By(CONVERT)),
    ("kubectl logs", Name("the name of a command, beside `kubectl describe`")),
    ("kubectl logs -n scpol-system deploy/scpol", Name("it needs a node")),
    (
        r#"kubectl patch scpol {policy} --type=merge -p '{{"spec":{{"updateStrategy":{{"type":"RollingUpdate"}}}}}}'"#,
        Here(r#"kubectl patch scpol envoy --type=merge -p '{"spec":{"updateStrategy":{"type":"RollingUpdate"}}}'"#),
    ),
    ("kubectl replace", Name("it says what has replaced an object")),
    (
        "kubectl rollout restart -n {namespace} {kind}/{maker}",
        By("printed::a_pod_is_created_anew_by_the_command_that_status_prints"),
    ),
    ("kubectl rollout resume", Name("the name of a command, in a message about one workload")),
    (
        "kubectl scale -n {namespace} deployments.v1.apps {OPERATOR} --replicas=2",
        Here("kubectl scale -n scpol-system deployments.v1.apps scpol --replicas=2"),
    ),
    ("kubectl scpol", By("commands::the_binary_is_a_plugin_of_kubectl")),
    ("scpol check", Here("")),
    ("scpol check --engine Webhook", Here("")),
    ("scpol crd --api v1beta1", Here("")),
    ("scpol crd | kubectl apply -f -", Here("")),
    ("scpol drain", Here("")),
    ("scpol drain --initializer NAME", Here("scpol drain --initializer a.example.com")),
    ("scpol drain --list", Here("")),
    ("scpol explain", Name("the name of a command, in a message about one workload")),
    ("scpol help", Here("")),
    ("scpol inject", Name(OF_A_PAGE)),
    (
        "scpol inject -f MANIFESTS -p policies.yaml{} --diff",
        By("commands::the_examples_of_the_pages_print_what_the_pages_say"),
    ),
    ("scpol lint", Name(OF_A_PAGE)),
    ("scpol parameters POLICY", Here("scpol parameters envoy")),
    ("scpol rollout", Name(OF_A_POLICY)),
    ("scpol rollout history {policy}", Here("scpol rollout history envoy")),
    ("scpol rollout remove", Name(OF_A_POLICY)),
    ("scpol rollout restart", Name(OF_A_POLICY)),
    ("scpol rollout resume", Name(OF_A_POLICY)),
    ("scpol rollout resume POLICY", Here("scpol rollout resume envoy")),
    ("scpol rollout resume {name}", Here("scpol rollout resume envoy")),
    ("scpol rollout status POLICY", Here("scpol rollout status envoy")),
    (
        "scpol rollout undo POLICY",
        By("rollout_commands::a_rollout_is_planned_followed_paused_resumed_and_undone_by_commands"),
    ),
    ("scpol status", Here("")),
    ("scpol status POLICY", Here("scpol status envoy")),
    ("scpol status POLICY -n {namespace}", Here("scpol status envoy -n default")),
    ("scpol status {name}", Here("scpol status envoy")),
    ("scpol uninject", Name("the name of a command, in a message about a manifest")),
    ("scpol uninject -f FILE -p {policy}", Here("scpol uninject -f tests/golden/env-equal/workload.yaml -p envoy")),
    ("scpol uninstall", By("uninstall::beside_an_operator_that_works_no_create_hangs_and_nothing_is_left")),
];
