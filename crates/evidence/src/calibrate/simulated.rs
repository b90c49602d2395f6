//! One simulated comparison: rounds on a simulated machine in the driver's order, and the driver's loop for
//! more rounds.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use engine_mock::{Noise, ProcessNoise};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use statistics::{
    BalancedOrder, DEFAULT_MARGIN, DEFAULT_MAX_ROUNDS, Decision, Looks, MIN_ROUNDS, SEQUENTIAL_SIGNIFICANCE,
    SIGNIFICANCE, Series, Settings, decide, settled,
};

use crate::calibrate::page::{ANSWER, Figures, METRICS, PROMPT, THROUGHPUT, error_share, seed_of};
use crate::calibrate::recorded::{Estimator, Half, Replay};
use crate::calibrate::uneven::{Climate, Sky, Uneven, Weather};

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

#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    pub effort: Effort,
    /// By metric, then by pair of contenders: `[METRICS][pairs]`.
    pub table: Vec<Option<Decision>>,
}

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
        pairs(self.decode.len())
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

/// Pairs of so many, the first named first.
pub(crate) fn pairs(contenders: usize) -> Vec<(usize, usize)> {
    (0..contenders).flat_map(|a| (a + 1..contenders).map(move |b| (a, b))).collect()
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

// The machine that simulated processes run on.

/// The origin of the noise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Machine {
    /// Processes vary as those of the mock do, and time does not matter but for drift and uneven weather. There is no
    /// clock.
    Even { noise: Noise, order: Order, uneven: Option<Uneven> },
    /// Memory bandwidth changes with time, and processes vary on top of that: `process` is σ of log-normal noise
    /// between processes. `last_depends`: how much the last contender's requests depend on bandwidth, as a power of the
    /// state's speed; those of the others do so fully.
    Changing { climate: Climate, last_depends: f64, process: f64, schedule: Schedule },
    /// A measured one: its rounds are replayed. There is no clock.
    Recorded { estimator: Estimator, half: Half },
}

/// A machine in the course of one comparison.
pub(crate) trait Running {
    /// Runs a round with its contenders in this order. Returns the figures of each contender.
    fn round(&mut self, order: &[usize]) -> Vec<Figures>;

    /// Simulated seconds so far; 0 without a clock.
    fn seconds(&self) -> f64 {
        0.0
    }
}

impl Machine {
    /// Whether contenders take turns, so that the others' figures show the state of the machine during a pair's requests.
    fn takes_turns(&self) -> bool {
        !matches!(self, Machine::Changing { schedule: Schedule::Sequential, .. })
    }

    /// The error rate of a table, as the product sets it.
    fn significance(&self) -> f64 {
        match self {
            Machine::Changing { schedule: Schedule::Sequential, .. } => SEQUENTIAL_SIGNIFICANCE,
            _ => SIGNIFICANCE,
        }
    }

    /// `decode` says how long each contender's requests take relative to the others', `most` how many rounds there may
    /// be.
    fn start<'a>(&self, decode: &'a [f64], most: usize, seed: u64) -> Box<dyn Running + 'a> {
        match *self {
            Machine::Even { noise, order, uneven } => {
                Box::new(Processes::new(decode, noise, order, uneven, most, seed))
            }
            Machine::Changing { climate, last_depends, process, schedule } => {
                Box::new(Turns::new(decode, (climate, last_depends), process, schedule, seed))
            }
            Machine::Recorded { estimator, half } => Box::new(Replay::new(decode, estimator, half, seed)),
        }
    }
}

// Processes with the noise of the mock, on a machine without a clock.

/// Decode steps of a process.
const STEPS: usize = 64;

/// The order of processes within the whole comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The driver's.
    Balanced,
    /// All rounds of one contender precede all rounds of the next. The calibration must detect the effect of
    /// drift on that.
    OneByOne,
}

/// The processes of one comparison.
struct Processes<'a> {
    decode: &'a [f64],
    noise: Noise,
    order: Order,
    sky: Option<Sky>,
    /// Rounds so far, and the most there may be.
    rounds: usize,
    most: usize,
    random: ChaCha8Rng,
}

impl<'a> Processes<'a> {
    fn new(
        decode: &'a [f64],
        noise: Noise,
        order: Order,
        uneven: Option<Uneven>,
        most: usize,
        seed: u64,
    ) -> Self {
        // Its own random numbers, so that it does not depend on the processes.
        let sky = uneven.map(|uneven| Sky::new(uneven, decode.len(), most, seed_of(seed, 0)));
        Self { decode, noise, order, sky, rounds: 0, most, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The figures of one process that takes `factor` times as long as usual; `started` at this share of the longest run.
    fn process(&mut self, contender: usize, factor: f64, started: f64) -> Figures {
        let (noise, random) = (self.noise, &mut self.random);
        let load = factor * noise.of_process(started, random).factor();
        let cold = factor * noise.of_process(started, random).factor();
        let decode = noise.of_process(started, random);
        let factor = factor * self.decode[contender];
        let first = factor * decode.of_step(0, random);
        let steps = (1..=STEPS).map(|step| factor * decode.of_step(step, random));
        let latency = steps.sum::<f64>() / STEPS as f64;
        [load, cold, latency.recip(), first, PROMPT * first + (1.0 - PROMPT) * latency]
    }
}

impl Running for Processes<'_> {
    fn round(&mut self, order: &[usize]) -> Vec<Figures> {
        let contenders = self.decode.len();
        let mut figures = vec![[0.0; METRICS.len()]; contenders];
        let factors = self.sky.as_mut().map_or(vec![1.0; contenders], |sky| sky.round(order));
        for (position, &contender) in order.iter().enumerate() {
            let started = match self.order {
                Order::Balanced => self.rounds * contenders + position,
                Order::OneByOne => contender * self.most + self.rounds,
            };
            let started = started as f64 / (self.most * contenders) as f64;
            figures[contender] = self.process(contender, factors[contender], started);
        }
        self.rounds += 1;
        figures
    }
}

// Processes on a machine with changing memory bandwidth, and a clock.
//
// All work of a process takes longer while there is half of the bandwidth. The time is then multiplied by
// the process's own noise, the request's, and the contender's true ratio.

/// Seconds at full bandwidth that a process takes before its first request: start and warm-up (less the cold
/// start's request, which is part of it), load, cold start. These and the next are as long as on the machine
/// with the replayed weather.
const START_S: f64 = 0.9;

const LOAD_S: f64 = 0.4;

const COLD_S: f64 = 0.5;

/// Seconds at full bandwidth of a request.
const REQUEST_S: f64 = 0.5;

/// Seconds at full bandwidth of the untimed request that a turn begins with, where others ran in between.
const LEAD_IN_S: f64 = 0.05;

/// Seconds at full bandwidth that a process takes to finish.
const FINISH_S: f64 = 0.5;

/// Requests of a process that has the machine to itself.
const REQUESTS: usize = 4;

/// σ of log-normal noise on each request.
const WITHIN: f64 = 0.02;

/// How the requests of a round follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Schedule {
    /// Each process from start to end before the next.
    Sequential,
    /// All processes start, one after another; blocks of one request of each follow, each block in a new
    /// random order; then all finish. With more than one slice, the requests of a block are interleaved, too:
    /// the prompt pass of each, then so many slices of decoding, each in a new random order.
    Interleaved { blocks: usize, slices: usize },
}

/// The machine in the course of one comparison.
struct Turns<'a> {
    decode: &'a [f64],
    /// How much the last contender's requests depend on bandwidth; those of the others do so fully.
    last_depends: f64,
    noise: Noise,
    schedule: Schedule,
    weather: Weather,
    /// Seconds since the comparison began.
    now: f64,
    random: ChaCha8Rng,
}

/// A process that has started.
struct Process {
    contender: usize,
    /// Seconds.
    load: f64,
    cold: f64,
    requests: Vec<Request>,
    /// The common noise of its requests.
    noise: ProcessNoise,
}

/// Seconds to the first token, and of each slice of decoding; without slices, of all decoding.
struct Request {
    first: f64,
    decode: Vec<f64>,
}

/// The figures of a request that are compared, or of each of its slices.
const FIGURES: [fn(&Request) -> Vec<f64>; 3] = [
    |request| request.decode.iter().map(|took| took.recip()).collect(),
    |request| vec![request.first],
    |request| vec![request.first + request.decode.iter().sum::<f64>()],
];

impl Running for Turns<'_> {
    fn seconds(&self) -> f64 {
        self.now
    }

    fn round(&mut self, order: &[usize]) -> Vec<Figures> {
        let processes = match self.schedule {
            Schedule::Sequential => order.iter().map(|&contender| self.alone(contender)).collect(),
            Schedule::Interleaved { blocks, slices } => self.together(order, blocks, slices),
        };
        let [throughputs, firsts, totals] = FIGURES.map(|figure| self.means(&processes, figure));
        let mut figures = vec![[0.0; METRICS.len()]; self.decode.len()];
        for (place, process) in processes.iter().enumerate() {
            figures[process.contender] =
                [process.load, process.cold, throughputs[place], firsts[place], totals[place]];
        }
        figures
    }
}

impl<'a> Turns<'a> {
    fn new(
        decode: &'a [f64],
        (climate, last_depends): (Climate, f64),
        process: f64,
        schedule: Schedule,
        seed: u64,
    ) -> Self {
        let noise = Noise { process, step: WITHIN, ..Noise::default() };
        // The weather has its own random numbers, so that it does not depend on the processes.
        let weather = Weather::new(climate, seed_of(seed, 0));
        let random = ChaCha8Rng::seed_from_u64(seed);
        Self { decode, last_depends, noise, schedule, weather, now: 0.0, random }
    }

    /// A process from start to end.
    fn alone(&mut self, contender: usize) -> Process {
        let mut process = self.start(contender);
        (0..REQUESTS).for_each(|_| self.request(&mut process));
        self.run(FINISH_S, 1.0);
        process
    }

    /// The processes of a round with interleaved requests.
    fn together(&mut self, order: &[usize], blocks: usize, slices: usize) -> Vec<Process> {
        let mut processes: Vec<Process> = order.iter().map(|&contender| self.start(contender)).collect();
        for _ in 0..blocks {
            self.block(&mut processes, slices);
        }
        processes.iter().for_each(|_| {
            self.run(FINISH_S, 1.0);
        });
        processes
    }

    /// A request of each process. The order of `processes` affects nothing but the order of turns.
    fn block(&mut self, processes: &mut [Process], slices: usize) {
        processes.shuffle(&mut self.random);
        for process in &mut *processes {
            self.run(LEAD_IN_S, 1.0);
            if slices == 1 {
                self.request(process);
            } else {
                let first = self.part(process, PROMPT);
                process.requests.push(Request { first, decode: Vec::new() });
            }
        }
        for _ in 0..if slices == 1 { 0 } else { slices } {
            processes.shuffle(&mut self.random);
            for process in &mut *processes {
                let part = self.part(process, (1.0 - PROMPT) / slices as f64);
                if let Some(request) = process.requests.last_mut() {
                    request.decode.push(part);
                }
            }
        }
    }

    fn start(&mut self, contender: usize) -> Process {
        self.run(START_S, 1.0);
        let mut timed = |work: f64| {
            let factor = self.noise.of_process(0.0, &mut self.random).of_step(1, &mut self.random);
            self.run(work, factor)
        };
        let (load, cold) = (timed(LOAD_S), timed(COLD_S));
        let noise = self.noise.of_process(0.0, &mut self.random);
        Process { contender, load, cold, requests: Vec::new(), noise }
    }

    fn request(&mut self, process: &mut Process) {
        let first = self.part(process, PROMPT);
        let decode = vec![self.part(process, 1.0 - PROMPT)];
        process.requests.push(Request { first, decode });
    }

    /// A share of a request's work. Returns the seconds it took.
    fn part(&mut self, process: &mut Process, share: f64) -> f64 {
        let noise = process.noise.of_step(1, &mut self.random);
        let factor = self.decode[process.contender] * noise;
        let is_last = process.contender + 1 == self.decode.len();
        self.run_with(REQUEST_S * share, factor, if is_last { self.last_depends } else { 1.0 })
    }

    /// Runs work that takes so many seconds at full bandwidth and without noise. Returns the seconds it took.
    fn run(&mut self, work: f64, factor: f64) -> f64 {
        self.run_with(work, factor, 1.0)
    }

    fn run_with(&mut self, work: f64, factor: f64, sensitivity: f64) -> f64 {
        let took = factor * self.weather.takes(self.now, work, sensitivity);
        self.now += took;
        took
    }

    /// A figure of each process by the method of the product. A process that ran alone took turns with nothing.
    fn means(&self, processes: &[Process], figures: fn(&Request) -> Vec<f64>) -> Vec<f64> {
        let of_turns = |processes: &[&Process]| {
            let block = |block: usize| {
                let of_block: Vec<Vec<f64>> =
                    processes.iter().map(|process| figures(&process.requests[block])).collect();
                let part = |part: usize| of_block.iter().map(|figures| figures[part].ln()).collect();
                (0..of_block[0].len()).map(part).collect::<Vec<Vec<f64>>>()
            };
            let turns: Vec<Vec<f64>> = (0..processes[0].requests.len()).flat_map(block).collect();
            let is_of_slices = turns.len() > processes[0].requests.len();
            let trimmed =
                if is_of_slices { statistics::TRIMMED_SLICES } else { statistics::TRIMMED_REQUESTS };
            statistics::of_turns(&turns, trimmed).into_iter().map(f64::exp)
        };
        match self.schedule {
            Schedule::Sequential => processes.iter().flat_map(|process| of_turns(&[process])).collect(),
            Schedule::Interleaved { .. } => of_turns(&processes.iter().collect::<Vec<_>>()).collect(),
        }
    }
}
