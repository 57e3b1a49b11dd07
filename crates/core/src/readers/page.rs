//! The table as a page of the docs.

use super::table::{Cell, PARTS, READERS, Row};
use crate::api::code::Code;

const HEAD: &str = "\
# Who reads a pod, and what do they do to the application?

Eight components read a pod. The API server accepts pods that an admission plugin refuses, that the scheduler cannot place,
or that the kubelet does not start. For each field of a template, this page says what each reader does to *the application*
when a policy adds it.

| in a cell | means |
|---|---|
| **a code** | checked: such a workload is not injected, or refused under `Fail` |
| a code | reported by `scpol lint`, `scpol inject` or `scpol explain` |
| a reason | harmless to the application |

Every engine checks what follows from the template and the workload alone. What needs other objects is checked where these
are among the manifests. On a cluster, `scpol explain` reads them with your rights.

The rules are those of Kubernetes 1.37.2, and of its autoscalers. Generated from `crates/core/src/readers/table.rs` by
`make crds`.
";

/// The text of `docs/readers.md`.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    for part in &PARTS {
        page.push_str(&format!(
            "\n## {}\n\n| field | {} |\n|---|{}\n",
            part.title,
            READERS.join(" | "),
            "---|".repeat(READERS.len())
        ));
        for row in part.rows {
            let cells: Vec<_> = row.cells.iter().map(told).collect();
            page.push_str(&format!("| {} | {} |\n", row.title, cells.join(" | ")));
        }
        page.push('\n');
        let groups = part.rows.iter().filter(|row| row.names().count() > 3);
        groups.for_each(|row| page.push_str(&format!("- {}: {}.\n", row.title, fields(row))));
    }
    page.truncate(page.trim_end().len());
    page + "\n"
}

fn told(cell: &Cell) -> String {
    let link = |code: &Code| {
        let anchor = format!("{code}-{}", code.name()).to_lowercase();
        format!("[{code}](codes.md#{anchor})")
    };
    match cell {
        Cell::Checked(codes) => codes.iter().map(|code| format!("**{}**", link(code))).collect::<Vec<_>>().join(", "),
        Cell::Told(codes) => codes.iter().map(link).collect::<Vec<_>>().join(", "),
        Cell::Harmless(why) => (*why).to_owned(),
    }
}

fn fields(row: &Row) -> String {
    let groups = row.fields.split(';').map(|group| {
        let (definition, fields) = group.trim().split_once('.').unwrap_or_default();
        let fields: Vec<_> = fields.split_whitespace().map(|field| format!("`{field}`")).collect();
        format!("{} of {definition}", fields.join(", "))
    });
    groups.collect::<Vec<_>>().join("; ")
}
