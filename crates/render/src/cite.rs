//! A run for citation: what repeats it, and an entry of BibTeX with one sentence.

use comparison::judge::report::Row;
use comparison::judge::{Metric, Report, records};

use crate::words::{self, answer, verdicts};

/// Hexadecimal digits of a sha256 below an answer.
const DIGITS: usize = 12;

/// The command, the plan, the commit and the weights: "To repeat it: photofinish --seed 1; plan 89abcdef0123, begun
/// 2026-01-01T00:00:00Z; commit 01234567; f32.safetensors has sha256 0123456789ab". Who registered the plan sees that
/// it is the same and when it was measured.
pub(crate) fn repeated(report: &Report) -> Option<String> {
    let environment = &report.environment;
    if environment.command.is_empty() {
        return None;
    }
    let (command, _) = words::elsewhere(&environment.command, Some(report.plan.seed));
    let mut told = vec![format!("To repeat it: {}", words::quoted(&command))];
    let plan = report.plan.request.registered(report.plan.seed);
    told.push(format!("plan {}, begun {}", shortened(&plan), environment.started));
    told.extend(commit(report));
    told.extend(weights(report).map(|(file, sha256)| format!("{file} has sha256 {}", shortened(&sha256))));
    Some(told.join("; "))
}

fn shortened(sha256: &str) -> &str {
    sha256.get(..DIGITS).unwrap_or(sha256)
}

/// The file of the weights, and its sha256 in full.
fn weights(report: &Report) -> Option<(String, String)> {
    let row = report.rows.iter().find(|row| row.state.has_figures())?;
    let file = format!("{}.safetensors", row.precision.requested.name());
    Some((file, records::weights(report, row)?))
}

/// The weights by their sha256, in a sentence.
pub(crate) fn digest(report: &Report) -> Option<String> {
    weights(report).map(|(file, sha256)| format!("The weights, {file}, have sha256 {sha256}."))
}

fn commit(report: &Report) -> Option<String> {
    let environment = &report.environment;
    let commit = environment.git_commit.as_deref()?;
    Some(format!("commit {}", words::short_commit(Some(commit), environment.git_modified)))
}

/// An entry of BibTeX, and a sentence for a text. `archive`: the sha256 of the run's archive.
pub fn cited(report: &Report, archive: Option<&str>) -> String {
    let environment = &report.environment;
    let program = match commit(report) {
        Some(commit) => format!("Photofinish {}, {commit}", environment.driver_version),
        None => format!("Photofinish {}", environment.driver_version),
    };
    let with_figures = || report.rows.iter().filter(|row| row.state.has_figures());
    let name = |row: &Row| match &row.hello {
        Some(hello) => format!("{} ({})", row.framework, hello.library),
        None => row.framework.clone(),
    };
    let frameworks: Vec<String> = with_figures().map(name).collect();
    let labels: Vec<&str> = with_figures().map(|row| row.framework.as_str()).collect();
    let mut digests: Vec<String> = Vec::new();
    digests.extend(weights(report).map(|(file, sha256)| format!("{file}: sha256 {sha256}")));
    digests.extend(archive.map(|sha256| format!("archive of all samples: sha256 {sha256}")));
    let day = words::day(&environment.started);
    let key: String = environment.started.chars().take(19).filter(char::is_ascii_alphanumeric).collect();
    let fields = [
        ("key", "Photofinish".to_owned()),
        ("title", format!("{}: {}", answer::listed(&labels), about(report))),
        ("year", day.get(..4).unwrap_or_default().to_owned()),
        ("howpublished", format!("Measured on {day} with {program}")),
        ("note", digests.join("; ")),
    ];
    let mut text = format!("@misc{{photofinish-{key},\n");
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_empty()) {
        text += &format!("  {name} = {{{}}},\n", escaped(value));
    }
    text += "}\n\n";
    let mut found = Vec::new();
    for metric in Metric::questions(report.plan.work.kind()) {
        let pairs = report.comparisons.iter().filter(|pair| pair.metric == metric);
        found.extend(pairs.map(|pair| verdicts::of_report(report, pair)));
    }
    let found = if found.is_empty() { "there is no verdict".to_owned() } else { found.join("; ") };
    let others = report.other_runs.as_ref().map(|runs| format!(" ({})", verdicts::others(runs)));
    text += &format!(
        "On {day}, {program}, measured {} on {}: {found}. Intervals are of this run{}.",
        answer::listed(&frameworks),
        about(report),
        others.unwrap_or_default()
    );
    if !digests.is_empty() {
        text += &format!(" {}.", digests.join("; "));
    }
    text + "\n"
}

/// Model, precision, machine, lengths and rounds, without a stop at the end.
fn about(report: &Report) -> String {
    answer::about(report).split(". ").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

/// Text for a field of BibTeX.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => escaped.extend(['\\', c]),
            '\\' => escaped += "\\textbackslash ",
            '~' => escaped += "\\textasciitilde ",
            '^' => escaped += "\\textasciicircum ",
            c if c.is_control() => escaped.push(' '),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::answer::tests::three;

    #[test]
    fn a_citation_has_what_a_reader_needs_to_find_the_run() {
        let mut report = three();
        report.environment.git_commit = Some("0123456789abcdef".into());
        report.model.manifest.files.insert(
            "f32.safetensors".into(),
            serde_json::from_str(&format!(
                r#"{{"sha256": "{}", "bytes": 1, "derived": "copied"}}"#,
                "ab".repeat(32)
            ))
            .unwrap(),
        );
        let line = repeated(&report).unwrap();
        let plan = report.plan.request.registered(report.plan.seed);
        assert_eq!(
            line,
            format!(
                "To repeat it: photofinish --seed 1; plan {}, begun 2026-01-01T00:00:00Z; commit 01234567; f32.safetensors \
                 has sha256 abababababab",
                shortened(&plan)
            )
        );
        insta::assert_snapshot!(cited(&report, Some(&"cd".repeat(32))));
    }

    #[test]
    fn signs_of_tex_are_escaped() {
        assert_eq!(escaped("a_b 5 % {x} \\"), "a\\_b 5 \\% \\{x\\} \\textbackslash ");
    }
}
