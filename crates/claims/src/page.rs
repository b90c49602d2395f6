//! The page: an overview, and a section for each claim. Every figure of ours comes from a report.

use judge::study::StudyReport;

use crate::claim::Run;
use crate::found::Found;
use crate::judged::{Judged, JudgedFigure};
use crate::kept::{self, Kept, RunRecord};
use crate::published::Verdict;
use crate::unit::Unit;

/// The page, from the root of the checkout, and the block that is made.
pub const PAGE: &str = "docs/claims.md";
pub const BLOCK: &str = "claims";
/// The way from the page to the root.
const UP: &str = "../";

/// What stands between the markers.
pub fn render(all: &[Judged<'_>]) -> String {
    let sections: Vec<String> = all.iter().map(section).collect();
    format!("{}\n{}", overview(all), sections.join("\n"))
}

fn overview(all: &[Judged<'_>]) -> String {
    let mut lines = vec!["| | claim | |".to_owned(), "|---:|---|---|".to_owned()];
    for Judged { claim, verdict, .. } in all {
        lines.push(format!(
            "| {} | [{}](#{}) | *{}* |",
            claim.number,
            cell(&claim.title),
            anchor(claim),
            verdict.words()
        ));
    }
    lines.join("\n") + "\n"
}

/// The heading's anchor, as forges make it.
fn anchor(claim: &crate::claim::Claim) -> String {
    let heading = format!("{}. {}", claim.number, claim.title).to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn section(judged: &Judged<'_>) -> String {
    let claim = judged.claim;
    let mut parts = vec![
        format!("## {}. {}", claim.number, claim.title),
        answer(judged),
        format!("- **Who says it.** {}: {}", plain(&claim.source), plain(&claim.says)),
    ];
    let last = parts.len() - 1;
    for (title, text) in [("There", &claim.conditions), ("Here", &claim.here)] {
        parts[last] += &format!("\n- **{title}.** {}", plain(text));
    }
    parts[last] += &machine(judged);
    parts.push(table(&judged.figures));
    parts.push(format!("**What explains it.** {}", plain(&claim.explains)));
    parts.extend(claim.open.as_ref().map(|open| format!("**What stays open.** {}", plain(open))));
    parts.push(commands(judged));
    parts.push(
        judged.runs.iter().map(|(run, kept)| told(judged, run, kept.as_ref())).collect::<Vec<_>>().join("\n"),
    );
    parts.join("\n\n") + "\n"
}

/// The verdict, and where it comes from.
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
            list("Not", &does_not),
            list("What does", &holds),
            list("Not measurable", &open)
        ),
        Verdict::NotMeasurable(reason) => {
            format!("**Not measurable here**: {}.{}", sentence(reason), list("What holds", &holds))
        }
    }
}

/// A reason without the dot at its end.
fn sentence(reason: &str) -> &str {
    reason.trim().trim_end_matches('.')
}

fn machine(judged: &Judged<'_>) -> String {
    let Some(machine) = judged.machine() else { return String::new() };
    let memory = machine.memory_bytes as f64 / 1e9;
    let day = machine.started.split('T').next().unwrap_or_default();
    let commit = match (&machine.git_commit, machine.git_modified) {
        (Some(commit), modified) => {
            let short: String = commit.chars().take(9).collect();
            format!(", commit {short}{}", if modified == Some(true) { "+" } else { "" })
        }
        (None, _) => String::new(),
    };
    let libraries = judged.libraries();
    let libraries = if libraries.is_empty() { String::new() } else { format!(" {}.", libraries.join(", ")) };
    format!(
        "\n- **Machine.** {}, {} cores, {memory:.0} GB, {}.{libraries} Run on {day}{commit}.",
        machine.cpu,
        machine.available_cores,
        machine.os.as_deref().unwrap_or("an operating system that does not tell its name"),
    )
}

fn table(figures: &[JudgedFigure<'_>]) -> String {
    let mut lines =
        vec!["| figure | published | read as | here | |".to_owned(), "|---|---|---|---|---|".to_owned()];
    for JudgedFigure { figure, found, verdict } in figures {
        let (published, sense) = match &figure.published {
            Some(published) => (published.text.clone(), published.words()),
            None => ("–".to_owned(), "–".to_owned()),
        };
        let here = match found {
            Ok(found) => written(*found, figure.unit),
            Err(reason) => format!("– ({})", sentence(reason)),
        };
        let verdict = verdict.as_ref().map_or(String::new(), |verdict| format!("*{}*", verdict.words()));
        let cells = [figure.what.as_str(), &published, &sense, &here, &verdict].map(cell);
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

/// What a run came to, with the way to what is kept of it.
fn told(judged: &Judged<'_>, run: &Run, kept: Option<&Kept>) -> String {
    let Some(Kept { record, report, has_page, .. }) = kept else {
        return format!("- {}: not run yet", run.name);
    };
    let RunRecord { seconds, refused, left_out, .. } = record;
    let directory = kept::directory(judged.claim, run).display().to_string();
    let took =
        if *seconds < 90.0 { format!("{seconds:.0} s") } else { format!("{:.1} minutes", seconds / 60.0) };
    let took = format!("it took {took}");
    if let (Some(reason), _) | (None, (None, reason)) = (refused, (report, &String::from("nothing was kept")))
    {
        return format!("- {}: {took} and gave no report: {}", run.name, sentence(reason));
    }
    let page = if *has_page { format!(", [page]({UP}{directory}/report.html)") } else { String::new() };
    let rounds = report.as_ref().map_or(String::new(), rounds);
    let left_out = match left_out.as_slice() {
        [] => String::new(),
        parts => format!("; left out for their size: {}", parts.join(", ")),
    };
    format!("- {}: [report]({UP}{directory}/report.md){page}; {took}{rounds}{left_out}", run.name)
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
    use crate::claim::Claim;
    use crate::found::Interval;
    use crate::judged::judge;

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
            says = """two
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
            published = { text = "2x", low = 2, reading = "about" }
            "#,
        )
        .unwrap();
        let nowhere = tempfile::tempdir().unwrap();
        let page = render(&[judge(nowhere.path(), &claim).unwrap()]);
        for expected in [
            "| 0 | [A \\| B](#0-a--b) | *not measurable here* |",
            "## 0. A | B\n\n**Not measurable here**: it was not run yet",
            "- **Who says it.** *G*: two times\n- **There.** c\n- **Here.** h\n",
            "| a \\| b | 2x | about | – (it was not run yet",
            "```sh\nphotofinish ab a b\n```\n\n- both: not run yet",
        ] {
            assert!(page.contains(expected), "{expected}\n{page}");
        }
    }
}
