//! One simulated comparison: rounds on a simulated machine in the driver's order, and the driver's loop for
//! more rounds.

use std::fmt;
use std::sync::{Arc, LazyLock};

use statistics::{
    BalancedOrder, DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, Decision, Looks, MIN_ROUNDS, Series, Settings, decide,
    settled,
};

use crate::figures::{DECIDING, METRICS, error_share};
use crate::machine::Machine;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rounds {
    Automatic,
    /// Automatic, and over before so many simulated seconds have passed.
    Within(f64),
    Fixed(usize),
}

impl Rounds {
    /// Shared, because their boundaries are slow to compute.
    pub fn looks(self) -> Arc<Looks> {
        static AUTOMATIC: LazyLock<Arc<Looks>> =
            LazyLock::new(|| Arc::new(Looks::automatic(DEFAULT_MAX_ROUNDS)));
        match self {
            Rounds::Automatic | Rounds::Within(_) => Arc::clone(&AUTOMATIC),
            Rounds::Fixed(rounds) => Arc::new(Looks::fixed(rounds)),
        }
    }

    /// Whether there is no time for another round after so many, which would end after so many seconds.
    fn are_out_of_time(self, rounds: usize, next_s: f64) -> bool {
        matches!(self, Rounds::Within(budget_s) if rounds >= MIN_ROUNDS && next_s > budget_s)
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rounds::Automatic => f.write_str("automatic"),
            Rounds::Within(budget_s) => write!(f, "within {budget_s} s"),
            Rounds::Fixed(rounds) => write!(f, "{rounds}"),
        }
    }
}

/// The true ratios, and how they are measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// How long each contender's requests take relative to the others'. Load, cold start and memory are alike.
    pub decode: Vec<f64>,
    pub machine: Machine,
    pub rounds: Rounds,
    /// Whether the figures of the others count as the state of the machine.
    pub by_state: bool,
}

/// How one ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub effort: Effort,
    /// Ratios by pair: how many times as fast the first would have decoded in this weather without noise; `None` without
    /// weather.
    pub truths: Vec<Option<f64>>,
    /// By metric, then by pair of contenders: `[METRICS][pairs]`.
    pub table: Vec<Option<Decision>>,
}

/// The cost of a comparison.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effort {
    pub rounds: usize,
    /// On the simulated clock; 0 where the machine has none.
    pub seconds: f64,
}

impl Comparison {
    /// The decisions on the deciding metric, by pair.
    pub fn deciding(&self) -> &[Option<Decision>] {
        deciding(&self.table)
    }
}

impl Scenario {
    /// Contenders of which the last takes `ratio` times as long as the others.
    pub fn new(contenders: usize, ratio: f64, machine: Machine, rounds: Rounds) -> Self {
        let mut decode = vec![1.0; contenders];
        decode[contenders - 1] = ratio;
        Self { decode, machine, rounds, by_state: true }
    }

    /// Pairs of contenders, the first named first.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let contenders = self.decode.len();
        (0..contenders).flat_map(|a| (a + 1..contenders).map(move |b| (a, b))).collect()
    }

    /// Simulates one comparison as the driver runs it. `looks` are those of the scenario's rounds.
    pub fn compare(&self, looks: &Looks, seed: u64) -> Comparison {
        let settings = Settings { seed, significance: self.machine.significance(), ..Settings::default() };
        let mut table = Vec::new();
        let (effort, truths) = self.observe(looks, seed, |family, last| {
            table = decide(family, looks, last, &settings);
            settled(deciding(&table), DEFAULT_MARGIN)
        });
        Comparison { effort, truths, table }
    }

    /// Adds rounds and shows the table's series at each look, with whether it is the last, until `enough` says so or
    /// time is over. Where time is over at a look that was not enough, it is shown once more as the last. Also returns the
    /// [`Comparison::truths`].
    pub fn observe(
        &self,
        looks: &Looks,
        seed: u64,
        mut enough: impl FnMut(&[Series<'_>], bool) -> bool,
    ) -> (Effort, Vec<Option<f64>>) {
        let contenders = self.decode.len();
        let (pairs, most) = (self.pairs(), looks.max_rounds());
        let mut machine = self.machine.start(&self.decode, most, seed);
        // Of each metric, each contender's figures by round.
        let mut figures = vec![vec![Vec::with_capacity(most); contenders]; METRICS.len()];
        let mut longest: f64 = 0.0;
        let mut orders = BalancedOrder::new(contenders, seed);
        let mut effort = Effort { rounds: 0, seconds: 0.0 };
        loop {
            let order = orders.next().unwrap_or_default();
            for (contender, process) in machine.round(&order).into_iter().enumerate() {
                for (figures, figure) in figures.iter_mut().zip(process) {
                    figures[contender].push(Some(figure));
                }
            }
            longest = longest.max(machine.seconds() - effort.seconds);
            effort = Effort { rounds: effort.rounds + 1, seconds: machine.seconds() };
            let planned = effort.rounds == most;
            let last = planned || self.rounds.are_out_of_time(effort.rounds, effort.seconds + longest);
            let is_look = looks.is_look(effort.rounds);
            if !is_look && !last {
                continue;
            }
            let family = family(&figures, &pairs, self.by_state && self.machine.shows_state());
            let clear = is_look && enough(&family, planned);
            if last && !planned && !clear {
                enough(&family, true);
            }
            if last || clear {
                let truth = |&(a, b): &(usize, usize)| machine.truth(a, b, effort.rounds);
                return (effort, pairs.iter().map(truth).collect());
            }
        }
    }
}

/// The hypotheses of the table, by metric and then by pair, with their shares of its error rate.
fn family<'a>(
    figures: &'a [Vec<Vec<Option<f64>>>],
    pairs: &[(usize, usize)],
    shows_state: bool,
) -> Vec<Series<'a>> {
    let state = |metric: usize, a: usize, b: usize| match shows_state && METRICS[metric].is_of_requests() {
        true => statistics::state(&figures[metric], a, b),
        false => Vec::new(),
    };
    let of_metric = |metric: usize| pairs.iter().map(move |&pair| (metric, pair));
    let series = |(metric, (a, b)): (usize, (usize, usize))| Series {
        a: &figures[metric][a],
        b: &figures[metric][b],
        state: state(metric, a, b),
        weight: error_share(metric),
    };
    (0..figures.len()).flat_map(of_metric).map(series).collect()
}

fn deciding(table: &[Option<Decision>]) -> &[Option<Decision>] {
    let pairs = table.len() / METRICS.len();
    &table[DECIDING * pairs..(DECIDING + 1) * pairs]
}
