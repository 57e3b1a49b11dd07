use crate::leader::Todo;
use crate::model::{Deviation, Happens, Space, World};
use crate::scenes::spaces;
use stateright::{Checker, HasDiscoveries, Model};

/// The number in the variable `name` of the environment.
fn number(name: &str, otherwise: usize) -> usize {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

/// `MODEL_STATES` is how many states there must be at least, `MODEL_BOUND` how many deviations a run may have, and `MODEL_ONLY` a part of
/// the name of a space.
#[test]
fn every_sentence_is_true_in_every_state() {
    let (least, bound) = (number("MODEL_STATES", 50_000), number("MODEL_BOUND", 1));
    let only = std::env::var("MODEL_ONLY").unwrap_or_default();
    let (mut states, mut untrue) = (0, Vec::new());
    for space in spaces(u8::try_from(bound).unwrap()).into_iter().filter(|space| space.name.contains(&only)) {
        let most = least / 8;
        let checker = space.checker().threads(2).finish_when(HasDiscoveries::Any).target_state_count(most);
        let checker = checker.spawn_bfs().join();
        println!("{:>9} states: {}", checker.unique_state_count(), checker.model().name);
        states += checker.unique_state_count();
        for (property, path) in checker.discoveries() {
            untrue.push(told(checker.model(), property, path.into_actions()));
        }
    }
    println!("{states:>9} states in all");
    assert!(untrue.is_empty(), "{}", untrue.join("\n"));
    assert!(states >= least || !only.is_empty(), "{states} of {least} states");
}

/// The run that makes a sentence untrue.
fn told(space: &Space, property: &str, actions: Vec<Happens>) -> String {
    let mut text = format!("`{}`: {property} is untrue after", space.name);
    let mut world = space.init_states().remove(0);
    for (index, action) in actions.into_iter().enumerate() {
        text += &format!("\n{index:>4} {:<24} {}", format!("{action:?}"), shown(&world));
        world = space.next_state(&world, action).unwrap();
    }
    text + &format!("\n{:>29} {}", "", shown(&world))
}

/// The workloads, and what the leader is about to do.
fn shown(world: &World) -> String {
    let mark = |is: bool, mark: &'static str| if is { mark } else { "" };
    let items = world.cluster.items.iter().map(|item| {
        let marks = [mark(!item.is_ready, "!"), mark(!item.is_settled, "~"), mark(item.is_ours, "*")].concat();
        format!("{}:{}{marks}", item.name, item.carries)
    });
    let queue = world.leader.queue.iter().map(|todo| match todo {
        Todo::Record(..) => "record".to_owned(),
        Todo::Begin(content, ..) => format!("begin {content}"),
        Todo::Read(attempt) => format!("read {}", attempt.name),
        Todo::Write(attempt, ..) => format!("write {}", attempt.name),
    });
    let (items, queue) = (items.collect::<Vec<_>>().join(" "), queue.collect::<Vec<_>>().join(", "));
    format!("{:>9} {items} {:?} {queue}", world.cluster.now, world.leader.said)
}

/// Follows a run to its end, in which every sentence must be true. `run` is what happens instead after how many steps.
fn follow(space: &Space, run: &[(usize, Happens)]) -> World {
    let (mut world, mut actions) = (space.init_states().remove(0), Vec::new());
    let properties = space.properties();
    for index in 0.. {
        let instead = run.iter().find(|(at, _)| *at == index).map(|(_, happens)| *happens);
        let action = instead.unwrap_or(Happens::Next);
        let Some(next) = space.next_state(&world, action) else { break };
        (world, _) = (next, actions.push(action));
        for property in &properties {
            let is_true = (property.condition)(space, &world);
            assert!(is_true, "{}", told(space, property.name, actions));
        }
    }
    if std::env::var_os("MODEL_SHOW").is_some() {
        println!("{}", told(space, "nothing", actions));
    }
    world
}

/// The checker explores short runs first, and comes to the end of few: a rollout that goes round in a circle would not be found.
#[test]
fn every_rollout_without_a_deviation_comes_to_its_end() {
    for space in spaces(0) {
        follow(&space, &[]);
    }
}

/// Runs that once made a sentence untrue: the space, and what happened instead after how many steps.
#[test]
fn what_was_once_untrue_is_true() {
    let runs: &[(&str, &[(usize, Happens)])] = &[
        // What the rollout before had made unavailable counted as broken before this one.
        ("leaders, in place", &[(30, Happens::Instead(Deviation::Edit(1)))]),
        // The minute of an eviction began with its announcement.
        ("a limit", &[(31, Happens::Instead(Deviation::Wait(61)))]),
        // A kubelet's time to act began with the announcement.
        ("a failure, halted", &[(8, Happens::Instead(Deviation::Wait(601)))]),
        // A pod was patched, and then evicted for a restart.
        ("a failure, halted", &[(5, Happens::Instead(Deviation::Restart))]),
        // Each of two unavailable pods of one owner waited for the other.
        ("a failure, halted", &[(6, Happens::Instead(Deviation::Restart))]),
        // A leader that slept announced a write for a rollout that another leader had replaced.
        (
            "leaders, in place",
            &[
                (12, Happens::Instead(Deviation::Sleep)),
                (13, Happens::Instead(Deviation::Edit(2))),
                (26, Happens::Wake),
                (27, Happens::Wake),
                (28, Happens::Wake),
            ],
        ),
        // What a budget held up used the limit of evictions up.
        ("a limit", &[(20, Happens::Instead(Deviation::Guard(0)))]),
        // The revision was deleted in the middle, and what its rollout had made unavailable counted as broken before the next one.
        ("steps, undone", &[(4, Happens::Instead(Deviation::Resume)), (23, Happens::Instead(Deviation::Delete(2)))]),
    ];
    for (name, run) in runs {
        let space = spaces(2).into_iter().find(|space| space.name == *name).unwrap();
        let world = follow(&space, run);
        let is_held_up = run.iter().any(|(_, happens)| *happens == Happens::Instead(Deviation::Guard(0)));
        if is_held_up {
            assert!(
                world.cluster.items.iter().all(|item| item.owner == Some(0) || item.carries == 3),
                "{}",
                shown(&world)
            );
        }
    }
}
