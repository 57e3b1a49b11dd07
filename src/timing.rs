//! The waiting times of the operator: one table for all of `scpol run`.
//!
//! `scpol run` uses [`Timing::documented`], whose values are in the docs. `SCPOL_TIMING=short` selects
//! [`Timing::short`], so that tests on real servers wait less. Both keep the same order of values, which the
//! tests of this module check.
//!
//! Not in the table: times that users set by flags, such as `--lease-duration`; times of a single command; and the
//! constants of this module. No timing changes the constants, because API servers define them or every command uses
//! them.

use std::time::{Duration, Instant};

/// The time limit of one call. Watches have their own limit. The server itself ends a request after 60 s, and rejects a
/// create that waits for us after [`CREATE_LIMIT`].
pub const CALL_LIMIT: Duration = seconds(10);
/// The time limit of a connection to the API server.
pub const CONNECT_LIMIT: Duration = seconds(5);
/// The time limit for the start of an answer, and for a page of a list. The server itself ends a request after 60 s
/// (`--request-timeout`).
pub const ANSWER_LIMIT: Duration = seconds(65);
/// The time after which the API server gives up on a create. No client waits for an older object.
pub const CREATE_LIMIT: Duration = seconds(30);

/// How long this process has waited for something. A process that was frozen in between, or starved, has not waited for that time:
/// what it waited for may be there, and another leader may rely on it.
pub struct Waited {
    spent: Duration,
    last: Instant,
}

impl Waited {
    /// The most that counts between two looks. A look takes a request and a pause, some tenths of a second.
    const LOOK: Duration = seconds(1);

    /// Nothing yet.
    pub fn begin(now: Instant) -> Self {
        Self { spent: Duration::ZERO, last: now }
    }

    /// The time until `now`. Call it after each look.
    pub fn so_far(&mut self, now: Instant) -> Duration {
        self.spent += now.duration_since(self.last).min(Self::LOOK);
        self.last = now;
        self.spent
    }
}

/// Declares groups of times, each in one line: the documented value, and after `short` the one for tests on real servers, if it
/// is another.
macro_rules! times {
    ($($(#[$doc:meta])* $group:ident $type:ident { $($(#[$about:meta])* $name:ident: $value:expr $(, short $short:expr)?;)* })*) => {
        /// All waiting times of the operator.
        #[derive(Debug)]
        pub struct Timing {
            $($(#[$doc])* pub $group: $type,)*
        }

        $($(#[$doc])*
        #[derive(Debug)]
        pub struct $type {
            $($(#[$about])* pub $name: Duration,)*
        })*

        const DOCUMENTED: Timing = Timing { $($group: $type { $($name: $value,)* },)* };

        const SHORT: Timing = Timing { $($group: $type { $($name: times!(@short $value $(, $short)?),)* },)* };
    };
    (@short $value:expr) => { $value };
    (@short $value:expr, $short:expr) => { $short };
}

// Values that are not shortened are limits that no test waits for, or times that a real API server needs.
times! {
    /// The process: start, leadership, probes.
    process Process {
        /// The interval at which a loop reports to `/livez` that it runs.
        beat: seconds(1), short millis(500);
        /// The time without a report after which `/livez` fails.
        // More than `CALL_LIMIT`, as in the documented table.
        stuck: seconds(30), short seconds(12);
        /// The pause before a task restarts after a panic, because stored objects may make it panic again.
        panic_pause: seconds(1), short millis(100);
        /// The time for which `/readyz` waits for the operator to become ready for the first time, before it answers that it is
        /// not. It is less than the timeout of the readiness probe.
        first_ready: millis(1500);
        /// The pause between attempts to reach the API server at the start.
        reach_pause: seconds(1), short millis(250);
        /// The wait for a missing right at the start. A new API server rejects every request until it has read its roles.
        rights: seconds(5), short seconds(4);
        /// The interval at which a follower checks whether the lease is free.
        follower_look: seconds(1), short millis(400);
        /// The time limit of the question whether a client may read `/metrics`. Prometheus waits 10 s.
        scraper: seconds(2);
        /// The time for which a rendering of `/metrics` is kept.
        // Tests read a counter right after the event.
        scrape: seconds(1), short millis(20);
    }

    /// The end of the process.
    stop Stop {
        /// The wait of a stopping leader for a successor. Followers look every [`Process::follower_look`].
        successor: millis(2500), short millis(1500);
        /// The time for a stopping operator to write its stop into the status of policies, before it unregisters. The
        /// remaining steps must also fit into `--shutdown-grace`.
        report: millis(1500);
        /// The pause between two such attempts.
        report_pause: millis(200), short millis(100);
        /// The time for which the webhook of a stopping replica still answers. API servers may call it until they see the
        /// registration without it.
        leaving: seconds(3), short seconds(2);
        /// The time to write the queued events when the operator stops.
        event_flush: seconds(1);
    }

    /// Watches of the API server, and the cache of Namespaces.
    watch Watch {
        /// The duration of a watch, in whole seconds. A connection may die silently, with the machine of the API server or
        /// in a firewall. The failure is noticed at the end of the watch plus kube's margin of 5 s, which is within
        /// [`CREATE_LIMIT`].
        duration: seconds(25), short seconds(6);
        /// The duration of a watch of custom resources, in whole seconds. The watch survives the deletion of their
        /// definition, but stays silent after the definition is created again (seen on 1.13.5). No create waits longer for
        /// us than this.
        duration_of_custom_resources: seconds(10), short seconds(3);
        /// The first pause after a failed watch. It doubles up to [`Self::longest_pause`].
        first_pause: millis(100);
        /// The longest pause of a failing watch. kube's own pauses grow to 30 s, which is [`CREATE_LIMIT`].
        longest_pause: millis(1500), short millis(500);
        /// The time after its start in which an API server may reject lists, because it has not read its roles. After that,
        /// a right is missing. After that and a call without a failure, the right has been granted.
        refused: seconds(10), short seconds(6);
        /// How long the labels of Namespaces stay those with which workloads have been compared, although they change all the time.
        /// To compare all again takes seconds, and rollouts wait for that.
        relabelled: seconds(60), short seconds(3);
        /// The time limit for the read of a Namespace that is not cached. The API server waits 3 s in all.
        namespace: seconds(1);
        /// The time for which a call waits for the watch to show a Namespace that the server is not asked for.
        namespace_arrival: millis(250);
        /// The time for which a Namespace that the server does not know keeps others from being asked for.
        unknown_namespace: millis(500);
    }

    /// The loop that compares policies with registrations.
    controller Controller {
        /// The interval at which the loop checks for due work.
        tick: seconds(1), short millis(250);
        /// The longest pause between two full passes.
        longest_rest: millis(250);
        /// The pause before a policy is tried again after a failure.
        retry: seconds(10), short seconds(2);
        /// The pause before a policy is verified again, if another admission plugin may have rejected the probe.
        verify_again: seconds(60), short seconds(4);
        /// The shortest time between two statuses of one policy that differ only in counts or in the words of messages
        /// (contract of the API). All else is written at once.
        status_period: seconds(10), short seconds(2);
        /// A policy that is in effect within this time gets one status instead of two.
        first_status: seconds(3), short millis(1700);
        /// The interval of discovery while all is well. A node with an older kubelet may have joined.
        discovery_at_rest: seconds(15 * 60);
        /// The interval of discovery while a policy waits for its result.
        discovery_period: seconds(10), short millis(2500);
        /// The pause before discovery is repeated, if the server could not answer or no longer lists a resource. A new API
        /// server serves custom resources slightly later than all else.
        discovery_again: seconds(3), short seconds(2);
        /// The interval of checks whether a missing right has been granted.
        rights_period: seconds(10), short seconds(2);
        /// The time for which an engine counts as switched off while a policy waits for it. A trial may have been too
        /// early.
        engine_off: seconds(5 * 60), short seconds(15);
        /// The shortest time between the beginnings of two counts of all workloads. The first change of the policies is counted
        /// in a moment, and several changes in a row cause one count.
        recount_delay: seconds(1), short millis(300);
    }

    /// The check that a shared registration, or that of the author check, is in effect.
    registration Registration {
        /// The interval of checks whether a hold of the author check, or a pause after a failure, is over.
        author_look: seconds(1), short millis(250);
        /// The time in which a registration must take effect on a dry-run create. API servers watch webhook configurations,
        /// and read admission policies once a second. A large admission policy takes half a second to compile.
        probe_limit: seconds(8), short seconds(5);
        /// The pause between two trials.
        probe_pause: millis(50);
        /// The pause between two trials of the author check.
        author_probe_pause: millis(100);
        /// The time after which every API server uses a registration that no trial can verify. It is longer than the second
        /// between two reads of admission policies.
        // API servers read admission policies and configurations once a second.
        settling: seconds(3), short millis(1500);
        /// The time limit of all questions about the author of one policy together. The API server waits 3 s in all.
        author_rights: seconds(2);
    }

    /// The registrations of the Initializer engine.
    configuration Configuration {
        /// The time after which a changed configuration is in effect on every API server. Each server reads configurations
        /// once a second (apiserver `configuration_manager.go`), so it takes 1 to 3 s. Kubernetes' own tests wait 3 s.
        settling: seconds(3), short millis(1500);
        /// The time in which a registration must take effect on a dry-run create.
        probe_limit: seconds(5), short seconds(4);
        /// The pause between two trials.
        probe_pause: millis(100);
        /// The first pause between two looks for waiting objects. It doubles up to [`Self::longest_drain_pause`].
        first_drain_pause: millis(200), short millis(100);
        /// The longest pause between two such looks.
        longest_drain_pause: seconds(1), short millis(500);
        /// The longest duration of a request. A validating webhook may delay a create, which is then stored after its
        /// policy was deleted. The API server's default is 60 s (`--request-timeout`).
        request: seconds(60), short seconds(6);
    }

    /// The worker of the Initializer engine.
    initializer Initializer {
        /// The time limit of a decision, after which the policy's `failurePolicy` decides. It is less than
        /// [`CREATE_LIMIT`].
        // More than `CALL_LIMIT`, so a single call without an answer decides nothing.
        decision: seconds(20), short seconds(12);
        /// The pause after the first failure of an object. It doubles up to [`Self::longest_retry`].
        first_retry: millis(5);
        /// The longest pause before a retry of an object. The server itself gives up on a create after [`CREATE_LIMIT`].
        longest_retry: seconds(30), short seconds(3);
        /// The shortest pause before a retry after a rejection that only others can resolve, such as a missing right.
        after_refusal: seconds(1), short millis(300);
        /// The pause of the worker if a server has too many requests and names no time. API servers name one second.
        pause: seconds(1);
        /// The longest pause that a server can demand. Slots become free after [`CREATE_LIMIT`] at the latest.
        longest_pause: seconds(30);
        /// The time after which rejected writes are reported, because an occasional 429 is harmless.
        refused: seconds(3), short millis(1500);
        /// The pause of the priority lane after the server has rejected the impersonation.
        lane_closed: seconds(60), short seconds(5);
    }

    /// The connections to the ports.
    connections Connections {
        /// The time limit of a handshake, then of the head of the first request, and of the head of each later one from its
        /// first byte on.
        opening: seconds(10), short seconds(3);
        /// The time for which a connection may stay idle. Prometheus scrapes more often.
        idle: seconds(2 * 60), short seconds(30);
        /// The time for which a connection may stay idle after a valid review.
        proven_idle: seconds(60 * 60);
        /// The interval at which connections are closed whose time is over.
        look: millis(500), short millis(250);
        /// The pause after a failed accept, because file descriptors may have run out.
        accept_pause: millis(100);
    }

    /// The webhook engine.
    webhook Webhook {
        /// The interval at which the Secret or the files of the certificate are read.
        certificate_poll: seconds(30), short seconds(2);
        /// The time until every API server and every replica uses a changed authority or leaf. Replicas look every
        /// [`Self::certificate_poll`], and API servers take some seconds.
        authority_settling: seconds(5 * 60), short seconds(5);
        /// The pause between the first two attempts to get a certificate. A new API server has not read its rights yet.
        first_certificate_pause: millis(100);
        /// The longest pause between later attempts.
        longest_certificate_pause: seconds(2), short millis(500);
        /// The interval of checks for problems with the certificate or with reviews.
        look: seconds(5), short millis(500);
        /// The time limit of a body. API servers give up after 3 s, as the registration says; those of 1.13 after 30 s.
        body: seconds(10), short seconds(3);
        /// The time for which idle connections stay open while the server stops, so that a call in transit is still
        /// answered.
        linger: seconds(2), short seconds(1);
        /// The time for running calls after that.
        drain: seconds(5);
        /// The time for which reports about calls of a registration wait until this replica has seen the registration.
        unseen: seconds(5);
        /// The time for which API servers may still call by a registration that has been replaced or deleted. They see that
        /// within seconds.
        left: seconds(60);
        /// The time for which a call waits until the policies in effect are known. The API server waits 3 s in all.
        settling: seconds(1);
        /// The time for which an invalid review is reported.
        bad_review: seconds(60), short seconds(6);
    }

    /// The records about workloads.
    workloads Workloads {
        /// The time for which a problem is reported that has not recurred.
        trouble: seconds(60), short seconds(30);
        /// The time after which a missing event is given up.
        event: seconds(5), short millis(1500);
        /// The time for which a list of policies that was read for one decision is reused for others.
        policies: seconds(1), short millis(300);
        /// The pause before the pods of a workload that lacks ready ones are listed. It doubles up to [`Self::longest_look`].
        look: seconds(10), short millis(500);
        /// The longest pause between two such lists of a workload.
        longest_look: seconds(60), short seconds(2);
        /// The pause after each request for reports.
        report_pause: millis(250), short millis(20);
        /// The shortest time between two looks at a namespace for its report.
        report_period: seconds(10), short millis(500);
        /// The pause before reports are tried again after a failure.
        report_again: seconds(10), short seconds(1);
    }

    /// Rollouts.
    rollout Rollout {
        /// The interval at which the leader looks at rollouts.
        tick: seconds(1), short millis(250);
        /// The pause before a PodDisruptionBudget, or a server that rejected a write for want of a right, is asked again.
        again: seconds(10), short seconds(1);
        /// The pause before the right to keep revisions is asked for again, while no policy rolls anything out.
        rights: seconds(60), short seconds(6);
    }

    /// `scpol uninstall`.
    uninstall Uninstall {
        /// The time for a running operator to settle waiting objects, before the command releases them without a sidecar.
        /// The operator needs milliseconds.
        patience: seconds(2), short seconds(1);
        /// The pause between two looks for waiting objects.
        pause: millis(200), short millis(100);
        /// The time for the server to notice that rights are gone.
        rights: seconds(10);
        /// The pause between two such looks.
        rights_pause: millis(100);
    }
}

impl Configuration {
    /// The time after a registration was deleted in which a create that waits for us may still be stored.
    pub const fn longest_create(&self) -> Duration {
        self.request.saturating_add(self.settling)
    }
}

impl Timing {
    /// The values for production, as in the docs.
    pub const fn documented() -> &'static Self {
        &DOCUMENTED
    }

    /// The values for tests on real servers: the same order, and as short as an API server allows.
    pub const fn short() -> &'static Self {
        &SHORT
    }
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The interval at which API servers read configurations of Initializers, and admission policies.
    const POLLED: Duration = seconds(1);
    /// The time limit of API servers for a call of our webhook, as in the registration.
    const WEBHOOK: Duration = seconds(3);
    /// kube's margin: a watch without a message for so long after its end is dead.
    const MARGIN: Duration = seconds(5);
    /// The timeout of the readiness probe in the install files.
    const READINESS_PROBE: Duration = seconds(2);
    /// The default of `--shutdown-grace`.
    const GRACE: Duration = seconds(10);

    /// Pairs of times. The first must be less than the second.
    fn ascending(timing: &Timing) -> Vec<(&'static str, Duration, Duration)> {
        let Timing { process, stop, watch, controller, registration, configuration, initializer, .. } = timing;
        let Timing { connections, webhook, workloads, uninstall, rollout, .. } = timing;
        vec![
            ("a rollout looks before it asks a budget again", rollout.tick, rollout.again),
            ("a right without a waiting rollout is checked less often", rollout.again, rollout.rights),
            ("a loop beats before it counts as stuck", process.beat, process.stuck),
            ("a probe gets an answer", process.first_ready, READINESS_PROBE),
            ("a call may fail before a loop counts as stuck", CALL_LIMIT, process.stuck),
            ("a follower looks twice before nobody succeeds", 2 * process.follower_look, stop.successor),
            ("a replica answers until its successor leads", stop.successor, stop.leaving),
            ("it tries more than once to report the stop", stop.report_pause, stop.report),
            ("idle connections close within the time to leave", webhook.linger, stop.leaving),
            ("workloads are compared before labels count again", 2 * controller.recount_delay, watch.relabelled),
            ("custom resources are seen sooner", watch.duration_of_custom_resources, watch.duration),
            ("a dead watch of custom resources is noticed while a create waits", watch.duration, CREATE_LIMIT),
            ("pauses grow", watch.first_pause, watch.longest_pause),
            (
                "a watch that is refused tries again before its right counts as granted",
                2 * watch.longest_pause,
                watch.refused,
            ),
            ("roles are read at the start before a list is refused for good", process.rights, watch.refused),
            ("a status is not held back for the first", controller.first_status, controller.status_period),
            ("what failed is tried before what is in doubt", controller.retry, controller.verify_again),
            ("an odd answer is checked first", controller.discovery_again, controller.discovery_period),
            ("a waiting policy is looked at first", controller.discovery_period, controller.discovery_at_rest),
            ("a right is asked for while an engine is off", controller.rights_period, controller.engine_off),
            ("a trial ends while its result counts", registration.probe_limit, controller.engine_off),
            ("a policy is retried while an engine is off", controller.retry, controller.engine_off),
            ("a late event is looked for after the count", controller.recount_delay, workloads.event),
            ("every API server has read policies", POLLED, registration.settling),
            ("every API server has read configurations", POLLED, configuration.settling),
            ("a trial waits for every API server", registration.settling, registration.probe_limit),
            ("a trial waits for every API server", configuration.settling, configuration.probe_limit),
            ("policies take longer than configurations", configuration.probe_limit, registration.probe_limit),
            ("trials repeat", registration.probe_pause, registration.settling),
            ("trials repeat", registration.author_probe_pause, registration.settling),
            ("trials repeat", configuration.probe_pause, configuration.settling),
            ("pauses grow", configuration.first_drain_pause, configuration.longest_drain_pause),
            ("a registration ends before creates that it held", configuration.settling, configuration.request),
            ("one call that fails does not decide", CALL_LIMIT, initializer.decision),
            ("a decision comes while the creator waits", initializer.decision, CREATE_LIMIT),
            ("retries grow", initializer.first_retry, initializer.longest_retry),
            ("an object is tried again before the decision", initializer.after_refusal, initializer.decision),
            ("a pause is no trouble", initializer.pause, initializer.refused),
            ("a refused lane is reported before it opens", controller.status_period, initializer.lane_closed),
            ("replicas read a certificate before it is used", webhook.certificate_poll, webhook.authority_settling),
            ("pauses grow", webhook.first_certificate_pause, webhook.longest_certificate_pause),
            ("a bad review is seen while it is reported", webhook.look, webhook.bad_review),
            ("a bad review gets into a status", controller.status_period, webhook.bad_review),
            ("a review waits less than the API server", watch.namespace + webhook.settling, WEBHOOK),
            ("an author is judged before the API server gives up", registration.author_rights, WEBHOOK),
            ("connections outlast their first request", connections.opening + webhook.body, connections.idle),
            ("a connection of an API server is kept longer", connections.idle, connections.proven_idle),
            ("a slow client is noticed in time", connections.look, connections.opening),
            ("a trouble gets into a status", controller.status_period, workloads.trouble),
            ("pauses grow", workloads.look, workloads.longest_look),
            ("many namespaces are looked at before one again", workloads.report_pause, workloads.report_period),
            ("a failure is no reason to hurry", workloads.report_pause, workloads.report_again),
            ("what waits is looked at more than once", uninstall.pause, uninstall.patience),
            ("rights are looked at more than once", uninstall.rights_pause, uninstall.rights),
        ]
    }

    /// Pairs of times. The first must be at most the second.
    fn not_descending(timing: &Timing) -> Vec<(&'static str, Duration, Duration)> {
        let Timing { stop, watch, controller, configuration, initializer, webhook, workloads, .. } = timing;
        let withdrawn = stop.successor + stop.report + configuration.settling;
        vec![
            ("a dead watch is noticed while a create waits", watch.duration + MARGIN, CREATE_LIMIT),
            ("a policy may take effect before its first status", configuration.settling, controller.first_status),
            (
                "an object is retried, jitter included, while its trouble lasts",
                2 * initializer.longest_retry,
                workloads.trouble,
            ),
            ("a pause is no longer than a server can demand", initializer.pause, initializer.longest_pause),
            ("a create waits no longer than the creator", initializer.longest_pause, CREATE_LIMIT),
            ("the last replica stops in time", withdrawn + stop.event_flush, GRACE),
            ("the webhook stops in time", stop.leaving + webhook.linger + webhook.drain, GRACE),
        ]
    }

    #[test]
    fn a_process_that_was_frozen_has_not_waited() {
        let begin = Instant::now();
        let mut waited = Waited::begin(begin);
        let mut at = |time| waited.so_far(begin + millis(time));
        assert_eq!([at(300), at(600)], [millis(300), millis(600)]);
        assert_eq!([at(60_000), at(60_100)], [millis(1600), millis(1700)]);
    }

    #[test]
    fn both_timings_keep_the_same_order() {
        for timing in [Timing::documented(), Timing::short()] {
            for (rule, less, more) in ascending(timing) {
                assert!(less < more, "{rule}: {less:?} and {more:?}");
            }
            for (rule, less, more) in not_descending(timing) {
                assert!(less <= more, "{rule}: {less:?} and {more:?}");
            }
        }
    }

    #[test]
    fn watches_last_whole_seconds() {
        for timing in [Timing::documented(), Timing::short()] {
            for duration in [timing.watch.duration, timing.watch.duration_of_custom_resources] {
                assert_eq!(duration, seconds(duration.as_secs()));
            }
        }
    }

    #[test]
    fn no_short_time_is_longer_than_the_documented_one() {
        let longer = ascending(Timing::short()).into_iter().zip(ascending(Timing::documented())).filter(
            |((_, less, more), (_, documented_less, documented_more))| less > documented_less || more > documented_more,
        );
        assert_eq!(longer.count(), 0);
    }
}
