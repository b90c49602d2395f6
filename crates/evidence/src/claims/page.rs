//! The page: an overview, and a section for each claim. Every figure of ours comes from a report.

use comparison::judge::study::StudyReport;

use crate::claims::claim::Run;
use crate::claims::claim::Unit;
use crate::claims::claim::Verdict;
use crate::claims::judged::{Judged, JudgedFigure};
use crate::claims::kept::{self, Kept, RunRecord};
use crate::claims::published;
use crate::claims::rows::Found;

/// The page, from the root of the checkout, and the block that is made.
pub const PAGE: &str = "docs/evidence/claims.md";
pub const BLOCK: &str = "claims";
/// The way from the page to the root.
const UP: &str = "../../";

/// The text between the markers.
pub fn render(all: &[Judged<'_>]) -> String {
    let sections: Vec<String> = all.iter().map(section).collect();
    format!("{}\n{}\n{}", published::rules(), overview(all), sections.join("\n"))
}

fn overview(all: &[Judged<'_>]) -> String {
    let mut lines = vec!["| | claim | | run on |".to_owned(), "|---:|---|---|---|".to_owned()];
    for judged in all {
        let Judged { claim, verdict, .. } = judged;
        let (title, anchor) = (cell(&claim.title), anchor(claim));
        let commits = commits(judged).join("; ");
        lines.push(format!(
            "| {} | [{title}](#{anchor}) | *{}* | {commits} |",
            claim.number,
            verdict.words()
        ));
    }
    lines.join("\n") + "\n"
}

/// The commits of the runs, each once, with a note if a run must be repeated.
fn commits(judged: &Judged<'_>) -> Vec<String> {
    let mut commits: Vec<String> = Vec::new();
    for (run, kept) in &judged.runs {
        let commit = match kept {
            None => "not run yet".to_owned(),
            Some(kept) => checkout(run, kept),
        };
        if !commits.contains(&commit) {
            commits.push(commit);
        }
    }
    commits
}

/// "commit 6c327bdcf, with local changes: to be run again".
fn checkout(run: &Run, kept: &Kept) -> String {
    let again = if kept.due(run).is_some() { ": to be run again" } else { "" };
    format!("{}{again}", kept.described())
}

/// The heading's anchor, as forges make it.
fn anchor(claim: &crate::claims::claim::Claim) -> String {
    let heading = format!("{}. {}", claim.number, claim.title).to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn section(judged: &Judged<'_>) -> String {
    let claim = judged.claim;
    let mut parts = vec![
        format!("## {}. {}", claim.number, claim.title),
        answer(judged),
        format!("- **Source.** {}: {}", plain(&claim.source), plain(&claim.says)),
    ];
    let last = parts.len() - 1;
    for (title, text) in [("Conditions", &claim.conditions), ("Here", &claim.here)] {
        parts[last] += &format!("\n- **{title}.** {}", plain(text));
    }
    parts[last] += &machine(judged);
    parts.push(table(&judged.figures));
    parts.push(format!("**Explanation.** {}", plain(&claim.explains)));
    parts.extend(claim.open.as_ref().map(|open| format!("**Remains open.** {}", plain(open))));
    parts.push(commands(judged));
    parts.push(
        judged.runs.iter().map(|(run, kept)| told(judged, run, kept.as_ref())).collect::<Vec<_>>().join("\n"),
    );
    parts.join("\n\n") + "\n"
}

/// The verdict, and its basis.
fn answer(judged: &Judged<'_>) -> String {
    let of = |wanted: fn(&Verdict) -> bool| -> Vec<&str> {
        let meant = judged.figures.iter().filter(|figure| figure.verdict.as_ref().is_some_and(wanted));
        meant.map(|figure| figure.figure.what.as_str()).collect()
    };
    let holds = of(|verdict| *verdict == Verdict::Holds);
    let does_not = of(|verdict| *verdict == Verdict::DoesNot);
    let open = of(|verdict| matches!(verdict, Verdict::NotMeasurable(_)));
    let list = |title: &str, names: &[&str]| match names {
        [] => String::new(),
        names => format!(" {title}: {}.", names.join("; ")),
    };
    match &judged.verdict {
        Verdict::Holds => "**Holds here.**".to_owned(),
        Verdict::DoesNot => format!(
            "**Does not hold here.**{}{}{}",
            list("Does not hold", &does_not),
            list("Holds", &holds),
            list("Not measurable", &open)
        ),
        Verdict::NotMeasurable(reason) => {
            format!("**Not measurable here**: {}.{}", sentence(&plain(reason)), list("Holds", &holds))
        }
        Verdict::NotRun => {
            format!("**No verdict: not run yet**: `cargo xtask claims --only {}`.", judged.claim.number)
        }
        Verdict::ToRun(reason) => format!(
            "**No verdict: to be run again.** {}: `cargo xtask claims --only {}`.",
            capital(reason),
            judged.claim.number
        ),
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// A reason without the dot at its end.
fn sentence(reason: &str) -> &str {
    reason.trim().trim_end_matches('.')
}

fn machine(judged: &Judged<'_>) -> String {
    let Some(machine) = judged.machine() else { return String::new() };
    let memory = machine.memory_bytes as f64 / 1e9;
    let day = machine.started.split('T').next().unwrap_or_default();
    let libraries = judged.libraries();
    let libraries = if libraries.is_empty() { String::new() } else { format!(" {}.", libraries.join(", ")) };
    format!(
        "\n- **Machine.** {}, {} cores, {memory:.0} GB, {}.{libraries} Run on {day}.",
        machine.cpu,
        machine.available_cores,
        machine.os.as_deref().unwrap_or("an unnamed operating system"),
    )
}

fn table(figures: &[JudgedFigure<'_>]) -> String {
    let mut lines =
        vec!["| figure | published | read as | here | |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for JudgedFigure { figure, found, verdict, favours } in figures {
        let (published, reading) = match &figure.published {
            Some(published) => (published.shown(figure.unit), published.reading()),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let here = match found {
            Ok(found) => written(*found, figure.unit),
            Err(reason) => format!("– ({})", sentence(reason)),
        };
        let favours = favours.as_ref().map_or(String::new(), |side| format!(": {side}"));
        let verdict =
            verdict.as_ref().map_or(String::new(), |verdict| format!("*{}*{favours}", verdict.words()));
        let cells = [figure.what.as_str(), &published, &reading, &here, &verdict].map(cell);
        lines.push(format!("| {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

/// Text in one cell of a table.
fn cell(text: &str) -> String {
    plain(text).replace('|', "\\|")
}

/// "12.1x (11.2 to 13.0)" with a 95 % interval, "12.1x [11.0 to 13.4]" with the range over processes.
fn written(found: Found, unit: Unit) -> String {
    let figure = format!("**{}**", unit.text(found.value));
    match found.interval {
        Some(interval) if interval.is_confidence => format!("{figure} ({})", unit.bounds(interval.bounds)),
        Some(interval) => format!("{figure} [{}]", unit.bounds(interval.bounds)),
        None => figure,
    }
}

fn commands(judged: &Judged<'_>) -> String {
    let lines: Vec<&str> = judged.claim.runs.iter().map(|run| run.command.as_str()).collect();
    format!("```sh\n{}\n```", lines.join("\n"))
}

/// The outcome of a run, its commit, and links to the stored results.
fn told(judged: &Judged<'_>, run: &Run, kept: Option<&Kept>) -> String {
    let Some(kept) = kept else { return format!("- {}: not run yet", run.name) };
    let Kept { record, report, .. } = kept;
    let RunRecord { seconds, refused, left_out, .. } = record;
    let archive = kept::archive(judged.claim).display().to_string();
    let took =
        if *seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.1} minutes", seconds / 60.0) };
    let took = format!("it took {took}");
    if let (Some(reason), _) | (None, (None, reason)) = (refused, (report, &String::from("nothing was kept")))
    {
        return format!("- {}: {took} and gave no report: {}", run.name, sentence(reason));
    }
    let rounds = report.as_ref().map_or(String::new(), rounds);
    let left_out = match left_out.as_slice() {
        [] => String::new(),
        parts => format!("; left out for their size: {}", parts.join(", ")),
    };
    let is_final = left_out.contains("the samples");
    let by_then = if is_final {
        ". Without samples it cannot be judged again: by the rules of that commit"
    } else {
        ""
    };
    let checkout = checkout(run, kept);
    format!(
        "- {}: [report and samples]({UP}{archive}); {checkout}; {took}{rounds}{left_out}{by_then}",
        run.name
    )
}

fn rounds(report: &StudyReport) -> String {
    let rounds = report.cells.iter().map(|cell| cell.rounds).filter(|rounds| *rounds > 0);
    let (least, most) = (rounds.clone().min(), rounds.max());
    match (least, most) {
        (Some(1), Some(1)) => ", 1 round".to_owned(),
        (Some(least), Some(most)) if least == most => format!(", {least} rounds"),
        (Some(least), Some(most)) => format!(", {least} to {most} rounds"),
        _ => String::new(),
    }
}

/// Text in one line.
fn plain(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::claims::claim::Claim;

    use crate::claims::rows::Interval;

    use crate::claims::judged::judge;

    #[test]
    fn a_figure_is_written_with_its_interval_or_range() {
        let with = |is_confidence| Found {
            value: 12.14,
            interval: Some(Interval { bounds: (11.2, 13.0), is_confidence }),
        };
        assert_eq!(written(with(true), Unit::Times), "**12.1x** (11.2 to 13.0)");
        assert_eq!(written(with(false), Unit::Times), "**12.1x** [11.2 to 13.0]");
        assert_eq!(written(Found { value: 0.45, interval: None }, Unit::Percent), "**45.0 %**");
    }

    #[test]
    fn a_claim_that_was_never_run_says_so_in_every_place() {
        let claim: Claim = toml::from_str(
            r#"
            title = "A | B"
            source = "*G*"
            says = """2
            times"""
            conditions = "c"
            here = "h"
            explains = "e"
            [[run]]
            name = "both"
            command = "photofinish ab a b"
            [[figure]]
            what = "a | b"
            run = "both"
            unit = "times"
            read = { kind = "figure", framework = "a", metric = "throughput" }
            published = { text = "2x", low = 2, kind = "equality" }
            "#,
        )
        .unwrap();
        let nowhere = tempfile::tempdir().unwrap();
        let page = render(&[judge(nowhere.path(), &claim).unwrap()]);
        for expected in [
            "| 0 | [A \\| B](#0-a--b) | *not run yet* | not run yet |",
            "## 0. A | B\n\n**No verdict: not run yet**: `cargo xtask claims --only 0`.",
            "- **Source.** *G*: 2 times\n- **Conditions.** c\n- **Here.** h\n",
            "| a \\| b | 2x | about (factor 1.2) | – (not run yet) | *not run yet* |",
            "```sh\nphotofinish ab a b\n```\n\n- both: not run yet",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }
}
