//! For machines that run tests: annotations of a GitHub workflow and its job summary, and JUnit reports.

use std::collections::BTreeMap;
use std::io::Write;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::document::Document;
use super::render;
use super::verdicts::{Finding, Verdict};
use crate::failure::{Failure, Result};

/// The table for the log, then an annotation for each thing to know.
///
/// "Workflow commands for GitHub Actions" in GitHub's documentation has the syntax; `@actions/core` escapes as is done
/// here.
pub(super) fn github(document: &Document) -> String {
    let mut text = render::table(document);
    for broken in &document.failures {
        text += &annotation("error", &format!("{} failed", broken.framework), &broken.reason);
    }
    if let Some(reason) = &document.unmeasurable {
        text += &annotation("warning", "Performance is not measurable", reason);
    }
    for finding in document.findings.iter().filter(|finding| finding.follows.is_none()) {
        let name = format!("{} of {}", finding.metric.replace('_', " "), finding.framework);
        let (level, title) = match finding.verdict {
            Verdict::Regression => ("error", format!("Performance regression: {name}")),
            Verdict::NotMeasurable => ("warning", format!("Not measurable: {name}")),
            Verdict::Inconclusive if finding.is_beyond() => ("warning", format!("Inconclusive: {name}")),
            Verdict::Better => ("notice", format!("Better: {name}")),
            _ => continue,
        };
        text += &annotation(level, &title, &finding.sentence);
    }
    for difference in &document.differences {
        text += &annotation("warning", "Runs differ", difference);
    }
    text
}

/// Of a check that was refused.
pub(super) fn refusal(reason: &str) -> String {
    annotation("error", "Performance check refused", reason)
}

fn annotation(level: &str, title: &str, message: &str) -> String {
    let message = message.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let title = title.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A");
    let title = title.replace(':', "%3A").replace(',', "%2C");
    format!("::{level} title={title}::{message}\n")
}

/// Adds to the job's summary, where there is a job.
pub(super) fn summarise(document: &Document) -> Result<()> {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let text = format!("## Performance\n\n{}\n", render::markdown(document));
    let written = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| {
        Failure::failed(format!("cannot add to the job's summary {}: {error}", path.to_string_lossy()))
    })
}

/// A suite for each framework, a case for each of its metrics. What is not measurable is skipped, and says why.
pub(super) fn junit(document: &Document, now: OffsetDateTime) -> String {
    let mut suites: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for broken in &document.failures {
        let name = escaped(&broken.framework);
        let case = format!(
            "<testcase classname=\"{name}\" name=\"runs\"><error message=\"{}\"/></testcase>",
            escaped(&broken.reason)
        );
        suites.entry(&broken.framework).or_default().push(case);
    }
    if let Some(reason) = &document.unmeasurable {
        let case = format!(
            "<testcase classname=\"machine\" name=\"quiet\"><skipped message=\"{}\"/></testcase>",
            escaped(reason)
        );
        suites.entry("machine").or_default().push(case);
    }
    let several = document.findings.iter().any(|finding| finding.case != document.findings[0].case);
    for finding in &document.findings {
        suites.entry(&finding.framework).or_default().push(case(finding, several));
    }
    let time = escaped(&now.format(&Rfc3339).unwrap_or_default());
    let mut text = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    text += &format!("<testsuites name=\"photofinish\"{}>\n", counts(suites.values().flatten()));
    for (framework, cases) in &suites {
        let name = escaped(framework);
        text += &format!("  <testsuite name=\"{name}\" timestamp=\"{time}\"{}>\n", counts(cases.iter()));
        for case in cases {
            text += &format!("    {case}\n");
        }
        text += "  </testsuite>\n";
    }
    text + "</testsuites>\n"
}

fn case(finding: &Finding, several: bool) -> String {
    let name =
        if several { format!("{} ({})", finding.metric, finding.case) } else { finding.metric.clone() };
    let (name, framework, sentence) =
        (escaped(&name), escaped(&finding.framework), escaped(&finding.sentence));
    let outcome = match finding.verdict {
        Verdict::Regression => format!("<failure type=\"regression\" message=\"{sentence}\"/>"),
        Verdict::NotMeasurable => format!("<skipped message=\"{sentence}\"/>"),
        _ => format!("<system-out>{sentence}</system-out>"),
    };
    format!("<testcase classname=\"{framework}\" name=\"{name}\">{outcome}</testcase>")
}

fn counts<'a>(cases: impl Iterator<Item = &'a String> + Clone) -> String {
    let of = |tag: &str| cases.clone().filter(|case| case.contains(tag)).count();
    format!(
        " tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
        cases.clone().count(),
        of("<failure "),
        of("<error "),
        of("<skipped ")
    )
}

/// For XML 1.0, which has no control characters, not even escaped.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\'' => escaped += "&apos;",
            '\n' | '\r' | '\t' => escaped.push(' '),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_stay_on_their_line_and_in_their_field() {
        assert_eq!(
            annotation("error", "a: b, 5 %", "first\nsecond: 8 %"),
            "::error title=a%3A b%2C 5 %25::first%0Asecond: 8 %25\n"
        );
    }

    #[test]
    fn what_xml_cannot_hold_is_replaced() {
        assert_eq!(escaped("<a & \"b\">\u{1b}\n"), "&lt;a &amp; &quot;b&quot;&gt;\u{fffd} ");
    }
}
