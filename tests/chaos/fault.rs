//! The faults between the operator and the API server, as data.

use crate::chaos::dice::Dice;
use serde_json::Value;
use std::collections::HashMap;
use std::time::Duration;

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
}

/// A request, reduced to the properties that rules use.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) verb: Verb,
    /// The path without the query.
    pub(crate) path: String,
    /// The plural name, with a slash and the subresource. For other paths the first segment, such as `openapi`.
    pub(crate) resource: String,
    /// The body as text, if it is text.
    pub(crate) body: String,
}

impl Ask {
    /// Reads a request line of the Kubernetes API.
    pub(crate) fn of(method: &http::Method, uri: &http::Uri) -> Self {
        let steps: Vec<&str> = uri.path().split('/').filter(|step| !step.is_empty()).collect();
        // api/v1/.., apis/GROUP/VERSION/..
        let below = steps.get(if steps.first() == Some(&"api") { 2 } else { 3 }..).unwrap_or_default();
        let below = match below {
            ["namespaces", _, rest @ ..] if !rest.is_empty() && rest[0] != "status" => rest,
            other => other,
        };
        let query = uri.query().unwrap_or_default();
        let verb = match (method.as_str(), below.len()) {
            ("GET", _) if query.contains("watch=") => Verb::Watch,
            ("GET", 1) => Verb::List,
            ("GET", _) => Verb::Get,
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Update,
            ("PATCH", _) => Verb::Patch,
            _ => Verb::Delete,
        };
        let subresource = below.get(2).map(|name| format!("/{name}")).unwrap_or_default();
        let resource = below.first().or(steps.first()).copied().unwrap_or_default();
        let resource = format!("{resource}{subresource}");
        Self { verb, path: uri.path().to_owned(), resource, body: String::new() }
    }
}

/// A rule: the affected requests, and the fault.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    /// Only requests with these verbs; all if the list is empty.
    pub(crate) verbs: &'static [Verb],
    /// Only requests about these resources; all if the list is empty.
    pub(crate) resources: &'static [&'static str],
    /// Only requests with this text in their body.
    pub(crate) about: Option<&'static str>,
    /// The percentage of affected cases.
    pub(crate) percent: u64,
    /// The most times for one and the same request, so that retries succeed in the end.
    pub(crate) times: u32,
    /// The fault.
    pub(crate) does: Does,
}

impl Rule {
    /// A rule for every request, every time.
    pub(crate) const fn always(does: Does) -> Self {
        Self { verbs: &[], resources: &[], about: None, percent: 100, times: u32::MAX, does }
    }

    pub(crate) const fn to(mut self, verbs: &'static [Verb], resources: &'static [&'static str]) -> Self {
        self.verbs = verbs;
        self.resources = resources;
        self
    }

    pub(crate) const fn about(mut self, text: &'static str) -> Self {
        self.about = Some(text);
        self
    }

    pub(crate) const fn percent(mut self, percent: u64) -> Self {
        self.percent = percent;
        self
    }

    pub(crate) const fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    fn is_about(&self, ask: &Ask) -> bool {
        (self.verbs.is_empty() || self.verbs.contains(&ask.verb))
            && (self.resources.is_empty() || self.resources.contains(&ask.resource.as_str()))
            && self.about.is_none_or(|text| ask.body.contains(text))
    }
}

/// A fault of a request, of its answer, or of the events of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Does {
    /// The request is forwarded after a delay of up to this duration.
    Delay(Duration),
    /// The connection is cut, and the request is not forwarded.
    CutBefore,
    /// The request is forwarded, and the connection is cut instead of an answer.
    DropAnswer,
    /// The request is not forwarded. This status is the answer, with the seconds of `Retry-After`.
    Answer(u16, Option<u64>),
    /// The request is forwarded, but this status is the answer.
    Mask(u16),
    /// A JSON Patch fails as on a server with a lagging cache: it tests another version than the current one.
    Lag,
    /// A list gets the same answer as the first time.
    StaleList,
    /// The watch is cut after this duration.
    CutWatch(Duration),
    /// The watch stays open but passes no more events.
    FreezeWatch,
    /// The watch begins with an event that its version is too old.
    Expire,
    /// An event of the watch is lost.
    Swallow,
    /// The event comes twice.
    Repeat,
    /// The event comes after the next one.
    Swap,
}

impl Does {
    fn is_about_events(&self) -> bool {
        matches!(self, Does::Swallow | Does::Repeat | Does::Swap)
    }
}

/// The current rules, and a record of their effects.
pub(crate) struct Faults {
    rules: Vec<Rule>,
    dice: Dice,
    seen: HashMap<(usize, String), (u64, u32)>,
    fired: u64,
}

impl Faults {
    pub(crate) fn new(dice: Dice, rules: Vec<Rule>) -> Self {
        Self { rules, dice, seen: HashMap::new(), fired: 0 }
    }

    /// The number of faults so far.
    pub(crate) fn fired(&self) -> u64 {
        self.fired
    }

    /// The faults of a request.
    pub(crate) fn of(&mut self, ask: &Ask) -> Vec<Does> {
        let case = format!("{:?} {}", ask.verb, ask.path);
        self.happen(ask, &case, |does| !does.is_about_events())
    }

    /// The fault of an event of a watch.
    pub(crate) fn of_event(&mut self, ask: &Ask, event: &Value) -> Option<Does> {
        let kind = event["type"].as_str().filter(|kind| matches!(*kind, "ADDED" | "MODIFIED" | "DELETED"))?;
        let metadata = &event["object"]["metadata"];
        let case = format!("{kind} {} {}/{}", ask.path, metadata["namespace"], metadata["name"]);
        self.happen(ask, &case, Does::is_about_events).into_iter().next()
    }

    fn happen(&mut self, ask: &Ask, case: &str, is_meant: impl Fn(&Does) -> bool) -> Vec<Does> {
        let mut happens = Vec::new();
        for (number, rule) in self.rules.iter().enumerate() {
            if !rule.is_about(ask) || !is_meant(&rule.does) {
                continue;
            }
            let (nth, times) = self.seen.entry((number, case.to_owned())).or_default();
            *nth += 1;
            if *times < rule.times && self.dice.falls(rule.percent, (number, case, *nth)) {
                *times += 1;
                self.fired += 1;
                happens.push(match rule.does {
                    Does::Delay(most) => {
                        let millis = self.dice.below(most.as_millis() as u64, (number, case, *nth, "delay"));
                        Does::Delay(Duration::from_millis(millis))
                    }
                    ref other => other.clone(),
                });
            }
        }
        happens
    }
}

/// The laws of the rules themselves, by name.
pub(crate) const LAWS: [(&str, fn()); 3] = [
    ("requests are told apart", requests_are_told_apart),
    ("a seed repeats what went wrong, in whatever order requests come", a_seed_repeats),
    ("a request that is tried again goes through in the end", trying_again_helps),
];

fn requests_are_told_apart() {
    for (method, uri, verb, resource) in [
        ("GET", "/api/v1/pods?limit=100", Verb::List, "pods"),
        ("GET", "/api/v1/pods?watch=true&resourceVersion=7", Verb::Watch, "pods"),
        ("GET", "/api/v1/namespaces/shop", Verb::Get, "namespaces"),
        ("GET", "/api/v1/namespaces", Verb::List, "namespaces"),
        ("PATCH", "/apis/apps/v1/namespaces/shop/deployments/web?", Verb::Patch, "deployments"),
        ("POST", "/apis/apps/v1/namespaces/shop/deployments?dryRun=All", Verb::Create, "deployments"),
        ("PATCH", "/apis/scpol.dev/v1alpha1/sidecarpolicies/envoy/status", Verb::Patch, "sidecarpolicies/status"),
        ("PUT", "/apis/coordination.k8s.io/v1beta1/namespaces/scpol-system/leases/scpol", Verb::Update, "leases"),
        ("DELETE", "/apis/admissionregistration.k8s.io/v1/x/scpol-envoy", Verb::Delete, "x"),
    ] {
        let ask = Ask::of(&method.parse().expect("a method"), &uri.parse().expect("a URI"));
        assert_eq!((ask.verb, ask.resource.as_str()), (verb, resource), "{method} {uri}");
    }
}

/// The requests about five objects, ten times each.
fn asks() -> Vec<Ask> {
    let one = |number: usize| Ask {
        verb: Verb::Patch,
        path: format!("/apis/apps/v1/namespaces/default/deployments/web-{}", number % 5),
        body: String::new(),
        resource: "deployments".into(),
    };
    (0..50).map(one).collect()
}

/// The faults of each object's requests, in order.
fn told(seed: u64, asks: &[Ask]) -> HashMap<String, Vec<Vec<Does>>> {
    let rules =
        vec![Rule::always(Does::DropAnswer).percent(50), Rule::always(Does::Delay(Duration::from_secs(9))).percent(30)];
    let mut faults = Faults::new(Dice(seed), rules);
    let mut happened: HashMap<_, Vec<_>> = HashMap::new();
    for ask in asks {
        happened.entry(ask.path.clone()).or_default().push(faults.of(ask));
    }
    happened
}

fn a_seed_repeats() {
    let mut sorted = asks();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    assert_eq!(told(7, &asks()), told(7, &sorted));
    assert_ne!(told(7, &asks()), told(8, &asks()));
}

fn trying_again_helps() {
    let mut faults = Faults::new(Dice(1), vec![Rule::always(Does::CutBefore).times(2)]);
    let ask = &asks()[0];
    let cut: Vec<bool> = (0..4).map(|_| !faults.of(ask).is_empty()).collect();
    assert_eq!((cut, faults.fired()), (vec![true, true, false, false], 2));
}
