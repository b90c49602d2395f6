//! Annotations of a GitHub workflow, and its job summary.

use crate::screen::Screen;
use judge::metrics;
use judge::regression::{Document, Verdict};

/// Columns of a log, which folds nothing.
const LOG: usize = 120;

/// The table for the log, then an annotation for each important finding.
///
/// The syntax is in GitHub's documentation, "Workflow commands for GitHub Actions". The escapes are those of
/// `@actions/core`.
pub fn github(document: &Document) -> String {
    let mut text = super::table(document, &Screen::plain(LOG));
    for broken in &document.failures {
        text += &annotation("error", &format!("{} failed", broken.framework), &broken.reason);
    }
    if let Some(reason) = &document.unmeasurable {
        text += &annotation("warning", "Performance is not measurable", reason);
    }
    for finding in document.findings.iter().filter(|finding| finding.follows.is_none()) {
        let name = format!("{} of {}", metrics::words(&finding.metric), finding.framework);
        let (level, title) = match finding.verdict {
            Verdict::Regression => ("error", format!("Performance regression: {name}")),
            Verdict::NotMeasurable => ("warning", format!("Not measurable: {name}")),
            Verdict::Inconclusive if finding.is_beyond() => ("warning", format!("Inconclusive: {name}")),
            Verdict::Better => ("notice", format!("Better: {name}")),
            _ => continue,
        };
        text += &annotation(level, &title, &super::sentence(finding, document.kind));
    }
    for difference in &document.differences {
        text += &annotation("warning", "Runs differ", difference);
    }
    text
}

/// The annotation of a check that was refused.
pub fn refusal(reason: &str) -> String {
    annotation("error", "Performance check refused", reason)
}

fn annotation(level: &str, title: &str, message: &str) -> String {
    let message = untrusted::line(message).replace('%', "%25");
    let title = untrusted::line(title).replace('%', "%25").replace(':', "%3A").replace(',', "%2C");
    format!("::{level} title={title}::{message}\n")
}

/// The text that is added to a job's summary.
pub fn job_summary(document: &Document) -> String {
    format!("## Performance\n\n{}\n", super::markdown(document))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_stay_on_their_line_and_in_their_field() {
        assert_eq!(
            annotation("error", "a: b, 5 %", "first\nsecond: 8 %"),
            "::error title=a%3A b%2C 5 %25::first second: 8 %25\n"
        );
    }
}
