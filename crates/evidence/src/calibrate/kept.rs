//! Rounds that were measured, as the product computes their figures, to be drawn from: a test of the statistics on the
//! noise of real machines. Contenders are made equal: the figures of each are divided by their geometric mean.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use comparison::facts::evidence::{Evidence, Fact};
use comparison::judge::{Metric, metrics};
use comparison::plan::{Plan, Schedule};
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use statistics::{Decision, Looks, Series, Settings, decide};

use crate::calibrate::simulated::pairs;

type Figures = Vec<Vec<f64>>;

/// A comparison whose rounds are drawn from.
#[derive(Debug)]
pub struct Kept {
    pub name: String,
    pub contenders: usize,
    pub rounds: usize,
    pub questions: Vec<Question>,
}

#[derive(Debug)]
pub struct Question {
    pub metric: Metric,
    /// Whether it is a question of the answer.
    pub is_asked: bool,
    share: f64,
    takes_turns: bool,
    all: Figures,
    /// The same of each prompt, if there are several.
    prompts: Vec<Figures>,
}

/// What is done to the rounds that are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Play {
    pub rounds: usize,
    /// Whether contenders exchange their figures at random in each round: they are equal in every state of the machine
    /// then, while otherwise they are so in the mean of all rounds.
    pub exchanged: bool,
    /// How many times as long the requests of the last contender take.
    pub slower: f64,
}

/// The decisions on one metric, by pair of contenders, the first named first.
pub type Decisions = Vec<Option<Decision>>;

impl Kept {
    /// Reads a results directory. `COMMIT:DIRECTORY`: the journal that it had at a commit, with the plan that it has today
    /// (the form of plans has changed since).
    pub fn read(place: &str) -> Result<Kept> {
        let directory = place.split_once(':').map_or(place, |(_, directory)| directory);
        let (plan, journal) = (file(directory, "plan.json")?, file(place, "samples.jsonl")?);
        let plan: Plan = serde_json::from_str(&plan).with_context(|| format!("the plan of {place}"))?;
        let facts = journal.lines().map(|line| Fact::read(line).map_err(anyhow::Error::msg));
        let facts =
            facts.collect::<Result<Vec<Fact>>>().with_context(|| format!("the journal of {place}"))?;
        Kept::new(place, &plan, &Evidence::from_facts(facts).rejudged(&plan))
    }

    fn new(place: &str, plan: &Plan, evidence: &Evidence) -> Result<Kept> {
        let kind = plan.work.kind();
        let mut metrics = Metric::tested(kind);
        metrics.retain(|metric| metric.follows(kind).is_none() && metric.depends_on_speed());
        let labels: Vec<&str> = plan.contenders.iter().map(|contender| contender.label.as_str()).collect();
        let of = |figures: &dyn Fn(&str) -> Vec<Option<f64>>| -> Vec<Vec<Option<f64>>> {
            labels.iter().map(|label| figures(label)).collect()
        };
        let cases = plan.work.cases();
        let typical = |metric, cases: std::ops::Range<usize>| {
            of(&|label| metrics::typical(metric, cases.clone(), plan, evidence, label))
        };
        let mut questions = Vec::new();
        for metric in metrics {
            let in_turns = plan.schedule == Schedule::Interleaved && metric.is_of_requests();
            let all = match metric.is_of_requests() {
                true => typical(metric, 0..cases),
                false => of(&|label| metrics::by_round(metric, plan, evidence, label)),
            };
            let by_prompt = metric.is_of_requests() && cases > 1;
            let prompts = (0..cases).filter(|_| by_prompt).map(|case| typical(metric, case..case + 1));
            let Some(all) = equal(all) else { bail!("{place} lacks figures of {}", metric.words()) };
            questions.push(Question {
                metric,
                is_asked: Metric::questions(kind).contains(&metric),
                share: metric.error_share(kind),
                takes_turns: in_turns,
                all,
                prompts: prompts.filter_map(equal).collect(),
            });
        }
        let rounds = questions.iter().map(|question| question.all[0].len()).min().unwrap_or(0);
        if rounds < 6 || labels.len() < 2 {
            bail!("{place} has {rounds} complete rounds of {} contenders", labels.len());
        }
        Ok(Kept { name: place.to_owned(), contenders: labels.len(), rounds, questions })
    }

    pub fn pairs(&self) -> Vec<(usize, usize)> {
        pairs(self.contenders)
    }

    /// A comparison of rounds that are drawn with replacement, as the product decides it. By question.
    pub fn play(&self, play: &Play, seed: u64) -> Vec<Decisions> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let drawn: Vec<(usize, Vec<usize>)> = (0..play.rounds)
            .map(|_| {
                let mut labels: Vec<usize> = (0..self.contenders).collect();
                let round = random.random_range(0..self.rounds);
                if play.exchanged {
                    labels.shuffle(&mut random);
                }
                (round, labels)
            })
            .collect();
        let questions: Vec<Drawn> =
            self.questions.iter().map(|question| question.drawn(&drawn, play.slower)).collect();
        let pairs = self.pairs();
        let series = questions.iter().flat_map(|drawn| pairs.iter().map(|&(a, b)| drawn.series(a, b)));
        let family: Vec<Series<'_>> = series.collect();
        let settings = Settings { seed, ..Settings::default() };
        let decisions = decide(&family, &Looks::fixed(play.rounds), true, &settings);
        decisions.chunks(pairs.len()).map(<[Option<Decision>]>::to_vec).collect()
    }
}

struct Drawn<'a> {
    question: &'a Question,
    all: Vec<Vec<Option<f64>>>,
    prompts: Vec<Vec<Vec<Option<f64>>>>,
}

impl Question {
    fn drawn(&self, rounds: &[(usize, Vec<usize>)], slower: f64) -> Drawn<'_> {
        let last = self.all.len() - 1;
        let factor =
            |contender: usize| match (contender == last && self.is_asked, self.metric.higher_is_better()) {
                (false, _) => 1.0,
                (true, true) => slower.recip(),
                (true, false) => slower,
            };
        let of = |figures: &Figures| -> Vec<Vec<Option<f64>>> {
            let contender = |it: usize| {
                rounds.iter().map(|(round, labels)| Some(factor(it) * figures[labels[it]][*round])).collect()
            };
            (0..figures.len()).map(contender).collect()
        };
        Drawn { question: self, all: of(&self.all), prompts: self.prompts.iter().map(of).collect() }
    }
}

impl Drawn<'_> {
    /// In the sense "how many times better is a", as the product compares.
    fn series(&self, a: usize, b: usize) -> Series<'_> {
        let Question { metric, share, takes_turns, .. } = self.question;
        let state = if *takes_turns { statistics::state(&self.all, a, b) } else { Vec::new() };
        let (a, b) = if metric.higher_is_better() { (a, b) } else { (b, a) };
        let log_ratio = |(x, y): (&Option<f64>, &Option<f64>)| Some(((*x)? / (*y)?).ln());
        let of_prompt =
            |figures: &Vec<Vec<Option<f64>>>| figures[a].iter().zip(&figures[b]).map(log_ratio).collect();
        let prompts = self.prompts.iter().map(of_prompt).collect();
        Series { a: &self.all[a], b: &self.all[b], state, prompts, layouts: 0, weight: *share }
    }
}

/// Complete rounds, with contenders whose geometric means are 1; `None` without any.
fn equal(figures: Vec<Vec<Option<f64>>>) -> Option<Figures> {
    let made_equal = |figures: Vec<Option<f64>>| {
        let figures: Vec<f64> = figures.into_iter().collect::<Option<_>>()?;
        let mean = statistics::geometric_mean(&figures)?;
        Some(figures.into_iter().map(|figure| figure / mean).collect())
    };
    figures.into_iter().map(made_equal).collect()
}

#[expect(clippy::disallowed_methods, reason = "git alone has the history")]
fn file(place: &str, name: &str) -> Result<String> {
    if !place.contains(':') {
        let path = Path::new(place).join(name);
        return std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()));
    }
    let output = Command::new("git").args(["show", &format!("{place}/{name}")]).output()?;
    if !output.status.success() {
        bail!("git has no {place}/{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
