//! `photofinish bisect`: finds the commit of a framework that made it slower, by verdicts.
//!
//! Each commit is measured with the good and the bad one, interleaved: it is bad if it is worse than the good
//! one, and good if it is better than the bad one, so that both answers need a difference that was found.

mod search;

use std::path::Path;

use judge::Report;
use judge::metrics::Metric;
use judge::report::verdicts::{Comparison, Verdict};
use measure::native::{self, failure};
use measure::{Places, interrupt, provision};
use plan::{Arm, Engines, Failure, Result, RoundsAsked};
use render::comparison::verdict;
use setup::versions::{Commit, Repository};
use statistics::MIN_ROUNDS;

use self::search::{Outcome, Search};
use super::measured::{Destination, ended, measure, results_dir};
use crate::cli::BisectArgs;
use crate::output::print;

/// Names of the two known commits in tables and sentences.
const GOOD: &str = "good";
const BAD: &str = "bad";
/// The length of a measurement: the first, and the second if the first decided nothing.
const LENGTHS: [Length; 2] = [Length::Fewest, Length::AsAsked];
/// Exit code if commits could not be distinguished: that of a check that cannot be measured.
const OPEN: u8 = 3;

pub(crate) fn bisect(args: &BisectArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = args.here.places.find()?;
    let metric = Metric::parse(&args.metric)
        .ok_or_else(|| Failure::usage(format!("there is no metric {:?}", args.metric)))?;
    let at = |directory: &Path| Repository::at(directory).map_err(|error| failure(&error));
    let directory = Path::new(&args.bad);
    let (repository, bad) = match directory.is_dir() {
        true => (at(directory)?, "HEAD"),
        false => (at(Path::new("."))?, args.bad.as_str()),
    };
    let commit = |revision: &str| repository.commit(revision).map_err(|error| failure(&error));
    let (good, bad) = (commit(&args.good)?, commit(bad)?);
    let commits = repository.between(&good, &bad).map_err(|error| failure(&error))?;
    if commits.is_empty() {
        return Err(Failure::usage(format!(
            "no commit leads from {} to {}: exchange them, or name others",
            args.good, args.bad
        )));
    }
    if repository.is_modified().map_err(|error| failure(&error))? {
        untrusted::say!(
            "warning: {} has changes that are not committed; they have no part in this",
            repository.root()
        );
    }
    let mut bisection = Bisection { args, places: &places, metric, repository, good, bad, figure: None };
    bisection.run(&commits)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Length {
    /// The fewest rounds that can decide: most commits are far from one of the two that they are compared with.
    Fewest,
    /// The requested number of rounds, in its time budget.
    AsAsked,
}

struct Bisection<'a> {
    args: &'a BisectArgs,
    places: &'a Places,
    metric: Metric,
    repository: Repository,
    good: String,
    bad: String,
    /// How the last bad commit differs from the good one.
    figure: Option<String>,
}

impl Bisection<'_> {
    fn run(&mut self, commits: &[String]) -> Result<u8> {
        let mut search = Search::new(commits.len());
        self.say(&format!(
            "{} commits, about {} of which are built and measured",
            commits.len(),
            2 + search.missing()
        ));
        if !self.differ()? {
            let (metric, good, bad) = (self.metric.words(), self.short(&self.good)?, self.short(&self.bad)?);
            print(&format!(
                "No difference was found in {metric} between {good} and {bad}: there is nothing to search for.\n"
            ))?;
            return Ok(OPEN);
        }
        while let Some(number) = search.next() {
            let commit = &commits[number];
            let outcome = self.outcome(commit)?;
            search.record(number, outcome);
            let word = match outcome {
                Outcome::Good => "good",
                Outcome::Bad => "bad",
                Outcome::Skipped => "left out",
            };
            self.say(&format!("{}: {word}; about {} to go", self.short(commit)?, search.missing()));
        }
        let left = &commits[search.left()];
        self.tell(left)
    }

    /// Whether the bad commit is worse than the good one.
    fn differ(&mut self) -> Result<bool> {
        for commit in [&self.good, &self.bad] {
            if let Some(reason) = self.unbuilt(commit)? {
                return Err(Failure::failed(reason));
            }
        }
        for length in LENGTHS {
            let report = self.measured(None, length)?;
            if let Some(found) = worse(&report, self.metric, BAD, GOOD) {
                self.figure = Some(verdict(&report, found));
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn outcome(&mut self, commit: &str) -> Result<Outcome> {
        if let Some(reason) = self.unbuilt(commit)? {
            self.say(&format!("{}: {reason}", self.short(commit)?));
            return Ok(Outcome::Skipped);
        }
        let label = self.short(commit)?;
        for length in LENGTHS {
            let report = self.measured(Some((&label, commit)), length)?;
            let [slow, fast] =
                [(label.as_str(), GOOD), (BAD, &label)].map(|(a, b)| worse(&report, self.metric, a, b));
            match (slow, fast) {
                (Some(slow), fast) if fast.is_none_or(|fast| slow.advantage >= fast.advantage) => {
                    self.figure = Some(verdict(&report, slow));
                    return Ok(Outcome::Bad);
                }
                (_, Some(_)) => return Ok(Outcome::Good),
                _ => {}
            }
        }
        self.say(&format!("{label}: it could not be distinguished from either"));
        Ok(Outcome::Skipped)
    }

    /// Builds a commit; why it could not be, in one sentence.
    fn unbuilt(&self, commit: &str) -> Result<Option<String>> {
        let engine = self.places.engine(&self.column(commit))?;
        provision::workers(self.places, std::slice::from_ref(&engine), self.args.here.quiet)?;
        Ok(native::absent(&engine))
    }

    /// Measures the good commit, the bad one, and perhaps another.
    fn measured(&self, other: Option<(&str, &str)>, length: Length) -> Result<Report> {
        let mut request = self.args.request.request();
        let columns = [Some((GOOD, self.good.as_str())), other, Some((BAD, self.bad.as_str()))];
        let arm = |(label, commit): (&str, &str)| Arm {
            label: label.to_owned(),
            engine: self.column(commit),
            ..Arm::default()
        };
        request.study.arms = columns.into_iter().flatten().map(arm).collect();
        if length == Length::Fewest {
            request.rounds = Some(RoundsAsked::Fixed(MIN_ROUNDS as u32));
        }
        let results = results_dir(self.args.results_dir.as_ref(), self.places);
        let destination = Destination { parent: &results, history: &results, quiet: self.args.here.quiet };
        let (report, unsaved) = measure(&request, self.places, &destination)?;
        ended(&report, unsaved)?;
        Ok(report)
    }

    fn column(&self, commit: &str) -> String {
        format!("{}@{}", self.args.framework, self.repository.version(commit))
    }

    /// Prints the first bad commit, or the commits that it may be.
    fn tell(&self, left: &[String]) -> Result<u8> {
        let Some((last, others)) = left.split_last() else {
            return Err(Failure::failed("no commit is left"));
        };
        let mut text = String::new();
        if others.is_empty() {
            text += &format!("The first bad commit is {}\n", self.told(last)?);
        } else {
            text += "The first bad commit is one of these, of which only the last could be tested:\n";
            for commit in left {
                text += &format!("  {}\n", self.told(commit)?);
            }
        }
        text += &self.figure.as_ref().map_or(String::new(), |figure| format!("{figure}\n"));
        let parent = self.repository.commit(&format!("{}^", left[0])).map_err(|error| failure(&error))?;
        let (before, after) = (self.column(&parent), self.column(last));
        text += &format!("To repeat it: photofinish compare --frameworks '{before},{after}'\n");
        print(&text)?;
        Ok(if others.is_empty() { 0 } else { OPEN })
    }

    fn told(&self, commit: &str) -> Result<String> {
        let Commit { hash, subject } = self.commit(commit)?;
        Ok(format!("{hash} \"{}\"", untrusted::line(&subject)))
    }

    fn short(&self, commit: &str) -> Result<String> {
        Ok(self.commit(commit)?.hash)
    }

    fn commit(&self, commit: &str) -> Result<Commit> {
        self.repository.told(commit).map_err(|error| failure(&error))
    }

    fn say(&self, text: &str) {
        if !self.args.here.quiet {
            untrusted::say!("bisect: {text}");
        }
    }
}

/// The verdict by which `a` is worse than `b`, if that was found.
fn worse<'a>(report: &'a Report, metric: Metric, a: &str, b: &str) -> Option<&'a Comparison> {
    let is_it = |found: &&Comparison| {
        found.metric == metric && found.verdict == Verdict::Faster && found.a == b && found.b == a
    };
    report.comparisons.iter().find(is_it)
}
