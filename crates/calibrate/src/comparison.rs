//! One simulated comparison: rounds on a simulated machine in the driver's order, and the driver's loop for
//! more rounds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use statistics::{
    BalancedOrder, DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, Decision, Looks, MIN_ROUNDS, Series, Settings, decide,
    settled,
};

use crate::figures::{ANSWER, METRICS, THROUGHPUT, error_share};
use crate::machine::Machine;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rounds {
    /// Until the answer is clear, and as many at most.
    Automatic(usize),
    /// Automatic, and over before so many simulated seconds have passed.
    Within(f64),
    Fixed(usize),
}

impl Rounds {
    /// When the evidence is looked at. `allowed`: the rounds that the time has room for, once they are known.
    pub fn looks(self, allowed: Option<usize>) -> Arc<Looks> {
        type Known = Mutex<BTreeMap<(bool, usize), Arc<Looks>>>;
        /// Shared, because their boundaries are slow to compute.
        static KNOWN: Known = Mutex::new(BTreeMap::new());
        let most = self.most(allowed);
        let is_fixed = matches!(self, Rounds::Fixed(_));
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let looks = known.entry((is_fixed, most));
        let make = || Arc::new(if is_fixed { Looks::fixed(most) } else { Looks::automatic(most) });
        Arc::clone(looks.or_insert_with(make))
    }

    /// The most rounds there may be.
    fn most(self, allowed: Option<usize>) -> usize {
        match self {
            Rounds::Automatic(most) | Rounds::Fixed(most) => most,
            Rounds::Within(_) => {
                allowed.map_or(DEFAULT_MAX_ROUNDS, |allowed| allowed.clamp(MIN_ROUNDS, DEFAULT_MAX_ROUNDS))
            }
        }
    }

    /// The rounds that the time has room for, by the time of those so far.
    fn allowed(self, so_far: Effort, longest: f64) -> Option<usize> {
        let Rounds::Within(budget_s) = self else { return None };
        let more = ((budget_s - so_far.seconds) / longest).max(0.0);
        Some(so_far.rounds + more as usize)
    }

    /// Whether there is no time for another round after so many, which would end after so many seconds.
    fn are_out_of_time(self, rounds: usize, next_s: f64) -> bool {
        matches!(self, Rounds::Within(budget_s) if rounds >= MIN_ROUNDS && next_s > budget_s)
    }
}

impl fmt::Display for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rounds::Automatic(most) => write!(f, "≤ {most}"),
            Rounds::Within(budget_s) => write!(f, "{budget_s} s"),
            Rounds::Fixed(rounds) => write!(f, "{rounds}"),
        }
    }
}

/// The true ratios, and how they are measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// How long each contender's requests take relative to the others'. Load and cold start are alike.
    pub decode: Vec<f64>,
    pub machine: Machine,
    pub rounds: Rounds,
}

/// How one ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub effort: Effort,
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
    /// The decisions on one metric, by pair.
    pub fn decisions(&self, metric: usize) -> &[Option<Decision>] {
        let pairs = self.table.len() / METRICS.len();
        &self.table[metric * pairs..(metric + 1) * pairs]
    }

    /// The decisions on throughput, by pair.
    pub fn throughput(&self) -> &[Option<Decision>] {
        self.decisions(THROUGHPUT)
    }
}

impl Scenario {
    /// Contenders of which the last takes `ratio` times as long as the others.
    pub fn new(contenders: usize, ratio: f64, machine: Machine, rounds: Rounds) -> Self {
        let mut decode = vec![1.0; contenders];
        decode[contenders - 1] = ratio;
        Self { decode, machine, rounds }
    }

    /// Pairs of contenders, the first named first.
    pub fn pairs(&self) -> Vec<(usize, usize)> {
        let contenders = self.decode.len();
        (0..contenders).flat_map(|a| (a + 1..contenders).map(move |b| (a, b))).collect()
    }

    /// Simulates one comparison as the driver runs it.
    pub fn compare(&self, seed: u64) -> Comparison {
        let settings = Settings { seed, significance: self.machine.significance(), ..Settings::default() };
        let mut table = Vec::new();
        let pairs = self.pairs().len();
        let effort = self.observe(seed, |family, looks, last| {
            table = decide(family, looks, last, &settings);
            settled(&table[pairs * ANSWER.start..pairs * ANSWER.end], DEFAULT_MARGIN)
        });
        Comparison { effort, table }
    }

    /// Adds rounds and shows the table's series at each look, with whether it is the last, until there may be no more or
    /// `enough` says so.
    pub fn observe(&self, seed: u64, mut enough: impl FnMut(&[Series<'_>], &Looks, bool) -> bool) -> Effort {
        let contenders = self.decode.len();
        let pairs = self.pairs();
        let mut looks = self.rounds.looks(None);
        let mut machine = self.machine.start(&self.decode, looks.max_rounds(), seed);
        // Of each metric, each contender's figures by round.
        let mut figures = vec![vec![Vec::new(); contenders]; METRICS.len()];
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
            if effort.rounds == 2 {
                looks = self.rounds.looks(self.rounds.allowed(effort, longest));
            }
            let last = effort.rounds == looks.max_rounds()
                || self.rounds.are_out_of_time(effort.rounds, effort.seconds + longest);
            if !looks.is_look(effort.rounds) && !last {
                continue;
            }
            let family = family(&figures, &pairs, self.machine.takes_turns());
            if enough(&family, &looks, last) || last {
                return effort;
            }
        }
    }
}

/// The hypotheses of the table, by metric and then by pair, with their shares of its error rate.
fn family<'a>(
    figures: &'a [Vec<Vec<Option<f64>>>],
    pairs: &[(usize, usize)],
    takes_turns: bool,
) -> Vec<Series<'a>> {
    let series = |(metric, (a, b)): (usize, (usize, usize))| {
        let mut series = Series::new(&figures[metric][a], &figures[metric][b], error_share(metric));
        if takes_turns && METRICS[metric].is_of_requests() {
            series.state = statistics::state(&figures[metric], a, b);
        }
        series
    };
    let of_metric = |metric: usize| pairs.iter().map(move |&pair| (metric, pair));
    (0..figures.len()).flat_map(of_metric).map(series).collect()
}
