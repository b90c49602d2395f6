//! One submission: read within its limits, judged again, and compared with the report that came with it.

use std::path::Path;

use facts::Evidence;
use judge::Report;
use judge::records::collection::Published;
use judge::report;
use measure::saved::{self, ENVIRONMENT, PLAN, REPORT, SAMPLES};
use serde_json::Value;

use crate::cleaned::personal;
use crate::compared::first_difference;
use crate::files::{self, SUMS};
use crate::problem::Problem;
use crate::tiers::{TIERS, Tiers};

/// Most characters of a text. A prompt of 32,000 tokens has fewer.
const LONGEST_TEXT: usize = 200_000;
/// Most problems of one kind and file that are listed.
const LISTED: usize = 3;

const REPACK: &str = "pack the run with `photofinish report DIR --archive`, and change nothing in it";
const REJUDGE: &str = "judge it again with `photofinish report DIR --rejudge --in-place`, then pack it";

/// Reads the submission in `directory`. Adds its faults to `problems`; `None` if it cannot be shown.
pub(crate) fn read(
    directory: &Path,
    name: &str,
    tiers: &Tiers,
    problems: &mut Vec<Problem>,
) -> Option<Published> {
    let of_files = files::check(directory, name);
    if !of_files.is_empty() {
        problems.extend(of_files);
        return None;
    }
    let before = problems.len();
    problems.extend(files::check_sums(directory, name));
    for file in [ENVIRONMENT, PLAN, REPORT, SAMPLES] {
        problems.extend(texts(directory, name, file));
    }
    if problems.len() > before {
        return None;
    }
    let submission = Submission { directory, name, tiers };
    match submission.judged() {
        Ok((published, more)) => {
            problems.extend(more);
            Some(published)
        }
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

/// The faults in the texts of a file: invalid JSON, a text that is too long, a path or a name.
fn texts(directory: &Path, entry: &str, file: &str) -> Vec<Problem> {
    let problem = |what: String, remedy: &str| Problem::new(entry, file, what, remedy);
    let text = match untrusted::file::read_text(&directory.join(file), files::MOST) {
        Ok(text) => text,
        Err(error) => return vec![problem(format!("it cannot be read: {error}"), REPACK)],
    };
    let lines: Vec<&str> = if file == SAMPLES { text.lines().collect() } else { vec![&text] };
    let (mut long, mut personal_fields, mut broken) = (Vec::new(), Vec::new(), Vec::new());
    for (index, line) in lines.iter().enumerate() {
        let at = |place: &str| {
            if lines.len() > 1 { format!("line {}: {place}", index + 1) } else { place.to_owned() }
        };
        let value: Value = match serde_json::from_str(line) {
            Ok(value) => value,
            Err(error) => {
                broken.push(problem(at(&format!("it is not JSON: {error}")), REPACK));
                continue;
            }
        };
        crate::fields::each(&value, &mut |place, _, value| {
            let length = value.as_str().map_or(0, |text| text.chars().count());
            if length > LONGEST_TEXT {
                let what =
                    format!("{} has {length} characters, and at most {LONGEST_TEXT} are allowed", at(place));
                long.push(problem(what, "measure with shorter prompts"));
            }
        });
        personal_fields.extend(personal(&value).into_iter().map(|place| {
            problem(format!("{} holds a path, or the name of a host or kernel", at(&place)), REPACK)
        }));
    }
    [broken, long, personal_fields].into_iter().flat_map(|kind| kind.into_iter().take(LISTED)).collect()
}

struct Submission<'a> {
    directory: &'a Path,
    name: &'a str,
    tiers: &'a Tiers,
}

impl Submission<'_> {
    fn problem(&self, file: &str, what: impl AsRef<str>, remedy: &str) -> Problem {
        Problem::new(self.name, file, what, remedy)
    }

    /// The submission with its faults, or why it cannot be shown.
    fn judged(&self) -> Result<(Published, Vec<Problem>), Problem> {
        let unreadable = |file: &str, why: String| self.problem(file, self.without_place(&why), REPACK);
        let submitted =
            saved::json(&self.directory.join(REPORT)).map_err(|why| unreadable(REPORT, why.to_string()))?;
        let submitted = submitted.unwrap_or_default();
        let recorded = report::read(submitted.clone()).map_err(|why| unreadable(REPORT, why))?;
        let is_retired = self.is_retired()?;
        let judged = measure::collection::judged(self.directory);
        let (judged, evidence) = match judged {
            Ok((report, evidence)) => (Ok(report), evidence),
            Err(why) if is_retired => (Err(self.without_place(&why.to_string())), Evidence::default()),
            Err(why) => return Err(unreadable(SAMPLES, why.to_string())),
        };
        let difference = match &judged {
            Ok(judged) => first_difference(&submitted, judged),
            Err(why) => Some(why.clone()),
        };
        let mut problems = Vec::new();
        let (report, retired) = match (difference, judged) {
            (Some(_), judged) if is_retired => (recorded, Some(judged.map(Box::new))),
            (Some(what), _) => {
                let rules = other_rules(&recorded).unwrap_or_default();
                problems.push(self.problem(REPORT, format!("{what}{rules}"), REJUDGE));
                (recorded, None)
            }
            (None, judged) => {
                if is_retired {
                    let what = "it is listed as retired, and today's rules judge it as its report does";
                    problems.push(self.problem(
                        REPORT,
                        what,
                        &format!("take it out of [retired] in {TIERS}"),
                    ));
                }
                (judged.unwrap_or(recorded), None)
            }
        };
        problems.extend(self.unfit(&report));
        problems.extend(self.foreign_weights(&report, &evidence));
        let report = Report { results: self.name.to_owned(), ..report };
        let tier = self.tiers.tier(self.name);
        Ok((Published { name: self.name.to_owned(), report, evidence, tier, retired }, problems))
    }

    /// Whether it was accepted under earlier rules, and has not changed since.
    fn is_retired(&self) -> Result<bool, Problem> {
        let Some(accepted) = self.tiers.retired.get(self.name) else { return Ok(false) };
        let sums = bundle::sha256_of(&self.directory.join(SUMS));
        if sums.as_ref().ok() == Some(accepted) {
            return Ok(true);
        }
        let what = format!("its sha256 is not the one in {TIERS}: it was changed after it was accepted");
        Err(self.problem(SUMS, what, "restore the files that were accepted"))
    }

    /// The reasons not to publish a run, whatever its figures.
    fn unfit(&self, report: &Report) -> Vec<Problem> {
        let Report { environment, plan, model, .. } = report;
        let mut problems = Vec::new();
        let mut add =
            |file: &str, what: String, remedy: &str| problems.push(self.problem(file, what, remedy));
        if version(&environment.driver_version) > version(env!("CARGO_PKG_VERSION")) {
            let what =
                format!("it was measured by Photofinish {}, which is newer", environment.driver_version);
            add(ENVIRONMENT, what, "check it with that version");
        }
        if environment.git_modified == Some(true) {
            let what = "it was measured by a checkout with changes, which cannot be repeated".to_owned();
            add(ENVIRONMENT, what, "commit the changes, or use a release, and measure again");
        }
        if plan.request.quick {
            add(PLAN, "it is a first look (--quick)".into(), "measure again without --quick");
        }
        let labels = plan.contenders.iter().map(|contender| contender.label.as_str());
        for named in labels.chain([model.name.as_str(), plan.model.as_str()]) {
            if named.contains("..") || named.contains('\\') || named.starts_with(['/', '.']) {
                let what = format!("a contender or model is named {named:?}, which is a path");
                add(PLAN, what, "measure a release, or a revision that others can fetch");
            }
        }
        if report.interrupted {
            add(SAMPLES, "the run was interrupted".into(), "measure it to its end");
        }
        if report.pairs().is_empty() {
            add(REPORT, "no two contenders have figures".into(), "submit a comparison");
        }
        problems
    }

    /// Weights that this program hashed before the run, and that the bundle's manifest does not name.
    fn foreign_weights(&self, report: &Report, evidence: &Evidence) -> Option<Problem> {
        let known = &report.model.manifest.files;
        let is_known = |sha256: &str| known.values().any(|record| record.sha256 == sha256);
        let (_, foreign) = evidence.hashed.iter().find(|(_, sha256)| !is_known(sha256))?;
        let what = format!("the weights have sha256 {foreign}, which the bundle's manifest does not name");
        Some(self.problem(SAMPLES, what, "measure again with a bundle that `prepare` made"))
    }

    /// A message without the collection's path on this machine.
    fn without_place(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.directory.display()), "")
            .replace(&self.directory.display().to_string(), "it")
    }
}

/// A sentence on the rules that a report was judged by, if they are not today's.
fn other_rules(recorded: &Report) -> Option<String> {
    let today = report::fairness::ids();
    let theirs: Vec<&str> = recorded.rules.iter().map(|rule| rule.id.as_str()).collect();
    (theirs != today)
        .then(|| format!(" (it was judged by {} rules, and today there are {})", theirs.len(), today.len()))
}

/// The numbers of a version.
fn version(text: &str) -> Vec<u64> {
    text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
}
