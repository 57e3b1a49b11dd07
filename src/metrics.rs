//! The metrics of a scrape. Labels come from fixed sets and from names of policies, containers and namespaces, never from names
//! of workloads.
//!
//! Others choose how many policies and namespaces there are, so the series with these labels are bounded: the counters of a
//! policy go with it, and `scpol_namespace_workloads` has a limit.

use crate::api::code::Code;
use crate::decision::Outcome;
#[cfg(target_os = "linux")]
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use prometheus::core::Collector;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// The label `namespace` of all namespaces without series of their own. No namespace can have this name.
pub const OTHER_NAMESPACES: &str = "(others)";
/// The default of `--metrics-namespaces`. The series of so many pairs are about 1.3 MB of a scrape: three series of 85 bytes each.
pub const METRICS_NAMESPACES: u32 = 5000;

/// A policy and a namespace.
type Pair = [String; 2];

/// Numbers of workloads by state.
pub type States = [(&'static str, i64); 4];

/// The state that has no series of its own in a namespace while no workload has it, because nearly none does.
const RARE: &str = "edited";

/// Every metric of the operator, in groups that register themselves, each with its help.
pub struct Metrics {
    registry: Registry,
    pub process: ProcessMetrics,
    pub pending: PendingMetrics,
    pub rollouts: RolloutMetrics,
    pub workloads: WorkloadMetrics,
    injections: IntCounterVec,
    injection_duration: HistogramVec,
    policies: IntGaugeVec,
    pub resource_policies: Replaced<2>,
}

/// The process and its loops.
pub struct ProcessMetrics {
    api_requests: IntCounterVec,
    pub reconciles: IntCounter,
    pub reconcile_errors: IntCounter,
    pub panics: IntCounter,
    pub leader: IntGauge,
    /// The expiry of the webhook's certificate, in seconds since 1970; 0 if there is none.
    pub webhook_cert_expiry: IntGauge,
}

/// Objects that wait, and the work on them.
pub struct PendingMetrics {
    objects: IntGaugeVec,
    /// Age of the oldest object that waits for us, in seconds; 0 if none does.
    pub oldest: Gauge,
    pub oldest_foreign: Gauge,
    pub workers: IntGauge,
}

/// Rollouts, by policy.
pub struct RolloutMetrics {
    evictions: IntCounterVec,
    in_place: IntCounterVec,
    templates: IntCounterVec,
    pub updated: Replaced<1>,
    pub remaining: Replaced<1>,
    pub halted: Replaced<1>,
}

/// Stored workloads, which only a leader knows.
pub struct WorkloadMetrics {
    pub not_starting: Replaced<2>,
    pub by_policy: Replaced<2>,
    by_namespace: Replaced<3>,
    /// The pairs of policy and namespace with series of their own.
    in_own_series: Mutex<BTreeSet<Pair>>,
    most_in_own_series: usize,
}

impl Metrics {
    /// Registers a new set, with series of their own for `most_namespaces` pairs of a policy and a namespace.
    pub fn new(most_namespaces: usize) -> Self {
        let registry = Registry::new();
        #[cfg(target_os = "linux")]
        registry.register(Box::new(ProcessCollector::for_self())).expect("each name is registered once");
        let to = Registering(&registry);
        let build = to.gauges("scpol_build_info", "1; the label is the version.", &["version"]);
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Self {
            process: ProcessMetrics::new(&to),
            pending: PendingMetrics::new(&to),
            rollouts: RolloutMetrics::new(&to),
            workloads: WorkloadMetrics::new(&to, most_namespaces),
            injections: to.counters(
                "scpol_injections_total",
                "Decisions on new workloads, by policy, engine, result and reason.",
                &["policy", "engine", "result", "reason"],
            ),
            injection_duration: to.register(injection_duration()),
            policies: to.gauges("scpol_policies", "Policies by the status of their Ready condition.", &["ready"]),
            resource_policies: to.replaced(
                "scpol_resource_policies",
                "Policies in effect, by resource and engine.",
                &["resource", "engine"],
            ),
            registry,
        }
    }

    /// Removes the counters of policies for which `is_stored` is false.
    pub fn retain_policies(&self, is_stored: impl Fn(&str) -> bool) {
        for counters in self.rollouts.counters().into_iter().chain([&self.injections]) {
            for family in counters.collect() {
                for counter in family.get_metric() {
                    let labels: HashMap<&str, &str> =
                        counter.get_label().iter().map(|label| (label.name(), label.value())).collect();
                    let is_gone = labels.get("policy").is_some_and(|policy| !policy.is_empty() && !is_stored(policy));
                    if is_gone {
                        // An error means that there is no such counter any more.
                        let _ = counters.remove(&labels);
                    }
                }
            }
        }
    }

    /// Counts a decision.
    pub fn injection(&self, policy: &str, engine: &'static str, outcome: Outcome, reason: Code) {
        self.injections.with_label_values(&[policy, engine, outcome.label(), reason.name()]).inc();
    }

    /// Records the time that a workload spent inside the operator, for `engine`.
    pub fn injection_took(&self, engine: &'static str, seconds: f64) {
        self.injection_duration.with_label_values(&[engine]).observe(seconds);
    }

    /// Sets the numbers of policies by readiness: ready, not ready, unknown.
    pub fn set_policies(&self, ready: i64, not_ready: i64, unknown: i64) {
        for (status, count) in [("True", ready), ("False", not_ready), ("Unknown", unknown)] {
            self.policies.with_label_values(&[status]).set(count);
        }
    }

    /// Removes the gauges of stored workloads, which only a leader knows.
    pub fn forget_workloads(&self) {
        self.workloads.not_starting.set(BTreeMap::new());
        self.workloads.by_policy.set(BTreeMap::new());
        self.workloads.set_by_namespace(&BTreeMap::new());
        self.resource_policies.set(BTreeMap::new());
        for gauges in [&self.rollouts.updated, &self.rollouts.remaining, &self.rollouts.halted] {
            gauges.set(BTreeMap::new());
        }
    }

    /// All metrics, in the Prometheus text format.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }
}

impl ProcessMetrics {
    fn new(to: &Registering<'_>) -> Self {
        Self {
            api_requests: to.counters(
                "scpol_api_requests_total",
                "Requests to the API server by verb and status code; code 0 is no answer.",
                &["verb", "code"],
            ),
            reconciles: to.counter("scpol_reconcile_total", "Passes of the controller."),
            reconcile_errors: to.counter("scpol_reconcile_errors_total", "Passes of the controller that failed."),
            panics: to.counter("scpol_panics_total", "Panics that were caught; each is a defect."),
            leader: to.gauge("scpol_leader", "1 if this replica leads."),
            webhook_cert_expiry: to.gauge(
                "scpol_webhook_cert_expiry_timestamp_seconds",
                "When the certificate that the webhook shows expires; 0 while there is none.",
            ),
        }
    }

    /// Counts a request; `None` means no answer.
    pub fn api_request(&self, verb: &str, code: Option<u16>) {
        self.api_requests.with_label_values(&[verb, &code.unwrap_or(0).to_string()]).inc();
    }
}

impl PendingMetrics {
    fn new(to: &Registering<'_>) -> Self {
        Self {
            objects: to.gauges("scpol_pending_objects", "Objects that wait for our initializer now.", &["policy"]),
            oldest: to.seconds("scpol_oldest_pending_seconds", "Age of the oldest object that waits for us."),
            oldest_foreign: to.seconds(
                "scpol_oldest_foreign_pending_seconds",
                "Age of the oldest object that waits for a foreign initializer in front of us.",
            ),
            workers: to.gauge("scpol_workers", "PATCHes that may be in flight at once."),
        }
    }

    /// Sets the number of objects that wait for `policy`.
    pub fn set(&self, policy: &str, objects: i64) {
        self.objects.with_label_values(&[policy]).set(objects);
    }

    /// Removes the gauge of a deleted policy.
    pub fn forget(&self, policy: &str) {
        // An error means that there was no such gauge.
        let _ = self.objects.remove_label_values(&[policy]);
    }
}

impl RolloutMetrics {
    fn new(to: &Registering<'_>) -> Self {
        let counters = |name, help| to.counters(name, help, &["policy"]);
        let gauges = |name, help| to.replaced(name, help, &["policy"]);
        Self {
            evictions: counters("scpol_rollout_evictions_total", "Pods evicted by rollouts."),
            in_place: counters("scpol_rollout_in_place_total", "Running pods patched by rollouts."),
            templates: counters("scpol_rollout_templates_total", "Pod templates of workloads patched by rollouts."),
            updated: gauges(
                "scpol_rollout_updated",
                "Workloads that have the update revision of a policy that rolls out.",
            ),
            remaining: gauges("scpol_rollout_remaining", "Workloads that a rollout still has to update."),
            halted: gauges(
                "scpol_rollout_halted",
                "1 if the rollout of a policy is halted because an updated workload failed.",
            ),
        }
    }

    fn counters(&self) -> [&IntCounterVec; 3] {
        [&self.evictions, &self.in_place, &self.templates]
    }

    /// Shows the counters of `policy`, from 0 on.
    pub fn show(&self, policy: &str) {
        for counter in self.counters() {
            counter.with_label_values(&[policy]);
        }
    }

    /// Counts a write of the rollout of `policy`.
    pub fn wrote(&self, policy: &str, write: RolloutWrite) {
        let counter = match write {
            RolloutWrite::Eviction => &self.evictions,
            RolloutWrite::InPlace => &self.in_place,
            RolloutWrite::Template => &self.templates,
        };
        counter.with_label_values(&[policy]).inc();
    }
}

impl WorkloadMetrics {
    fn new(to: &Registering<'_>, most_in_own_series: usize) -> Self {
        Self {
            not_starting: to.replaced(
                "scpol_sidecars_not_starting",
                "Pods in which a container of a policy does not start, by policy and container.",
                &["policy", "container"],
            ),
            by_policy: to.replaced(
                "scpol_policy_workloads",
                "Workloads that a policy matches, by state: injected, edited, outdated, missed, failed, pending.",
                &["policy", "state"],
            ),
            by_namespace: to.replaced(
                "scpol_namespace_workloads",
                "Stored workloads of a namespace that a policy matches, by state: injected, edited, outdated, missed.",
                &["policy", "namespace", "state"],
            ),
            in_own_series: Mutex::default(),
            most_in_own_series,
        }
    }

    /// Sets the numbers of stored workloads of each policy in each namespace.
    ///
    /// # Guarantees
    /// The sums are right for each policy and state: what has no series of its own counts for [`OTHER_NAMESPACES`]. A pair keeps
    /// its series beside new ones. Free places go to the policies in turn, so that none takes all.
    pub fn set_by_namespace(&self, counts: &BTreeMap<Pair, States>) {
        let mut own = self.in_own_series.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|pair| counts.contains_key(pair));
        let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
        let mut waiting = Vec::new();
        for pair in counts.keys() {
            let turn = turns.entry(pair[0].as_str()).or_default();
            *turn += 1;
            if !own.contains(pair) {
                waiting.push((*turn, pair));
            }
        }
        let free = self.most_in_own_series.saturating_sub(own.len());
        waiting.sort_unstable();
        own.extend(waiting.into_iter().take(free).map(|(_, pair)| pair.clone()));
        let mut values = BTreeMap::new();
        for (pair, states) in counts {
            let [policy, namespace] = pair;
            let namespace = if own.contains(pair) { namespace } else { OTHER_NAMESPACES };
            for (state, count) in states.iter().filter(|(state, count)| *state != RARE || *count > 0) {
                let labels = [policy.clone(), namespace.to_owned(), (*state).to_owned()];
                *values.entry(labels).or_insert(0) += count;
            }
        }
        self.by_namespace.set(values);
    }
}

/// A write of a rollout.
#[derive(Clone, Copy, Debug)]
pub enum RolloutWrite {
    /// The eviction of a pod.
    Eviction,
    /// A patch of a running pod.
    InPlace,
    /// A patch of the pod template of a workload.
    Template,
}

/// Gauges that are set all at once, by the values of their labels.
pub struct Replaced<const LABELS: usize> {
    gauges: IntGaugeVec,
    /// What a scrape shows.
    shown: Mutex<BTreeMap<[String; LABELS], i64>>,
}

impl<const LABELS: usize> Replaced<LABELS> {
    /// Sets the gauges of `values`, and removes all others.
    pub fn set(&self, values: BTreeMap<[String; LABELS], i64>) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        for labels in shown.keys().filter(|labels| !values.contains_key(*labels)) {
            // An error means that there was no such gauge.
            let _ = self.gauges.remove_label_values(&labels.each_ref().map(String::as_str));
        }
        for (labels, value) in values.iter().filter(|(labels, value)| shown.get(*labels) != Some(value)) {
            self.gauges.with_label_values(&labels.each_ref().map(String::as_str)).set(*value);
        }
        *shown = values;
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new(METRICS_NAMESPACES as usize)
    }
}

/// Buckets from 1 ms to 33 s, because the server gives up on a create after 30 s.
fn injection_duration() -> prometheus::Result<HistogramVec> {
    let help = "Time from the first sight of a workload to the answer: of its PATCH, or of its review.";
    let buckets = prometheus::exponential_buckets(0.001, 2.0, 16)?;
    HistogramVec::new(HistogramOpts::new("scpol_injection_duration_seconds", help).buckets(buckets), &["engine"])
}

/// Makes metrics and registers them.
struct Registering<'a>(&'a Registry);

impl Registering<'_> {
    fn register<C: Collector + Clone + 'static>(&self, metric: prometheus::Result<C>) -> C {
        let metric = metric.expect("names and labels are constants");
        self.0.register(Box::new(metric.clone())).expect("each name is registered once");
        metric
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.register(IntCounter::new(name, help))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.register(IntCounterVec::new(Opts::new(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.register(IntGauge::new(name, help))
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels))
    }

    fn seconds(&self, name: &str, help: &str) -> Gauge {
        self.register(Gauge::new(name, help))
    }

    fn replaced<const LABELS: usize>(&self, name: &str, help: &str, labels: &[&str; LABELS]) -> Replaced<LABELS> {
        Replaced { gauges: self.gauges(name, help, labels), shown: Mutex::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scrape_shows_what_was_counted() {
        let metrics = Metrics::default();
        metrics.injection("envoy", "Initializer", Outcome::Injected, Code::Valid);
        metrics.process.api_request("patch", None);
        let text = metrics.render();
        assert!(
            text.contains(
                r#"scpol_injections_total{engine="Initializer",policy="envoy",reason="Valid",result="injected"} 1"#
            ),
            "{text}"
        );
        assert!(text.contains(r#"scpol_api_requests_total{code="0",verb="patch"} 1"#), "{text}");
        assert!(text.contains("scpol_build_info") && text.contains("process_resident_memory_bytes"), "{text}");
    }

    fn counts(policies: usize, namespaces: usize) -> BTreeMap<Pair, States> {
        let pairs = (0..policies).flat_map(|policy| (0..namespaces).map(move |namespace| (policy, namespace)));
        let states = [("injected", 2), ("edited", 0), ("outdated", 1), ("missed", 0)];
        pairs
            .map(|(policy, namespace)| ([format!("policy-{policy:03}"), format!("team-{namespace:04}")], states))
            .collect()
    }

    fn series(metrics: &Metrics) -> Vec<String> {
        let text = metrics.render();
        text.lines().filter(|line| line.starts_with("scpol_namespace_workloads{")).map(str::to_owned).collect()
    }

    fn sum(series: &[String], words: &str) -> i64 {
        let found = series.iter().filter(|line| line.contains(words)).filter_map(|line| line.rsplit_once(' '));
        found.filter_map(|(_, value)| value.parse::<i64>().ok()).sum()
    }

    #[test]
    fn namespaces_beyond_the_limit_count_together_and_sums_stay_true() {
        let metrics = Metrics::new(5);
        let first = counts(2, 4);
        metrics.workloads.set_by_namespace(&first);
        let before = series(&metrics);
        assert_eq!(before.len(), 3 * (5 + 2), "{before:#?}");
        assert_eq!((sum(&before, "injected"), sum(&before, "outdated")), (2 * 8, 8));
        // Each policy has some. None of them is moved by another one, whose name comes first.
        assert!(sum(&before, r#"namespace="team-0000",policy="policy-001""#) > 0, "{before:#?}");
        let mut more = first.clone();
        more.extend((0..9).map(|index| {
            (["a".to_owned(), format!("new-{index}")], [("injected", 1), ("edited", 0), ("outdated", 0), ("missed", 0)])
        }));
        metrics.workloads.set_by_namespace(&more);
        let after = series(&metrics);
        assert!(before.iter().all(|line| after.contains(line)), "{after:#?}");
        assert_eq!(sum(&after, r#"namespace="(others)",policy="a",state="injected""#), 9);
        metrics.workloads.set_by_namespace(&counts(1, 1));
        assert_eq!(series(&metrics).len(), 3);
        let none = Metrics::new(0);
        none.workloads.set_by_namespace(&first);
        assert_eq!((series(&none).len(), sum(&series(&none), "injected")), (3 * 2, 16));
    }

    #[test]
    fn the_counters_of_a_policy_go_with_it() {
        let metrics = Metrics::default();
        for policy in ["gone", "stays", ""] {
            metrics.injection(policy, "Webhook", Outcome::Failed, Code::ReviewInvalid);
            metrics.rollouts.show(policy);
        }
        metrics.retain_policies(|policy| policy == "stays");
        let text = metrics.render();
        assert!(
            !text.contains("gone") && text.contains(r#"policy="stays""#) && text.contains(r#"policy="""#),
            "{text}"
        );
    }

    #[test]
    fn a_sidecar_that_starts_again_is_not_shown() {
        let metrics = Metrics::default();
        let stuck = |pods| BTreeMap::from([(["envoy", "proxy"].map(str::to_owned), pods)]);
        metrics.workloads.not_starting.set(stuck(3));
        let shown = r#"scpol_sidecars_not_starting{container="proxy",policy="envoy"} 3"#;
        assert!(metrics.render().contains(shown));
        metrics.workloads.not_starting.set(BTreeMap::new());
        assert!(!metrics.render().contains("scpol_sidecars_not_starting{"));
    }
}
