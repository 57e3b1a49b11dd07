//! How long the operator waits: one table of every waiting time of `scpol run`.
//!
//! `scpol run` uses [`Timing::documented`], whose values the docs name. `SCPOL_TIMING=short` selects [`Timing::short`], so that
//! tests on real servers wait less. The values of both keep the same order, which the tests of this module check.
//!
//! Not in the table: what users choose by flags, such as `--lease-duration`; what one command on files or a cluster waits for alone;
//! and the constants of this module, which no timing changes, because API servers set them or every command uses them.

use std::time::Duration;

/// How long one call may take before it counts as failed. Watches have their own limit. The server itself ends a
/// request after 60 s; a create that waits for us is refused after [`CREATE_LIMIT`].
pub const CALL_LIMIT: Duration = seconds(10);
/// How long connecting to the API server may take.
pub const CONNECT_LIMIT: Duration = seconds(5);
/// How long an answer may take to begin, and a page of a list to be read: the server itself ends a request after 60 s
/// (`--request-timeout`).
pub const ANSWER_LIMIT: Duration = seconds(65);
/// The API server gives up on a create after this time: nobody waits for an older object.
pub const CREATE_LIMIT: Duration = seconds(30);

/// Every waiting time of the operator.
#[derive(Debug)]
pub struct Timing {
    /// The process: start, leadership, stop.
    pub process: Process,
    /// Watches of the API server.
    pub watch: Watch,
    /// The loop that compares policies with registrations.
    pub controller: Controller,
    /// The proof that a registration which policies share is in effect.
    pub registration: Registration,
    /// The Initializer engine.
    pub initializer: Initializer,
    /// The webhook engine.
    pub webhook: Webhook,
    /// What is known of workloads.
    pub workloads: Workloads,
    /// `scpol uninstall`.
    pub uninstall: Uninstall,
}

/// See [`Timing::process`].
#[derive(Debug)]
pub struct Process {
    /// How often a loop shows `/livez` that it turns.
    pub beat: Duration,
    /// `/livez` fails if a loop has not turned for this time.
    pub stuck: Duration,
    /// Before a task that panicked begins anew: the stored objects may make it panic again.
    pub panic_pause: Duration,
    /// Between attempts to reach the API server at the start.
    pub reach_pause: Duration,
    /// How long a missing right is waited for at the start: an API server that has just started refuses everything until it has
    /// read its roles.
    pub rights: Duration,
    /// How often a follower looks whether the lease is free.
    pub follower_look: Duration,
    /// How long a leader that stops waits for a successor. Followers look every [`Self::follower_look`].
    pub successor: Duration,
    /// How long an operator that stops tries to write that in the status of policies, before it unregisters. The rest has to fit
    /// into `--shutdown-grace`, too.
    pub stop_report: Duration,
    /// Between two such attempts.
    pub stop_report_pause: Duration,
    /// How long the webhook of a replica that stops still answers: API servers may call it until they know the registration without it.
    pub leaving: Duration,
    /// How long the queue of events is written out when the operator stops.
    pub event_flush: Duration,
}

/// See [`Timing::watch`].
#[derive(Debug)]
pub struct Watch {
    /// How long a watch lasts, in whole seconds. A connection that has died without a word, with the machine of the API server or
    /// in a firewall that has forgotten it, is noticed at the end of a watch, and kube's margin of 5 s: within [`CREATE_LIMIT`].
    pub duration: Duration,
    /// How long a watch of custom resources lasts, in whole seconds. It goes on when their definition is deleted, and stays silent
    /// when the definition is made anew (seen on 1.13.5): no create waits longer for us than this.
    pub duration_of_custom_resources: Duration,
    /// The first pause of a watch that failed; it doubles to [`Self::longest_pause`].
    pub first_pause: Duration,
    /// The longest pause of a watch that fails. kube's own goes up to 30 s, which is [`CREATE_LIMIT`].
    pub longest_pause: Duration,
    /// How long an API server may refuse lists after its start, before it has read its roles. After that, a right is missing.
    pub refused: Duration,
}

/// See [`Timing::controller`].
#[derive(Debug)]
pub struct Controller {
    /// How often the loop looks at what is due.
    pub tick: Duration,
    /// The longest rest between two looks at everything.
    pub longest_rest: Duration,
    /// How long after a failure a policy is tried again.
    pub retry: Duration,
    /// After how long a policy is verified again that another admission plugin may have refused.
    pub verify_again: Duration,
    /// The shortest time between two statuses of one policy (contract of the API). A policy that leaves is reported at once.
    pub status_period: Duration,
    /// A policy that is in effect within this time gets one status instead of two.
    pub first_status: Duration,
    /// How often the server is asked again what it can do, while all is well: a node with an older kubelet may have come.
    pub discovery_at_rest: Duration,
    /// How often the server is asked again what it can do, while a policy waits for it.
    pub discovery_period: Duration,
    /// How soon the server is asked again what it can do, if it could not answer, or no longer names a resource: an API server
    /// that has just started serves custom resources a moment after all else.
    pub discovery_again: Duration,
    /// How often the server is asked whether a missing right has been granted.
    pub rights_period: Duration,
    /// How long an engine counts as switched off while a policy waits for it: a trial may have been too early.
    pub engine_off: Duration,
    /// How long after a change of the policies all workloads are counted anew: several changes in a row count as one.
    pub recount_delay: Duration,
    /// How often it is checked whether a hold of the author check, or a pause after a failure, is over.
    pub author_look: Duration,
}

/// See [`Timing::registration`].
#[derive(Debug)]
pub struct Registration {
    /// Within this time a registration must show on a dry-run create. API servers read webhook configurations from a watch, and
    /// admission policies once a second; they compile those, which takes half a second for a large one.
    pub probe_limit: Duration,
    /// Between two trials.
    pub probe_pause: Duration,
    /// Between two trials of the author check.
    pub author_probe_pause: Duration,
    /// After this time every API server has taken over a registration, where no trial can show it. Longer than the second after
    /// which API servers read admission policies again.
    pub settling: Duration,
}

/// See [`Timing::initializer`].
#[derive(Debug)]
pub struct Initializer {
    /// After this time a changed configuration is in effect on every API server: each reads them once a second (apiserver
    /// `configuration_manager.go`), so it takes 1 to 3 s. Kubernetes' own tests wait 3 s.
    pub settling: Duration,
    /// Within this time a registration must show on a dry-run create.
    pub probe_limit: Duration,
    /// Between two trials.
    pub probe_pause: Duration,
    /// The first pause between two looks for objects that still wait; it doubles to [`Self::longest_drain_pause`].
    pub first_drain_pause: Duration,
    /// The longest pause between two such looks.
    pub longest_drain_pause: Duration,
    /// How long a request may last: a validating webhook may hold a create back, which is then stored after its policy has gone.
    /// The API server's default is 60 s (`--request-timeout`).
    pub request: Duration,
    /// Within this time a decision must have been made; then the policy's `failurePolicy` decides. Less than [`CREATE_LIMIT`].
    pub decision: Duration,
    /// After the first failure of an object; it doubles to [`Self::longest_retry`].
    pub first_retry: Duration,
    /// The longest time until an object is tried again: the server itself gives up on a create after [`CREATE_LIMIT`].
    pub longest_retry: Duration,
    /// At least how long an object is not tried again after a refusal that only others can end, such as for a missing right.
    pub after_refusal: Duration,
    /// How long the worker pauses where a server that has too many requests names no time; API servers name a second.
    pub pause: Duration,
    /// The longest pause that a server can demand: places come free after [`CREATE_LIMIT`] at the latest.
    pub longest_pause: Duration,
    /// From when on it is reported that the server takes no write: a 429 now and then is no trouble.
    pub refused: Duration,
    /// How long the priority lane is not tried again after the server has refused the impersonation.
    pub lane_closed: Duration,
}

impl Initializer {
    /// How long after its registration has gone a create may still be stored that waits for us.
    pub const fn longest_create(&self) -> Duration {
        self.request.saturating_add(self.settling)
    }
}

/// See [`Timing::webhook`].
#[derive(Debug)]
pub struct Webhook {
    /// How often the Secret or the files of the certificate are read.
    pub certificate_poll: Duration,
    /// How long a changed authority or leaf needs until every API server and every replica knows it: replicas look every
    /// [`Self::certificate_poll`], API servers within some seconds.
    pub authority_settling: Duration,
    /// Between the first two attempts to get a certificate: an API server that has just started knows no rights yet.
    pub first_certificate_pause: Duration,
    /// The longest pause between later attempts.
    pub longest_certificate_pause: Duration,
    /// How often it is checked whether anything is wrong with the certificate, or with the reviews.
    pub look: Duration,
    /// How often a replica asks the server what it can do: as often as the controller does at rest.
    pub survey: Duration,
    /// How long a handshake may take, and then the head of the first request.
    pub first_request: Duration,
    /// How long a body may take. API servers give up after 3 s, as the registration says, those of 1.13 after 30 s.
    pub body: Duration,
    /// How long a connection may wait for its next request.
    pub idle: Duration,
    /// How long idle connections stay open while the server stops, so that a call which is on its way is still answered.
    pub linger: Duration,
    /// How long calls may still take after that.
    pub drain: Duration,
    /// Before the next connection is accepted, after one could not be: file descriptors may have run out.
    pub accept_pause: Duration,
    /// How long we ask for a Namespace that we have not seen. The API server waits 3 s in all.
    pub namespace: Duration,
    /// How long a call waits until we know which policies are in effect. The API server waits 3 s in all.
    pub settling: Duration,
    /// How long it is reported that a review could not be understood.
    pub bad_review: Duration,
    /// How long all questions about the author of one policy may take together. The API server waits 3 s in all.
    pub rights: Duration,
}

/// See [`Timing::workloads`].
#[derive(Debug)]
pub struct Workloads {
    /// How long a trouble that has not come again is reported.
    pub trouble: Duration,
    /// An event that takes longer than this never comes.
    pub event: Duration,
    /// How long a list of the policies that was read for a decision is used for others.
    pub policies: Duration,
}

/// See [`Timing::uninstall`].
#[derive(Debug)]
pub struct Uninstall {
    /// How long a running operator has to settle what waits, before the command lets it go without a sidecar. It takes milliseconds.
    pub patience: Duration,
    /// Between two looks for what waits.
    pub pause: Duration,
    /// How long the command waits until the server has noticed that rights are gone.
    pub rights: Duration,
    /// Between two such looks.
    pub rights_pause: Duration,
}

const DOCUMENTED: Timing = Timing {
    process: Process {
        beat: seconds(1),
        stuck: seconds(30),
        panic_pause: seconds(1),
        reach_pause: seconds(1),
        rights: seconds(5),
        follower_look: seconds(1),
        successor: millis(2500),
        stop_report: millis(1500),
        stop_report_pause: millis(200),
        leaving: seconds(3),
        event_flush: seconds(1),
    },
    watch: Watch {
        duration: seconds(25),
        duration_of_custom_resources: seconds(10),
        first_pause: millis(100),
        longest_pause: millis(1500),
        refused: seconds(10),
    },
    controller: Controller {
        tick: seconds(1),
        longest_rest: millis(250),
        retry: seconds(10),
        verify_again: seconds(60),
        status_period: seconds(10),
        first_status: seconds(3),
        discovery_at_rest: seconds(15 * 60),
        discovery_period: seconds(10),
        discovery_again: seconds(3),
        rights_period: seconds(10),
        engine_off: seconds(5 * 60),
        recount_delay: seconds(1),
        author_look: seconds(1),
    },
    registration: Registration {
        probe_limit: seconds(8),
        probe_pause: millis(50),
        author_probe_pause: millis(100),
        settling: seconds(3),
    },
    initializer: Initializer {
        settling: seconds(3),
        probe_limit: seconds(5),
        probe_pause: millis(100),
        first_drain_pause: millis(200),
        longest_drain_pause: seconds(1),
        request: seconds(60),
        decision: seconds(20),
        first_retry: millis(5),
        longest_retry: seconds(30),
        after_refusal: seconds(1),
        pause: seconds(1),
        longest_pause: seconds(30),
        refused: seconds(3),
        lane_closed: seconds(60),
    },
    webhook: Webhook {
        certificate_poll: seconds(30),
        authority_settling: seconds(5 * 60),
        first_certificate_pause: millis(100),
        longest_certificate_pause: seconds(2),
        look: seconds(5),
        survey: seconds(15 * 60),
        first_request: seconds(10),
        body: seconds(10),
        idle: seconds(60 * 60),
        linger: seconds(2),
        drain: seconds(5),
        accept_pause: millis(100),
        namespace: seconds(1),
        settling: seconds(1),
        bad_review: seconds(60),
        rights: seconds(2),
    },
    workloads: Workloads { trouble: seconds(60), event: seconds(5), policies: seconds(1) },
    uninstall: Uninstall { patience: seconds(2), pause: millis(200), rights: seconds(10), rights_pause: millis(100) },
};

/// What is not shortened is a limit that no test waits for, or a time that a real API server needs.
const SHORT: Timing = Timing {
    process: Process {
        beat: millis(500),
        // More than `CALL_LIMIT`, as documented.
        stuck: seconds(12),
        panic_pause: millis(100),
        reach_pause: millis(250),
        rights: seconds(4),
        follower_look: millis(400),
        successor: millis(1500),
        stop_report_pause: millis(100),
        leaving: seconds(2),
        ..DOCUMENTED.process
    },
    watch: Watch {
        duration: seconds(6),
        duration_of_custom_resources: seconds(3),
        longest_pause: millis(500),
        refused: seconds(6),
        ..DOCUMENTED.watch
    },
    controller: Controller {
        tick: millis(250),
        retry: seconds(2),
        verify_again: seconds(4),
        status_period: seconds(2),
        first_status: millis(1700),
        discovery_period: millis(2500),
        discovery_again: seconds(2),
        rights_period: seconds(2),
        engine_off: seconds(15),
        recount_delay: millis(300),
        author_look: millis(250),
        ..DOCUMENTED.controller
    },
    registration: Registration {
        probe_limit: seconds(5),
        // API servers read admission policies and configurations once a second.
        settling: millis(1500),
        ..DOCUMENTED.registration
    },
    initializer: Initializer {
        settling: millis(1500),
        probe_limit: seconds(4),
        first_drain_pause: millis(100),
        longest_drain_pause: millis(500),
        request: seconds(6),
        // More than `CALL_LIMIT`: one call without an answer decides nothing.
        decision: seconds(12),
        longest_retry: seconds(3),
        after_refusal: millis(300),
        refused: millis(1500),
        lane_closed: seconds(5),
        ..DOCUMENTED.initializer
    },
    webhook: Webhook {
        certificate_poll: seconds(2),
        authority_settling: seconds(5),
        longest_certificate_pause: millis(500),
        look: millis(500),
        first_request: seconds(3),
        body: seconds(3),
        linger: seconds(1),
        bad_review: seconds(6),
        ..DOCUMENTED.webhook
    },
    workloads: Workloads { trouble: seconds(30), event: millis(1500), policies: millis(300) },
    uninstall: Uninstall { patience: seconds(1), pause: millis(100), ..DOCUMENTED.uninstall },
};

impl Timing {
    /// What production uses, and the docs say.
    pub const fn documented() -> &'static Self {
        &DOCUMENTED
    }

    /// For tests on real servers: the same order, and as short as an API server allows.
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

    /// How often API servers read configurations of Initializers, and admission policies.
    const POLLED: Duration = seconds(1);
    /// How long API servers wait for a webhook of ours, as the registration says.
    const WEBHOOK: Duration = seconds(3);
    /// kube's margin: a watch that shows nothing for so long after its end is dead.
    const MARGIN: Duration = seconds(5);
    /// The default of `--shutdown-grace`.
    const GRACE: Duration = seconds(10);

    /// Pairs of which the first must be less than the second.
    fn ascending(timing: &Timing) -> Vec<(&'static str, Duration, Duration)> {
        let Timing { process, watch, controller, registration, initializer, webhook, workloads, uninstall } = timing;
        vec![
            ("a loop beats before it counts as stuck", process.beat, process.stuck),
            ("a call may fail before a loop counts as stuck", CALL_LIMIT, process.stuck),
            ("a follower looks twice before nobody succeeds", 2 * process.follower_look, process.successor),
            ("a replica answers until its successor leads", process.successor, process.leaving),
            ("it tries more than once to report the stop", process.stop_report_pause, process.stop_report),
            ("idle connections close within the time to leave", webhook.linger, process.leaving),
            ("custom resources are seen sooner", watch.duration_of_custom_resources, watch.duration),
            ("a dead watch of custom resources is noticed while a create waits", watch.duration, CREATE_LIMIT),
            ("pauses grow", watch.first_pause, watch.longest_pause),
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
            ("every API server has read configurations", POLLED, initializer.settling),
            ("a trial waits for every API server", registration.settling, registration.probe_limit),
            ("a trial waits for every API server", initializer.settling, initializer.probe_limit),
            ("policies take longer than configurations", initializer.probe_limit, registration.probe_limit),
            ("trials repeat", registration.probe_pause, registration.settling),
            ("trials repeat", registration.author_probe_pause, registration.settling),
            ("trials repeat", initializer.probe_pause, initializer.settling),
            ("pauses grow", initializer.first_drain_pause, initializer.longest_drain_pause),
            ("a registration ends before creates that it held", initializer.settling, initializer.request),
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
            ("a review waits less than the API server", webhook.namespace + webhook.settling, WEBHOOK),
            ("an author is judged before the API server gives up", webhook.rights, WEBHOOK),
            ("connections outlast their first request", webhook.first_request + webhook.body, webhook.idle),
            ("a trouble gets into a status", controller.status_period, workloads.trouble),
            ("what waits is looked at more than once", uninstall.pause, uninstall.patience),
            ("rights are looked at more than once", uninstall.rights_pause, uninstall.rights),
        ]
    }

    /// Pairs of which the first must be less than the second, or as long.
    fn not_descending(timing: &Timing) -> Vec<(&'static str, Duration, Duration)> {
        let Timing { process, watch, controller, initializer, webhook, workloads, .. } = timing;
        let withdrawn = process.successor + process.stop_report + initializer.settling;
        vec![
            ("a dead watch is noticed while a create waits", watch.duration + MARGIN, CREATE_LIMIT),
            ("a policy may take effect before its first status", initializer.settling, controller.first_status),
            (
                "an object is retried, jitter included, while its trouble lasts",
                2 * initializer.longest_retry,
                workloads.trouble,
            ),
            ("a pause is no longer than a server can demand", initializer.pause, initializer.longest_pause),
            ("a create waits no longer than the creator", initializer.longest_pause, CREATE_LIMIT),
            ("the last replica stops in time", withdrawn + process.event_flush, GRACE),
            ("the webhook stops in time", process.leaving + webhook.linger + webhook.drain, GRACE),
            ("replicas know of nodes as soon as the leader", webhook.survey, controller.discovery_at_rest),
        ]
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
