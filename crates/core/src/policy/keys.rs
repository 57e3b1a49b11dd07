//! Labels and annotations that resemble ours and are none: nobody reads them, and their author thinks that we do.

use crate::api::{
    GROUP, INJECT_KEY, MARKER_PREFIX, POLICY_LABEL, PROBE_KEY, RESTARTED_AT_KEY, RESUMED_AT_KEY, ROLLOUT_KEY,
};
use crate::outside;
use crate::workload::Workload;

/// The keys of ours that a workload or its pods may have, beside markers.
const KNOWN: [&str; 6] = [INJECT_KEY, ROLLOUT_KEY, RESTARTED_AT_KEY, RESUMED_AT_KEY, POLICY_LABEL, PROBE_KEY];
/// The keys that users write.
const WRITTEN: [&str; 2] = [INJECT_KEY, ROLLOUT_KEY];
/// The most edits between a misspelt key, or a word of it, and the one that is meant.
const TYPOS: usize = 2;
/// The longest key of labels and annotations: a prefix of 253 characters, a slash, and a name of 63.
const LONGEST: usize = 317;

/// The message about the keys of `workload`, its pod template or pod that resemble ours and are none. It names the
/// first, and counts the others. Keys under the domain of a policy, of whose name `is_policy` is true, are for its parameters.
pub(super) fn misspelt(workload: &Workload, is_policy: impl Fn(&str) -> bool) -> Option<String> {
    let pod = workload.pod().filter(|_| workload.kind.template_path().is_some_and(|path| !path.is_empty()));
    let places = [(Some(&workload.body), ""), (pod, " of the pod template")];
    let keys = places.into_iter().flat_map(|(at, of)| {
        [("annotations", "annotation"), ("labels", "label")].into_iter().flat_map(move |(map, word)| {
            let entries = at.and_then(|at| at.get("metadata")?.get(map)?.as_object());
            entries.into_iter().flat_map(|entries| entries.keys()).map(move |key| (key, word, of))
        })
    });
    let is_of_parameter = |key: &str| {
        let policy = key.split_once('/').and_then(|(domain, _)| domain.strip_suffix(GROUP)?.strip_suffix('.'));
        policy.is_some_and(&is_policy)
    };
    let mut odd = keys.filter(|(key, ..)| is_odd(key) && !is_of_parameter(key));
    let (key, word, of) = odd.next()?;
    let meant = match meant(key) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("those that we read are `{}`", WRITTEN.join("` and `")),
    };
    let more = match odd.count() {
        0 => String::new(),
        count => format!(" ({count} more of the kind)"),
    };
    Some(format!("the {word} `{}`{of} has no effect; {meant}{more}", outside::cut(key, LONGEST)))
}

/// Whether `key` resembles a key of ours, and is none.
fn is_odd(key: &str) -> bool {
    let is_marker = key.strip_prefix(MARKER_PREFIX).is_some_and(|policy| !policy.is_empty());
    if is_marker || KNOWN.contains(&key) || key.len() > LONGEST {
        return false;
    }
    let domain = key.split_once('/').map_or(key, |(domain, _)| domain);
    let is_in = |domain: &str| domain.strip_suffix(GROUP).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
    is_in(&domain.to_ascii_lowercase()) || WRITTEN.iter().any(|known| is_near(key, known))
}

/// The key that the author of `key` probably means.
fn meant(key: &str) -> Option<&'static str> {
    let is_word = |word: &str, name: &str| is_near(word, name) || word.to_ascii_lowercase().starts_with(name);
    let names = WRITTEN.map(|known| (known, known.rsplit('/').next().unwrap_or(known)));
    let by_word = names.into_iter().find(|(_, name)| key.split(['/', '.', '-', '_']).any(|word| is_word(word, name)));
    by_word.map(|(known, _)| known).or_else(|| WRITTEN.into_iter().find(|known| is_near(key, known)))
}

/// Whether at most [`TYPOS`] edits make `known` of `text`, in any case.
fn is_near(text: &str, known: &str) -> bool {
    text.len().abs_diff(known.len()) <= TYPOS
        && strsim::damerau_levenshtein(&text.to_ascii_lowercase(), &known.to_ascii_lowercase()) <= TYPOS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;
    use serde_json::{Value, json};

    fn misspelt(workload: &Workload) -> Option<String> {
        super::misspelt(workload, |policy| policy == "mesh")
    }

    fn deployment(own: &Value, template: &Value) -> Workload {
        let body = json!({"metadata": own, "spec": {"template": {"metadata": template, "spec": {}}}});
        Workload::new(Kind::find("apps", "deployments").expect("deployments"), body)
    }

    #[test]
    fn a_key_that_resembles_ours_is_told_with_the_one_that_is_meant() {
        for (key, meant) in [
            ("scpol.dev/injekt", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev/Inject", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev/inject-envoy", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev/injection", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev/rolout", "did you mean `scpol.dev/rollout`?"),
            ("inject.scpol.dev", "did you mean `scpol.dev/inject`?"),
            ("inject.scpol.dev/envoy", "did you mean `scpol.dev/inject`?"),
            ("injected.scpol.dev", "did you mean `scpol.dev/inject`?"),
            ("injected.scpol.dev/", "did you mean `scpol.dev/inject`?"),
            ("Scpol.dev/inject", "did you mean `scpol.dev/inject`?"),
            ("scopl.dev/inject", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev.inject", "did you mean `scpol.dev/inject`?"),
            ("scpol.dev/team", "those that we read are `scpol.dev/inject` and `scpol.dev/rollout`"),
        ] {
            let expected = format!("the annotation `{key}` has no effect; {meant}");
            assert_eq!(misspelt(&deployment(&json!({"annotations": {key: "x"}}), &json!({}))), Some(expected));
        }
        let two = deployment(
            &json!({"labels": {"a": "b"}}),
            &json!({"labels": {"scpol.dev/injekt": "a", "scpol.dev/b": "c"}}),
        );
        let expected = "the label `scpol.dev/b` of the pod template has no effect; those that we read are \
                        `scpol.dev/inject` and `scpol.dev/rollout` (1 more of the kind)";
        assert_eq!(misspelt(&two).as_deref(), Some(expected));
    }

    #[test]
    fn keys_of_ours_and_of_others_are_not_told() {
        for key in [
            "scpol.dev/inject",
            "scpol.dev/rollout",
            "injected.scpol.dev/envoy",
            "sidecar.istio.io/inject",
            "linkerd.io/inject",
            "example.com/scpol",
            "notscpol.dev/inject-it-all",
            "app",
            "",
            "/",
        ] {
            assert_eq!(
                misspelt(&deployment(&json!({"annotations": {key: "x"}}), &json!({"labels": {key: "x"}}))),
                None,
                "{key}"
            );
        }
        for odd in [json!(null), json!([]), json!({"annotations": [], "labels": 1})] {
            assert_eq!(misspelt(&deployment(&odd, &odd)), None);
        }
    }

    #[test]
    fn a_hostile_key_is_cut_and_escaped() {
        let long = format!("scpol.dev/{}", "x".repeat(100_000));
        assert_eq!(misspelt(&deployment(&json!({"annotations": {long: "x"}}), &json!({}))), None);
        let told = misspelt(&deployment(&json!({"annotations": {"scpol.dev/\u{1b}[2J\n": "x"}}), &json!({}))).unwrap();
        assert!(!told.contains(['\u{1b}', '\n']), "{told}");
    }
}
