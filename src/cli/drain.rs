//! `scpol drain`: releases objects that wait for an initializer. Works without an operator.

use super::live::Within;
use super::output::{NAME, Output, Printing, age};
use super::site::initializer_name;
use super::waiting::{self, Waited, WaitingObject, WaitingObjects};
use super::{Cluster, End, live};
use crate::policy::Site;
use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use std::io::Write;

#[derive(Args, Debug)]
pub(super) struct DrainOptions {
    #[command(flatten)]
    cluster: Cluster,
    /// Only list the objects that wait; change nothing
    #[arg(long)]
    list: bool,
    /// Clear this initializer instead of ours; it may be a foreign one
    #[arg(long, value_name = "NAME", value_parser = initializer_name)]
    initializer: Option<String>,
    #[command(flatten)]
    within: Within,
    #[command(flatten)]
    printing: Printing<NAME>,
}

pub(super) async fn run(options: DrainOptions, out: &mut impl Write) -> Result<End> {
    let client = live::connect(&options.cluster).await?;
    let server = live::version(&client).await?;
    let (namespace, selector) = (options.within.namespace.as_deref(), options.within.selector.as_deref());
    let WaitingObjects { mut waiting, unseen } = waiting::find(&client, &server, namespace, selector).await?;
    if !options.list {
        let site = Site::new("", [], options.initializer.clone());
        let is_cleared = |name: &str| match &options.initializer {
            Some(named) => name == named,
            None => site.owns(name),
        };
        for object in waiting.iter_mut().filter(|object| object.pending.iter().any(|name| is_cleared(name))) {
            waiting::clear(&client, object, &is_cleared).await;
        }
    }
    let printing = &options.printing;
    printing.output.report(
        "DrainReport",
        || json!({ "items": waiting }),
        out,
        |out| match printing.output {
            Output::Name => {
                waiting.iter().try_for_each(|object| Ok(writeln!(out, "{}/{}", object.resource, object.name)?))
            }
            _ => print(&waiting, unseen.is_empty(), printing, out),
        },
    )?;
    if !unseen.is_empty() {
        bail!("something may wait that could not be looked at: {}", unseen.join("; "));
    }
    let all_done = waiting.iter().all(|object| object.result == Waited::Cleared && object.pending.is_empty());
    Ok(End::fine_if(all_done))
}

fn print(waiting: &[WaitingObject], is_all: bool, printing: &Printing<NAME>, out: &mut impl Write) -> Result<()> {
    let nothing = "Nothing waits for an initializer";
    let nothing = if is_all { format!("{nothing}.") } else { format!("{nothing} in what could be looked at.") };
    let row = |object: &WaitingObject| {
        let (age, names) = (age(object.age_seconds), object.pending.join(", "));
        [object.namespace.clone(), object.resource.clone(), object.name.clone(), age, names, result(object)]
    };
    let header = ["NAMESPACE", "RESOURCE", "NAME", "AGE", "WAITS FOR", "RESULT"];
    printing.list(nothing, header, waiting.iter().map(row), out)
}

fn result(object: &WaitingObject) -> String {
    match (&object.result, &object.message) {
        (Waited::Waits, _) => "waits".into(),
        (Waited::Cleared, _) if object.pending.is_empty() => "cleared".into(),
        (Waited::Cleared, _) => "cleared; still waits".into(),
        (Waited::Failed, message) => format!("failed: {}", message.as_deref().unwrap_or_default()),
    }
}
