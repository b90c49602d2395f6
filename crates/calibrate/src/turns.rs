//! Processes on a machine with changing memory bandwidth, and a clock.
//!
//! All work of a process takes longer while there is half of the bandwidth. The time is then multiplied by
//! the process's own noise, the request's, and the contender's true ratio.

use std::fmt;

use engine_mock::{Noise, ProcessNoise};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::bandwidth_drift::{Climate, Weather};
use crate::figures::{Figures, METRICS, PROMPT};
use crate::study::seed_of;

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

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Sequential => f.write_str("sequential"),
            Schedule::Interleaved { blocks, slices: 1 } => write!(f, "interleaved, {blocks} blocks"),
            Schedule::Interleaved { blocks, slices } => {
                write!(f, "interleaved, {blocks} blocks in slices, {slices} a request")
            }
        }
    }
}

/// The machine in the course of one comparison.
pub(crate) struct Turns<'a> {
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

impl<'a> Turns<'a> {
    pub(crate) fn new(
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

    pub(crate) fn seconds(&self) -> f64 {
        self.now
    }

    pub(crate) fn round(&mut self, order: &[usize]) -> Vec<Figures> {
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
