//! JUnit reports, which build servers show.

use std::collections::BTreeMap;

use judge::regression::{Document, Finding, Kind, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{has_several_cases, sentence};

/// A suite for each framework, a case for each of its metrics. A metric that is not measurable is skipped, with the
/// reason.
pub fn junit(document: &Document, now: OffsetDateTime) -> String {
    let mut suites: BTreeMap<&str, Vec<TestCase>> = BTreeMap::new();
    for broken in &document.failures {
        let case = test("runs", &broken.framework, non_success(NonSuccessKind::Error, &broken.reason));
        suites.entry(&broken.framework).or_default().push(case);
    }
    if let Some(reason) = &document.unmeasurable {
        suites.entry("machine").or_default().push(test("quiet", "machine", skipped(reason)));
    }
    let several = has_several_cases(document);
    for finding in &document.findings {
        suites.entry(&finding.framework).or_default().push(case(finding, document.kind, several));
    }
    let now = now.format(&Rfc3339).unwrap_or_default();
    let mut report = Report::new("photofinish");
    for (framework, cases) in suites {
        let mut suite = TestSuite::new(framework);
        suite.add_test_cases(cases);
        suite.extra.insert("skipped".into(), suite.disabled.to_string().as_str().into());
        suite.extra.insert("timestamp".into(), now.as_str().into());
        report.add_test_suite(suite);
    }
    report.to_string().expect("memory can be written")
}

fn test(name: &str, framework: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(framework);
    case
}

fn non_success(kind: NonSuccessKind, message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(kind);
    status.set_message(message);
    status
}

fn skipped(message: &str) -> TestCaseStatus {
    let mut status = TestCaseStatus::skipped();
    status.set_message(message);
    status
}

fn case(finding: &Finding, kind: Kind, several: bool) -> TestCase {
    let Finding { metric, framework, .. } = finding;
    let sentence = &sentence(finding, kind);
    let name = if several { format!("{metric} ({})", finding.case) } else { metric.clone() };
    match finding.verdict {
        Verdict::Regression => {
            let mut status = non_success(NonSuccessKind::Failure, sentence);
            status.set_type("regression");
            test(&name, framework, status)
        }
        Verdict::NotMeasurable => test(&name, framework, skipped(sentence)),
        _ => {
            let mut case = test(&name, framework, TestCaseStatus::success());
            case.set_system_out(sentence.as_str());
            case
        }
    }
}
