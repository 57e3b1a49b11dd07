//! Tests of the state machine, event by event, without a server or a clock.

use super::*;
use crate::policy::Site;
use crate::timing::Timing;
use serde_json::json;
use std::cell::Cell;
use std::sync::LazyLock;

const HOLD: Duration = Duration::from_secs(600);

/// A registration and its simulated surroundings.
struct Story {
    state: Registration,
    now: Instant,
    /// Whether deleted objects without the mark count as deleted by hand.
    by_hand: Cell<bool>,
    /// The keys that the watch shows.
    registered: BTreeSet<RegistrationKey>,
    edited: Option<RegistrationKey>,
    /// Whether the status shows an earlier registration.
    is_held: bool,
    is_unreadable: bool,
}

fn key() -> RegistrationKey {
    RegistrationKey::of("mutatingwebhookconfigurations", "scpol-pods")
}

fn policy(name: &str, image: &str) -> Arc<Policy> {
    let template = json!({ "containers": [{ "name": "a", "image": image }] });
    let object = json!({ "metadata": { "name": name, "uid": name }, "spec": { "template": template } });
    Arc::new(Policy::parse(&object, &Site::new("scpol-system", [], [])).unwrap())
}

static POLICY: LazyLock<Arc<Policy>> = LazyLock::new(|| policy("a", "one"));

/// The registration of the policy `a` in the form `form`.
fn wanted(form: &str) -> Arc<Wanted> {
    let (policies, kinds) = (vec![POLICY.clone()], vec![Kind::of("", "pods", None)]);
    Arc::new(Wanted { engine: EngineName("Webhook"), policies, kinds, objects: vec![json!(form)] })
}

fn live(form: &str) -> Live {
    let editions = Editions::from([(key(), Default::default())]);
    Live { wanted: wanted(form), unverified: None, leftover: None, editions }
}

fn failure(code: Code) -> Unavailable {
    Unavailable::new(code, "why")
}

fn marked() -> ObjectMeta {
    let annotations = BTreeMap::from([("scpol.dev/removing".to_owned(), "true".to_owned())]);
    ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() }
}

/// A short name of an action.
fn name(action: &Action) -> String {
    let form = |wanted: &Wanted| wanted.objects[0].as_str().unwrap_or_default().to_owned();
    match action {
        Action::Register { wanted, before: None } => format!("register {}", form(wanted)),
        Action::Register { wanted, before: Some(before) } => {
            format!("register {} over {}", form(wanted), form(&before.wanted))
        }
        Action::Unregister => "unregister".to_owned(),
        Action::Verify(wanted) => format!("verify {}", form(wanted)),
        Action::AskOwners(_) => "ask owners".to_owned(),
        Action::Expect(_, deleted) if deleted.is_empty() => "expect".to_owned(),
        Action::Expect(..) => "expect nothing".to_owned(),
        Action::NoteFailure(wanted, reason) => format!("note {} of {}", reason.code.name(), form(wanted)),
        Action::Publish => "publish".to_owned(),
        Action::Forget => "forget".to_owned(),
        Action::Report(Notice::Registered(_)) => "report registered".to_owned(),
        Action::Report(Notice::NotInForce(..)) => "report not in effect".to_owned(),
        Action::Report(Notice::KeptBefore(..)) => "report kept before".to_owned(),
        Action::Report(Notice::Held(..)) => "report held".to_owned(),
        Action::Report(Notice::Edited(..)) => "report edited".to_owned(),
        Action::Report(Notice::NotUnregistered(_)) => "report not unregistered".to_owned(),
    }
}

impl Story {
    /// A registration that no event has reached yet.
    fn begin() -> Self {
        let (state, now, by_hand) = (Registration::default(), Instant::now(), Cell::new(true));
        let registered = BTreeSet::new();
        Self { state, now, by_hand, registered, edited: None, is_held: false, is_unreadable: false }
    }

    /// A registration whose form `one` is in effect.
    fn live() -> Self {
        let mut story = Self::begin();
        assert_eq!(story.wish("one"), ["register one"]);
        assert_eq!(story.registers(Ok(live("one"))), ["expect", "report registered", "publish"]);
        story.registered.insert(key());
        story
    }

    /// A registration on hold, because a person deleted it.
    fn held() -> Self {
        let mut story = Self::live();
        story.deleted(ObjectMeta::default());
        assert_eq!(story.wish("one"), ["ask owners"]);
        assert_eq!(story.happens(Event::OwnersExist(true)), ["report held", "unregister"]);
        assert_eq!(story.happens(Event::Unregistered(Ok(()))), ["publish"]);
        story
    }

    fn happens(&mut self, event: Event) -> Vec<String> {
        let by_hand = self.by_hand.get();
        let context = Context {
            now: self.now,
            wall: Timestamp::UNIX_EPOCH,
            timing: &Timing::documented().controller,
            repair_hold: HOLD,
            is_by_hand: &|metadata| by_hand && !is_marked(metadata),
        };
        let (state, actions) = std::mem::take(&mut self.state).step(event, &context);
        self.state = state;
        actions.iter().map(name).collect()
    }

    fn compares(&mut self, wish: Wish) -> Vec<String> {
        let unreadable = self.is_unreadable.then(|| key().resource).into_iter().collect();
        let (registered, edited) = (self.registered.clone(), self.edited.clone());
        self.happens(Event::Compared(wish, Observed { registered, unreadable, edited, is_held: self.is_held }))
    }

    /// The planner wants `form`.
    fn wish(&mut self, form: &str) -> Vec<String> {
        self.compares(Wish::Registered(wanted(form)))
    }

    fn registers(&mut self, result: Result<Live, Failure>) -> Vec<String> {
        let wanted = result.as_ref().map_or_else(|_| wanted("two"), |live| live.wanted.clone());
        self.happens(Event::Registered(wanted, result))
    }

    fn fails(&mut self, code: Code, kept: Option<Live>) -> Vec<String> {
        self.registers(Err((failure(code), kept)))
    }

    fn verifies(&mut self, verification: Verification) -> Vec<String> {
        self.happens(Event::Verified(wanted("one"), verification))
    }

    /// The watch shows that the object is gone.
    fn deleted(&mut self, metadata: ObjectMeta) {
        self.registered.remove(&key());
        assert!(self.happens(Event::Deleted(key(), Box::new(metadata))).is_empty());
    }

    fn passes(&mut self, time: Duration) {
        self.now += time;
    }

    fn code(&self) -> Option<Code> {
        self.state.reason().map(|reason| reason.code)
    }

    fn form(&self) -> Option<&str> {
        self.state.live().and_then(|live| live.wanted.objects[0].as_str())
    }
}

fn nothing() -> Vec<String> {
    Vec::new()
}

fn retry() -> Duration {
    Timing::documented().controller.retry
}

fn verify_again() -> Duration {
    Timing::documented().controller.verify_again
}

// Coming into effect

#[test]
fn what_is_wanted_is_registered_once() {
    let mut story = Story::live();
    assert_eq!(story.wish("one"), nothing());
    assert_eq!((story.form(), story.code()), (Some("one"), None));
    assert!(story.state.at_rest().is_some() && !story.state.is_busy());
}

#[test]
fn while_a_task_works_nothing_else_is_begun() {
    let mut story = Story::begin();
    story.wish("one");
    assert!(story.state.is_busy() && story.state.live().is_none());
    assert_eq!(story.wish("two"), nothing());
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: true }), nothing());
}

#[test]
fn what_must_wait_for_its_watches_is_registered_later() {
    let mut story = Story::begin();
    assert_eq!(story.compares(Wish::Later(wanted("one"), None)), nothing());
    assert_eq!(story.code(), None);
    assert_eq!(story.compares(Wish::Later(wanted("one"), Some(failure(Code::NotSynced)))), nothing());
    assert_eq!(story.code(), Some(Code::NotSynced));
    assert_eq!(story.wish("one"), ["register one"]);
    story.registers(Ok(live("one")));
    assert_eq!(story.code(), None);
}

#[test]
fn an_edit_that_must_wait_leaves_what_is_in_force() {
    let mut story = Story::live();
    assert_eq!(story.compares(Wish::Later(wanted("two"), None)), nothing());
    assert_eq!(story.form(), Some("one"));
    assert_eq!(story.wish("two"), ["register two over one"]);
}

#[test]
fn an_undecided_plan_changes_nothing() {
    assert_eq!(Story::begin().compares(Wish::Keep), nothing());
    let mut story = Story::live();
    assert_eq!(story.compares(Wish::Keep), nothing());
    story.registered.clear();
    assert_eq!(story.compares(Wish::Keep), nothing());
    assert_eq!(story.form(), Some("one"));
}

#[test]
fn what_an_earlier_leader_registered_is_registered_again_without_a_hold() {
    let mut story = Story::begin();
    (story.is_held, story.registered) = (true, BTreeSet::from([key()]));
    assert_eq!(story.wish("one"), ["register one"]);
}

// Failing

#[test]
fn a_failure_is_tried_again_after_a_pause() {
    let mut story = Story::begin();
    story.wish("two");
    assert_eq!(story.fails(Code::ServerAway, None), ["report not in effect", "note ServerAway of two"]);
    assert_eq!((story.wish("two"), story.code()), (nothing(), Some(Code::ServerAway)));
    story.passes(retry());
    assert_eq!(story.wish("two"), ["register two"]);
}

#[test]
fn after_a_lasting_failure_the_planner_decides_at_once() {
    for code in [Code::MissingRight, Code::AdmissionPolicyPluginOff, Code::WebhookOff, Code::InitializersPluginOff] {
        let mut story = Story::begin();
        story.wish("two");
        let note = format!("note {} of two", code.name());
        assert_eq!(story.fails(code, None), ["report not in effect", note.as_str()]);
        assert_eq!(story.code(), None, "the plan tells it");
        assert_eq!(story.wish("other"), ["register other"]);
    }
}

#[test]
fn a_pause_ends_when_the_policies_change() {
    let mut story = Story::begin();
    story.wish("two");
    story.fails(Code::ServerAway, None);
    story.state.retry_now();
    assert_eq!(story.wish("two"), ["register two"]);
}

#[test]
fn a_rejected_edit_leaves_what_was_in_force_and_is_tried_again() {
    let mut story = Story::live();
    story.wish("two");
    assert_eq!(story.form(), Some("one"), "also while a task works");
    let told = story.fails(Code::RegistrationRefused, Some(live("one")));
    assert_eq!(told, ["expect", "report kept before", "note RegistrationRefused of two"]);
    assert_eq!((story.form(), story.code()), (Some("one"), Some(Code::RegistrationRefused)));
    assert_eq!(story.wish("two"), nothing());
    story.passes(retry());
    assert_eq!(story.wish("two"), ["register two over one"]);
}

#[test]
fn another_edit_need_not_wait_for_the_rejected_one() {
    let mut story = Story::live();
    story.wish("two");
    story.fails(Code::NotExpressible, Some(live("one")));
    assert_eq!(story.wish("three"), ["register three over one"]);
}

#[test]
fn an_edit_that_is_taken_back_needs_nothing() {
    let mut story = Story::live();
    story.wish("two");
    story.fails(Code::NotExpressible, Some(live("one")));
    assert_eq!(story.wish("one"), nothing());
}

#[test]
fn an_edit_that_fails_and_leaves_nothing_is_not_in_force() {
    let mut story = Story::live();
    story.wish("two");
    assert_eq!(story.fails(Code::WebhookUnreachable, None), ["report not in effect", "note WebhookUnreachable of two"]);
    assert_eq!((story.form(), story.code()), (None, Some(Code::WebhookUnreachable)));
}

#[test]
fn an_edit_that_changes_nothing_of_what_is_written_is_in_force_at_once() {
    let mut story = Story::live();
    let edited = Wanted { policies: vec![policy("a", "other")], ..Arc::into_inner(wanted("one")).unwrap() };
    assert_eq!(story.compares(Wish::Registered(Arc::new(edited))), nothing());
    let live = story.state.at_rest().unwrap();
    assert!(live.wanted.has(&policy("a", "other")) && !live.wanted.has(&policy("a", "one")));
}

#[test]
fn an_edit_of_others_that_fails_says_nothing_of_who_is_in_force() {
    let (a, b) = (policy("a", "one"), policy("b", "one"));
    let both = Wanted { policies: vec![a.clone(), b.clone()], ..Arc::into_inner(wanted("two")).unwrap() };
    let both = Arc::new(both);
    let mut story = Story::live();
    assert_eq!(story.state.standing(&b), Standing::Unknown);
    story.compares(Wish::Registered(both.clone()));
    assert_eq!((story.state.standing(&a), story.state.standing(&b)), (Standing::Unknown, Standing::Unknown));
    story.happens(Event::Registered(both.clone(), Err((failure(Code::ServerAway), Some(live("one"))))));
    assert_eq!(story.state.standing(&a), Standing::InForce);
    assert!(matches!(story.state.standing(&b), Standing::Not(reason) if reason.code == Code::ServerAway));
    story.passes(retry());
    assert_eq!(story.compares(Wish::Registered(both)), ["register two over one"]);
    assert_eq!(story.state.standing(&a), Standing::Unknown, "while it is tried again, too");
    assert!(matches!(story.state.standing(&b), Standing::Not(_)));
}

// Ending

#[test]
fn what_is_not_wanted_any_more_is_unregistered_and_forgotten() {
    let mut story = Story::live();
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: false }), ["unregister"]);
    assert_eq!(story.form(), None);
    story.registered.clear();
    assert_eq!(story.happens(Event::Unregistered(Ok(()))), ["publish"]);
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: false }), ["forget"]);
}

#[test]
fn what_an_earlier_leader_left_is_unregistered() {
    let mut story = Story::begin();
    story.registered.insert(key());
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: true }), ["unregister"]);
}

#[test]
fn what_cannot_be_unregistered_is_tried_again_after_a_pause() {
    let mut story = Story::live();
    story.compares(Wish::Unregistered { ends_hold: true });
    assert_eq!(story.happens(Event::Unregistered(Err("away".to_owned()))), ["report not unregistered"]);
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: true }), nothing());
    story.passes(retry());
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: true }), ["unregister"]);
}

#[test]
fn what_is_gone_already_need_not_be_unregistered() {
    let mut story = Story::live();
    story.registered.clear();
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: false }), ["publish", "forget"]);
}

#[test]
fn what_is_unregistered_and_wanted_again_is_no_removal_by_hand() {
    let mut story = Story::live();
    story.compares(Wish::Unregistered { ends_hold: true });
    story.registered.clear();
    story.happens(Event::Unregistered(Ok(())));
    story.is_held = true; // The status is outdated.
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn what_is_left_of_another_engine_is_removed_later() {
    let mut story = Story::begin();
    story.wish("one");
    let leftover = Some((Code::ServerAway, "still there".to_owned()));
    story.registers(Ok(Live { leftover, ..live("one") }));
    story.registered.insert(key());
    assert_eq!(story.wish("one"), nothing());
    story.passes(retry());
    assert_eq!(story.wish("one"), ["register one over one"]);
}

// Removal by hand

#[test]
fn what_a_person_deletes_stays_away_for_the_hold() {
    let mut story = Story::held();
    assert_eq!((story.wish("one"), story.code()), (nothing(), Some(Code::RemovedByHand)));
    story.passes(HOLD - Duration::from_secs(1));
    assert_eq!(story.wish("one"), nothing());
    story.passes(Duration::from_secs(1));
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn an_edit_does_not_end_the_hold() {
    let mut story = Story::held();
    assert_eq!(story.wish("two"), nothing());
    story.state.retry_now();
    assert_eq!((story.wish("two"), story.code()), (nothing(), Some(Code::RemovedByHand)));
}

#[test]
fn to_resume_a_policy_ends_the_hold() {
    let mut story = Story::held();
    assert_eq!(story.happens(Event::Resumed), nothing());
    story.is_held = true; // The status is outdated.
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn to_suspend_a_policy_ends_a_hold_of_its_own_and_not_that_of_a_kind() {
    let mut story = Story::held();
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: false }), nothing());
    assert!(story.state.is_held());
    assert_eq!(story.compares(Wish::Unregistered { ends_hold: true }), ["forget"]);
    assert!(!story.state.is_held() && story.code().is_none());
}

#[test]
fn who_registers_it_again_by_hand_ends_the_hold() {
    let mut story = Story::held();
    story.registered.insert(key());
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn a_new_leader_believes_the_status_once() {
    let mut story = Story::begin();
    story.is_held = true;
    assert_eq!((story.wish("one"), story.code()), (vec!["report held".to_owned()], Some(Code::RemovedByHand)));
    assert_eq!(story.wish("one"), nothing());
    story.passes(HOLD);
    assert_eq!(story.wish("one"), ["register one"]);
    story.fails(Code::ServerAway, None);
    story.passes(retry());
    assert_eq!(story.wish("one"), ["register one"], "not held a second time");
}

#[test]
fn what_the_garbage_collector_took_is_registered_again() {
    let mut story = Story::live();
    story.deleted(ObjectMeta::default());
    assert_eq!(story.wish("one"), ["ask owners"]);
    assert_eq!(story.wish("one"), nothing(), "until they have answered");
    assert_eq!(story.happens(Event::OwnersExist(false)), nothing());
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn what_another_leader_deleted_is_registered_again() {
    let mut story = Story::live();
    story.deleted(marked());
    assert_eq!(story.wish("one"), nothing());
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn what_vanished_unseen_counts_as_deleted_by_hand() {
    let mut story = Story::live();
    story.registered.clear();
    assert_eq!(story.wish("one"), ["ask owners"]);
    assert_eq!(story.happens(Event::OwnersExist(true)), ["report held", "unregister"]);
}

#[test]
fn what_belongs_to_no_policy_is_held_without_a_question() {
    let mut story = Story::begin();
    let bare = |form: &str| Arc::new(Wanted { policies: Vec::new(), ..Arc::into_inner(wanted(form)).unwrap() });
    story.compares(Wish::Registered(bare("one")));
    story.registers(Ok(Live { wanted: bare("one"), ..live("one") }));
    assert_eq!(story.compares(Wish::Registered(bare("one"))), ["report held", "unregister"]);
}

#[test]
fn what_cannot_be_read_is_not_missing() {
    let mut story = Story::live();
    (story.registered, story.is_unreadable) = (BTreeSet::new(), true);
    assert_eq!(story.wish("one"), nothing());
    assert_eq!(story.form(), Some("one"));
}

#[test]
fn what_a_person_deletes_while_a_task_works_is_held_if_the_task_fails() {
    let mut story = Story::begin();
    story.wish("two");
    story.deleted(ObjectMeta::default());
    assert_eq!(story.fails(Code::WebhookUnreachable, None), ["report held", "unregister"]);
    assert_eq!(story.code(), Some(Code::RemovedByHand));
}

#[test]
fn what_the_garbage_collector_takes_while_a_task_works_is_registered_again() {
    let mut story = Story::begin();
    story.wish("two");
    story.by_hand.set(false);
    story.deleted(ObjectMeta::default());
    assert_eq!(story.fails(Code::WebhookUnreachable, None), nothing());
    assert_eq!(story.wish("two"), ["register two"]);
}

#[test]
fn what_is_deleted_by_hand_and_written_again_by_a_task_is_not_forgotten() {
    let mut story = Story::live();
    story.wish("two");
    story.deleted(ObjectMeta::default());
    story.registered.insert(key());
    assert_eq!(story.happens(Event::Appeared(key())), nothing());
    assert_eq!(story.registers(Ok(live("two"))), ["expect nothing", "report registered", "publish"]);
    assert_eq!(story.wish("two"), ["ask owners"]);
}

#[test]
fn what_comes_back_by_itself_is_not_missing() {
    let mut story = Story::live();
    story.deleted(ObjectMeta::default());
    story.registered.insert(key());
    story.happens(Event::Appeared(key()));
    assert_eq!(story.wish("one"), nothing());
}

#[test]
fn a_hold_that_cannot_remove_the_rest_ends() {
    let mut story = Story::live();
    story.deleted(ObjectMeta::default());
    story.wish("one");
    story.happens(Event::OwnersExist(true));
    assert_eq!(story.happens(Event::Unregistered(Err("away".to_owned()))), ["report not unregistered"]);
    assert!(story.state.is_held());
    assert_eq!(story.wish("one"), nothing());
}

// Edits by hand

#[test]
fn what_a_person_edits_is_repaired() {
    let mut story = Story::live();
    story.edited = Some(key());
    assert_eq!(story.wish("one"), ["report edited", "register one over one"]);
}

#[test]
fn what_is_edited_and_not_ready_is_repaired_later() {
    let mut story = Story::live();
    story.edited = Some(key());
    assert_eq!(story.compares(Wish::Later(wanted("one"), None)), nothing());
}

// Doubt

#[test]
fn what_nobody_can_verify_is_verified_again() {
    let mut story = Story::begin();
    story.wish("one");
    let unverified = Some((Code::ProbeFailed, "refused".to_owned()));
    story.registers(Ok(Live { unverified, ..live("one") }));
    story.registered.insert(key());
    assert_eq!(story.wish("one"), nothing());
    story.passes(verify_again());
    assert_eq!(story.wish("one"), ["verify one"]);
    assert_eq!(story.wish("one"), nothing(), "one at a time");
    assert_eq!(story.verifies(Ok(None)), nothing());
    story.passes(verify_again());
    assert_eq!(story.wish("one"), nothing(), "nothing is in doubt");
}

#[test]
fn what_is_registered_for_a_custom_resource_is_not_verified_again() {
    let mut story = Story::begin();
    let kinds = vec![Kind::of("example.org", "rollouts", Some("/spec/template"))];
    let wanted = Arc::new(Wanted { kinds, ..Arc::into_inner(wanted("one")).unwrap() });
    story.compares(Wish::Registered(wanted.clone()));
    let unverified = Some((Code::ProbeFailed, "refused".to_owned()));
    story.registers(Ok(Live { wanted: wanted.clone(), unverified, ..live("one") }));
    story.registered.insert(key());
    story.passes(verify_again());
    assert_eq!(story.compares(Wish::Registered(wanted)), nothing());
}

#[test]
fn on_another_server_everything_is_verified() {
    let mut story = Story::live();
    story.happens(Event::ServerChanged);
    assert_eq!(story.wish("one"), ["verify one"]);
    let mut story = Story::begin();
    story.happens(Event::ServerChanged);
    assert_eq!(story.wish("one"), ["register one"]);
}

#[test]
fn what_has_no_effect_any_more_is_registered_again() {
    let mut story = Story::live();
    assert_eq!(story.verifies(Err(failure(Code::WebhookOff))), ["register one over one"]);
    assert_eq!(story.form(), Some("one"), "until that is known");
}

#[test]
fn a_verification_of_an_earlier_form_is_ignored() {
    let mut story = Story::live();
    story.wish("two");
    story.registers(Ok(live("two")));
    assert_eq!(story.verifies(Err(failure(Code::WebhookOff))), nothing());
}

#[test]
fn what_was_in_force_stays_so_unless_it_was_switched_off() {
    let unverified = || Ok(Some((Code::ProbeFailed, "refused".to_owned())));
    let failed = |code| Err(failure(code));
    let (proven, again) = (Judgement::InForce(None), Judgement::AskAgain);
    let doubt = |code: Code, why: &str| Judgement::InForce(Some((code, why.to_owned())));
    let without = || Judgement::WithoutEffect;
    for (verification, if_proven_before, if_doubtful_before) in [
        (Ok(None), Judgement::InForce(None), proven),
        (unverified(), again(verify_again()), doubt(Code::ProbeFailed, "refused")),
        (failed(Code::ServerAway), again(retry()), again(retry())),
        (failed(Code::MissingRight), doubt(Code::MissingRight, "why"), doubt(Code::MissingRight, "why")),
        (failed(Code::WebhookUnreachable), doubt(Code::WebhookUnreachable, "why"), without()),
        (failed(Code::AdmissionPolicyPluginOff), without(), without()),
        (failed(Code::InitializersPluginOff), without(), without()),
    ] {
        let timing = &Timing::documented().controller;
        assert_eq!(judge(verification.clone(), false, timing), if_proven_before, "{verification:?}");
        assert_eq!(judge(verification.clone(), true, timing), if_doubtful_before, "{verification:?}");
    }
}

// Random orders of events

/// Applies a random event. Returns the actions that follow.
fn anything(story: &mut Story, tasks: &mut Vec<Event>, random: &mut fastrand::Rng) -> Vec<String> {
    let form = ["one", "two"][random.usize(0..2)];
    match random.u8(0..8) {
        0..3 => story.wish(form),
        3 => story.compares(Wish::Unregistered { ends_hold: random.bool() }),
        4 if story.registered.contains(&key()) => {
            story.deleted(if random.bool() { marked() } else { ObjectMeta::default() });
            nothing()
        }
        5 => story.happens(Event::ServerChanged),
        _ if !tasks.is_empty() => {
            let event = tasks.remove(0);
            if let Event::Registered(_, Ok(_)) = &event {
                story.registered.insert(key());
            }
            story.happens(event)
        }
        _ => nothing(),
    }
}

/// A random result of the task that `action` begins.
fn any_end(action: &str, story: &mut Story, random: &mut fastrand::Rng) -> Option<Event> {
    let (word, form) = action.split_once(' ').unwrap_or((action, ""));
    let form = form.split(' ').next().unwrap_or_default();
    match (word, random.u8(0..3)) {
        ("register", 0) => Some(Event::Registered(wanted(form), Err((failure(Code::ServerAway), None)))),
        ("register", _) => Some(Event::Registered(wanted(form), Ok(live(form)))),
        ("unregister", _) => {
            story.registered.clear();
            Some(Event::Unregistered(Ok(())))
        }
        ("ask", exist) => Some(Event::OwnersExist(exist == 0)),
        ("verify", 0) => Some(Event::Verified(wanted(form), Ok(None))),
        ("verify", _) => {
            let away = Err(failure(Code::WebhookOff));
            Some(Event::Verified(wanted(form), away))
        }
        _ => None,
    }
}

/// Deletes nothing more, lets every task succeed, and lets time pass.
fn calm_down(story: &mut Story, mut tasks: Vec<Event>) {
    story.happens(Event::Resumed);
    for _ in 0..8 {
        story.passes(HOLD);
        let mut told = nothing();
        for event in std::mem::take(&mut tasks) {
            let event = match event {
                Event::Registered(wanted, _) => {
                    let form = wanted.objects[0].as_str().unwrap().to_owned();
                    story.registered.insert(key());
                    story.happens(Event::Appeared(key()));
                    Event::Registered(wanted, Ok(live(&form)))
                }
                Event::Verified(wanted, _) => Event::Verified(wanted, Ok(None)),
                event => event,
            };
            told.extend(story.happens(event));
        }
        told.extend(story.wish("one"));
        for action in told {
            let form = action.split(' ').nth(1).unwrap_or_default();
            match action.split(' ').next() {
                Some("register") => tasks.push(Event::Registered(wanted(form), Ok(live(form)))),
                Some("ask") => tasks.push(Event::OwnersExist(false)),
                Some("unregister") => {
                    story.registered.clear();
                    tasks.push(Event::Unregistered(Ok(())));
                }
                _ => {}
            }
        }
    }
}

#[test]
fn no_order_of_events_leaves_a_registration_stuck_or_registers_it_twice() {
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..2000 {
        let (mut story, mut tasks) = (Story::begin(), Vec::new());
        for _ in 0..40 {
            story.passes(Duration::from_secs(random.u64(0..90)));
            story.by_hand.set(random.bool());
            for action in anything(&mut story, &mut tasks, &mut random) {
                tasks.extend(any_end(&action, &mut story, &mut random));
            }
            let working = tasks.iter().filter(|event| !matches!(event, Event::Verified(..))).count();
            assert!(working <= 1, "two tasks write at once: {tasks:?}");
            assert_eq!(working == 1, story.state.is_busy(), "busy without a task, or the other way round: {tasks:?}");
        }
        calm_down(&mut story, tasks);
        assert_eq!(story.form(), Some("one"), "{:?}", story.state);
    }
}
